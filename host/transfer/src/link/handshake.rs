//! From a connection to an engine with its memory.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use sluice_engine_sdk::transport::{Until, receive_with_descriptors, send_all};
use sluice_engine_sdk::wire::{Answer, Hello, Preamble, Refusal, RefusalCode, read_hello, write_answer};

use super::admission::{Acceptable, judge, refusal};
use crate::memory::Slab;

/// An engine that may attach.
pub(super) struct Candidate {
    pub hello: Hello,
    pub acceptable: Acceptable,
    pub slab: Arc<Slab>,
}

/// How a handshake went wrong.
pub(super) enum Rejected {
    /// Whoever it was has gone.
    Gone,
    /// To be told.
    Refused(Refusal),
}

impl From<Refusal> for Rejected {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Reads the hello and maps what came with it.
pub(super) fn candidate(socket: &UnixStream, until: Until<'_>) -> Result<Candidate, Rejected> {
    let (hello, descriptor) = hello(socket, until)?;
    let acceptable = judge(&hello)?;
    let slab = Slab::accept(descriptor, hello.slab_bytes)
        .map_err(|error| refusal(RefusalCode::Slab, &error.to_string()))?;
    Ok(Candidate { hello, acceptable, slab: Arc::new(slab) })
}

fn hello(socket: &UnixStream, until: Until<'_>) -> Result<(Hello, OwnedFd), Rejected> {
    let mut came = Vec::new();
    let mut descriptors = Vec::new();
    let hello = loop {
        let missing = match read_hello(&came) {
            Ok(Preamble::Whole(hello)) => break hello,
            Ok(Preamble::Needs(missing)) => missing,
            Err(error) => {
                let text = format!("this is no hello of a KV link ({error}); is the SDK of another version?");
                return Err(refusal(RefusalCode::NotOurs, &text).into());
            }
        };
        let begin = came.len();
        came.resize(begin + missing, 0);
        match receive_with_descriptors(socket, &mut came[begin..], &mut descriptors, until) {
            Ok((0, _)) => return Err(Rejected::Gone),
            Ok((count, were_lost)) => {
                came.truncate(begin + count);
                if were_lost || descriptors.len() > 1 {
                    return Err(no_slab("several descriptors came with the hello").into());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let text = format!("the hello was not whole in time ({begin} bytes came); attach again");
                return Err(refusal(RefusalCode::TooSlow, &text).into());
            }
            Err(_) => return Err(Rejected::Gone),
        }
    };
    let descriptor = descriptors.pop().ok_or_else(|| no_slab("no descriptor came with the hello"))?;
    Ok((hello, descriptor))
}

fn no_slab(what: &str) -> Refusal {
    refusal(RefusalCode::Slab, &format!("{what}; send the slab's memfd, and only that, with the first bytes"))
}

/// Sends an answer.
pub(super) fn answer(socket: &UnixStream, answer: &Answer, until: Until<'_>) -> io::Result<()> {
    let bytes = write_answer(answer).map_err(io::Error::other)?;
    send_all(socket, &bytes, until)
}
