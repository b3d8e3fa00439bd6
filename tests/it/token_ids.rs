//! Token ids that the host has engines tell: clients see them where they asked for them, and nowhere else.

use serde_json::{Value, json};
use sluice_harness::{Ask, Fleet, FleetPlan, Reply};
use sluice_sim::words as made_up;

use crate::right;

/// One request of a conversation for each endpoint, whole and streamed.
fn turns() -> Vec<Ask> {
    let text = made_up(3, 90);
    let asks = [Ask::completion(&text, 12), Ask::question(&text, 12)];
    let named = asks.into_iter().map(|ask| ask.with("conversation_id", "one"));
    named.flat_map(|ask| [ask.clone(), ask.streamed()]).collect()
}

/// Bodies, or payloads of events, that an answer was made of.
fn parts(reply: &Reply) -> Vec<Value> {
    let events = reply.events.iter().filter_map(|event| serde_json::from_str(event).ok());
    if reply.events.is_empty() { vec![reply.body.clone()] } else { events.collect() }
}

/// Of all parts, in order: the prompt's ids, and the answer's.
fn ids(reply: &Reply) -> (Vec<u32>, Vec<u32>) {
    let list = |value: &Value| {
        serde_json::from_value::<Option<Vec<u32>>>(value.clone()).unwrap().unwrap_or_default()
    };
    let (mut prompt, mut output) = (Vec::new(), Vec::new());
    for part in parts(reply) {
        let choice = &part["choices"][0];
        prompt.extend([&part["prompt_token_ids"], &choice["prompt_token_ids"]].into_iter().flat_map(list));
        output.extend(list(&choice["token_ids"]));
    }
    (prompt, output)
}

async fn counted(fleet: &Fleet, name: &str, labels: &[(&str, &str)]) -> f64 {
    fleet.host.metrics().await.unwrap().sum(name, labels)
}

/// Whatever the engine tells the host, a client's answer is right and has the ids that it asked for.
async fn ids_are_where_they_were_asked_for(plan: FleetPlan, told: f64, untold_streams: f64) {
    let fleet = plan.start().await.unwrap();
    for ask in turns() {
        let reply = right(fleet.client(), &ask).await;
        assert_eq!(ids(&reply), (Vec::new(), Vec::new()), "{:?}", reply.events);
        let shown = format!("{}{}", reply.body, reply.events.concat());
        assert!(!shown.contains("kv_transfer_params"), "{shown}");
        assert!(shown.contains(r#""token_ids":null"#), "{shown}");
        let asking = ask.with("return_token_ids", true);
        let reply = right(fleet.client(), &asking).await;
        assert_eq!(ids(&reply), (asking.prompt_tokens(), asking.answer_tokens()), "{:?}", reply.events);
    }
    assert_eq!(counted(&fleet, "sluice_token_ids_total", &[("result", "told")]).await, told);
    assert_eq!(counted(&fleet, "sluice_token_ids_total", &[]).await, told);
    let fallback = [("reason", "stream_tells_nothing")];
    assert_eq!(counted(&fleet, "sluice_fallbacks_total", &fallback).await, untold_streams);
}

#[tokio::test]
async fn engines_of_0_33_tell_their_ids_in_streams_too() {
    let plan = FleetPlan::bidirectional(1, 1).engines("", "--wire 0.33");
    ids_are_where_they_were_asked_for(plan, 8.0, 0.0).await;
}

#[tokio::test]
async fn engines_of_0_32_tell_their_ids_in_whole_answers() {
    let plan = FleetPlan::bidirectional(1, 1).engines("", "--wire 0.32");
    ids_are_where_they_were_asked_for(plan, 4.0, 4.0).await;
}

#[tokio::test]
async fn streams_that_the_host_makes_tell_them_all() {
    let plan = FleetPlan::bidirectional(1, 1).engines("", "--wire 0.32").pool("streams = \"made\"\n");
    ids_are_where_they_were_asked_for(plan, 8.0, 0.0).await;
}

/// What no later turn can use is not asked for.
#[tokio::test]
async fn nothing_is_asked_where_nothing_is_kept() {
    let fleet = FleetPlan::pull(1, 1).engines("", "--wire 0.33").start().await.unwrap();
    for ask in turns() {
        right(fleet.client(), &ask).await;
    }
    assert_eq!(counted(&fleet, "sluice_token_ids_total", &[]).await, 0.0);
}

/// A made stream has the chunks of an engine's: role, words, end, usage.
#[tokio::test]
async fn a_made_stream_looks_like_an_engines() {
    let plan = FleetPlan::bidirectional(1, 1).engines("", "--wire 0.32");
    let made = plan.clone().pool("streams = \"made\"\n").start().await.unwrap();
    let engines = plan.start().await.unwrap();
    for ask in turns().into_iter().filter(Ask::streams) {
        let (made, engines) = (right(made.client(), &ask).await, right(engines.client(), &ask).await);
        let shapes = |reply: &Reply| {
            let keys =
                |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
            let mut shapes: Vec<_> = parts(reply)
                .iter()
                .map(|part| {
                    (
                        keys(part),
                        keys(&part["choices"][0]),
                        keys(&part["choices"][0]["delta"]),
                        keys(&part["usage"]),
                    )
                })
                .collect();
            shapes.dedup();
            shapes
        };
        assert_eq!(shapes(&made), shapes(&engines), "{:?}", made.events);
        assert_eq!(made.headers.get("content-type"), engines.headers.get("content-type"));
        assert_eq!(made.events.last().map(String::as_str), Some("[DONE]"));
    }
    let unknown = json!({"model": "emulated", "prompt": "x", "stream": true, "max_tokens": 0, "conversation_id": "one"});
    let (one, other) = (made.client(), engines.client());
    let (one, other) =
        (one.post("/v1/completions", &unknown).await, other.post("/v1/completions", &unknown).await);
    assert_eq!(one.unwrap().status, other.unwrap().status);
}
