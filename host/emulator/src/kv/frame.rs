//! Frames of the KV socket as plain data.

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest frame: a block of the largest size, or the numbers of a million blocks.
pub const MAX_FRAME_BYTES: usize = MAX_BLOCK_BYTES + 1;
/// Largest block. Reads ask for as many blocks as fit a frame.
pub const MAX_BLOCK_BYTES: usize = 4 << 20;

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Who the reader expects, and how large it believes blocks to be.
    Hello {
        /// The holder's engine id.
        engine_id: String,
        /// KV layouts must agree.
        block_bytes: u32,
    },
    /// Numbers of the blocks wanted.
    Read(Vec<u32>),
    /// The hold of this name is no longer needed.
    Done(String),
    /// The holder is the one expected.
    Welcome,
    /// Why not.
    Refused(String),
    /// Bytes of the blocks asked for.
    Blocks(Vec<u8>),
    /// Whether a hold was freed.
    Released(bool),
}

/// What is wrong with a frame.
#[derive(Debug, Error)]
pub enum BadFrame {
    /// The connection failed.
    #[error("KV socket: {0}")]
    Io(#[from] std::io::Error),
    /// Longer than any frame of ours.
    #[error("KV socket: a frame of {0} bytes, at most {MAX_FRAME_BYTES} are allowed")]
    TooLong(usize),
    /// The kind is unknown, or the body does not fit it.
    #[error("KV socket: a frame of kind {kind} with {bytes} bytes makes no sense")]
    Senseless {
        /// As sent.
        kind: u8,
        /// Size of the body.
        bytes: usize,
    },
}

impl Frame {
    fn encode(self) -> (u8, Vec<u8>) {
        match self {
            Self::Hello { engine_id, block_bytes } => {
                (1, [&block_bytes.to_le_bytes(), engine_id.as_bytes()].concat())
            }
            Self::Read(blocks) => (2, blocks.iter().flat_map(|block| block.to_le_bytes()).collect()),
            Self::Done(name) => (3, name.into_bytes()),
            Self::Welcome => (129, Vec::new()),
            Self::Refused(why) => (130, why.into_bytes()),
            Self::Blocks(bytes) => (131, bytes),
            Self::Released(freed) => (132, vec![u8::from(freed)]),
        }
    }

    fn decode(kind: u8, body: Vec<u8>) -> Result<Self, BadFrame> {
        let bytes = body.len();
        let senseless = || BadFrame::Senseless { kind, bytes };
        let text = |body: Vec<u8>| String::from_utf8(body).map_err(|_| senseless());
        match kind {
            1 => {
                let (block_bytes, engine_id) = body.split_first_chunk().ok_or_else(senseless)?;
                let engine_id = text(engine_id.to_vec())?;
                Ok(Self::Hello { engine_id, block_bytes: u32::from_le_bytes(*block_bytes) })
            }
            2 => match body.as_chunks() {
                (blocks, []) => {
                    Ok(Self::Read(blocks.iter().map(|block| u32::from_le_bytes(*block)).collect()))
                }
                _ => Err(senseless()),
            },
            3 => text(body).map(Self::Done),
            129 if body.is_empty() => Ok(Self::Welcome),
            130 => text(body).map(Self::Refused),
            131 => Ok(Self::Blocks(body)),
            132 => match *body {
                [freed @ 0..=1] => Ok(Self::Released(freed == 1)),
                _ => Err(senseless()),
            },
            _ => Err(senseless()),
        }
    }

    pub(super) async fn write(self, to: &mut (impl AsyncWrite + Unpin)) -> Result<(), BadFrame> {
        let (kind, body) = self.encode();
        let length = u32::try_from(body.len() + 1).map_err(|_| BadFrame::TooLong(body.len()))?;
        let mut head = length.to_le_bytes().to_vec();
        head.push(kind);
        to.write_all(&head).await?;
        to.write_all(&body).await?;
        Ok(to.flush().await?)
    }

    pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Self, BadFrame> {
        let length = from.read_u32_le().await? as usize;
        if length == 0 || length > MAX_FRAME_BYTES {
            return Err(BadFrame::TooLong(length));
        }
        let kind = from.read_u8().await?;
        let mut body = vec![0; length - 1];
        from.read_exact(&mut body).await?;
        Self::decode(kind, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_round_trip() {
        for frame in [
            Frame::Hello { engine_id: "engine".into(), block_bytes: 1024 },
            Frame::Read(vec![1, 2, u32::MAX]),
            Frame::Read(vec![]),
            Frame::Done("cmpl-1".into()),
            Frame::Welcome,
            Frame::Refused("wrong engine".into()),
            Frame::Blocks(vec![0, 255]),
            Frame::Released(true),
            Frame::Released(false),
        ] {
            let (kind, body) = frame.clone().encode();
            assert_eq!(Frame::decode(kind, body).unwrap(), frame);
        }
    }

    #[test]
    fn senseless_frames_are_refused() {
        for (kind, body) in [
            (0, vec![]),
            (1, vec![1, 2]),
            (2, vec![1, 2, 3]),
            (3, vec![255]),
            (129, vec![1]),
            (132, vec![2]),
            (200, vec![]),
        ] {
            assert!(matches!(Frame::decode(kind, body), Err(BadFrame::Senseless { .. })), "kind {kind}");
        }
    }
}
