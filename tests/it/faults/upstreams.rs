//! Engines that answer with nonsense, slowly, or by halves, beside one that is well: every client gets its right
//! answer, and the failure is counted as what it is, against whom it is.

use std::fmt;

use serde_json::{Value, json};
use sluice_harness::mock_engine::{End, handle};
use sluice_harness::{Ask, Canned, Host, HostPlan, Metrics, MockEngine, Mode, Recorded};

use super::odd_engine::{OddEngine, Step};
use super::{each, nonce};
use crate::{nothing_left_booked, right};

/// So many requests until the odd one must have been met: it is as good as the other to the host's own policy.
const MET_WITHIN: u64 = 40;

/// The kind of failure of which only time tells.
const LATE: &str = "late";

/// Where silence is to be known for what it is: soon, though a good engine on a busy machine can be late by it too. A
/// whole answer has 200 ms more for each of 2 tokens.
const SHORT_LIMITS: &str = "prefill_timeout_ms = 500\ndecode_first_byte_ms = 500\n";

/// Everywhere else: what the odd engine does must be told before, however slowly it comes to do it.
const LONG_LIMITS: &str = "prefill_timeout_ms = 20000\ndecode_first_byte_ms = 20000\n";

#[derive(Clone)]
struct Case {
    what: &'static str,
    steps: Vec<Step>,
    /// The kind of failure that is counted.
    kind: &'static str,
    streams: bool,
    role: &'static str,
}

impl fmt::Debug for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}, as {}", self.what, self.role)
    }
}

fn says(text: &str) -> Vec<Step> {
    vec![Step::Says(text.as_bytes().to_vec())]
}

/// A whole JSON answer of HTTP.
fn body(text: &str) -> Vec<Step> {
    let length = text.len();
    says(&format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{text}"
    ))
}

fn then(mut steps: Vec<Step>, step: Step) -> Vec<Step> {
    steps.push(step);
    steps
}

const JSON_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n";
const CHUNKED_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
const SSE_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

