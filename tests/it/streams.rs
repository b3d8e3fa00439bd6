//! Streams: relayed as they come, less what is between host and engine, and never ended as if they were whole.

use serde_json::{Value, json};
use sluice_harness::mock_engine::{End, handle};
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode};

use crate::in_front_of;

const CHUNK: &str = r#"{"id":"c","choices":[{"index":0,"text":" a","finish_reason":null}],"usage":null}"#;
const FINISH: &str =
    r#"{"id":"c","choices":[{"index":0,"text":" b","finish_reason":"length"}],"usage":null}"#;
const USAGE: &str =
    r#"{"id":"c","choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}}"#;

async fn relayed(payloads: &[&str], end: End) -> (Vec<String>, sluice_harness::Host) {
    relayed_of(Canned::events(payloads, end)).await
}

async fn relayed_of(canned: Canned) -> (Vec<String>, sluice_harness::Host) {
    let engine = MockEngine::start(move |_| canned.clone()).await.unwrap();
    let host = in_front_of(&engine).await;
    let asked = json!({"model": "emulated", "prompt": "hi", "stream": true});
    let stream = host.client().stream("/v1/completions", &asked, &[]).await.unwrap();
    assert_eq!(stream.status, 200);
    assert!(stream.header("content-type").unwrap().starts_with("text/event-stream"));
    let events = stream.rest().await.unwrap().into_iter().map(|event| event.data).collect();
    (events, host)
}

#[tokio::test]
async fn events_are_relayed_as_they_are() {
    let sent = [CHUNK, CHUNK, FINISH, USAGE, "[DONE]"];
    let (events, host) = relayed(&sent, End::Whole).await;
    assert_eq!(events, sent);
    assert_eq!(host.metrics().await.unwrap().sum("sluice_requests_total", &[("outcome", "ok")]), 1.0);
}

/// vLLM 0.33 puts the decode engine's handle into the chunk that finishes.
#[tokio::test]
async fn handles_in_streams_stay_inside() {
    let mut finish: Value = serde_json::from_str(FINISH).unwrap();
    finish["kv_transfer_params"] = handle();
    let (events, _host) = relayed(&[CHUNK, &finish.to_string(), USAGE, "[DONE]"], End::Whole).await;
    let got: Value = serde_json::from_str(&events[1]).unwrap();
    assert_eq!(got, serde_json::from_str::<Value>(FINISH).unwrap());
    assert_eq!((events[0].as_str(), events[2].as_str(), events[3].as_str()), (CHUNK, USAGE, "[DONE]"));
}

/// However a server-sent event may be written, a handle in it stays inside.
#[tokio::test]
async fn handles_in_oddly_written_events_stay_inside() {
    let mut finish: Value = serde_json::from_str(FINISH).unwrap();
    finish["kv_transfer_params"] = handle();
    let (one_line, lines) = (finish.to_string(), serde_json::to_string_pretty(&finish).unwrap());
    let on_lines: String = lines.lines().map(|line| format!("data: {line}\n")).collect();
    for odd in [
        format!("event: message\ndata: {one_line}\n\n"),
        format!("id: 7\nevent: message\nretry: 10\ndata:{one_line}\n\n"),
        format!(": a comment\r\ndata: {one_line}\r\n\r\n"),
        format!("{on_lines}\n"),
        format!("data: {CHUNK}\n\ndata: {one_line}\n\n"),
    ] {
        // Whole, and cut in the midst of the handle.
        let cut = odd.find("remote_engine").unwrap();
        for pieces in [vec![odd.as_str()], vec![&odd[..cut], &odd[cut..]]] {
            let pieces = [&pieces[..], &["data: [DONE]\n\n"]].concat();
            let (events, _host) = relayed_of(Canned::stream(&pieces, End::Whole)).await;
            let shown = events.join("\n");
            for secret in ["kv_transfer_params", "remote_", "engine-p"] {
                assert!(!shown.contains(secret), "{odd}\nbecame\n{shown}");
            }
            assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{odd}");
        }
    }
}

/// `[DONE]` is the end, whatever the engine does after it: the client's answer is whole, and nothing follows.
async fn done_ends(what: &str, pieces: &[&str], end: End) {
    let (events, host) = relayed_of(Canned::stream(pieces, end)).await;
    assert_eq!(events, [CHUNK, FINISH, "[DONE]"], "the engine {what}");
    let metrics = host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "ok")]), 1.0, "the engine {what}");
    assert_eq!(metrics.sum("sluice_leg_failures_total", &[]), 0.0, "the engine {what}");
}

/// An answer of two events, whole.
fn whole() -> String {
    format!("data: {CHUNK}\n\ndata: {FINISH}\n\ndata: [DONE]\n\n")
}

/// What opens a chat's stream before the engine has words.
const ROLE: &str =
    r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;

/// A stream that fails before its first words is no answer yet: the client is told by a status, after other attempts.
#[tokio::test]
async fn a_stream_that_fails_before_its_first_words_is_tried_again() {
    const ERROR: &str = r#"{"error":{"message":"KV load failed","type":"InternalServerError","code":500}}"#;
    const REFUSAL: &str = r#"{"error":{"message":"too long","type":"BadRequestError","code":400}}"#;
    for (payloads, end, status, code, attempts) in [
        (&["[DONE]"][..], End::Whole, 502, "no_answer", 4),
        (&[], End::Whole, 502, "worker_broke_off", 4),
        (&[ROLE], End::BrokenOff, 502, "worker_broke_off", 4),
        (&[ROLE, "[DONE]"], End::Whole, 502, "no_answer", 4),
        (&[ERROR, "[DONE]"], End::Whole, 500, "engine_failed", 4),
        (&[ROLE, ERROR, "[DONE]"], End::Whole, 500, "engine_failed", 4),
        (&[REFUSAL, "[DONE]"], End::Whole, 400, "refused_by_engine", 1),
    ] {
        let canned = Canned::events(payloads, end);
        let engine = MockEngine::start(move |_| canned.clone()).await.unwrap();
        let host = in_front_of(&engine).await;
        let asked = json!({"model": "emulated", "prompt": "hi", "stream": true});
        let told = host.client().post("/v1/completions", &asked).await.unwrap();
        assert_eq!((told.status, &told.json()["error"]["code"]), (status, &json!(code)), "{payloads:?}");
        assert_eq!(engine.seen().len(), attempts, "{payloads:?}");
    }
}

