//! Whether the process of the host has ended.

use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::transport::{peer_process, wait_readable};

/// How long a host that closed its socket may take to be gone, in milliseconds, where nothing else is waited for: a
/// process that dies closes its sockets first and gives its memory back then.
pub(super) const DYING_MS: u64 = 1_000;

/// The process at the other end of a socket, if it can be seen from here: not from another PID namespace.
#[derive(Debug)]
pub(super) struct HostProcess(Option<OwnedFd>);

impl HostProcess {
    /// Of a connected socket.
    pub(super) fn of(socket: impl AsFd) -> Self {
        let pid = peer_process(socket).ok().and_then(|peer| Pid::from_raw(i32::try_from(peer.pid).ok()?));
        Self(pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()))
    }

    /// Whether it is known to have ended, so that nothing of it touches the slab.
    pub(super) fn is_gone_within(&self, wait_ms: u64) -> bool {
        self.0.as_ref().is_some_and(|process| wait_readable(process, wait_ms).unwrap_or(false))
    }
}
