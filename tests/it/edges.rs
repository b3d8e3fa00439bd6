//! Hostile bytes on a client's connection, and absurd requests: each is told what is wrong as OpenAI would, reaches no
//! engine, and leaves a host that serves.

use std::time::Duration;

use serde_json::{Value, json};
use sluice_harness::{Host, HostPlan, MockEngine, Mode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What an answer must say: status, `error.code`, `error.param`.
type Expect = (u16, &'static str, Option<&'static str>);

/// For one raw exchange; far above what it takes.
const EXCHANGE_WITHIN: Duration = Duration::from_secs(20);

async fn host() -> (MockEngine, Host) {
    let engine = MockEngine::well_behaved().await.unwrap();
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    plan.pool.push_str("max_model_len = 4096\n");
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    (engine, host)
}

/// Sends bytes and reads all that comes back until the host closes.
async fn exchange(host: &Host, bytes: &[u8]) -> String {
    let address = host.client().base().trim_start_matches("http://");
    let (mut reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
    let mut got = Vec::new();
    // A host that answers early may close before all is written.
    let sending = async {
        let _ = writer.write_all(bytes).await;
        writer
    };
    let both = async { tokio::join!(sending, reader.read_to_end(&mut got)) };
    let (_writer, read) = timeout(EXCHANGE_WITHIN, both).await.expect("the host answers and closes");
    read.unwrap_or_else(|error| panic!("no clean end: {error}; {:?}", String::from_utf8_lossy(&got)));
    String::from_utf8(got).expect("UTF-8")
}

/// Status and JSON body of the one answer in a text.
fn answer(text: &str) -> (u16, Value) {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{head}");
    let length = format!("content-length: {}", body.len());
    assert!(head.to_ascii_lowercase().contains(&length), "one answer and nothing after it: {text}");
    (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {body:?}")))
}

fn check(what: &str, (status, body): (u16, Value), expect: Expect) {
    let error = &body["error"];
    let found = (status, error["code"].as_str().unwrap_or_default(), error["param"].as_str());
    assert_eq!(found, expect, "{what}: {body}");
    assert_eq!(error["type"], "invalid_request_error", "{what}: {body}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{what}: {body}");
}

/// The host serves a good request after each bad one.
async fn still_serves(what: &str, engine: &MockEngine, host: &Host) {
    let served = engine.seen().len();
    let asked = json!({"model": "emulated", "prompt": "hi"});
    let answer = host.client().post("/v1/completions", &asked).await.unwrap();
    assert_eq!((answer.status, engine.seen().len()), (200, served + 1), "after {what}");
}

const GOOD: &str = r#"{"model":"emulated","prompt":"hi"}"#;

fn post(headers: &str, body: &str) -> Vec<u8> {
    format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n{body}")
        .into_bytes()
}

/// What HTTP itself forbids, or a host must bound.
#[tokio::test]
async fn broken_http_is_told() {
    let (engine, host) = host().await;
    let many: String = (0..101).map(|number| format!("x-{number}: 1\r\n")).collect();
    let long = format!("x: {}\r\n", "x".repeat(70_000));
    let long_uri = |bytes| format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(bytes)).into_bytes();
    let (malformed, headers, uri): (Expect, Expect, Expect) =
        ((400, "malformed_http", None), (431, "headers_too_large", None), (414, "uri_too_long", None));
    let table: Vec<(&str, Vec<u8>, Expect)> = vec![
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), malformed),
        ("zeroes", b"\0\0\0\0\r\n\r\n".to_vec(), malformed),
        ("no version", b"GET /health\r\n\r\n".to_vec(), malformed),
        ("version 9", b"GET /health HTTP/9.9\r\n\r\n".to_vec(), malformed),
        ("a method with a space", b"GE T /health HTTP/1.1\r\n\r\n".to_vec(), malformed),
        ("a header without a colon", post("nonsense\r\n", ""), malformed),
        ("a header with a space before its colon", post("content-length : 5\r\n", "hello"), malformed),
        ("a folded header", post("x: 1\r\n more\r\n", ""), malformed),
        ("a zero in a header", post("x: a\0b\r\n", ""), malformed),
        ("101 headers", post(&many, ""), headers),
        ("a header of 70 KB", post(&long, ""), headers),
        ("a URI of 9 KB", [&long_uri(9_000)[..16 + 9_000], b"connection: close\r\n\r\n"].concat(), uri),
        ("a URI of 100 KB", long_uri(100_000), headers),
        ("a length that is no number", post("content-length: five\r\n", "hello"), malformed),
        ("a negative length", post("content-length: -5\r\n", "hello"), malformed),
        ("a length with a sign", post("content-length: +5\r\n", "hello"), malformed),
        ("two lengths", post("content-length: 5\r\ncontent-length: 34\r\n", GOOD), malformed),
        ("a list of lengths", post("content-length: 5, 34\r\n", GOOD), malformed),
        ("an endless length", post("content-length: 99999999999999999999\r\n", "x"), malformed),
        ("an encoding that is not chunked", post("transfer-encoding: gzip\r\n", GOOD), malformed),
        ("chunked, but not last", post("transfer-encoding: chunked, gzip\r\n", GOOD), malformed),
        (
            "chunked in HTTP/1.0",
            b"POST /v1/completions HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
            malformed,
        ),
        (
            "a chunk whose size is no number",
            post("transfer-encoding: chunked\r\n", "zz\r\nhello\r\n0\r\n\r\n"),
            (400, "body_broken", None),
        ),
        (
            "a chunk that is too short",
            post("transfer-encoding: chunked\r\n", "5\r\nhelloX\r\n0\r\n\r\n"),
            (400, "body_broken", None),
        ),
    ];
    for (what, bytes, expect) in table {
        check(what, answer(&exchange(&host, &bytes).await), expect);
        still_serves(what, &engine, &host).await;
    }
}

