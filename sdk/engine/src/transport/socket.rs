//! Waiting for, reading and writing a socket that never blocks, with descriptors beside the bytes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};

use super::clock::Clock;

/// Descriptors that one read takes: one is right, the rest show that it was not one. The system closes more.
pub const MAX_DESCRIPTORS: usize = 4;

/// A moment after which nothing is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Until<'a> {
    clock: &'a dyn Clock,
    at_ms: u64,
}

impl<'a> Until<'a> {
    /// So many milliseconds from now.
    #[must_use]
    pub fn after(clock: &'a dyn Clock, ms: u64) -> Self {
        Self { clock, at_ms: clock.now_ms().saturating_add(ms) }
    }

    /// What is left, in milliseconds.
    #[must_use]
    pub fn left_ms(self) -> u64 {
        self.at_ms.saturating_sub(self.clock.now_ms())
    }

    fn wait(self, socket: BorrowedFd<'_>, flags: PollFlags) -> io::Result<()> {
        loop {
            let left_ms = self.left_ms();
            if left_ms == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if wait(socket, flags, left_ms)? {
                return Ok(());
            }
        }
    }
}

/// Waits up to `ms` for bytes, the end or an error. A signal may end the wait early.
///
/// # Errors
/// If the system cannot wait.
pub fn wait_readable(socket: impl AsFd, ms: u64) -> io::Result<bool> {
    wait(socket.as_fd(), PollFlags::IN, ms)
}

fn wait(socket: BorrowedFd<'_>, flags: PollFlags, ms: u64) -> io::Result<bool> {
    let seconds = i64::try_from(ms / 1_000).unwrap_or(i64::MAX);
    let timeout = Timespec { tv_sec: seconds, tv_nsec: ((ms % 1_000) * 1_000_000) as _ };
    match poll(&mut [PollFd::new(&socket, flags)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Writes what the socket takes at once: how many bytes.
///
/// # Errors
/// If the other side is gone.
pub fn send_some(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match send(&socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => return Ok(sent),
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes all bytes. The deadline is for all of them.
///
/// # Errors
/// If the other side is gone, or did not take them in time (`TimedOut`).
pub fn send_all(socket: impl AsFd, mut bytes: &[u8], until: Until<'_>) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(&socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::AGAIN) => until.wait(socket.as_fd(), PollFlags::OUT)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes all bytes, with descriptors beside the first of them.
///
/// # Errors
/// As [`send_all`].
pub fn send_with_descriptor(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
    until: Until<'_>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let sent = loop {
        let descriptors = [descriptor];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(sent) => break sent,
            Err(Errno::AGAIN) => until.wait(socket.as_fd(), PollFlags::OUT)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    send_all(socket, &bytes[sent..], until)
}

/// Reads up to `into.len()` bytes, and adds descriptors that came with them. Says how many bytes came, 0 at the end,
/// and whether descriptors were lost for want of room.
///
/// # Errors
/// If nothing came in time (`TimedOut`), or the socket is broken.
pub fn receive_with_descriptors(
    socket: impl AsFd,
    into: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    until: Until<'_>,
) -> io::Result<(usize, bool)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        match recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut control, flags) {
            Ok(received) => {
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(came) = message {
                        descriptors.extend(came);
                    }
                }
                return Ok((received.bytes, received.flags.contains(ReturnFlags::CTRUNC)));
            }
            Err(Errno::AGAIN) => until.wait(socket.as_fd(), PollFlags::IN)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
