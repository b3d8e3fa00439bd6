//! KV that a host moves between emulators.

mod ends;
mod fake_host;
mod moves;
mod turns;

use serde_json::{Value, json};
use sluice_emulator::{Connector, Emulator, EmulatorConfig, KvLink, Role};
use sluice_sim::tokens::words;

use crate::client::*;
use fake_host::{Conduct, FakeHost, Place};

/// Two engines and their host.
pub struct Node {
    place: Place,
    pub host: FakeHost,
    pub p: Emulator,
    pub d: Emulator,
}

/// An engine of a host at that place.
pub fn hosted(place: &Place, role: Role) -> EmulatorConfig {
    let (connector, kv_link) = (Connector::Host, Some(place.socket.clone()));
    EmulatorConfig { role, connector, kv_link, name: Some(role.name().to_owned()), ..quick() }
}

pub async fn until_link(of: &Emulator, wanted: impl FnMut(&KvLink) -> bool) -> KvLink {
    let mut probe = of.engine();
    tokio::time::timeout(DEADLINE, probe.until_kv_link(wanted))
        .await
        .expect("the link never got there")
        .unwrap()
}

impl Node {
    pub async fn new(change: impl Fn(&mut EmulatorConfig)) -> Self {
        let place = Place::new();
        let host = FakeHost::start(&place);
        let start = |role| {
            let mut config = hosted(&place, role);
            change(&mut config);
            emulator(config)
        };
        let (p, d) = (start(Role::Prefill).await, start(Role::Decode).await);
        let node = Self { place, host, p, d };
        node.is_attached().await;
        node
    }

    /// Engines and host know of each other.
    pub async fn is_attached(&self) {
        for engine in [&self.p, &self.d] {
            until_link(engine, |link| link.attached).await;
        }
        self.host.until(|state| (state.names().len() == 2).then_some(())).await;
    }

    /// All blocks of both engines have come back, and nothing is agreed any more.
    pub async fn is_idle(&self) {
        for engine in [&self.p, &self.d] {
            until_link(engine, |link| (link.holds, link.receives, link.named_blocks) == (0, 0, 0)).await;
            until(engine.engine(), |engine| engine.blocks.used == 0).await;
        }
    }
}

pub fn id(number: u32) -> String {
    format!("{number:032x}")
}

/// What a prefill leg asks for.
pub fn hold(number: u32, of: &str) -> Value {
    json!({"transfer": id(number), "of": of, "position_tokens": 16, "fill_ms": 60_000, "ttl_ms": 30_000,
        "margin_ms": 0, "renewable": false})
}

/// What a decode leg asks for.
pub fn receive(number: u32, verb: &str) -> Value {
    json!({"transfer": id(number), "epoch": 0, "source": "prefill", "verb": verb, "direction": "prefill-to-decode",
        "position_tokens": 16, "threshold_tokens": 1, "first_byte_ms": 30_000, "whole_ms": 30_000})
}

pub fn leg(body: Value, hold: Option<Value>, receive: Option<Value>) -> Value {
    let mut wanted = json!({"version": 1});
    wanted.as_object_mut().unwrap().extend(hold.map(|hold| ("hold".to_owned(), hold)));
    wanted.as_object_mut().unwrap().extend(receive.map(|receive| ("receive".to_owned(), receive)));
    with_params(body, json!({"sluice": wanted}))
}

/// A prefill leg; what became of its KV.
pub async fn prefill(node: &Node, prompt: &str, number: u32) -> Value {
    let answer = complete(&node.p, &leg(greedy(prompt, 1), Some(hold(number, "prompt")), None)).await;
    assert_eq!(tokens_of(&answer), right_tokens(prompt, 1));
    answer["kv_transfer_params"].clone()
}

/// A decode leg that pulls; its answer.
pub async fn decode(node: &Node, prompt: &str, number: u32) -> Value {
    complete(&node.d, &leg(greedy(prompt, 32), None, Some(receive(number, "pull")))).await
}

/// Prompt tokens of an engine by where their KV came from: computed, cached, from elsewhere.
pub async fn sources(of: &Emulator) -> (u64, u64, u64) {
    let counts = of.engine().report().await.unwrap().counts;
    (counts.prompt_tokens_computed, counts.prompt_tokens_cached, counts.prompt_tokens_external)
}

pub async fn failed(of: &Emulator) -> u64 {
    of.engine().report().await.unwrap().transfers.failed
}

pub fn prompt(seed: u64) -> String {
    words(seed, 100)
}
