//! Points of a request's life, and how a test brings a request there.

use serde_json::Value;
use sluice_harness::{Answers, Ask, EventStream, Fleet, Reply, until};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{PROMPT_WORDS, Way, nonce, until_state};
use crate::SOON;

/// Where something happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Waits for a place behind another request.
    Queue,
    /// Its body is being sent.
    Body,
    /// The prompt is being computed.
    Prefill,
    /// The prefill engine has answered, and not a byte of it has come.
    PrefillDone,
    /// The head of the prefill's answer has come.
    PrefillHead,
    /// The handle is here, and the decode engine is being connected to.
    BetweenLegs,
    /// The decode engine is fetching.
    Transfer,
    /// The engine writes, and not a byte has come.
    BeforeFirstToken,
    /// In the midst of the answer.
    MidAnswer,
    /// All but the end of the answer has come.
    BeforeEnd,
}

impl Point {
    pub const ALL: [Self; 10] = [
        Self::Queue,
        Self::Body,
        Self::Prefill,
        Self::PrefillDone,
        Self::PrefillHead,
        Self::BetweenLegs,
        Self::Transfer,
        Self::BeforeFirstToken,
        Self::MidAnswer,
        Self::BeforeEnd,
    ];

    /// Whether requests of this way come by it. A whole answer has no first token of its own.
    pub fn is_on(self, way: Way, streams: bool) -> bool {
        let is_on_the_way = match self {
            // With both legs at once, decode's answer waits for no prefill's.
            Self::PrefillDone | Self::PrefillHead | Self::BetweenLegs => {
                way.has_two_legs() && way != Way::Pushed
            }
            Self::Transfer => way.is_pull(),
            _ => true,
        };
        let needs_stream = self == Self::BeforeFirstToken;
        is_on_the_way && (streams || !needs_stream)
    }

    /// A request that is met there: a long prompt or a long answer where it has to last.
    pub fn ask(self, number: u64, max_tokens: usize, streams: bool) -> Ask {
        match self {
            Self::Prefill => nonce(number, 6_000, 4, streams),
            Self::BeforeEnd => nonce(number, PROMPT_WORDS, 8, streams),
            _ => nonce(number, PROMPT_WORDS, max_tokens, streams),
        }
    }
}

/// A request on its way. Dropping it is its client leaving.
pub enum Underway {
    /// Nobody has read any of its answer.
    Asked(JoinSet<Reply>),
    /// Some events of its stream were read.
    Streams { stream: EventStream, read: Vec<String> },
    /// It was not sent whole: the connection.
    Sends { _client: TcpStream },
}

/// All of an answer that came.
pub struct Came {
    pub text: String,
    /// A whole answer that is right in all, or a stream that ended with `[DONE]`.
    pub is_whole: bool,
    /// The code of the error that was told.
    pub error: Option<String>,
}

impl Underway {
    /// Reads what comes, to its end.
    pub async fn ended(self, ask: &Ask) -> Came {
        match self {
            Self::Asked(mut asked) => {
                let reply = asked.join_next().await.expect("it was asked").expect("no panic");
                let is_right = ask.expected().differs_from(&reply).is_none();
                let error =
                    reply.error.as_ref().map(|error| error["code"].as_str().unwrap_or("?").to_owned());
                Came { is_whole: is_right && (reply.done || !ask.streams()), text: reply.text, error }
            }
            Self::Streams { stream, mut read } => {
                read.extend(stream.rest().await.unwrap().into_iter().map(|event| event.data));
                told(&read)
            }
            Self::Sends { .. } => panic!("half a request has no answer"),
        }
    }
}

