//! The load generator: a closed loop over kept connections. Each client sends its next request when its last answer is
//! whole, and every answer is checked.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::canned::{self, Mark, Served};

/// For one answer: beyond it, something hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Faults kept to be shown; all are counted.
const FAULTS_KEPT: usize = 5;

/// What clients send.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Whom they ask.
    pub address: SocketAddr,
    /// Of a request's body.
    pub body_bytes: usize,
    /// Whether the answer is a stream.
    pub streamed: bool,
    /// Between two chunks of a stream.
    pub pace_ms: u16,
    /// Who must have answered.
    pub served: Served,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// From sending a request to the end of its answer; right answers only.
    pub times: Vec<Duration>,
    /// From sending a request to the first bytes of its answer's body; right answers only.
    pub first_bytes: Vec<Duration>,
    /// Requests without a right answer.
    pub failed: usize,
    /// The first faults.
    pub faults: Vec<String>,
}

impl Seen {
    /// Adds another's.
    pub fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.first_bytes.extend(other.first_bytes);
        self.failed += other.failed;
        let room = FAULTS_KEPT.saturating_sub(self.faults.len());
        self.faults.extend(other.faults.into_iter().take(room));
    }

    /// Adds one exchange.
    pub fn note(&mut self, end: anyhow::Result<Times>) {
        match end {
            Ok(times) => {
                self.times.push(times.whole);
                self.first_bytes.push(times.first);
            }
            Err(error) => {
                self.failed += 1;
                if self.faults.len() < FAULTS_KEPT {
                    self.faults.push(format!("{error:#}"));
                }
            }
        }
    }
}

/// How long one answer took.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// To the first bytes of its body.
    pub first: Duration,
    /// To its end.
    pub whole: Duration,
}

/// Number of the next request: no two of a run have the same.
static NUMBERS: AtomicU32 = AtomicU32::new(1);

/// Keeps `clients` clients busy for a time.
pub async fn run(load: Load, clients: usize, lasting: Duration) -> Seen {
    let ends = Instant::now() + lasting;
    let mut running = JoinSet::new();
    for _ in 0..clients {
        running.spawn(client(load, ends));
    }
    let mut seen = Seen::default();
    while let Some(one) = running.join_next().await {
        match one {
            Ok(one) => seen.add(one),
            Err(error) => seen.note(Err(error.into())),
        }
    }
    seen
}

async fn client(load: Load, ends: Instant) -> Seen {
    let mut seen = Seen::default();
    let mut connection = None;
    while Instant::now() < ends {
        let end = exchange(&load, &mut connection).await;
        if end.is_err() {
            connection = None;
        }
        seen.note(end);
    }
    seen
}

/// An open connection, and the task that drives it.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Connection {
    /// Opens one.
    pub async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("cannot connect")?;
        stream.set_nodelay(true).context("cannot connect")?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.context("cannot connect")?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // Whoever waits for an answer is told as well.
            let _ = connection.await;
        });
        Ok(Self { sender, _driver: driver })
    }
}

/// One request over a connection, which is opened if there is none.
pub async fn exchange(load: &Load, connection: &mut Option<Connection>) -> anyhow::Result<Times> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(Connection::open(load.address).await?),
    };
    let exchange = exchange_over(load, open);
    timeout(ANSWER_WITHIN, exchange)
        .await
        .map_err(|_| anyhow!("no answer in {} s", ANSWER_WITHIN.as_secs()))?
}

async fn exchange_over(load: &Load, connection: &mut Connection) -> anyhow::Result<Times> {
    let mark = Mark { number: NUMBERS.fetch_add(1, Ordering::Relaxed), pace_ms: load.pace_ms };
    let request = Request::post("/v1/chat/completions")
        .header(HOST, load.address.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(canned::request(mark, load.body_bytes, load.streamed)))?;
    let sent = Instant::now();
    connection.sender.ready().await.context("the connection is closed")?;
    let response = connection.sender.send_request(request).await.context("no answer")?;
    let (head, mut body) = response.into_parts();
    let mut bytes = BytesMut::new();
    let mut first = None;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.context("the answer broke off")?.into_data() {
            first.get_or_insert_with(|| sent.elapsed());
            bytes.extend_from_slice(&data);
        }
    }
    let whole = sent.elapsed();
    if head.status != 200 {
        return Err(anyhow!("status {}: {}", head.status, canned::shown(&bytes)));
    }
    match canned::fault(&bytes, mark, load.served, load.streamed) {
        Some(fault) => Err(anyhow!(fault)),
        None => Ok(Times { first: first.unwrap_or(whole), whole }),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::engine;

    async fn ask(streamed: bool, served: Served) -> Seen {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut serving = JoinSet::new();
        serving.spawn(engine::serve(listener));
        let load = Load { address, body_bytes: 2_048, streamed, pace_ms: 0, served };
        let mut seen = Seen::default();
        let mut connection = None;
        seen.note(exchange(&load, &mut connection).await);
        seen.note(exchange(&load, &mut connection).await);
        seen
    }

    #[tokio::test]
    async fn the_mock_answers_what_the_generator_wants() {
        for streamed in [false, true] {
            let seen = ask(streamed, Served::Alone).await;
            assert_eq!((seen.times.len(), seen.failed), (2, 0), "{:?}", seen.faults);
        }
    }

    #[tokio::test]
    async fn a_wrong_answer_is_counted() {
        let seen = ask(false, Served::Pulled).await;
        assert_eq!((seen.times.len(), seen.failed), (0, 2));
        assert!(seen.faults[0].contains("pulled"), "{:?}", seen.faults);
    }
}