/// Bodies that are none, or too much.
#[tokio::test]
async fn absurd_bodies_are_told() {
    let (engine, host) = host().await;
    let sized = |body: &str| post(&format!("content-length: {}\r\n", body.len()), body);
    let typed = |kind: &str| post(&format!("{kind}\r\ncontent-length: {}\r\n", GOOD.len()), GOOD);
    let asks = |members: &str| sized(&format!(r#"{{"model":"emulated","prompt":"hi",{members}}}"#));
    let invalid: Expect = (400, "invalid_value", Some("max_tokens"));
    let (kind, large): (Expect, Expect) =
        ((415, "unsupported_content_type", None), (413, "request_too_large", None));
    let table: Vec<(&str, Vec<u8>, Expect)> = vec![
        ("no body", sized(""), (400, "invalid_json", None)),
        ("no length", post("", ""), (400, "invalid_json", None)),
        ("half an object", sized(r#"{"model":"#), (400, "invalid_json", None)),
        ("bytes that are no text", sized("{\"model\":\"\u{fffd}\"}x"), (400, "invalid_json", None)),
        ("100 MB, announced", post("content-length: 104857600\r\n", ""), large),
        ("100 MB, expected", post("content-length: 104857600\r\nexpect: 100-continue\r\n", ""), large),
        ("17 MB, in one chunk", huge_chunk(), large),
        ("a form", typed("content-type: application/x-www-form-urlencoded"), kind),
        ("a multipart form", typed("content-type: multipart/form-data; boundary=x"), kind),
        ("text", typed("content-type: text/plain"), kind),
        ("JSON in another charset", typed("content-type: application/json; charset=utf-16"), kind),
        ("gzip", typed("content-encoding: gzip"), (415, "unsupported_content_encoding", None)),
        (
            "an unknown model",
            sized(r#"{"model":"x","prompt":"hi"}"#),
            (404, "model_not_found", Some("model")),
        ),
        ("no prompt", sized(r#"{"model":"emulated"}"#), (400, "missing_required_parameter", Some("prompt"))),
        ("max_tokens 0", asks(r#""max_tokens":0"#), invalid),
        ("max_tokens -1", asks(r#""max_tokens":-1"#), invalid),
        ("max_tokens above 32 bits", asks(r#""max_tokens":4294967296"#), invalid),
        ("max_tokens above 128 bits", asks(&format!(r#""max_tokens":{}"#, "9".repeat(60))), invalid),
        ("max_tokens above the model's context", asks(r#""max_tokens":4097"#), invalid),
        ("max_tokens 1.5", asks(r#""max_tokens":1.5"#), (400, "invalid_type", Some("max_tokens"))),
        ("n -1", asks(r#""n":-1"#), (400, "invalid_type", Some("n"))),
        (
            "a handle by the back door",
            asks(r#""vllm_xargs":{"kv_transfer_params":"x"}"#),
            (400, "forbidden_parameter", Some("vllm_xargs")),
        ),
    ];
    for (what, bytes, expect) in table {
        check(what, answer(&exchange(&host, &bytes).await), expect);
        still_serves(what, &engine, &host).await;
    }
}

/// A body that is sent whole before anything is read of the answer, as many clients do.
fn huge_chunk() -> Vec<u8> {
    let size = 17 * 1024 * 1024;
    let chunk = format!("{size:x}\r\n{}\r\n0\r\n\r\n", " ".repeat(size));
    post("transfer-encoding: chunked\r\n", &chunk)
}

/// Where the end of a body is told in two ways, the chunks count, and the connection ends with its answer: what follows
/// is nobody's request.
#[tokio::test]
async fn a_request_cannot_be_smuggled_to_an_engine() {
    let (engine, host) = host().await;
    let chunked = |body: &str| format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let hidden = r#"{"model":"emulated","prompt":"hidden"}"#;
    let second = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{hidden}",
        hidden.len()
    );
    for framing in [
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "content-length: 9999\r\ntransfer-encoding: chunked\r\n",
    ] {
        let first = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{framing}\r\n{}", chunked(GOOD));
        let before = engine.seen().len();
        let told = exchange(&host, format!("{first}{second}").as_bytes()).await;
        assert_eq!(told.matches("HTTP/1.1 200 OK").count(), 1, "{framing}: {told}");
        let seen: Vec<_> = engine.seen().iter().skip(before).map(|leg| leg.body["prompt"].clone()).collect();
        assert_eq!(seen, [json!("hi")], "{framing}");
        for leg in engine.seen().iter().skip(before) {
            assert_eq!(leg.header("transfer-encoding"), None, "{framing}");
            assert_eq!(leg.header("content-length"), Some(leg.body.to_string().len().to_string().as_str()));
        }
        still_serves(framing, &engine, &host).await;
    }
}

/// Equal lengths told twice are one length.
#[tokio::test]
async fn one_length_told_twice_is_taken() {
    let (engine, host) = host().await;
    let length = format!("content-length: {}\r\n", GOOD.len());
    let told = exchange(&host, &post(&format!("{length}{length}"), GOOD)).await;
    assert!(told.starts_with("HTTP/1.1 200 OK"), "{told}");
    assert_eq!(engine.seen().len(), 1);
}

/// A refusal that follows a good answer on one connection is told as well.
#[tokio::test]
async fn a_refusal_after_a_good_answer_is_told() {
    let (engine, host) = host().await;
    let good =
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{GOOD}", GOOD.len());
    let told = exchange(&host, format!("{good}nonsense\r\n\r\n").as_bytes()).await;
    let at = told.rfind("HTTP/1.1 ").unwrap();
    check("nonsense after a request", answer(&told[at..]), (400, "malformed_http", None));
    assert!(told.starts_with("HTTP/1.1 200 OK"), "{told}");
    still_serves("nonsense after a request", &engine, &host).await;
}

/// Bodies that take long to read are read on other threads: the outcome is the same.
#[tokio::test]
async fn a_body_of_many_brackets_is_served_as_any_other() {
    let (engine, host) = host().await;
    let brackets = format!("[{}[]]", "[],".repeat(300_000));
    for (path, prompt, status) in [
        ("/v1/completions", r#""prompt":"hi""#, 200),
        ("/v1/completions", r#""prompt":7"#, 400),
        ("/v1/embeddings", r#""input":"hi""#, 200),
        ("/v1/responses", r#""input":"hi","background":true"#, 400),
    ] {
        let served = engine.seen().len();
        let body = format!(r#"{{"model":"emulated",{prompt},"metadata":{brackets}}}"#);
        let answer = host.client().request(hyper::Method::POST, path, body.into(), &[]).await.unwrap();
        assert_eq!(answer.status, status, "{path} {prompt}: {}", answer.text());
        assert_eq!(engine.seen().len() - served, usize::from(status == 200), "{path} {prompt}");
    }
}