fn told(events: &[String]) -> Came {
    let mut came = Came { text: String::new(), is_whole: false, error: None };
    for event in events {
        assert!(!came.is_whole && came.error.is_none(), "something follows the end: {event}");
        if event == "[DONE]" {
            came.is_whole = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(event).unwrap();
        came.text.push_str(chunk["choices"][0]["text"].as_str().unwrap_or_default());
        came.error = chunk["error"]["code"].as_str().map(str::to_owned);
    }
    came
}

/// Names of the workers by role; the same ones for a unified fleet.
pub fn named(fleet: &Fleet, role: &str) -> Vec<String> {
    let of_role = |wanted: &str| -> Vec<_> {
        fleet.names().iter().filter(|name| name.starts_with(wanted)).cloned().collect()
    };
    if of_role(role).is_empty() { of_role("unified") } else { of_role(role) }
}

/// Sets what becomes of answers of engines of a role.
pub fn hold(fleet: &mut Fleet, role: &str, answers: Answers) {
    for name in named(fleet, role) {
        fleet.gates(&name).http.answers(answers);
    }
}

/// Sets what becomes of KV reads.
pub fn hold_kv(fleet: &mut Fleet, answers: Answers) {
    for name in named(fleet, "prefill") {
        fleet.gates(&name).kv.answers(answers);
    }
}

/// All gates are open.
pub fn let_all_pass(fleet: &mut Fleet) {
    for name in fleet.names().to_vec() {
        let gates = fleet.gates(&name);
        gates.http.answers(Answers::Pass);
        gates.http.take_connections();
        gates.kv.take_connections();
        gates.kv.answers(Answers::Pass);
    }
}

/// Waits until one answer of a role is held up; the worker's name.
async fn until_held(fleet: &mut Fleet, role: &str, kv: bool) -> String {
    let names = named(fleet, role);
    until("an answer to be held up", SOON, async || {
        names.iter().find_map(|name| {
            let gates = fleet.gates(name);
            let gate = if kv { &gates.kv } else { &gates.http };
            (gate.holding() == 1).then(|| name.clone())
        })
    })
    .await
    .unwrap()
}

/// The worker of a role that has computed, or is computing, a prompt, or a piece of an answer.
pub async fn busy(fleet: &Fleet, role: &str) -> String {
    until("an engine to be at work", SOON, async || {
        for name in named(fleet, role) {
            let state = fleet.worker(&name).state().await.ok()?;
            let at_work = ["/sequences/running", "/sequences/loading", "/holds/open", "/kv_link/holds"];
            let counts = at_work.map(|pointer| state.pointer(pointer).and_then(Value::as_u64).unwrap_or(0));
            if counts.iter().sum::<u64>() > 0 {
                return Some(name);
            }
        }
        None
    })
    .await
    .unwrap()
}

/// Asks, without waiting for the answer.
pub fn start(fleet: &Fleet, ask: &Ask) -> Underway {
    let (client, ask) = (fleet.client().clone(), ask.clone());
    let mut asked = JoinSet::new();
    asked.spawn(async move { client.ask(&ask).await.unwrap() });
    Underway::Asked(asked)
}

/// Sends the request and waits until it is there.
pub async fn bring(fleet: &mut Fleet, point: Point, ask: &Ask) -> Underway {
    match point {
        Point::Body => return half_sent(fleet, ask).await,
        Point::PrefillDone => hold(fleet, "prefill", Answers::Held),
        Point::PrefillHead => hold(fleet, "prefill", Answers::HeldFrom("{\"")),
        Point::BetweenLegs => {
            for name in named(fleet, "decode") {
                fleet.gates(&name).http.swallow_connections().await.unwrap();
            }
        }
        Point::Transfer => hold_kv(fleet, Answers::Held),
        Point::BeforeFirstToken => hold(fleet, "decode", Answers::Held),
        Point::BeforeEnd if ask.streams() => hold(fleet, "decode", Answers::HeldFrom("data: [DONE]")),
        Point::BeforeEnd => hold(fleet, "decode", Answers::HeldFrom("\"usage\"")),
        Point::MidAnswer if ask.streams() => {
            let mut stream = fleet.client().stream(ask.endpoint.path(), &ask.json(), &[]).await.unwrap();
            let mut read = Vec::new();
            for _ in 0..3 {
                read.push(stream.next().await.unwrap().expect("a long answer goes on").data);
            }
            return Underway::Streams { stream, read };
        }
        Point::Queue | Point::Prefill | Point::MidAnswer => {}
    }
    let underway = start(fleet, ask);
    match point {
        Point::Queue => until_queued(fleet).await,
        Point::Prefill => {
            busy(fleet, "prefill").await;
        }
        Point::PrefillDone | Point::PrefillHead => {
            until_held(fleet, "prefill", false).await;
        }
        Point::BetweenLegs => until_between_legs(fleet).await,
        Point::Transfer => {
            until_held(fleet, "prefill", true).await;
        }
        Point::BeforeFirstToken | Point::BeforeEnd => {
            until_held(fleet, "decode", false).await;
        }
        Point::MidAnswer => {
            let name = busy(fleet, "decode").await;
            until_state(fleet, &name, "/generation_tokens", |tokens| tokens > 2).await;
        }
        Point::Body => {}
    }
    underway
}

async fn half_sent(fleet: &Fleet, ask: &Ask) -> Underway {
    let address = fleet.client().base().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (path, body) = (ask.endpoint.path(), ask.json().to_string());
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body.as_bytes()[..body.len() / 2]].concat()).await.unwrap();
    let in_flight = "sluice_in_flight_requests";
    fleet.host.until_metric(in_flight, &[], |count| count == 1.0, SOON).await.unwrap();
    Underway::Sends { _client: stream }
}

pub async fn until_queued(fleet: &Fleet) {
    until("a request to wait", SOON, async || {
        let tenants = fleet.host.admin().get("/admin/tenants").await.ok()?.json();
        (tenants["queued"] == 1).then_some(())
    })
    .await
    .unwrap();
}

/// A prefill engine holds blocks, its leg is over, and a decode leg is booked.
async fn until_between_legs(fleet: &Fleet) {
    let holder = busy(fleet, "prefill").await;
    until("blocks to be held", SOON, async || {
        let state = fleet.worker(&holder).state().await.ok()?;
        let held =
            ["/holds/open", "/kv_link/holds"].map(|holds| state.pointer(holds).and_then(Value::as_u64));
        (held.into_iter().flatten().sum::<u64>() == 1).then_some(())
    })
    .await
    .unwrap();
    until("the prefill leg to be over", SOON, async || {
        let is_over = fleet.host.worker(&holder).await.ok()?["booked"]["requests"] == 0;
        let mut decodes = 0;
        for name in named(fleet, "decode") {
            decodes += fleet.host.worker(&name).await.ok()?["booked"]["requests"].as_u64()?;
        }
        (is_over && decodes == 1).then_some(())
    })
    .await
    .unwrap();
}