/// The other worker answers, and the client sees one whole answer.
#[tokio::test]
async fn another_worker_begins_the_stream_that_one_could_not() {
    const ERROR: &str = r#"{"error":{"message":"KV load failed","type":"InternalServerError","code":500}}"#;
    let failing = MockEngine::start(|_| Canned::events(&[ROLE, ERROR, "[DONE]"], End::Whole)).await.unwrap();
    let sound =
        MockEngine::start(|_| Canned::events(&[ROLE, CHUNK, FINISH, "[DONE]"], End::Whole)).await.unwrap();
    let plan = HostPlan::new(Mode::Unified).worker("unified", failing.url()).worker("unified", sound.url());
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    let asked = json!({"model": "emulated", "prompt": "hi", "stream": true});
    for _ in 0..8 {
        let stream = host.client().stream("/v1/completions", &asked, &[]).await.unwrap();
        assert_eq!(stream.status, 200);
        let events: Vec<_> = stream.rest().await.unwrap().into_iter().map(|event| event.data).collect();
        assert_eq!(events, [ROLE, CHUNK, FINISH, "[DONE]"]);
    }
    assert!(!failing.seen().is_empty(), "the failing one was never met");
}

#[tokio::test]
async fn done_is_the_end() {
    let done = &whole();
    let more = format!("data: {CHUNK}\n\ndata: [DONE]\n\n");
    done_ends("stays open", &[done], End::Never).await;
    done_ends("breaks", &[done], End::BrokenOff).await;
    done_ends("says more", &[done, &more], End::Whole).await;
    done_ends("says half an event more", &[done, "data: {"], End::BrokenOff).await;
    done_ends("ends its lines as the web does", &[&done.replace('\n', "\r\n")], End::Never).await;
}

/// What follows may come in the same read as `[DONE]` itself.
#[tokio::test]
async fn done_is_the_end_in_the_same_breath() {
    done_ends("says more", &[&format!("{}data: {CHUNK}\n\ndata: [DONE]\n\n", whole())], End::Whole).await;
}

/// Servers other than vLLM's name their events; `[DONE]` is the end all the same.
#[tokio::test]
async fn done_is_the_end_under_any_name() {
    let named = whole().replace("data:", "event: message\ndata:");
    done_ends("names its events", &[&named], End::Whole).await;
}

/// Text that merely speaks of such fields is the model's, and stays.
#[tokio::test]
async fn text_about_handles_is_left_alone() {
    let chunk =
        r#"{"id":"c","choices":[{"index":0,"text":"\"kv_transfer_params\": {}","finish_reason":null}]}"#;
    let (events, _host) = relayed(&[chunk, FINISH, "[DONE]"], End::Whole).await;
    assert_eq!(events, [chunk, FINISH, "[DONE]"]);
}

/// A connection that breaks, an end without `[DONE]`: an error event, and no `[DONE]`.
#[tokio::test]
async fn a_broken_stream_is_told() {
    for (payloads, end) in [(&[CHUNK, CHUNK][..], End::BrokenOff), (&[CHUNK, FINISH], End::Whole)] {
        let (events, host) = relayed(payloads, end).await;
        let (last, before) = events.split_last().expect("an error event");
        assert_eq!(before, payloads);
        let error = serde_json::from_str::<Value>(last).unwrap()["error"].clone();
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("stream_broken"), &json!("upstream_error")),
            "{last}"
        );
        assert!(error["message"].as_str().unwrap().contains("unified-0"), "{last}");
        let metrics = host.metrics().await.unwrap();
        assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "decode_failed")]), 1.0);
        assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "ok")]), 0.0);
    }
}

/// No second attempt once the client has seen a byte: it would see tokens twice.
#[tokio::test]
async fn a_broken_stream_is_not_tried_again() {
    let canned = Canned::events(&[CHUNK], End::BrokenOff);
    let engine = MockEngine::start(move |_| canned.clone()).await.unwrap();
    let host = in_front_of(&engine).await;
    let asked = json!({"model": "emulated", "prompt": "hi", "stream": true});
    host.client().stream("/v1/completions", &asked, &[]).await.unwrap().rest().await.unwrap();
    assert_eq!(engine.seen().len(), 1);
}

/// The first event is out before the second exists: nothing waits for a buffer to fill.
#[tokio::test]
async fn events_do_not_wait_for_more() {
    let canned = Canned::events(&[CHUNK], End::Never);
    let engine = MockEngine::start(move |_| canned.clone()).await.unwrap();
    let host = in_front_of(&engine).await;
    let asked = json!({"model": "emulated", "prompt": "hi", "stream": true});
    let mut stream = host.client().stream("/v1/completions", &asked, &[]).await.unwrap();
    assert_eq!(stream.next().await.unwrap().map(|event| event.data).as_deref(), Some(CHUNK));
}
