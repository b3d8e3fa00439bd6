//! The queue for places: fair to tenants, urgent requests first, bounded in length and in time.

use serde_json::{Value, json};
use sluice_harness::mock_engine::End;
use sluice_harness::{Answer, Canned, EventStream, Host, HostPlan, MockEngine, Mode, until};
use tokio::task::{AbortHandle, JoinSet};

use crate::{SOON, nothing_left_booked};

const CHUNK: &str = r#"{"id":"c","choices":[{"index":0,"text":" a","finish_reason":null}]}"#;

/// A host with one place, which a stream holds until it is let go, and requests that wait behind it.
struct Queue {
    host: Host,
    engine: MockEngine,
    holder: Option<EventStream>,
    asked: JoinSet<(String, Answer)>,
    waiting: usize,
}

impl Queue {
    async fn behind_one_place(server: &str) -> Self {
        let engine = MockEngine::start(|request| match request.body["prompt"].as_str() {
            Some("hold") => Canned::events(&[CHUNK], End::Never),
            _ => Canned::completed(),
        })
        .await
        .unwrap();
        let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
        plan.server = format!("max_in_flight = 1\n{server}");
        plan.tables =
            "[tenants]\nheader = \"x-tenant\"\n[[tenant]]\nname = \"flood\"\n[[tenant]]\nname = \"quiet\"\n\
             [[tenant]]\nname = \"heavy\"\nweight = 3\n"
                .into();
        let host = Host::start(&plan, &[]).await.unwrap();
        host.until_ready().await.unwrap();
        let body = json!({"model": "emulated", "prompt": "hold", "stream": true});
        let headers = [("x-tenant", "flood")];
        let mut holder = host.client().stream("/v1/completions", &body, &headers).await.unwrap();
        holder.next().await.unwrap().expect("its first chunk");
        Self { host, engine, holder: Some(holder), asked: JoinSet::new(), waiting: 0 }
    }

    /// Asks, named by its prompt, without waiting for the answer.
    fn send(&mut self, tenant: &str, priority: i32, name: &str) -> AbortHandle {
        let client = self.host.client().clone();
        let (tenant, priority, name) = (tenant.to_owned(), priority.to_string(), name.to_owned());
        self.asked.spawn(async move {
            let body = json!({"model": "emulated", "prompt": name, "max_tokens": 8}).to_string();
            let headers = [("x-tenant", tenant.as_str()), ("x-sluice-priority", priority.as_str())];
            let path = "/v1/completions";
            let answer = client.request(hyper::Method::POST, path, body.into(), &headers).await.unwrap();
            (name, answer)
        })
    }

    /// Asks, and sees to it that the request waits.
    async fn wait(&mut self, tenant: &str, priority: i32, name: &str) -> AbortHandle {
        let asked = self.send(tenant, priority, name);
        self.waiting += 1;
        self.until_waiting(self.waiting).await;
        asked
    }

    async fn until_waiting(&self, count: usize) {
        let shown = format!("{count} to wait");
        until(&shown, SOON, async || {
            let shown = self.host.admin().get("/admin/tenants").await.unwrap().json();
            (shown["queued"] == count).then_some(())
        })
        .await
        .unwrap();
    }

    /// The first answer that comes.
    async fn answered(&mut self) -> (String, Answer) {
        self.asked.join_next().await.expect("somebody asked").expect("no panic")
    }

    /// Lets the place go; the names of those served then, in order.
    async fn served(mut self) -> Vec<String> {
        self.holder = None;
        while let Some(answered) = self.asked.join_next().await {
            // Those that were aborted ended without an answer.
            if let Ok((name, answer)) = answered {
                assert_eq!(answer.status, 200, "{name}: {}", answer.text());
            }
        }
        nothing_left_booked(&self.host, &["unified-0"]).await;
        self.until_waiting(0).await;
        let prompts = self.engine.seen().into_iter().map(|request| request.body["prompt"].clone());
        prompts
            .filter_map(|prompt| prompt.as_str().map(str::to_owned))
            .filter(|prompt| prompt != "hold")
            .collect()
    }
}

fn code(answer: &Answer) -> Value {
    answer.json()["error"]["code"].clone()
}

#[tokio::test]
async fn a_flood_does_not_starve_a_quiet_tenant() {
    let mut queue = Queue::behind_one_place("").await;
    for number in 0..8 {
        queue.wait("flood", 0, &format!("flood {number}")).await;
    }
    for number in 0..2 {
        queue.wait("quiet", 0, &format!("quiet {number}")).await;
    }
    let served = queue.served().await;
    assert_eq!(served.len(), 10);
    let quiet: Vec<_> =
        (0..).zip(&served).filter(|(_, name)| name.starts_with("quiet")).map(|(at, _)| at).collect();
    assert!(quiet[0] <= 1 && quiet[1] <= 3, "every second turn is the quiet tenant's: {served:?}");
}

