//! Whether the process of the host has ended.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::transport::wait_readable;

/// How long a host that closed its socket may take to be gone, in milliseconds: a process that dies closes its sockets
/// first and gives its memory back then.
const DYING_MS: u64 = 1_000;

/// The process at the other end of a socket, if it can be seen from here: not from another PID namespace.
#[derive(Debug)]
pub(super) struct HostProcess(Option<OwnedFd>);

impl HostProcess {
    /// Of a connected socket.
    pub(super) fn of(socket: impl AsFd) -> Self {
        let peer = socket_peercred(socket);
        Self(peer.and_then(|peer| pidfd_open(peer.pid, PidfdFlags::empty())).ok())
    }

    /// Whether it is known to have ended, so that nothing of it writes into the slab.
    pub(super) fn is_gone(&self) -> bool {
        self.0.as_ref().is_some_and(|process| wait_readable(process, DYING_MS).unwrap_or(false))
    }
}
