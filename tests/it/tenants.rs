//! Who may ask, and what each may have: tenants are kept apart, and held to their limits.

use std::fs;

use hyper::Method;
use serde_json::{Value, json};
use sluice_harness::mock_engine::End;
use sluice_harness::process::{run_reading, run_to_end};
use sluice_harness::{Answer, Ask, Canned, FleetPlan, Host, HostPlan, MockEngine, Mode};
use sluice_sim::words;
use tempfile::TempDir;

use crate::{SOON, nothing_left_booked, right};

/// Tables of two tenants with keys `sk-search` and `sk-batch`, each with more lines.
async fn two_tenants(search: &str, batch: &str) -> String {
    let (one, other) = (key_line("sk-search").await, key_line("sk-batch").await);
    format!(
        "[[tenant]]\nname = \"search\"\n{one}\n{search}\n[[tenant]]\nname = \"batch\"\n{other}\n{batch}\n"
    )
}

/// As the command prints it.
async fn key_line(key: &str) -> String {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("key");
    fs::write(&path, format!("{key}\n")).unwrap();
    let printed = run_reading(&["tenant-key"], fs::File::open(&path).unwrap(), SOON).await.unwrap();
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""), "{}", printed.stdout);
    printed.stdout
}

async fn host(plan: HostPlan, tables: &str) -> Host {
    let host = Host::start(&HostPlan { tables: tables.to_owned(), ..plan }, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    host
}

async fn ask(host: &Host, body: &Value, headers: &[(&str, &str)]) -> Answer {
    host.client().request(Method::POST, "/v1/completions", body.to_string().into(), headers).await.unwrap()
}

fn prompt(prompt: &str) -> Value {
    json!({"model": "emulated", "prompt": prompt, "max_tokens": 8})
}

fn bearer(key: &str) -> [(&'static str, String); 1] {
    [("authorization", format!("Bearer {key}"))]
}

async fn ask_as(host: &Host, key: &str, body: &Value) -> Answer {
    let [(name, value)] = bearer(key);
    ask(host, body, &[(name, &value)]).await
}

#[tokio::test]
async fn only_known_keys_may_ask_and_no_engine_sees_them() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let folder = TempDir::new().unwrap();
    let secret = folder.path().join("engines.key");
    fs::write(&secret, "sk-engine\n").unwrap();
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    plan.pool.push_str(&format!("engine_api_key_file = {:?}\n", secret.display().to_string()));
    let host = host(plan, &two_tenants("", "").await).await;
    for headers in [
        &[][..],
        &[("authorization", "Bearer sk-wrong")],
        &[("authorization", "Basic sk-search")],
        &[("authorization", "Bearer sk-engine")],
        &[("x-tenant", "search")],
    ] {
        let answer = ask(&host, &prompt("hi"), headers).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (401, &json!("invalid_api_key")), "{headers:?}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(engine.seen().len(), 0);
    assert_eq!(ask_as(&host, "sk-search", &prompt("hi")).await.status, 200);
    let seen = engine.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("authorization"), Some("Bearer sk-engine"));
    let metrics = host.metrics().await.unwrap();
    let unknown = [("tenant", "none"), ("reason", "unknown_caller")];
    assert_eq!(metrics.sum("sluice_refused_requests_total", &unknown), 5.0);
    for (kind, tokens) in [("prompt", 7.0), ("output", 2.0)] {
        let labels = [("tenant", "search"), ("kind", kind)];
        assert_eq!(metrics.sum("sluice_tenant_tokens_total", &labels), tokens, "{kind}");
    }
}

/// Without an engine key of its own, a pool's engines get no key at all.
#[tokio::test]
async fn a_checked_key_goes_no_further() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    let host = host(plan, &two_tenants("", "").await).await;
    assert_eq!(ask_as(&host, "sk-batch", &prompt("hi")).await.status, 200);
    assert_eq!(ask(&host, &prompt("hi"), &[("x-api-key", "sk-search")]).await.status, 200);
    for request in engine.seen() {
        assert_eq!((request.header("authorization"), request.header("x-api-key")), (None, None));
    }
    let bare = ask(&host, &prompt("hi"), &[("authorization", "sk-search")]).await;
    assert!(bare.status == 401 && bare.text().contains("Bearer KEY"), "{}", bare.text());
    assert_eq!(ask(&host, &prompt("hi"), &[("x-api-key", "sk-wrong")]).await.status, 401);
}

