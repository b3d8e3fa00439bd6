//! One try to attach.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::slab::Slab;
use crate::transport::{Until, receive_with_descriptors, send_with_descriptor};
use crate::wire::{
    Answer, DecodeError, EncodeError, Hello, KvLayout, Preamble, Rank, Refusal, Role, VERSIONS, Welcome,
    read_answer, write_hello,
};

/// An engine, or one rank of it, as its host is to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// The name that the router knows it by: the same for all ranks and across restarts, and no other engine's.
    pub name: String,
    /// Larger than any number that an earlier process of this rank used: [`incarnation_now`] is.
    pub incarnation: u64,
    /// Which tensor-parallel rank.
    pub rank: Rank,
    /// What it does.
    pub role: Role,
    /// What it serves, as clients name it.
    pub model: String,
    /// How its KV lies.
    pub layout: KvLayout,
}

/// How long an engine's end waits, and what it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Until when the first attach is tried again, in milliseconds.
    pub attach_ms: u64,
    /// For one try: connecting and the host's answer, in milliseconds.
    pub try_ms: u64,
    /// For room to send, in milliseconds.
    pub send_ms: u64,
    /// Events that wait to be polled: at their longest, which hosts send rarely, 200 KB each.
    pub events: usize,
    /// Whether to attach again when the host is gone.
    pub reattach: bool,
}

impl Default for Settings {
    /// A host that starts needs some seconds; an engine's step must not wait long for one that is stuck.
    fn default() -> Self {
        Self { attach_ms: 30_000, try_ms: 2_000, send_ms: 100, events: 1_024, reattach: true }
    }
}

/// Why an engine is not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Nobody listens there.
    #[error("no host listens at {}: {cause}; start it, or correct the path", path.display())]
    NoHost {
        /// Where.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The host said no.
    #[error("the host at {} refuses this engine: {refusal}", path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// Its words.
        refusal: Refusal,
    },
    /// Whoever listens did not answer.
    #[error("no answer from {} ({cause})", path.display())]
    NoAnswer {
        /// Where.
        path: PathBuf,
        /// What happened instead.
        cause: io::Error,
    },
    /// What listens is no host.
    #[error("what listens at {} is no host of this protocol: {cause}", path.display())]
    NotAHost {
        /// Where.
        path: PathBuf,
        /// What is wrong with its answer.
        cause: DecodeError,
    },
    /// The host chose a version that this build does not speak.
    #[error("the host at {} chose version {version}, which was not offered: update the host", path.display())]
    Version {
        /// Where.
        path: PathBuf,
        /// Which.
        version: u16,
    },
    /// The engine's own description breaks a bound.
    #[error("this engine's description: {0}")]
    Description(#[from] EncodeError),
    /// The slab is smaller than the layout.
    #[error("the slab has {slab_bytes} bytes, its layout needs {needed_bytes}; make the slab larger")]
    SlabTooSmall {
        /// It has.
        slab_bytes: u64,
        /// It needs.
        needed_bytes: u64,
    },
    /// The system refused.
    #[error("{step} failed: {cause}")]
    System {
        /// Which step.
        step: &'static str,
        /// What it said.
        cause: io::Error,
    },
}

impl AttachError {
    /// Whether another try may end otherwise.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::NoHost { .. } | Self::NoAnswer { .. } => true,
            Self::Refused { refusal, .. } => refusal.code.is_passing(),
            _ => false,
        }
    }
}

/// The wall clock in nanoseconds: rises from one process of an engine to its next.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place of the SDK that reads the wall clock")]
pub fn incarnation_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Connects, says who comes with what, and waits for the answer.
pub(super) fn attach(
    path: &Path,
    engine: &Engine,
    incarnation: u64,
    slab: &Slab,
    until: Until<'_>,
) -> Result<(UnixStream, Welcome), AttachError> {
    let needed_bytes = engine.layout.rank_bytes().unwrap_or(u64::MAX);
    if slab.bytes() < needed_bytes {
        return Err(AttachError::SlabTooSmall { slab_bytes: slab.bytes(), needed_bytes });
    }
    let hello = write_hello(&Hello {
        versions: VERSIONS,
        name: engine.name.clone(),
        incarnation,
        rank: engine.rank,
        role: engine.role,
        model: engine.model.clone(),
        layout: engine.layout,
        slab_bytes: slab.bytes(),
    })?;
    let socket = connected(path)?;
    let sent = send_with_descriptor(&socket, &hello, slab.file(), until);
    match (answer(path, &socket, until), sent) {
        (Ok(Answer::Welcome(welcome)), Ok(())) => {
            if !(VERSIONS.oldest..=VERSIONS.newest).contains(&welcome.version) {
                return Err(AttachError::Version { path: path.to_owned(), version: welcome.version });
            }
            Ok((socket.into(), welcome))
        }
        // What a host says before it hangs up counts for more than that the hello did not reach it.
        (Ok(Answer::Refusal(refusal)), _) => Err(AttachError::Refused { path: path.to_owned(), refusal }),
        (Ok(_), Err(cause)) => Err(AttachError::NoAnswer { path: path.to_owned(), cause }),
        (Err(error), _) => Err(error),
    }
}

/// Never waits: a host that is behind with accepting is as one that is not there yet.
fn connected(path: &Path) -> Result<OwnedFd, AttachError> {
    let no_host =
        |cause: rustix::io::Errno| AttachError::NoHost { path: path.to_owned(), cause: cause.into() };
    let address = SocketAddrUnix::new(path).map_err(no_host)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|cause| AttachError::System { step: "making a socket", cause: cause.into() })?;
    connect(&socket, &address).map_err(no_host)?;
    Ok(socket)
}

fn answer(path: &Path, socket: &OwnedFd, until: Until<'_>) -> Result<Answer, AttachError> {
    let path = || path.to_owned();
    let mut came = Vec::new();
    loop {
        let missing =
            match read_answer(&came).map_err(|cause| AttachError::NotAHost { path: path(), cause })? {
                Preamble::Whole(answer) => return Ok(answer),
                Preamble::Needs(missing) => missing,
            };
        let begin = came.len();
        came.resize(begin + missing, 0);
        // A host sends no descriptors; they are closed here if it does.
        let received = receive_with_descriptors(socket, &mut came[begin..], &mut Vec::new(), until);
        match received {
            Ok((0, _)) => {
                return Err(AttachError::NoAnswer {
                    path: path(),
                    cause: io::ErrorKind::UnexpectedEof.into(),
                });
            }
            Ok((count, _)) => came.truncate(begin + count),
            Err(cause) => return Err(AttachError::NoAnswer { path: path(), cause }),
        }
    }
}
