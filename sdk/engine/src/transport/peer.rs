//! Who is at the other end of a socket, by the kernel's word.
#![allow(unsafe_code, reason = "one system call that rustix cannot make for all peers; all of it is here")]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

const SOL_SOCKET: c_int = 1;
const SO_PEERCRED: c_int = 17;

unsafe extern "C" {
    fn getsockopt(socket: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut u32) -> c_int;
}

/// A process as it was when it connected or listened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PeerProcess {
    /// Its process id as seen from here; 0 if it is in a PID namespace that cannot be seen from here, as the other
    /// containers of a pod are. (rustix has a type for it that must not be 0.)
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// The process at the other end of a connected unix socket.
///
/// # Errors
/// If it is no such socket.
pub fn peer_process(socket: impl AsFd) -> io::Result<PeerProcess> {
    let mut peer = PeerProcess::default();
    let mut len = size_of::<PeerProcess>() as u32;
    let value = (&raw mut peer).cast();
    // SAFETY: the descriptor is borrowed for the call; `value` is writable for `len` bytes, and any bytes make a
    // `PeerProcess`: it is the system's `ucred`, three 32-bit numbers.
    let status =
        unsafe { getsockopt(socket.as_fd().as_raw_fd(), SOL_SOCKET, SO_PEERCRED, value, &raw mut len) };
    if status == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_pair_made_here_is_of_this_process() {
        let (one, other) = UnixStream::pair().unwrap();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let this = PeerProcess { pid: std::process::id(), uid, gid };
        assert_eq!((peer_process(&one).unwrap(), peer_process(&other).unwrap()), (this, this));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(peer_process(&file).is_err(), "a file has no other end");
    }
}