/// What is wrong whatever was asked.
fn of_any_request() -> Vec<(&'static str, Vec<Step>, &'static str)> {
    vec![
        ("takes the request and is silent", vec![Step::Holds], LATE),
        ("a head, then nothing", then(says(JSON_HEAD), Step::Holds), LATE),
        ("half a head, then nothing", then(says("HTTP/1.1 200 OK\r\ncontent-ty"), Step::Holds), LATE),
        ("a body that drips", then(says(JSON_HEAD.replace("100", "100000").as_str()), Step::Drips(b" ".to_vec())), LATE),
        ("a head that drips", then(says("HTTP/1.1 200 OK\r\n"), Step::Drips(b"x: y\r\n".to_vec())), LATE),
        ("closes without a word", vec![], "broken"),
        ("resets without a word", vec![Step::Resets], "broken"),
        ("resets in the body", then(says(&format!("{JSON_HEAD}{{\"cho")), Step::Resets), "broken"),
        ("closes in the body", says(&format!("{JSON_HEAD}{{\"choices\":")), "broken"),
        ("zeros", says("\0\0\0\0\0\0\0\0\r\n\r\n"), "broken"),
        ("another protocol", says("SSH-2.0-OpenSSH_9.2\r\n"), "broken"),
        ("HTTP/0.9", says("{\"choices\":[{\"text\":\"x\"}]}"), "broken"),
        ("a header of 1 MB", then(says("HTTP/1.1 200 OK\r\nx: "), Step::Repeats(vec![b'y'; 1 << 16], 16)), "broken"),
        ("headers without end", then(says("HTTP/1.1 200 OK\r\n"), Step::Repeats(b"x: y\r\n".repeat(1_000), 1_000)), "broken"),
        ("100 Continue without end", vec![Step::Repeats(b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1_000), usize::MAX)], LATE),
        ("early hints, then nothing", then(vec![Step::Repeats(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".to_vec(), 1_000)], Step::Holds), LATE),
        ("another protocol is switched to", says("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"), "status_5xx"),
        ("a chunk whose size is no number", says(&format!("{CHUNKED_HEAD}ZZZ\r\n")), "broken"),
        ("a chunk of endless size", says(&format!("{CHUNKED_HEAD}FFFFFFFFFFFFFFFFFF\r\n")), "broken"),
        ("a chunk longer than it says", says(&format!("{CHUNKED_HEAD}2\r\n{{}}{{}}\r\n0\r\n\r\n")), "broken"),
        ("two lengths", says("HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nnull"), "broken"),
        ("a length that is no number", says("HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\nnull"), "broken"),
        ("a length that is too short", says("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{\"choices\":[{\"text\":\"x\"}]}"), "no_answer"),
        ("a redirect", says("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"), "status_5xx"),
        ("not modified", says("HTTP/1.1 304 Not Modified\r\n\r\n"), "status_5xx"),
        ("a status of no class", says("HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n"), "status_5xx"),
        ("500 with nonsense", says("HTTP/1.1 500 Oh\r\ncontent-length: 3\r\n\r\n\u{0}{["), "status_5xx"),
        ("204", says("HTTP/1.1 204 No Content\r\n\r\n"), "no_answer"),
        ("an empty body", body(""), "no_answer"),
        ("gzip that nobody asked for", [says("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n"), vec![Step::Says(vec![0x1f, 0x8b, 8, 0])]].concat(), "no_answer"),
        ("no UTF-8", [says("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{\"choices\":"), vec![Step::Says(vec![0xff])]].concat(), "no_answer"),
        ("null", body("null"), "no_answer"),
        ("an array", body("[{\"choices\":[{\"text\":\"x\"}]}]"), "no_answer"),
        ("a number", body("7"), "no_answer"),
        ("no members", body("{}"), "no_answer"),
        ("choices that are null", body("{\"choices\":null}"), "no_answer"),
        ("choices that are none", body("{\"choices\":[]}"), "no_answer"),
        ("choices that are a number", body("{\"choices\":7}"), "no_answer"),
        ("choices of nulls", body("{\"choices\":[null]}"), "no_answer"),
        ("two answers in one", body("{\"choices\":[{\"text\":\"x\"}]}{\"choices\":[]}"), "no_answer"),
        ("arrays 100,000 deep", body(&format!("{{\"choices\":{}", "[".repeat(100_000))), "no_answer"),
        ("objects 100,000 deep", body(&"{\"choices\":".repeat(100_000)), "no_answer"),
        ("an error in a 200", body("{\"error\":{\"message\":\"out of order\"}}"), "error_in_answer"),
        ("finish_reason error", body("{\"choices\":[{\"text\":\"\",\"finish_reason\":\"error\"}]}"), "error_in_answer"),
    ]
}

/// What is wrong with a stream before any word of it.
fn of_streams() -> Vec<(&'static str, Vec<Step>, &'static str)> {
    let events = |text: &str| says(&format!("{SSE_HEAD}{text}"));
    vec![
        ("a stream's head, then nothing", then(says(SSE_HEAD), Step::Holds), LATE),
        ("comments without end", then(says(SSE_HEAD), Step::Drips(b": ping\n\n".to_vec())), LATE),
        ("an event that does not end", then(events("data: {\"choices\":[{\"text\":\"x"), Step::Holds), LATE),
        ("an event of 16 MB", then(events("data: \""), Step::Repeats(vec![b'y'; 1 << 20], 16)), "no_answer"),
        ("no events", says(SSE_HEAD), "broken"),
        ("nothing but its end", events("data: [DONE]\n\n"), "no_answer"),
        ("an event of null", events("data: null\n\ndata: [DONE]\n\n"), "no_answer"),
        ("an event of HTML", events("data: <html>\n\ndata: [DONE]\n\n"), "no_answer"),
        ("an event of an array", events("data: [1]\n\ndata: [DONE]\n\n"), "no_answer"),
        (
            "an event 100,000 deep",
            events(&format!("data: {}\n\n", "{\"choices\":[".repeat(100_000))),
            "no_answer",
        ),
        (
            "an error event",
            events("data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n"),
            "error_in_answer",
        ),
        (
            "finish_reason error at once",
            events("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"error\"}]}\n\ndata: [DONE]\n\n"),
            "error_in_answer",
        ),
        ("a reset before any word", then(events(": hello\n\n"), Step::Resets), "broken"),
        (
            "a bad chunk",
            says(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
            ),
            "broken",
        ),
    ]
}

fn table(role: &'static str) -> Vec<Case> {
    let case = |streams| move |(what, steps, kind)| Case { what, steps, kind, streams, role };
    // A prefill leg is never a stream.
    let streams = if role == "prefill" { vec![] } else { of_streams() };
    let both = of_any_request().into_iter().map(case(false)).chain(streams.into_iter().map(case(true)));
    both.collect()
}

/// Prefills, and answers right, whatever it is asked.
fn well(request: &Recorded) -> Canned {
    if request.is_prefill() {
        return Canned::prefilled();
    }
    let prompt = request.body["prompt"].as_str().unwrap_or_default();
    let max_tokens = request.body["max_tokens"].as_u64().unwrap_or_default() as usize;
    let expected = Ask::completion(prompt, max_tokens).expected();
    let usage = json!({
        "prompt_tokens": expected.prompt_tokens, "completion_tokens": expected.completion_tokens,
        "total_tokens": expected.prompt_tokens + expected.completion_tokens,
    });
    let choice = json!({"index": 0, "text": expected.text, "finish_reason": expected.finish_reason});
    let whole = json!({"id": "c", "choices": [choice], "usage": usage});
    if request.body["stream"] == true {
        let mut words = whole.clone();
        words["usage"] = Value::Null;
        let end = json!({"id": "c", "choices": [], "usage": whole["usage"]});
        return Canned::events(&[&words.to_string(), &end.to_string(), "[DONE]"], End::Whole);
    }
    Canned::json(200, &whole)
}

/// A host before the odd engine in one role, and good ones; the odd worker's name.
fn beside(case: &Case, odd: &OddEngine, good: &MockEngine) -> (String, HostPlan, Vec<&'static str>) {
    let role = case.role;
    let other = good.url().replace("127.0.0.1", "localhost");
    let (mode, names) = match role {
        "unified" => (Mode::Unified, vec!["unified-0", "unified-1"]),
        "prefill" => (Mode::Pull, vec!["prefill-0", "prefill-1", "decode-0"]),
        _ => (Mode::Pull, vec!["decode-0", "decode-1", "prefill-0"]),
    };
    let mut plan = HostPlan::new(mode).worker(role, &odd.url).worker(role, good.url());
    match role {
        "prefill" => plan = plan.worker("decode", &other),
        "decode" => plan = plan.worker("prefill", &other),
        _ => {}
    }
    plan.pool.push_str(if case.kind == LATE { SHORT_LIMITS } else { LONG_LIMITS });
    (format!("{role}-0"), plan, names)
}

/// Each kind of failure that was counted of each worker.
fn failures<'a>(metrics: &Metrics, workers: &[&'a str]) -> Vec<(&'a str, &'static str, f64)> {
    const KINDS: [&str; 12] = [
        "connect",
        "broken",
        "late",
        "status_5xx",
        "error_in_answer",
        "no_answer",
        "too_long",
        "refused",
        "handle_expired",
        "no_decode_worker",
        "local",
        "timeout",
    ];
    let each = workers.iter().flat_map(|worker| KINDS.map(|kind| (*worker, kind)));
    let counted = each.map(|(worker, kind)| {
        let labels = [("worker", worker), ("kind", kind)];
        (worker, kind, metrics.sum("sluice_leg_failures_total", &labels))
    });
    counted.filter(|(.., count)| *count > 0.0).collect()
}

async fn is_got_around(number: u64, case: Case) {
    let odd = OddEngine::start(case.steps.clone()).await;
    let good = MockEngine::start(well).await.unwrap();
    let (name, plan, workers) = beside(&case, &odd, &good);
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    let mut asked = 0;
    while odd.met() == 0 {
        asked += 1;
        assert!(asked <= MET_WITHIN, "the odd engine was never met");
        right(host.client(), &nonce(number * 1_000 + asked, 8, 2, case.streams)).await;
    }
    let metrics = host.metrics().await.unwrap();
    let found = failures(&metrics, &workers);
    // Nobody else fails, unless by the clock alone.
    let is_meant = |worker: &str| worker == name || case.kind == LATE;
    assert!(found.iter().all(|(worker, kind, _)| *kind == case.kind && is_meant(worker)), "{found:?}");
    assert!(found.iter().any(|(worker, ..)| *worker == name), "{found:?}");
    let count: f64 = found.iter().map(|(.., count)| count).sum();
    assert_eq!(metrics.sum("sluice_retries_total", &[("reason", case.kind)]), count);
    assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "ok")]), asked as f64);
    assert_eq!(metrics.sum("sluice_requests_total", &[]), asked as f64);
    nothing_left_booked(&host, &workers).await;
}

