//! The holding side of the KV socket.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::frame::{BadFrame, Frame};
use crate::client::{Command, EngineClient};

/// A reader that says nothing for so long is gone: above any pacing of a read, which happens between two frames.
const SILENCE_LIMIT: Duration = Duration::from_secs(180);

/// Who the holder is.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub engine_id: String,
    pub block_bytes: u32,
}

/// Serves one reader until it leaves.
pub(crate) async fn serve(
    mut stream: TcpStream,
    identity: Identity,
    engine: EngineClient,
) -> Result<(), BadFrame> {
    stream.set_nodelay(true)?;
    let mut welcome = false;
    loop {
        let Ok(frame) = timeout(SILENCE_LIMIT, Frame::read(&mut stream)).await else { return Ok(()) };
        let frame = match frame {
            Err(BadFrame::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            frame => frame?,
        };
        let answer = match frame {
            Frame::Hello { engine_id, block_bytes } => {
                let answer = greet(&identity, &engine_id, block_bytes);
                welcome = answer == Frame::Welcome;
                answer
            }
            _ if !welcome => Frame::Refused("say hello first".into()),
            Frame::Read(blocks) => match engine.ask(|reply| Command::ReadBlocks { blocks, reply }).await {
                Ok(Some(bytes)) => Frame::Blocks(bytes),
                Ok(None) => Frame::Refused("no such block, or too many at once".into()),
                Err(_) => return Ok(()),
            },
            Frame::Done(name) => match engine.ask(|reply| Command::ReleaseHold { name, reply }).await {
                Ok(freed) => Frame::Released(freed),
                Err(_) => return Ok(()),
            },
            _ => Frame::Refused("only the holder says that".into()),
        };
        let refused = matches!(answer, Frame::Refused(_));
        answer.write(&mut stream).await?;
        if refused {
            return Ok(());
        }
    }
}

fn greet(identity: &Identity, engine_id: &str, block_bytes: u32) -> Frame {
    if engine_id != identity.engine_id {
        return Frame::Refused(format!("this is engine {}, not {engine_id}", identity.engine_id));
    }
    if block_bytes != identity.block_bytes {
        return Frame::Refused(format!("blocks here are {} bytes, not {block_bytes}", identity.block_bytes));
    }
    Frame::Welcome
}
