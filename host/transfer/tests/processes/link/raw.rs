//! An engine that does not keep to anything.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sluice_engine_sdk::wire::{
    Answer, Frame, FrameBuffer, Hello, Message, Preamble, Rank, RefusalCode, Role, ToEngine, VERSIONS,
    encode, read_answer, write_hello,
};

use super::{FAR, LAYOUT, SLAB_BYTES};

pub fn hello(id: u128) -> Hello {
    Hello {
        versions: VERSIONS,
        name: format!("engine-{id}"),
        incarnation: 1,
        rank: Rank(0),
        role: Role::Prefill,
        model: "raw".to_owned(),
        layout: LAYOUT,
        slab_bytes: SLAB_BYTES,
    }
}

pub fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("raw", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

pub fn good_memfd() -> OwnedFd {
    memfd(SLAB_BYTES, SealFlags::SHRINK)
}

/// A connection, spoken to byte by byte.
pub struct Raw {
    pub socket: UnixStream,
    frames: FrameBuffer,
}

impl Raw {
    pub fn connect(path: &Path) -> Self {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(FAR)).unwrap();
        socket.set_write_timeout(Some(FAR)).unwrap();
        Self { socket, frames: FrameBuffer::default() }
    }

    /// Attached, by a proper hello.
    pub fn attach(path: &Path, id: u128) -> Self {
        let mut raw = Self::connect(path);
        raw.send(&write_hello(&hello(id)).unwrap(), &[good_memfd().as_fd()]);
        let answer = raw.answer();
        assert!(matches!(answer, Some(Answer::Welcome(_))), "{answer:?}");
        raw
    }

    /// Sends bytes with descriptors beside the first.
    pub fn send(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let slices = [std::io::IoSlice::new(bytes)];
        let sent = sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL).unwrap();
        self.socket.write_all(&bytes[sent..]).unwrap();
    }

    pub fn say<M: Message>(&mut self, frame: &Frame<M>) {
        self.socket.write_all(&encode(frame).unwrap()).unwrap();
    }

    /// The host's answer, or nothing if it hung up without one.
    pub fn answer(&mut self) -> Option<Answer> {
        let mut came = Vec::new();
        while let Preamble::Needs(missing) = read_answer(&came).unwrap() {
            let begin = came.len();
            came.resize(begin + missing, 0);
            self.socket.read_exact(&mut came[begin..]).ok()?;
        }
        match read_answer(&came).unwrap() {
            Preamble::Whole(answer) => Some(answer),
            Preamble::Needs(_) => None,
        }
    }

    pub fn refusal(&mut self) -> Option<(RefusalCode, String)> {
        match self.answer()? {
            Answer::Refusal(refusal) => Some((refusal.code, refusal.text)),
            Answer::Welcome(welcome) => panic!("{welcome:?}"),
        }
    }

    /// The next frame of the host, or nothing at the end.
    pub fn frame(&mut self) -> Option<Frame<ToEngine>> {
        let mut chunk = [0; 4_096];
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                return Some(frame);
            }
            match self.socket.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.frames.push(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}
