//! Reading what is new in the folder, before any of it is loaded: moments apart, so that files swapped together are read
//! together.

use crate::folder::{self, Contents, Found};
use crate::limits::POLICIES_MAX;
use crate::load_error::{LoadError, Refusal};
use crate::policy::Policy;
use crate::records::Records;

/// Bytes of new files held until they are loaded: hundreds of Rust policies. Beyond it a file is read again for that.
const BYTES_HELD_MAX: usize = 64 * 1024 * 1024;

/// What a look at the folder reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All files.
    All,
    /// Only those whose refusal may end although they do not change: nothing in the folder did.
    Transient,
}

/// What reading one policy's files came to.
pub(crate) enum FileRead {
    /// In force already, or refused for good.
    Known,
    /// To be loaded.
    New(Contents),
    /// To be read again and loaded: what is new holds too many bytes already.
    NewAndLarge,
    /// Not even read.
    Refused(LoadError),
}

impl FileRead {
    /// Lets go of bytes for which there is no room.
    fn within(self, room: &mut usize) -> Self {
        match self {
            Self::New(contents) if contents.wasm.len() > *room => Self::NewAndLarge,
            Self::New(contents) => {
                *room -= contents.wasm.len();
                Self::New(contents)
            }
            other => other,
        }
    }
}

/// Reads the policies' files, in order.
pub(crate) fn files(scope: Scope, found: &[Found], records: &mut Records<Policy>) -> Vec<FileRead> {
    let mut room = BYTES_HELD_MAX;
    let each = found.iter().enumerate();
    each.map(|(index, found)| read(scope, found, index, records).within(&mut room)).collect()
}

fn read(scope: Scope, found: &Found, index: usize, records: &mut Records<Policy>) -> FileRead {
    if scope == Scope::Transient && records.is_settled(&found.name) {
        return FileRead::Known;
    }
    if index >= POLICIES_MAX {
        return FileRead::Refused(LoadError { file: found.file.clone(), reason: Refusal::TooManyPolicies });
    }
    match folder::read(found) {
        Err(error) => FileRead::Refused(error),
        Ok(contents) if records.see(found, &contents.key) => FileRead::New(contents),
        Ok(_) => FileRead::Known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn no_more_bytes_are_held_than_there_is_room_for() {
        let mut room = 10;
        let mut held = |bytes: usize| {
            let read = FileRead::New(Contents::new(vec![0; bytes], None)).within(&mut room);
            matches!(read, FileRead::New(_))
        };
        assert_eq!([6, 5, 4, 1].map(&mut held), [true, false, true, false]);
    }

    /// One link to nowhere must not have all refused files read again each second.
    #[test]
    fn a_look_at_what_is_transient_reads_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::new("main".to_owned());
        let refused = [
            ("good-since", Refusal::NoWorld),
            ("unreadable", Refusal::Unreadable("no such file".to_owned())),
            ("compiling", Refusal::StillCompiling),
        ];
        let mut found: Vec<_> = refused
            .map(|(name, reason)| {
                let file = folder.path().join(name).with_extension("wasm");
                fs::write(&file, b"\0asm and so on").unwrap();
                let settings_file = file.with_extension("toml");
                let found =
                    Found { name: name.to_owned(), file: file.clone(), settings_file, modified_ms: None };
                records.refuse(&found, None, LoadError { file, reason });
                found
            })
            .into();
        let file = folder.path().join("new.wasm");
        fs::write(&file, b"\0asm").unwrap();
        found.push(Found {
            name: "new".to_owned(),
            file: file.clone(),
            settings_file: file.with_extension("toml"),
            modified_ms: None,
        });
        let mut new = |scope| {
            let read = files(scope, &found, &mut records);
            read.iter().map(|read| matches!(read, FileRead::New(_))).collect::<Vec<_>>()
        };
        assert_eq!(new(Scope::Transient), [false, true, true, true]);
        assert_eq!(new(Scope::All), [true; 4]);
    }
}
