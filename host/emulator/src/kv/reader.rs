//! The reading side of the KV socket.

use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::frame::{BadFrame, Frame, MAX_BLOCK_BYTES};
use crate::transfer_params::RemoteKv;

/// A whole read, however slow the link: far above any sensible transfer, so that a stuck peer is noticed at all.
const READ_LIMIT: Duration = Duration::from_secs(120);

/// Why blocks could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Nobody there, for as long as vLLM waits.
    #[error("no engine at {host}:{port}: {source}")]
    Unreachable {
        /// As the request named it.
        host: String,
        /// As the request named it.
        port: u16,
        /// What the last attempt met.
        source: std::io::Error,
    },
    /// The connection broke.
    #[error(transparent)]
    Frame(#[from] BadFrame),
    /// The holder is another engine, or its layout differs.
    #[error("the holder refused: {0}")]
    Refused(String),
    /// The holder answered something else.
    #[error("the holder answered out of turn")]
    OutOfTurn,
    /// The read took too long.
    #[error("the read was not over after {} s", READ_LIMIT.as_secs())]
    TooSlow,
}

/// Reads blocks, in order, until `not_before` at the earliest (the link's speed), then ends the hold.
pub(crate) async fn read_blocks(
    remote: &RemoteKv,
    blocks: &[u32],
    block_bytes: usize,
    handshake_limit: Duration,
    not_before: Instant,
) -> Result<Vec<u8>, ReadError> {
    let mut stream = connect(remote, block_bytes, handshake_limit).await?;
    let read = async {
        let mut bytes = Vec::with_capacity(blocks.len() * block_bytes);
        for some in blocks.chunks((MAX_BLOCK_BYTES / block_bytes.max(1)).max(1)) {
            match exchange(&mut stream, Frame::Read(some.to_vec())).await? {
                Frame::Blocks(read) if read.len() == some.len() * block_bytes => bytes.extend(read),
                _ => return Err(ReadError::OutOfTurn),
            }
        }
        sleep_until(not_before).await;
        exchange(&mut stream, Frame::Done(remote.request_id.clone())).await?;
        Ok(bytes)
    };
    timeout(READ_LIMIT, read).await.unwrap_or(Err(ReadError::TooSlow))
}

/// Ends a hold without reading.
pub(crate) async fn release(
    remote: &RemoteKv,
    block_bytes: usize,
    handshake_limit: Duration,
) -> Result<bool, ReadError> {
    let mut stream = connect(remote, block_bytes, handshake_limit).await?;
    let done = exchange(&mut stream, Frame::Done(remote.request_id.clone()));
    match timeout(READ_LIMIT, done).await.unwrap_or(Err(ReadError::TooSlow))? {
        Frame::Released(freed) => Ok(freed),
        _ => Err(ReadError::OutOfTurn),
    }
}

async fn exchange(stream: &mut TcpStream, frame: Frame) -> Result<Frame, ReadError> {
    frame.write(stream).await?;
    match Frame::read(stream).await? {
        Frame::Refused(why) => Err(ReadError::Refused(why)),
        frame => Ok(frame),
    }
}

/// A dead port is refused at once, but vLLM's side channel waits out its time: so does this.
async fn connect(remote: &RemoteKv, block_bytes: usize, limit: Duration) -> Result<TcpStream, ReadError> {
    let deadline = Instant::now() + limit;
    let attempt = TcpStream::connect((remote.host.as_str(), remote.port));
    let unreachable =
        |source| ReadError::Unreachable { host: remote.host.clone(), port: remote.port, source };
    let mut stream = match timeout(limit.max(MIN_CONNECT), attempt).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            sleep_until(deadline).await;
            return Err(unreachable(error));
        }
        Err(elapsed) => return Err(unreachable(elapsed.into())),
    };
    stream.set_nodelay(true).map_err(BadFrame::from)?;
    let hello = Frame::Hello { engine_id: remote.engine_id.clone(), block_bytes: block_bytes as u32 };
    match exchange(&mut stream, hello).await? {
        Frame::Welcome => Ok(stream),
        _ => Err(ReadError::OutOfTurn),
    }
}

/// However fast the model's time runs, sockets need real time.
const MIN_CONNECT: Duration = Duration::from_secs(1);