/// Salts are the host's, the same on both legs and every time, and another one for each tenant; sessions too.
#[tokio::test]
async fn tenants_share_neither_caches_nor_sessions() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let plan = HostPlan::new(Mode::Pull).worker("prefill", engine.url());
    let decode = MockEngine::well_behaved().await.unwrap();
    let host = host(plan.worker("decode", decode.url()), &two_tenants("", "").await).await;
    let mut body = prompt("hi");
    body["cache_salt"] = json!("chosen by the client");
    body["conversation_id"] = json!("c-1");
    for key in ["sk-search", "sk-batch", "sk-search"] {
        assert_eq!(ask_as(&host, key, &body).await.status, 200);
    }
    let salts = |engine: &MockEngine| -> Vec<String> {
        let seen = engine.seen();
        seen.iter().map(|request| request.body["cache_salt"].as_str().unwrap().to_owned()).collect()
    };
    let (prefill, decode) = (salts(&engine), salts(&decode));
    assert_eq!(prefill, decode);
    let [first, other, again] = &prefill[..] else { panic!("{prefill:?}") };
    assert!(first == again && first != other && first.len() == 64, "{prefill:?}");
    assert_eq!(host.metrics().await.unwrap().sum("sluice_sessions", &[]), 2.0);
}

/// What one tenant asked before says nothing to another one by its speed: the same prompt is cold to it, on real
/// prefix caches, and answers are right all the same.
#[tokio::test]
async fn a_tenant_never_finds_anothers_cached_prefix() {
    let mut plan = FleetPlan::pull(1, 1);
    plan.host.tables = two_tenants("", "").await;
    let fleet = plan.start().await.unwrap();
    for (key, is_warm) in [("sk-search", false), ("sk-search", true), ("sk-batch", false), ("sk-batch", true)]
    {
        let [(name, value)] = bearer(key);
        let reply = right(fleet.client(), &Ask::completion(&words(1, 200), 4).header(name, &value)).await;
        assert_eq!(reply.cached_tokens > 0, is_warm, "{key}: {} cached", reply.cached_tokens);
    }
}

#[tokio::test]
async fn a_gateways_header_names_the_tenant_and_stays_here() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    let tables = "[tenants]\nheader = \"x-team\"\ncache_salt = false\n[[tenant]]\nname = \"search\"\n";
    let host = host(plan, tables).await;
    for (value, status) in [("search", 200), ("unlisted", 200), ("two words", 400)] {
        assert_eq!(ask(&host, &prompt("hi"), &[("x-team", value)]).await.status, status, "{value}");
    }
    assert_eq!(ask(&host, &prompt("hi"), &[]).await.status, 401);
    for request in engine.seen() {
        assert_eq!((request.header("x-team"), request.body.get("cache_salt")), (None, None));
    }
    let metrics = host.metrics().await.unwrap();
    for tenant in ["search", "other"] {
        assert_eq!(metrics.sum("sluice_tenant_tokens_total", &[("tenant", tenant)]), 9.0, "{tenant}");
    }
}

/// Paths that are passed to one worker know tenants too.
#[tokio::test]
async fn passed_requests_are_their_tenants() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    let tables = two_tenants("priority_min = 1", "tokens_per_minute = 100").await;
    let host = host(plan, &tables).await;
    let mut body = json!({"model": "emulated", "input": "hi", "max_output_tokens": 50, "cache_salt": "mine"});
    let post = async |body: &Value, headers: &[(&str, &str)]| {
        let request = host.client().request(Method::POST, "/v1/responses", body.to_string().into(), headers);
        request.await.unwrap()
    };
    assert_eq!(post(&body, &[]).await.status, 401);
    assert_eq!(engine.seen().len(), 0);
    assert_eq!(post(&body, &[("authorization", "Bearer sk-search")]).await.status, 200);
    let seen = engine.seen().remove(0);
    assert_eq!((seen.header("authorization"), &seen.body["priority"]), (None, &json!(1)));
    assert_eq!(seen.body["cache_salt"].as_str().unwrap().len(), 64);
    // The engine counts 9 tokens; what was reserved beyond them comes back.
    for (max_output_tokens, status) in [(60, 200), (60, 200), (100, 400)] {
        body["max_output_tokens"] = json!(max_output_tokens);
        let answer = post(&body, &[("authorization", "Bearer sk-batch")]).await;
        assert_eq!(answer.status, status, "{}", answer.text());
    }
    let labels = [("tenant", "batch"), ("reason", "tokens_above_limit")];
    assert_eq!(host.metrics().await.unwrap().sum("sluice_refused_requests_total", &labels), 1.0);
}

