//! A door between two processes: what comes through it can be held up, or cut, at a moment that a test chooses.
//!
//! It knows two things about what it passes: which bytes go to the client side and which to the server side, and
//! whether the last request was a probe (`GET`), which it never holds up. So a worker can be well to every probe while
//! its answers are stuck.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::HarnessError;

/// Connections that the system keeps until they are accepted. Few, so that they can be used up.
const BACKLOG: u32 = 64;

/// Bytes read at a time, each way.
const READ_BYTES: usize = 64 * 1024;

/// What becomes of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// They pass.
    Pass,
    /// Not a byte passes; neither does a request to a KV socket get an answer.
    Held,
    /// They pass up to these bytes.
    HeldFrom(&'static str),
}

#[derive(Debug, Clone, Copy)]
struct State {
    leads_to: Option<SocketAddr>,
    answers: Answers,
    accepts: bool,
    /// Connections of an earlier one are cut.
    era: u64,
}

/// A gate. Dropping it cuts all connections.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    state: watch::Sender<State>,
    holding: Arc<AtomicUsize>,
    /// Whether no connection is taken just now.
    rests: watch::Receiver<bool>,
    fillers: Vec<TcpStream>,
    _tasks: JoinSet<()>,
}

impl Gate {
    /// An open gate that leads nowhere yet.
    pub async fn start() -> Result<Self, HarnessError> {
        let listen = || {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
            socket.listen(BACKLOG)
        };
        let listener = listen().map_err(HarnessError::io("listen"))?;
        let address = listener.local_addr().map_err(HarnessError::io("listen"))?;
        let state = State { leads_to: None, answers: Answers::Pass, accepts: true, era: 0 };
        let (sender, receiver) = watch::channel(state);
        let holding = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        let (told, rests) = watch::channel(false);
        tasks.spawn(accept(listener, receiver, told, holding.clone()));
        Ok(Self { address, state: sender, holding, rests, fillers: Vec::new(), _tasks: tasks })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where new connections are led to from now on.
    pub fn leads_to(&self, address: SocketAddr) {
        self.state.send_modify(|state| state.leads_to = Some(address));
    }

    /// What becomes of answers from now on, of those under way too.
    pub fn answers(&self, answers: Answers) {
        self.state.send_modify(|state| state.answers = answers);
    }

    /// Answers of which something is held up now.
    pub fn holding(&self) -> usize {
        self.holding.load(Ordering::SeqCst)
    }

    /// Cuts all connections; what is held up is lost.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.era += 1);
    }

    /// Cuts all connections, and lets no new one come about: who connects waits, as before a host that drops packets.
    pub async fn swallow_connections(&mut self) -> Result<(), HarnessError> {
        self.state.send_modify(|state| {
            state.accepts = false;
            state.era += 1;
        });
        // The gate's own task lives as long as the gate.
        let _ = self.rests.wait_for(|rests| *rests).await;
        // On Linux one more than the backlog fills it: it drops what else knocks.
        let mut connecting = JoinSet::new();
        for _ in 0..=BACKLOG {
            connecting.spawn(TcpStream::connect(self.address));
        }
        while let Some(connected) = connecting.join_next().await {
            let stream = connected.map_err(std::io::Error::other).and_then(|stream| stream);
            self.fillers.push(stream.map_err(HarnessError::io("fill a backlog"))?);
        }
        Ok(())
    }

    /// Connections come about again.
    pub fn take_connections(&mut self) {
        self.fillers.clear();
        self.state.send_modify(|state| state.accepts = true);
    }
}

async fn accept(
    listener: TcpListener,
    mut state: watch::Receiver<State>,
    rests: watch::Sender<bool>,
    holding: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    loop {
        rests.send_replace(!state.borrow_and_update().accepts);
        if state.wait_for(|state| state.accepts).await.is_err() {
            return;
        }
        rests.send_replace(false);
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                let passage = Passage::new(state.clone(), holding.clone());
                connections.spawn(async move {
                    // A connection that breaks is part of the play.
                    let _ = passage.run(stream).await;
                });
            }
            _ = state.changed() => {}
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection through the gate.
struct Passage {
    state: watch::Receiver<State>,
    holding: Arc<AtomicUsize>,
    era: u64,
    is_probe: bool,
    /// Of the answer, not passed on yet.
    held: Vec<u8>,
    /// The bytes from which it is held were seen.
    is_stuck: bool,
    is_counted: bool,
}

impl Passage {
    fn new(state: watch::Receiver<State>, holding: Arc<AtomicUsize>) -> Self {
        let era = state.borrow().era;
        Self { state, holding, era, is_probe: false, held: Vec::new(), is_stuck: false, is_counted: false }
    }

    async fn run(mut self, mut client: TcpStream) -> std::io::Result<()> {
        let Some(address) = self.state.borrow().leads_to else { return Ok(()) };
        let mut server = TcpStream::connect(address).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut asked, mut told) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
        let mut server_is_done = false;
        loop {
            tokio::select! {
                read = client.read(&mut asked) => {
                    let count = read?;
                    // A client that leaves closes the whole passage, and with it the server's connection.
                    if count == 0 {
                        return Ok(());
                    }
                    self.asked(&asked[..count]);
                    server.write_all(&asked[..count]).await?;
                }
                read = server.read(&mut told), if !server_is_done => match read {
                    Ok(count @ 1..) => self.held.extend_from_slice(&told[..count]),
                    _ => server_is_done = true,
                },
                changed = self.state.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
            }
            if self.state.borrow().era != self.era {
                return Ok(());
            }
            let passes = self.passes();
            let rest = self.held.split_off(passes);
            let passed = std::mem::replace(&mut self.held, rest);
            self.count();
            client.write_all(&passed).await?;
            if server_is_done && self.held.is_empty() {
                return Ok(());
            }
        }
    }

    fn asked(&mut self, bytes: &[u8]) {
        const METHODS: [&[u8]; 2] = [b"GET ", b"POST "];
        if let Some(method) = METHODS.iter().find(|method| bytes.starts_with(method)) {
            self.is_probe = *method == METHODS[0];
            self.is_stuck = false;
        }
    }

    /// Bytes of what is held that may go on.
    fn passes(&mut self) -> usize {
        let answers = self.state.borrow().answers;
        match answers {
            _ if self.is_probe => self.held.len(),
            Answers::Pass => {
                self.is_stuck = false;
                self.held.len()
            }
            Answers::Held => 0,
            Answers::HeldFrom(_) if self.is_stuck => 0,
            Answers::HeldFrom(from) => {
                let from = from.as_bytes();
                if let Some(at) = self.held.windows(from.len()).position(|window| window == from) {
                    self.is_stuck = true;
                    return at;
                }
                // Its beginning may be at the end of what came so far.
                let begun = (1..from.len()).rev().find(|length| self.held.ends_with(&from[..*length]));
                self.held.len() - begun.unwrap_or(0)
            }
        }
    }

    fn count(&mut self) {
        let is_holding = !self.held.is_empty();
        if is_holding && !self.is_counted {
            self.holding.fetch_add(1, Ordering::SeqCst);
        } else if !is_holding && self.is_counted {
            self.holding.fetch_sub(1, Ordering::SeqCst);
        }
        self.is_counted = is_holding;
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.held.clear();
        self.count();
    }
}
