//! The socket in the file system: who may reach it, and whose it is.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Connections that the kernel keeps while the listener is busy.
const BACKLOG: i32 = 64;
/// Who may write a folder, beside its owner.
const OTHERS_WRITE: u32 = 0o022;

/// Why nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else could put another socket there.
    #[error("KV link: {} is writable by others (mode {mode:04o}): chmod 700 it, or use another folder", folder.display())]
    FolderOpen {
        /// The folder.
        folder: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Its owner could put another socket there.
    #[error("KV link: {} belongs to uid {owner}; use a folder of this user with mode 0700", folder.display())]
    FolderForeign {
        /// The folder.
        folder: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Another process listens there.
    #[error("KV link: another process listens at {}; stop it, or choose another path", path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// Something else lies there.
    #[error("KV link: {} exists and is no socket; remove it, or choose another path", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The system refused.
    #[error("KV link: {step} {} failed: {cause}", path.display())]
    System {
        /// Where.
        path: PathBuf,
        /// Which step.
        step: &'static str,
        /// What it said.
        cause: io::Error,
    },
}

/// A socket that listens, ours alone until dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub socket: OwnedFd,
    path: PathBuf,
    /// Held as long as this host may listen there. The file stays: to remove it would let two hosts have one each.
    _lock: OwnedFd,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Where it is gone already there is nothing to do.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Place {
    /// Listens at `path`. Other users reach the socket only if `for_others`: then the kernel's word on who connects is
    /// what keeps them out.
    pub fn take(path: &Path, for_others: bool) -> Result<Self, BindError> {
        let failed = |step| move |cause: io::Error| BindError::System { path: path.to_owned(), step, cause };
        check_folder(path, for_others)?;
        let lock = lock(path)?;
        remove_stale(path)?;
        let make = || {
            let address = SocketAddrUnix::new(path)?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            bind(&socket, &address)?;
            Ok::<_, io::Error>(socket)
        };
        let socket = make().map_err(failed("binding"))?;
        let place = Self { socket, path: path.to_owned(), _lock: lock };
        let mode = if for_others { 0o666 } else { 0o600 };
        std::fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(failed("setting the mode of"))?;
        // Only now can anybody connect.
        listen(&place.socket, BACKLOG).map_err(|cause| failed("listening at")(cause.into()))?;
        Ok(place)
    }
}

/// Whether what is there already would keep a host from listening at `path`. Makes nothing, and does not ask whose the
/// folder is: another user may be the one to listen.
///
/// # Errors
/// If others may write the folder, or something else lies there than a socket.
pub fn check_place(path: &Path) -> Result<(), BindError> {
    let folder = folder_of(path);
    match std::fs::metadata(folder) {
        Ok(found) => check_mode(folder, found.mode())?,
        // The last folder of the path is made at the start, those above it are not.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = folder_of(folder);
            std::fs::metadata(above).map_err(|cause| BindError::System {
                path: above.to_owned(),
                step: "looking at",
                cause,
            })?;
        }
        Err(cause) => {
            return Err(BindError::System { path: folder.to_owned(), step: "looking at", cause });
        }
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(BindError::NotASocket { path: path.to_owned() }),
        _ => Ok(()),
    }
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn check_mode(folder: &Path, mode: u32) -> Result<(), BindError> {
    if mode & OTHERS_WRITE == 0 {
        return Ok(());
    }
    Err(BindError::FolderOpen { folder: folder.to_owned(), mode: mode & 0o7777 })
}

fn check_folder(path: &Path, for_others: bool) -> Result<(), BindError> {
    let folder = folder_of(path);
    let failed = |step| move |cause| BindError::System { path: folder.to_owned(), step, cause };
    let mode = if for_others { 0o755 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("creating")(error)),
        _ => {}
    }
    let found = std::fs::metadata(folder).map_err(failed("looking at"))?;
    let is_trusted = found.uid() == rustix::process::geteuid().as_raw() || found.uid() == 0;
    if !is_trusted {
        return Err(BindError::FolderForeign { folder: folder.to_owned(), owner: found.uid() });
    }
    check_mode(folder, found.mode())
}

/// Two hosts that start at once must not both find the socket stale.
fn lock(path: &Path) -> Result<OwnedFd, BindError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let failed =
        |cause: Errno| BindError::System { path: path.to_owned(), step: "locking", cause: cause.into() };
    let file = rustix::fs::open(PathBuf::from(name), flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(BindError::InUse { path: path.to_owned() }),
        Err(cause) => Err(failed(cause)),
    }
}

/// Removes a socket that nobody answers.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let failed = |step| move |cause: io::Error| BindError::System { path: path.to_owned(), step, cause };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("looking at")(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    let ask = || {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        connect(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?, &address)
    };
    match ask() {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed("removing the stale socket")),
        // A full backlog is somebody too.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::InUse { path: path.to_owned() }),
        Err(cause) => Err(failed("asking who listens at")(cause.into())),
    }
}