#[tokio::test]
async fn limits_are_told_with_a_time_to_come_back() {
    const CHUNK: &str = r#"{"id":"c","choices":[{"index":0,"text":" a","finish_reason":null}]}"#;
    let engine = MockEngine::start(|request| match request.body["prompt"].as_str() {
        Some("stall") => Canned::events(&[CHUNK], End::Never),
        _ => Canned::completed(),
    })
    .await
    .unwrap();
    let plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    let tables = two_tenants("max_in_flight = 1", "tokens_per_minute = 1000").await;
    let host = host(plan, &tables).await;

    let [(name, value)] = bearer("sk-search");
    let body = json!({"model": "emulated", "prompt": "stall", "stream": true});
    let mut held = host.client().stream("/v1/completions", &body, &[(name, &value)]).await.unwrap();
    held.next().await.unwrap().expect("its first chunk");
    let second = ask_as(&host, "sk-search", &prompt("hi")).await;
    let code = |answer: &Answer| answer.json()["error"]["code"].clone();
    assert_eq!((second.status, code(&second)), (429, json!("rate_limit_exceeded")), "{}", second.text());
    assert_eq!(second.header("retry-after"), Some("1"));
    assert!(second.text().contains("tenant \\\"search\\\" has 1 requests"), "{}", second.text());
    drop(held);

    // What is reserved comes back as far as it was not used: two of 900 in a row fit.
    let sized = |max_tokens: u64| json!({"model": "emulated", "prompt": "hi", "max_tokens": max_tokens});
    for _ in 0..2 {
        assert_eq!(ask_as(&host, "sk-batch", &sized(900)).await.status, 200);
    }
    let never = ask_as(&host, "sk-batch", &sized(1_001)).await;
    assert_eq!((never.status, code(&never)), (400, json!("tokens_above_limit")), "{}", never.text());
    let stall = json!({"model": "emulated", "prompt": "stall", "stream": true, "max_tokens": 900});
    let [(name, value)] = bearer("sk-batch");
    let mut reserved = host.client().stream("/v1/completions", &stall, &[(name, &value)]).await.unwrap();
    reserved.next().await.unwrap().expect("its first chunk");
    let short = ask_as(&host, "sk-batch", &sized(900)).await;
    assert_eq!((short.status, code(&short)), (429, json!("rate_limit_exceeded")), "{}", short.text());
    let wait: u64 = short.header("retry-after").unwrap().parse().unwrap();
    assert!((40..=60).contains(&wait), "some 800 of 1,000 a minute are missing: {wait} s");

    let shown = host.admin().get("/admin/tenants").await.unwrap().json();
    let batch = &shown["tenants"][1];
    assert_eq!(
        (&batch["name"], &batch["in_flight"], &batch["queued"]),
        (&json!("batch"), &json!(1), &json!(0))
    );
    assert!(batch["tokens_left"].as_i64().unwrap() < 900, "{shown}");
    let address = host.admin().base().trim_start_matches("http://").to_owned();
    let table = run_to_end(&["tenants", "--admin", &address], SOON).await.unwrap();
    let line = table.stdout.lines().find(|line| line.starts_with("batch ")).unwrap_or_default();
    assert!(line.ends_with(" 1000"), "{}{}", table.stdout, table.stderr);
    drop(reserved);
    nothing_left_booked(&host, &["unified-0"]).await;
    let metrics = host.metrics().await.unwrap();
    for (tenant, reason) in
        [("search", "max_in_flight"), ("batch", "tokens_per_minute"), ("batch", "tokens_above_limit")]
    {
        let labels = [("tenant", tenant), ("reason", reason)];
        assert_eq!(metrics.sum("sluice_refused_requests_total", &labels), 1.0, "{labels:?}");
    }
}

#[tokio::test]
async fn priorities_reach_engines_within_the_tenants_bounds() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    let host = host(plan, &two_tenants("priority_min = 1\npriority_max = 5", "").await).await;
    for (key, written, expected) in [
        ("sk-search", json!(3), json!(3)),
        ("sk-search", json!(-7), json!(1)),
        ("sk-search", json!(99), json!(5)),
        ("sk-search", Value::Null, json!(1)),
        ("sk-batch", json!(-7), json!(-7)),
    ] {
        let mut body = prompt("hi");
        body["priority"] = written.clone();
        assert_eq!(ask_as(&host, key, &body).await.status, 200);
        assert_eq!(engine.seen().last().unwrap().body["priority"], expected, "{key} {written}");
    }
    let answer =
        ask_as(&host, "sk-batch", &json!({"model": "emulated", "prompt": "hi", "priority": "high"})).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("priority")));
}

#[tokio::test]
async fn a_secret_that_is_missing_is_told_before_anything_starts() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("sluice.toml");
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", "http://127.0.0.1:1");
    plan.tables = format!("[tenants]\nsalt_secret_file = \"absent.secret\"\n{}", two_tenants("", "").await);
    fs::write(&config, plan.toml()).unwrap();
    for command in ["serve", "check-config"] {
        let ended = run_to_end(&[command, "--config", &config.display().to_string()], SOON).await.unwrap();
        assert_eq!(ended.code, Some(2), "{command}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("salt_secret_file = \"absent.secret\"") && ended.stderr.contains("cure: ")
        );
    }
    let nothing = run_to_end(&["tenant-key"], SOON).await.unwrap();
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(2), ""), "{}", nothing.stderr);
}
