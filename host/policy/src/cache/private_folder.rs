//! A folder that nobody but this process's user can write or read, and the files in it.
//!
//! All is judged by what was opened, never by a path: between a look at a path and its use it may lead elsewhere.

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

/// Group and others may do nothing at all, lists of further rights included: the group's bits bound those.
const OTHERS: u32 = 0o077;
/// Group and others may write.
const OTHERS_WRITE: u32 = 0o022;
const FOLDER_MODE: u32 = 0o700;

/// An open folder that was found private.
#[derive(Debug)]
pub(super) struct PrivateFolder(OwnedFd);

/// What is against a folder or a file, as a clause after its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It is not there.
    Missing,
    /// It is not to be trusted, or not whole.
    Refused(String),
    /// The file system says no.
    Failed(String),
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT => Self::Missing,
            Errno::LOOP => Self::Refused("is a link".to_owned()),
            Errno::NOTDIR => Self::Refused("is not a folder".to_owned()),
            error => Self::Failed(std::io::Error::from(error).to_string()),
        }
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A file of the folder.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Last change, seconds since the Unix epoch.
    pub(super) modified_s: i64,
}

impl PrivateFolder {
    /// Makes it, if it is not there, and opens it.
    pub(super) fn make(path: &Path) -> Result<Self, Trouble> {
        match Self::open(path) {
            Err(Trouble::Missing) => {
                DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
                Self::open(path)
            }
            opened => opened,
        }
    }

    pub(super) fn open(path: &Path) -> Result<Self, Trouble> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|error| if is_link(path) { linked() } else { error.into() })?;
        let stat = rustix::fs::fstat(&folder)?;
        check_owner(&stat)?;
        if stat.st_mode & OTHERS != 0 {
            let mode = stat.st_mode & 0o7777;
            return Err(Trouble::Refused(format!(
                "may be used by others (mode {mode:o}); run `chmod 700` on it"
            )));
        }
        Ok(Self(folder))
    }

    /// The bytes of a file that only this user can have written, and which counts as used now.
    pub(super) fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, Trouble> {
        // Non-blocking: opening a pipe would wait for somebody to write to it.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Trouble::Refused("is not a regular file".to_owned()));
        }
        check_owner(&stat)?;
        if stat.st_mode & OTHERS_WRITE != 0 {
            return Err(Trouble::Refused(format!(
                "may be written by others (mode {:o})",
                stat.st_mode & 0o7777
            )));
        }
        let file = File::from(file);
        let too_large = |bytes: u64| Trouble::Refused(format!("has {bytes} bytes, more than {bytes_max}"));
        let length = file.metadata()?.size();
        if length > bytes_max {
            return Err(too_large(length));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0).saturating_add(1));
        // One byte more than allowed, for a file that grows while it is read.
        (&file).take(bytes_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(too_large(bytes.len() as u64));
        }
        // Only the order of removal depends on it, and a file system mounted to be read only refuses.
        let _ = rustix::fs::futimens(&file, &now());
        Ok(bytes)
    }

    /// Writes a file whole, or not at all, over one of that name. `staged` is a name of this moment alone.
    ///
    /// It is not forced to the disk: what a crash of the machine spoils is refused when it is read.
    pub(super) fn write(&self, name: &str, staged: &str, parts: &[&[u8]]) -> Result<(), Trouble> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, staged, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        let written = parts.iter().try_for_each(|part| file.write_all(part)).map_err(Trouble::from);
        let placed = written.and_then(|()| Ok(rustix::fs::renameat(&self.0, staged, &self.0, name)?));
        if placed.is_err() {
            // Best effort: what stays is removed when it is a day old.
            let _ = self.remove(staged);
        }
        placed
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), Trouble> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Its regular files.
    pub(super) fn list(&self) -> Result<Vec<Listed>, Trouble> {
        let mut listed = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            // It may be gone by now.
            let Ok(stat) = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                let bytes = u64::try_from(stat.st_size).unwrap_or(0);
                listed.push(Listed { name: name.to_owned(), bytes, modified_s: stat.st_mtime });
            }
        }
        Ok(listed)
    }
}

fn check_owner(stat: &Stat) -> Result<(), Trouble> {
    let (owner, us) = (stat.st_uid, rustix::process::geteuid().as_raw());
    if owner == us {
        return Ok(());
    }
    Err(Trouble::Refused(format!("belongs to user {owner}, and this host runs as {us}")))
}

/// For the sentence alone: a link was not opened.
fn is_link(path: &Path) -> bool {
    let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// Not followed: whoever may change it could have entries written and removed in any other folder of this user's.
fn linked() -> Trouble {
    Trouble::Refused("is a link; name the folder that it leads to in `policy.cache_dir`".to_owned())
}

fn now() -> Timestamps {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}