#[tokio::test]
async fn of_workers_that_do_it_all() {
    each(table("unified"), is_got_around).await;
}

#[tokio::test]
async fn of_prefill_workers() {
    each(table("prefill"), is_got_around).await;
}

#[tokio::test]
async fn of_decode_workers() {
    each(table("decode"), is_got_around).await;
}

/// Odd, and yet an answer: it is passed on.
#[tokio::test]
async fn what_is_merely_unusual_is_an_answer() {
    let ask = nonce(1, 8, 2, false);
    let request = Recorded { path: String::new(), headers: hyper::HeaderMap::new(), body: ask.json() };
    let answer = String::from_utf8(well(&request).pieces.concat()).unwrap();
    let length = answer.len();
    for (what, steps) in [
        ("trailers", says(&format!("{CHUNKED_HEAD}{length:x}\r\n{answer}\r\n0\r\nx-sum: 1\r\n\r\n"))),
        ("chunk extensions", says(&format!("{CHUNKED_HEAD}{length:x};a=b\r\n{answer}\r\n0\r\n\r\n"))),
        ("no length", says(&format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{answer}"))),
        ("HTTP/1.0", says(&format!("HTTP/1.0 200 OK\r\n\r\n{answer}"))),
        (
            "early hints",
            says(&format!(
                "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{answer}"
            )),
        ),
        ("white space", body(&format!("\r\n\t {answer} \n"))),
    ] {
        let odd = OddEngine::start(steps).await;
        let host = Host::start(&HostPlan::new(Mode::Unified).worker("unified", &odd.url), &[]).await.unwrap();
        host.until_ready().await.unwrap();
        let reply = host.client().ask(&ask).await.unwrap();
        assert_eq!(ask.expected().differs_from(&reply), None, "{what}");
        assert_eq!(host.metrics().await.unwrap().sum("sluice_leg_failures_total", &[]), 0.0, "{what}");
    }
}

/// Handles of odd shapes: none is forwarded, decode computes the prompt, and the answer is right.
#[tokio::test]
async fn odd_handles_cost_time_and_nothing_else() {
    let with = |changes: Value| {
        let mut odd = handle();
        odd.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        odd
    };
    let deep = "[".repeat(100) + &"]".repeat(100);
    let odd: Vec<Value> = vec![
        json!(null),
        json!(7),
        json!([handle()]),
        json!({}),
        with(json!({"remote_engine_id": null})),
        with(json!({"remote_engine_id": ["x"]})),
        with(json!({"remote_block_ids": {}})),
        with(json!({"remote_block_ids": [[-1]]})),
        with(json!({"remote_host": {"a": 1}})),
        with(json!({"remote_port": "5600"})),
        with(json!({"remote_port": -1})),
        with(json!({"remote_block_ids": serde_json::from_str::<Value>(&deep).unwrap()})),
    ];
    for (number, odd) in (1..).zip(odd) {
        let shown = odd.to_string();
        let prefill = MockEngine::start(move |_| {
            let choice = json!({"index": 0, "text": " x", "finish_reason": "length"});
            Canned::json(200, &json!({"id": "c", "choices": [choice], "kv_transfer_params": odd}))
        });
        let (prefill, decode) = (prefill.await.unwrap(), MockEngine::start(well).await.unwrap());
        let plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
        let host = Host::start(&plan, &[]).await.unwrap();
        host.until_ready().await.unwrap();
        right(host.client(), &nonce(number, 8, 2, false)).await;
        assert!(decode.seen()[0].body.get("kv_transfer_params").is_none(), "{shown}");
        let metrics = host.metrics().await.unwrap();
        let missing = metrics.sum("sluice_fallbacks_total", &[("reason", "transfer_missing")]);
        assert_eq!(missing, 1.0, "{shown}");
    }
}
