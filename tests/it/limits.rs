//! The limits of time and of room: whoever meets one is told which, and what was taken is given back.

use serde_json::{Value, json};
use sluice_harness::mock_engine::End;
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{SOON, nothing_left_booked};

const CHUNK: &str = r#"{"id":"c","choices":[{"index":0,"text":" a","finish_reason":null}]}"#;

/// An engine that does as its prompt says.
async fn obedient() -> MockEngine {
    MockEngine::start(|request| match request.body["prompt"].as_str() {
        Some("silence") => Canned::silence(),
        Some("flood") => {
            let chunk = CHUNK.replace(" a", &"a".repeat(64 * 1024));
            Canned::events(&[chunk.as_str(); 512], End::Never)
        }
        Some("stall") => Canned::events(&[CHUNK], End::Never),
        _ => Canned::completed(),
    })
    .await
    .unwrap()
}

async fn with_server_lines(engine: &MockEngine, lines: &str) -> Host {
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    plan.server = lines.into();
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host
}

fn asked(prompt: &str, stream: bool) -> Value {
    json!({"model": "emulated", "prompt": prompt, "stream": stream})
}

#[tokio::test]
async fn a_request_has_its_time_and_no_more() {
    let engine = obedient().await;
    let host = with_server_lines(&engine, "request_timeout_ms = 1000\nconnect_timeout_ms = 500").await;
    let never_answered = async {
        let answer = host.client().post("/v1/completions", &asked("silence", false)).await.unwrap();
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (504, &json!("timeout")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("unified-0"), "{error}");
    };
    let stalled = async {
        let stream = host.client().stream("/v1/completions", &asked("stall", true), &[]).await.unwrap();
        let events: Vec<_> = stream.rest().await.unwrap().into_iter().map(|event| event.data).collect();
        let [first, last] = &events[..] else { panic!("a chunk and an error: {events:?}") };
        assert_eq!(first, CHUNK);
        assert_eq!(serde_json::from_str::<Value>(last).unwrap()["error"]["code"], "timeout", "{last}");
    };
    let slow_client = async {
        let mut client =
            TcpStream::connect(host.client().base().trim_start_matches("http://")).await.unwrap();
        let half = "POST /v1/completions HTTP/1.1\r\nhost: sluice\r\ncontent-length: 100\r\n\r\n{\"model\":";
        client.write_all(half.as_bytes()).await.unwrap();
        let mut told = String::new();
        let _ = client.read_to_string(&mut told).await;
        assert!(told.starts_with("HTTP/1.1 408 ") && told.contains("\"body_too_slow\""), "{told}");
    };
    tokio::join!(never_answered, stalled, slow_client);
    nothing_left_booked(&host, &["unified-0"]).await;
    let metrics = host.metrics().await.unwrap();
    for (outcome, count) in [("decode_failed", 2.0), ("client_error", 1.0)] {
        assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", outcome)]), count, "{outcome}");
    }
    assert_eq!(metrics.sum("sluice_requests_total", &[]), 3.0);
    // A request out of time is not tried again: it has no time left.
    assert_eq!(engine.seen().len(), 2);
}

/// A client that does not take what waits for it is cut off when its request's time is over, long before it counts as
/// one that reads nothing at all. That is its own end, not the engine's failure.
#[tokio::test]
async fn a_client_that_reads_too_slowly_has_its_time_and_no_more() {
    let engine = obedient().await;
    let host = with_server_lines(&engine, "request_timeout_ms = 1000\nconnect_timeout_ms = 500").await;
    let mut client = TcpStream::connect(host.client().base().trim_start_matches("http://")).await.unwrap();
    let body = asked("flood", true).to_string();
    let length = body.len();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: sluice\r\ncontent-type: application/json\r\n";
    client.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes()).await.unwrap();
    client.read_exact(&mut [0; 1_024]).await.unwrap();
    let cancelled = [("outcome", "cancelled")];
    host.until_metric("sluice_requests_total", &cancelled, |count| count == 1.0, SOON).await.unwrap();
    nothing_left_booked(&host, &["unified-0"]).await;
    let metrics = host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_requests_total", &[]), 1.0);
    assert_eq!(metrics.sum("sluice_leg_failures_total", &[]), 0.0);
}

#[tokio::test]
async fn a_full_host_turns_requests_away_until_there_is_room() {
    let engine = obedient().await;
    let host = with_server_lines(&engine, "max_in_flight = 1\nmax_queued = 0").await;
    let mut first = host.client().stream("/v1/completions", &asked("stall", true), &[]).await.unwrap();
    first.next().await.unwrap().expect("its first chunk");
    let second = host.client().post("/v1/completions", &asked("hi", false)).await.unwrap();
    let code = second.json()["error"]["code"].clone();
    assert_eq!((second.status, code), (429, json!("overloaded")), "{}", second.text());
    assert_eq!(second.header("retry-after"), Some("1"));
    drop(first);
    until("room for one more", SOON, async || {
        let answer = host.client().post("/v1/completions", &asked("hi", false)).await.unwrap();
        assert!([200, 429].contains(&answer.status), "{}", answer.text());
        (answer.status == 200).then_some(())
    })
    .await
    .unwrap();
    nothing_left_booked(&host, &["unified-0"]).await;
}

/// A member repeated without end costs no more than its bytes: it is refused, and others are answered meanwhile.
#[tokio::test]
async fn a_member_repeated_without_end_is_refused() {
    let engine = obedient().await;
    let host = with_server_lines(&engine, "").await;
    let body = format!("{{{}\"model\":\"emulated\"}}", "\"prompt\":\"hi\",".repeat(100_000));
    let (refused, health) = tokio::join!(
        host.client().request(hyper::Method::POST, "/v1/completions", body.into(), &[]),
        host.client().get("/health"),
    );
    let refused = refused.unwrap();
    assert_eq!((refused.status, health.unwrap().status), (400, 200), "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "invalid_json", "{}", refused.text());
    assert_eq!(engine.seen().len(), 0);
}

/// The table of open files does not grow under requests: each time it does, the thread that opens one waits for all CPUs.
#[tokio::test]
async fn there_is_room_for_descriptors_from_the_start() {
    const CLIENTS: usize = 512;
    let engine = obedient().await;
    let mut host = with_server_lines(&engine, &format!("max_in_flight = {CLIENTS}")).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.process().pid().unwrap())).unwrap();
    let room = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
    assert!(room.trim().parse::<usize>().unwrap() >= 2 * CLIENTS, "{room}");
}
