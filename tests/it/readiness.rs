//! What `/ready` says, and that requests are served exactly when it says so.

use serde_json::{Value, json};
use sluice_harness::{Client, Emulator, EmulatorPlan, Host, HostPlan, MockEngine, Mode, until};

use crate::SOON;

/// Where nobody listens.
pub(crate) fn nobodys_url() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Waits until so many workers are up; says what `/ready` says then.
async fn ready_with(host: &Host, up: u64) -> (u16, Value) {
    until("workers to be up", SOON, async || {
        let ready = host.client().get("/ready").await.unwrap();
        let json = ready.json();
        (json["pools"][0]["up"] == up).then_some((ready.status, json))
    })
    .await
    .unwrap()
}

/// A pull pool whose prefill worker is down serves, if its decode worker can do it alone; it says what is amiss.
#[tokio::test]
async fn a_pool_without_its_prefill_worker_is_ready_only_if_another_does_it_alone() {
    let engine = MockEngine::well_behaved().await.unwrap();
    for can_prefill in [true, false] {
        let mut plan =
            HostPlan::new(Mode::Pull).worker("prefill", &nobodys_url()).worker("decode", engine.url());
        plan.workers[1].can_prefill = can_prefill;
        let host = Host::start(&plan, &[]).await.unwrap();
        let (status, ready) = ready_with(&host, 1).await;
        assert_eq!((status, &ready["ready"]), (if can_prefill { 200 } else { 503 }, &json!(can_prefill)));
        assert_eq!(ready["pools"][0]["note"], "no prefill worker is up", "{ready}");
        let asked = json!({"model": "emulated", "prompt": "hi"});
        let answer = host.client().post("/v1/completions", &asked).await.unwrap();
        assert_eq!(answer.status, status, "{}", answer.text());
    }
}

/// What cannot be split waits for a worker that is down, and is refused for good only where there is none.
#[tokio::test]
async fn what_cannot_be_split_is_served_once_a_worker_that_can_is_up() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let late = nobodys_url();
    let mut plan = HostPlan::new(Mode::Pull)
        .worker("prefill", engine.url())
        .worker("decode", &engine.url().replace("127.0.0.1", "localhost"));
    let two = json!({"model": "emulated", "prompt": "hi", "max_tokens": 4, "n": 2});

    let host = Host::start(&plan, &[]).await.unwrap();
    ready_with(&host, 2).await;
    let answer = host.client().post("/v1/completions", &two).await.unwrap();
    assert_eq!((answer.status, answer.header("retry-after")), (400, None), "{}", answer.text());

    plan = plan.worker("decode", &late);
    plan.workers[2].can_prefill = true;
    let host = Host::start(&plan, &[]).await.unwrap();
    ready_with(&host, 2).await;
    let answer = host.client().post("/v1/completions", &two).await.unwrap();
    let code = answer.json()["error"]["code"].clone();
    assert_eq!((answer.status, code), (503, json!("no_worker_up")), "{}", answer.text());
    assert_eq!(answer.header("retry-after"), Some("1"));

    let listen = format!("--listen {}", late.trim_start_matches("http://"));
    let plan = EmulatorPlan::fast("decode").with(&listen);
    let _engine = Emulator::start("late", &plan, folder.path()).await.unwrap();
    ready_with(&host, 3).await;
    let answer = host.client().post("/v1/completions", &two).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["choices"].as_array().unwrap().len(), 2);
    assert!(engine.seen().is_empty(), "{:?}", engine.seen());
}

/// An engine that serves another model answers each request with 404: `/ready` and the log say so before.
#[tokio::test]
async fn another_model_is_noted() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    plan.model = "another".into();
    let mut host = Host::start(&plan, &[]).await.unwrap();
    let (status, ready) = ready_with(&host, 1).await;
    assert_eq!((status, &ready["pools"][0]["serves"]), (503, &json!(false)), "{ready}");
    let note = ready["pools"][0]["note"].as_str().unwrap_or_default();
    for word in ["another", "emulated", "unified-0"] {
        assert!(note.contains(word), "{ready}");
    }
    let fleet = host.admin().get("/admin/fleet").await.unwrap().json();
    assert_eq!(fleet["pools"][0]["note"], note);
    let log = host.process().log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("emulated")).collect();
    assert_eq!(told.len(), 1, "{log}");
    assert!(told[0].contains("another") && told[0].contains("no work"), "{}", told[0]);
}

/// Balancers need time to notice: until it is over, new connections are taken and requests served.
#[tokio::test]
async fn a_host_that_drains_serves_until_the_delay_is_over() {
    let engine = MockEngine::well_behaved().await.unwrap();
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    plan.server = "drain_delay_ms = 2000".into();
    let mut host = Host::start(&plan, &[]).await.unwrap();
    host.until_ready().await.unwrap();
    let base = host.client().base().to_owned();
    host.process().terminate().unwrap();
    until("the host to say that it drains", SOON, async || {
        let ready = Client::new(&base).get("/ready").await.unwrap();
        (ready.status == 503 && ready.json()["draining"] == true).then_some(())
    })
    .await
    .unwrap();
    let asked = json!({"model": "emulated", "prompt": "hi"});
    let answer = Client::new(&base).post("/v1/completions", &asked).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(host.process().ended(SOON).await.unwrap(), Some(0));
    assert!(Client::new(&base).get("/ready").await.is_err());
}
