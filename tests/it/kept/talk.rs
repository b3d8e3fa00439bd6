//! A conversation with a fleet that keeps turns, and what of each turn must come from the one before.

use sluice_harness::ask::message;
use sluice_harness::{Ask, Client, Endpoint, Fleet, FleetPlan, PolicyFile, Reply};
use sluice_sim::chat::Message;
use sluice_sim::tokens::Token;
use sluice_sim::words;

use crate::{SOON, nothing_left_booked};

/// Of KV blocks, and so of what proofs are told in.
pub const BLOCK_TOKENS: usize = 16;

/// Of an answer.
const ANSWER_TOKENS: usize = 24;

/// Engines without caches of their own, so that reuse shows, under a policy that keeps turns as these settings say.
pub fn keeping(prefills: usize, decodes: usize, settings: &str) -> FleetPlan {
    let policy = PolicyFile::guest("keeps-turns", "keeps-turns").unwrap().settings(settings);
    let mut plan = FleetPlan::hosted(prefills, decodes).decided_by(policy);
    plan.host.policy_keys = "labels = [\"x-transfer\", \"x-keep\"]".into();
    plan.engines("", "--no-prefix-caching")
}

/// The same with engines of this version of vLLM, which move KV by themselves.
pub fn keeping_themselves(prefills: usize, decodes: usize, wire: &str, settings: &str) -> FleetPlan {
    let hosted = keeping(prefills, decodes, settings);
    let engines = format!("--no-prefix-caching --kv-recompute-threshold 0 --wire {wire}");
    let plan = FleetPlan::bidirectional(prefills, decodes).engines("", &engines);
    let mut host = hosted.host;
    (host.mode, host.pool) = (plan.host.mode, plan.host.pool);
    FleetPlan { host, policies: hosted.policies, ..plan }
}

/// How a client takes its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    Whole,
    Streamed,
    /// A stream that tells no counts.
    StreamedWithoutUsage,
}

/// A conversation. Of completions, the prompt is what was said in one piece.
#[derive(Debug, Clone)]
pub struct Talk {
    pub endpoint: Endpoint,
    pub taken: Taken,
    /// Empty: it gives the host none.
    pub id: String,
    pub headers: Vec<(&'static str, String)>,
    pub messages: Vec<Message>,
}

impl Talk {
    pub fn new(endpoint: Endpoint, id: &str) -> Self {
        let system = message("system", "be brief ");
        Self { endpoint, taken: Taken::Whole, id: id.into(), headers: Vec::new(), messages: vec![system] }
    }

    pub fn taken(self, taken: Taken) -> Self {
        Self { taken, ..self }
    }

    /// Every later request has this header, too.
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value.to_owned()));
        self
    }

    /// So many words that depend on `seed` alone.
    pub fn say(&mut self, seed: u64, count: usize) {
        self.messages.push(message("user", &words(seed, count)));
    }

    pub fn answered(&mut self, text: &str) {
        self.messages.push(message("assistant", text));
    }

    pub fn ask(&self) -> Ask {
        let ask = match self.endpoint {
            Endpoint::Chat => Ask::chat(&self.messages, ANSWER_TOKENS),
            Endpoint::Completions => {
                let texts: Vec<_> = self.messages.iter().map(|said| said.content.as_str()).collect();
                Ask::completion(&texts.concat(), ANSWER_TOKENS)
            }
        };
        let ask = if self.id.is_empty() { ask } else { ask.with("conversation_id", self.id.as_str()) };
        let ask = match self.taken {
            Taken::Whole => ask,
            Taken::Streamed => ask.streamed(),
            Taken::StreamedWithoutUsage => ask.with("stream", true),
        };
        self.headers.iter().fold(ask, |ask, (name, value)| ask.header(name, value))
    }

    /// Asks, insists on the right answer, and takes it into the history. What it keeps is there when this returns.
    pub async fn turn(&mut self, fleet: &Fleet) -> Turn {
        let (before, ask) = (Events::of(fleet).await, self.ask());
        let reply = asked(fleet.client(), &ask).await;
        self.answered(&reply.text);
        // A stream is over for its client before the host has closed its books.
        let host = &fleet.host;
        host.until_metric("sluice_in_flight_requests", &[], |count| count == 0.0, SOON).await.unwrap();
        let live = Events::of(fleet).await.live();
        if host.metrics().await.unwrap().has("sluice_transfer_holds") {
            host.until_metric("sluice_transfer_holds", &[], |holds| holds == live, SOON).await.unwrap();
        }
        let reused = Events::of(fleet).await.reused - before.reused;
        Turn { held: held(&ask), prompt: ask.prompt_tokens(), reused: reused as usize, reply }
    }
}

