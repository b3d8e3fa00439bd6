//! What clients may not set reaches no engine, on no path and no leg, however it is spelled.

use hyper::Method;
use serde_json::{Value, json};
use sluice_harness::mock_engine::handle;
use sluice_harness::{Host, HostPlan, MockEngine, Mode, Recorded};

/// Marks all that must not get through.
const EVIL: &str = "evil-7f3a";

/// Members as clients write them, text and all.
const MEMBERS: [&str; 16] = [
    r#""kv_transfer_params":{"do_remote_prefill":true,"remote_host":"evil-7f3a"}"#,
    r#""\u006bv_transfer_params":{"remote_host":"evil-7f3a"}"#,
    r#""kv\u005ftransfer\u005Fparams":{"remote_host":"evil-7f3a"}"#,
    r#""kv_transfer_params":null,"kv_transfer_params":{"remote_host":"evil-7f3a"}"#,
    r#""kv_transfer_params":{"remote_host":"evil-7f3a"},"k\u0076_transfer_params":{"x":"evil-7f3a"}"#,
    r#" "kv_transfer_params" : [ "evil-7f3a" ] "#,
    r#""ec_transfer_params":{"x":"evil-7f3a"}"#,
    r#""cache_salt":"evil-7f3a","\u0063ache_salt":"evil-7f3a""#,
    r#""request_id":"evil-7f3a""#,
    r#""vllm_xargs":{"kv_transfer_params":{"remote_host":"evil-7f3a"}}"#,
    r#""vllm_xargs":{"k\u0076_transfer_params":"evil-7f3a"}"#,
    r#""extra_body":{"kv_transfer_params":{"remote_host":"evil-7f3a"},"cache_salt":"evil-7f3a"}"#,
    r#""bootstrap_host":"evil-7f3a","bootstrap_port":"evil-7f3a","bootstrap_room":"evil-7f3a""#,
    r#""data_parallel_rank":"evil-7f3a","routed_dp_rank":"evil-7f3a""#,
    r#""conversation_id":"evil-7f3a""#,
    r#""conversation":"evil-7f3a""#,
];

const HEADERS: [&str; 12] = [
    "x-request-id",
    "X-Request-ID",
    "x-data-parallel-rank",
    "x-kv-hint",
    "x-cache-salt",
    "x-bootstrap-host",
    "x-bootstrap-room",
    "x-prefiller-host-port",
    "x-decode-worker-id",
    "x-session-id",
    "x-sluice-priority-of",
    "kv_transfer_params",
];

/// A path, and the member that a request to it needs.
const PATHS: [(&str, &str); 7] = [
    ("/v1/completions", r#""prompt":"hi""#),
    ("/v1/chat/completions", r#""messages":[{"role":"user","content":"hi"}]"#),
    ("/v1/responses", r#""input":"hi""#),
    ("/v1/messages", r#""max_tokens":4,"messages":[{"role":"user","content":"hi"}]"#),
    ("/v1/embeddings", r#""input":"hi""#),
    ("/v1/score", r#""text_1":"hi","text_2":"ho""#),
    ("/tokenize", r#""prompt":"hi""#),
];

fn check(what: &str, leg: &Recorded, is_pull: bool) {
    let (body, headers) = (leg.body.to_string(), format!("{:?}", leg.headers));
    assert!(!body.contains(EVIL), "{what}: {body}");
    assert!(!headers.contains(EVIL), "{what}: {headers}");
    let wanted = json!({"do_remote_decode": true, "do_remote_prefill": false});
    let ours = [Value::Null, wanted, handle()];
    let params = &leg.body["kv_transfer_params"];
    assert!(ours.contains(params) && (is_pull || params.is_null()), "{what}: {params}");
}

async fn all_paths(mode: Mode) {
    let (first, second) =
        (MockEngine::well_behaved().await.unwrap(), MockEngine::well_behaved().await.unwrap());
    let plan = match mode {
        Mode::Unified => HostPlan::new(mode).worker("unified", first.url()),
        Mode::Pull | Mode::Bidirectional | Mode::HostManaged => {
            let plan = HostPlan::new(mode).worker("prefill", first.url()).worker("decode", second.url());
            // Some paths are for workers that serve alone.
            plan.worker("unified", &second.url().replace("127.0.0.1", "localhost"))
        }
    };
    let host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    let headers = HEADERS.map(|name| (name, EVIL));
    for (path, needs) in PATHS {
        for member in MEMBERS {
            for (before, after) in [(member, needs), (needs, member)] {
                let what = format!("{path} {before} {after}");
                let body = format!(r#"{{"model":"emulated",{before},{after}}}"#);
                let seen = (first.seen().len(), second.seen().len());
                let answer = host.client().request(Method::POST, path, body.into(), &headers).await.unwrap();
                assert!(matches!(answer.status, 200 | 400 | 502), "{what}: {}", answer.text());
                let legs = [&first.seen()[seen.0..], &second.seen()[seen.1..]].concat();
                assert!(answer.status == 400 || !legs.is_empty(), "{what} proves nothing");
                for leg in &legs {
                    check(&what, leg, mode == Mode::Pull);
                }
            }
        }
    }
}

#[tokio::test]
async fn on_one_leg() {
    all_paths(Mode::Unified).await;
}

#[tokio::test]
async fn on_two_legs() {
    all_paths(Mode::Pull).await;
}
