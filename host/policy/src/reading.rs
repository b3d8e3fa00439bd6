//! Reading what is new in the folder, before any of it is loaded: moments apart, so that files swapped together are read
//! together.

use crate::folder::{self, Contents, Found};
use crate::limits::POLICIES_MAX;
use crate::load_error::{LoadError, Refusal};
use crate::policy::Policy;
use crate::records::Records;

/// Bytes of new files held until they are loaded: hundreds of Rust policies. Beyond it a file is read again for that.
const BYTES_HELD_MAX: usize = 64 * 1024 * 1024;

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

/// Reads the files of all policies, in order.
pub(crate) fn all(found: &[Found], records: &mut Records<Policy>) -> Vec<FileRead> {
    let mut room = BYTES_HELD_MAX;
    let each = found.iter().enumerate();
    each.map(|(index, found)| read(found, index, records).within(&mut room)).collect()
}

fn read(found: &Found, index: usize, records: &mut Records<Policy>) -> FileRead {
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

    #[test]
    fn no_more_bytes_are_held_than_there_is_room_for() {
        let mut room = 10;
        let mut held = |bytes: usize| {
            let read = FileRead::New(Contents::new(vec![0; bytes], None)).within(&mut room);
            matches!(read, FileRead::New(_))
        };
        assert_eq!([6, 5, 4, 1].map(&mut held), [true, false, true, false]);
    }
}