/// A turn that went well.
#[derive(Debug)]
pub struct Turn {
    pub prompt: Vec<Token>,
    /// What its decode engine has of it.
    pub held: Vec<Token>,
    /// Tokens that came from the turn before.
    pub reused: usize,
    pub reply: Reply,
}

/// Tokens of a turn that an engine has when it is over: the last one was never computed with.
fn held(ask: &Ask) -> Vec<Token> {
    let mut tokens = ask.prompt_tokens();
    tokens.extend(ask.answer_tokens());
    tokens.pop();
    tokens
}

/// How many tokens of a prompt come from a kept turn: whole positions that are equal, but never the prompt's last.
pub fn comes(held: &[Token], prompt: &[Token]) -> usize {
    let equal = held.iter().zip(prompt).take_while(|(one, other)| one == other).count();
    (equal / BLOCK_TOKENS * BLOCK_TOKENS).min(prompt.len() - 1)
}

/// The right answer to this; its counts too, where they are told.
pub async fn asked(client: &Client, ask: &Ask) -> Reply {
    if ask.body.contains_key("stream_options") || !ask.streams() {
        return crate::right(client, ask).await;
    }
    let reply = client.ask(ask).await.unwrap();
    let expected = ask.expected();
    assert!(reply.done, "{:?}", reply.events);
    assert_eq!((&reply.text, reply.status), (&expected.text, 200), "{:?}", reply.decision);
    reply
}

/// What became of kept turns so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Events {
    pub kept: f64,
    pub renewed: f64,
    pub taken: f64,
    pub released: f64,
    pub expired: f64,
    pub lost: f64,
    pub superseded: f64,
    pub crowded: f64,
    pub drained: f64,
    pub withheld: f64,
    /// Never kept here, though an engine held them.
    pub not_kept: f64,
    /// Nobody wants them, and they stay for their engine's own time.
    pub unreleased: f64,
    /// Tokens.
    pub reused: f64,
}

impl Events {
    pub async fn of(fleet: &Fleet) -> Self {
        let metrics = fleet.host.metrics().await.unwrap();
        let count = |event| metrics.sum("sluice_kept_turns_total", &[("event", event)]);
        Self {
            kept: count("kept"),
            renewed: count("renewed"),
            taken: count("taken"),
            released: count("released"),
            expired: count("expired"),
            lost: count("lost"),
            superseded: count("superseded"),
            crowded: count("crowded"),
            drained: count("drained"),
            withheld: count("withheld"),
            not_kept: metrics.sum("sluice_holds_not_kept_total", &[]),
            unreleased: metrics.sum("sluice_holds_unreleased_total", &[]),
            reused: metrics.sum("sluice_reused_tokens_total", &[]),
        }
    }

    /// Turns that are kept now: each ends once.
    pub fn live(&self) -> f64 {
        let Self { kept, taken, released, expired, lost, superseded, crowded, drained, withheld, .. } = self;
        kept - (taken + released + expired + lost + superseded + crowded + drained + withheld)
    }
}

/// Nothing is kept, held, booked or in use any more, nobody having said so.
pub async fn nothing_left(fleet: &Fleet) {
    let host = &fleet.host;
    let names: Vec<_> = fleet.names().iter().map(String::as_str).collect();
    nothing_left_booked(host, &names).await;
    if host.metrics().await.unwrap().has("sluice_transfer_holds") {
        host.until_metric("sluice_transfer_holds", &[], |holds| holds == 0.0, SOON).await.unwrap();
    }
    for name in names {
        let name_of = [("worker", name)];
        host.until_metric("sluice_worker_handles", &name_of, |handles| handles == 0.0, SOON).await.unwrap();
        fleet.worker(name).until_idle(SOON).await.unwrap();
    }
    assert_eq!(Events::of(fleet).await.live(), 0.0);
}

/// Lets go of all that decode engines keep, by an operator's order; then nothing may be left.
pub async fn nothing_left_when_drained(fleet: &Fleet) {
    for name in fleet.names().iter().filter(|name| name.starts_with("decode")) {
        let path = format!("/admin/workers/main/{name}/drain");
        assert_eq!(fleet.host.admin().post(&path, &serde_json::json!({})).await.unwrap().status, 200);
    }
    nothing_left(fleet).await;
}
