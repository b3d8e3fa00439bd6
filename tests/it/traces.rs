//! Spans as a collector gets them, and trace context as engines get it.

use std::collections::BTreeMap;

use hyper::{Method, StatusCode};
use serde_json::json;
use sluice_harness::mock_engine::End;
use sluice_harness::{Answer, Canned, Collector, Exported, Host, HostPlan, MockEngine, Mode, PolicyFile};

use crate::SOON;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT_SPAN: &str = "b7ad6b7169203331";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{CLIENT_SPAN}-{flags}")
}

fn traced(plan: HostPlan, collector: &str, more: &str) -> HostPlan {
    HostPlan { telemetry: format!("otlp_endpoint = \"{collector}\"\n{more}\n"), ..plan }
}

async fn pair(prefill: &MockEngine, decode: &MockEngine, collector: &str, more: &str) -> Host {
    let plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    let host = Host::start(&traced(plan, collector, more), &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host
}

async fn ask(host: &Host, headers: &[(&str, &str)]) -> Answer {
    let body = json!({"model": "emulated", "prompt": "hi"}).to_string();
    host.client().request(Method::POST, "/v1/completions", body.into(), headers).await.unwrap()
}

fn by_name(spans: Vec<Exported>) -> BTreeMap<String, Exported> {
    spans.into_iter().map(|exported| (exported.span.name.clone(), exported)).collect()
}

fn sent(engine: &MockEngine) -> String {
    engine.seen()[0].header("traceparent").unwrap_or_default().to_owned()
}

/// The request's span goes on where the client's was; decision and legs are below it; each engine goes on from its leg.
#[tokio::test]
async fn a_request_is_a_tree_of_spans() {
    let collector = Collector::start().await.unwrap();
    let (prefill, decode) =
        (MockEngine::well_behaved().await.unwrap(), MockEngine::well_behaved().await.unwrap());
    let host = pair(&prefill, &decode, collector.url(), "service_name = \"edge\"\nsample_ratio = 0").await;
    let parent = traceparent("01");
    let headers = [("traceparent", parent.as_str()), ("tracestate", "vendor=1")];
    assert_eq!(ask(&host, &headers).await.status, 200);

    let spans = by_name(collector.until(4, SOON).await.unwrap());
    let names: Vec<_> = spans.keys().map(String::as_str).collect();
    assert_eq!(names, ["POST /v1/completions", "decide", "decode", "prefill"]);
    let (_, of_client, root) = spans["POST /v1/completions"].ids();
    assert_eq!(of_client, CLIENT_SPAN);
    for (name, exported) in &spans {
        let (trace, above, own) = exported.ids();
        assert_eq!((exported.service.as_str(), trace.as_str()), ("edge", TRACE));
        assert_eq!(exported.span.trace_state, "vendor=1");
        assert!(exported.span.end_time_unix_nano >= exported.span.start_time_unix_nano);
        assert!(own == root || above == root, "{name} is not below the request");
    }
    for (leg, engine) in [("prefill", &prefill), ("decode", &decode)] {
        assert_eq!(sent(engine), format!("00-{TRACE}-{}-01", spans[leg].ids().2));
        assert_eq!(engine.seen()[0].header("tracestate"), Some("vendor=1"));
    }
    for (span, key, value) in [
        ("POST /v1/completions", "sluice.outcome", "ok"),
        ("POST /v1/completions", "http.response.status_code", "200"),
        ("POST /v1/completions", "sluice.policy", "builtin"),
        ("decide", "sluice.placement", "disaggregated"),
        ("prefill", "sluice.worker", "prefill-0"),
        ("prefill", "gen_ai.usage.input_tokens", "7"),
        ("decode", "sluice.worker", "decode-0"),
        ("decode", "gen_ai.usage.output_tokens", "2"),
        ("decode", "sluice.outcome", "ok"),
    ] {
        assert_eq!(spans[span].attribute(key).as_deref(), Some(value), "{span} {key}");
    }
    host.until_metric("sluice_trace_spans_exported_total", &[], |count| count == 4.0, SOON).await.unwrap();
}

/// A leg that failed, and why another attempt was made.
#[tokio::test]
async fn attempts_are_told_apart() {
    let collector = Collector::start().await.unwrap();
    let (broken, good) = (MockEngine::raw(b"").await.unwrap(), MockEngine::well_behaved().await.unwrap());
    let plan = HostPlan::new(Mode::Unified).worker("unified", broken.url()).worker("unified", good.url());
    let plan = traced(plan.policy("round-robin"), collector.url(), "");
    let policy = PolicyFile::policy("round-robin", "round-robin").unwrap();
    let host = Host::start(&plan, &[policy]).await.unwrap();
    host.until_ready().await.unwrap();
    for _ in 0..2 {
        assert_eq!(ask(&host, &[]).await.status, 200);
    }
    // Round robin met the broken one once: three spans of a request that went well, five of the other.
    let spans = collector.until(8, SOON).await.unwrap();
    let leg = |worker: &str, retried: Option<&str>| {
        let found = spans.iter().find(|exported| {
            exported.attribute("sluice.worker").as_deref() == Some(worker)
                && exported.attribute("sluice.retry_reason").as_deref() == retried
        });
        found.unwrap_or_else(|| panic!("no leg of {worker} after {retried:?}: {spans:?}"))
    };
    let failed = leg("unified-0", None);
    assert_eq!(failed.attribute("sluice.outcome").as_deref(), Some("broken"));
    assert_eq!(failed.span.status.as_ref().map(|status| status.code), Some(2));
    let again = leg("unified-1", Some("broken"));
    assert_eq!(again.attribute("sluice.outcome").as_deref(), Some("ok"));
    assert_eq!(again.attribute("sluice.attempt").as_deref(), Some("1"));
}

/// A request that waits for its place says how long.
#[tokio::test]
async fn the_wait_for_a_place_is_a_span() {
    let collector = Collector::start().await.unwrap();
    let engine = MockEngine::start(|request| match request.body["stream"] == true {
        true => Canned::events(&[r#"{"choices":[{"index":0,"text":" x"}]}"#], End::Never),
        false => Canned::completed(),
    });
    let engine = engine.await.unwrap();
    let plan = traced(HostPlan::new(Mode::Unified).worker("unified", engine.url()), collector.url(), "");
    let host = Host::start(&HostPlan { server: "max_in_flight = 1\n".into(), ..plan }, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    let endless = json!({"model": "emulated", "prompt": "hi", "stream": true});
    let holder = host.client().stream("/v1/completions", &endless, &[]).await.unwrap();
    let frees_the_place = async {
        host.until_metric("sluice_queued_requests", &[], |count| count == 1.0, SOON).await.unwrap();
        drop(holder);
    };
    let (answer, ()) = tokio::join!(ask(&host, &[]), frees_the_place);
    assert_eq!(answer.status, 200);
    // Three spans of the one that left, four of the one that waited.
    let spans = collector.until(7, SOON).await.unwrap();
    let waits: Vec<_> = spans.iter().filter(|exported| exported.span.name == "queue").collect();
    assert_eq!(waits.len(), 1, "{spans:?}");
    assert!(waits[0].span.end_time_unix_nano > waits[0].span.start_time_unix_nano);
    let left =
        spans.iter().find(|exported| exported.attribute("sluice.outcome").as_deref() == Some("cancelled"));
    assert!(left.is_some_and(|exported| exported.span.status.is_none()), "{spans:?}");
}

/// Requests to other paths are traced, too, and say where they went.
#[tokio::test]
async fn passed_requests_are_traced() {
    let collector = Collector::start().await.unwrap();
    let answer = json!({"object": "list", "data": []});
    let engine = MockEngine::start(move |_| Canned::json(200, &answer)).await.unwrap();
    let plan = traced(HostPlan::new(Mode::Unified).worker("unified", engine.url()), collector.url(), "");
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    let asked = json!({"model": "emulated", "input": "hi"});
    assert_eq!(host.client().post("/v1/embeddings", &asked).await.unwrap().status, 200);
    let spans = by_name(collector.until(2, SOON).await.unwrap());
    let names: Vec<_> = spans.keys().map(String::as_str).collect();
    assert_eq!(names, ["POST /v1/embeddings", "passthrough"]);
    let (trace, root, leg) = spans["passthrough"].ids();
    assert_eq!(sent(&engine), format!("00-{trace}-{leg}-01"));
    assert_eq!(spans["POST /v1/embeddings"].ids().2, root);
    assert_eq!(spans["passthrough"].attribute("sluice.worker").as_deref(), Some("unified-0"));
}

/// Who is not sampled makes no spans, and engines are told so.
#[tokio::test]
async fn unsampled_requests_make_no_spans() {
    let collector = Collector::start().await.unwrap();
    let (prefill, decode) =
        (MockEngine::well_behaved().await.unwrap(), MockEngine::well_behaved().await.unwrap());
    let mut host = pair(&prefill, &decode, collector.url(), "sample_ratio = 0.0").await;
    let unsampled = traceparent("00");
    ask(&host, &[("traceparent", &unsampled), ("tracestate", "vendor=1")]).await;
    ask(&host, &[("tracestate", "of=nobody")]).await;
    ask(&host, &[("traceparent", "00-not-well-formed"), ("tracestate", "of=nobody")]).await;
    let seen = decode.seen();
    assert_eq!(seen[0].header("traceparent"), Some(unsampled.as_str()));
    assert_eq!(seen[0].header("tracestate"), Some("vendor=1"));
    for leg in &seen[1..] {
        let fresh = leg.header("traceparent").unwrap();
        assert!(fresh.starts_with("00-") && fresh.ends_with("-00") && fresh.len() == 55, "{fresh}");
        assert_eq!(leg.header("tracestate"), None);
    }
    // What is left goes out at the end: nothing was.
    host.process().terminate().unwrap();
    assert_eq!(host.process().ended(SOON).await.unwrap(), Some(0));
    assert_eq!(collector.exported().len(), 0);
}

#[tokio::test]
async fn the_last_spans_go_out_at_the_end() {
    let collector = Collector::start().await.unwrap();
    let (prefill, decode) =
        (MockEngine::well_behaved().await.unwrap(), MockEngine::well_behaved().await.unwrap());
    let mut host = pair(&prefill, &decode, collector.url(), "").await;
    ask(&host, &[]).await;
    host.process().terminate().unwrap();
    assert_eq!(host.process().ended(SOON).await.unwrap(), Some(0));
    assert_eq!(collector.exported().len(), 4);
}

/// A collector that is not there, or takes nothing: requests are served, spans are counted as lost, and it is said.
#[tokio::test]
async fn a_collector_that_fails_costs_no_request() {
    let refusing = Collector::answering(StatusCode::FORBIDDEN).await.unwrap();
    let busy = Collector::answering(StatusCode::SERVICE_UNAVAILABLE).await.unwrap();
    // Port 9 is discard's: nothing listens there.
    for (collector, reason) in
        [(refusing.url(), "refused"), (busy.url(), "unreachable"), ("http://127.0.0.1:9", "unreachable")]
    {
        let (prefill, decode) =
            (MockEngine::well_behaved().await.unwrap(), MockEngine::well_behaved().await.unwrap());
        let mut host = pair(&prefill, &decode, collector, "").await;
        assert_eq!(ask(&host, &[]).await.status, 200);
        let labels = [("reason", reason)];
        host.until_metric("sluice_trace_spans_dropped_total", &labels, |count| count == 4.0, SOON)
            .await
            .unwrap();
        assert!(host.log_tells("does not take spans"), "{collector}");
        host.process().terminate().unwrap();
        assert_eq!(host.process().ended(SOON).await.unwrap(), Some(0));
    }
    // Busy is asked again, refusing is not.
    assert_eq!((refusing.exported().len(), busy.exported().len()), (4, 12));
}