#[tokio::test]
async fn weights_share_out_the_turns() {
    let mut queue = Queue::behind_one_place("").await;
    for number in 0..6 {
        queue.wait("heavy", 0, &format!("heavy {number}")).await;
        queue.wait("quiet", 0, &format!("quiet {number}")).await;
    }
    let served = queue.served().await;
    let heavy = served[..8].iter().filter(|name| name.starts_with("heavy")).count();
    assert_eq!(heavy, 6, "three turns of four: {served:?}");
}

#[tokio::test]
async fn urgent_requests_go_first_then_the_oldest() {
    let mut queue = Queue::behind_one_place("").await;
    for (priority, name) in [(0, "first"), (5, "late"), (-5, "urgent"), (0, "second")] {
        queue.wait("quiet", priority, name).await;
    }
    assert_eq!(queue.served().await, ["urgent", "first", "second", "late"]);
}

#[tokio::test]
async fn a_full_queue_sheds_in_the_stated_order() {
    let mut queue = Queue::behind_one_place("max_queued = 3").await;
    for (priority, name) in [(0, "old"), (3, "unimportant"), (0, "new")] {
        queue.wait("flood", priority, name).await;
    }
    // Who comes, and who goes for it: of the tenant with most, the newest of the least urgent.
    for (tenant, priority, name, gone) in [
        ("flood", 3, "no better", "no better"),
        ("flood", 0, "better", "unimportant"),
        ("quiet", 9, "quiet", "better"),
        ("flood", 0, "too many", "too many"),
    ] {
        queue.send(tenant, priority, name);
        let (shed, answer) = queue.answered().await;
        assert_eq!(
            (shed.as_str(), answer.status, code(&answer)),
            (gone, 429, json!("overloaded")),
            "{name} came"
        );
        assert_eq!(answer.json()["error"]["type"], "server_error");
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=600).contains(&seconds), "{seconds}");
    }
    let metrics = queue.host.metrics().await.unwrap();
    for (reason, expected) in [("overloaded", 2.0), ("shed", 2.0)] {
        let labels = [("tenant", "flood"), ("reason", reason)];
        assert_eq!(metrics.sum("sluice_refused_requests_total", &labels), expected, "{reason}");
    }
    assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "shed")]), 4.0);
    assert_eq!(metrics.sum("sluice_requests_total", &[("outcome", "host_error")]), 0.0);
    assert_eq!(metrics.sum("sluice_queued_requests", &[("tenant", "flood")]), 2.0);
    assert_eq!(queue.served().await, ["old", "quiet", "new"]);
}

#[tokio::test]
async fn whoever_waits_too_long_is_told_when_to_come_back() {
    let mut queue = Queue::behind_one_place("queue_timeout_ms = 50").await;
    queue.send("quiet", 0, "patient");
    let (_, answer) = queue.answered().await;
    assert_eq!((answer.status, code(&answer)), (503, json!("queue_timeout")), "{}", answer.text());
    assert!(answer.header("retry-after").is_some());
    let metrics = queue.host.metrics().await.unwrap();
    let labels = [("tenant", "quiet"), ("reason", "queue_timeout")];
    assert_eq!(metrics.sum("sluice_refused_requests_total", &labels), 1.0);
    assert_eq!(metrics.sum("sluice_queue_wait_seconds_count", &[]), 1.0);
    assert_eq!(queue.served().await, [""; 0]);
}

/// The client of a waiting request closes its connection: its place in the queue is free at once, and nothing of it
/// reaches an engine.
#[tokio::test]
async fn a_client_that_leaves_frees_its_place_in_the_queue() {
    let mut queue = Queue::behind_one_place("max_queued = 1").await;
    let left = queue.wait("quiet", 0, "left").await;
    left.abort();
    queue.until_waiting(0).await;
    queue
        .host
        .until_metric("sluice_requests_total", &[("outcome", "cancelled")], |count| count == 1.0, SOON)
        .await
        .unwrap();
    queue.waiting = 0;
    queue.wait("quiet", 0, "stayed").await;
    assert_eq!(queue.served().await, ["stayed"]);
}

/// A bad request is told so while it waits, and what is no tenant's never waits.
#[tokio::test]
async fn bad_bodies_do_not_wait() {
    let queue = Queue::behind_one_place("max_body_bytes = 1024").await;
    let long = json!({"model": "emulated", "prompt": "x".repeat(2_000)}).to_string();
    let headers = [("x-tenant", "quiet")];
    let client = queue.host.client();
    let answer = client.request(hyper::Method::POST, "/v1/completions", long.into(), &headers).await.unwrap();
    assert_eq!((answer.status, code(&answer)), (413, json!("request_too_large")));
    let answer = client.post("/v1/completions", &json!({})).await.unwrap();
    assert_eq!((answer.status, code(&answer)), (401, json!("invalid_api_key")));
    assert_eq!(queue.served().await, [""; 0]);
}
