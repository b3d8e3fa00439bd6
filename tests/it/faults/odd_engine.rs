//! An engine that is well to every probe and answers generation requests with what no engine should send, byte by byte.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Between two writes of an answer that drips.
const DRIP_EVERY: Duration = Duration::from_millis(20);

/// What the engine does, one thing after the other. After the last it closes.
#[derive(Debug, Clone)]
pub enum Step {
    Says(Vec<u8>),
    /// So many times, as fast as it is read.
    Repeats(Vec<u8>, usize),
    /// For ever, a little at a time.
    Drips(Vec<u8>),
    /// Says no more, and does not close either.
    Holds,
    /// Breaks the connection with a reset.
    Resets,
}

/// The engine. Dropping it ends it.
pub struct OddEngine {
    pub url: String,
    met: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl OddEngine {
    pub async fn start(steps: Vec<Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let met = Arc::new(AtomicUsize::new(0));
        let (counter, mut tasks) = (met.clone(), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (steps, met) = (steps.clone(), counter.clone());
                connections.spawn(async move {
                    // The host may leave at any step.
                    let _ = answer(stream, &steps, &met).await;
                });
            }
        });
        Self { url, met, _tasks: tasks }
    }

    /// Generation requests that came.
    pub fn met(&self) -> usize {
        self.met.load(Ordering::SeqCst)
    }
}

async fn answer(stream: TcpStream, steps: &[Step], met: &AtomicUsize) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (is_probe, length) = read_head(&mut stream).await?;
    stream.read_exact(&mut vec![0; length]).await?;
    if is_probe {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await?;
        return stream.shutdown().await;
    }
    met.fetch_add(1, Ordering::SeqCst);
    for step in steps {
        match step {
            Step::Says(bytes) => stream.write_all(bytes).await?,
            Step::Repeats(bytes, times) => {
                for _ in 0..*times {
                    stream.write_all(bytes).await?;
                }
            }
            Step::Drips(bytes) => loop {
                stream.write_all(bytes).await?;
                sleep(DRIP_EVERY).await;
            },
            Step::Holds => {
                // Until the host leaves.
                stream.read_u8().await?;
            }
            Step::Resets => {
                stream.get_ref().set_zero_linger()?;
                return Ok(());
            }
        }
    }
    stream.shutdown().await
}

/// Whether it is a probe, and the length of the body.
async fn read_head(stream: &mut BufReader<TcpStream>) -> io::Result<(bool, usize)> {
    let (mut line, mut length) = (String::new(), 0);
    if stream.read_line(&mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let is_probe = line.starts_with("GET ");
    loop {
        line.clear();
        if stream.read_line(&mut line).await? <= 2 {
            return Ok((is_probe, length));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
}
