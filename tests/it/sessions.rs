//! Conversations: the next turn goes where the last one was, and nobody else's ever does.

use std::fs;

use bytes::Bytes;
use hyper::Method;
use sluice_harness::ask::message;
use sluice_harness::process::run_to_end;
use sluice_harness::workload::{Conversation, WorkloadPlan};
use sluice_harness::{Ask, Fleet, FleetPlan, Host, PolicyFile, Reply};
use sluice_sim::words;

use crate::{SOON, right};

const PLAN: WorkloadPlan = WorkloadPlan {
    conversations: 4,
    turns: 4,
    at_once: 1,
    first_words: 300,
    later_words: 20,
    max_tokens: 8,
    seed: 7,
};

fn workers(reply: &Reply) -> (String, String) {
    let decision = reply.decision.clone().unwrap();
    (decision.prefill, decision.decode)
}

/// The second turn finds the first one's KV: same workers, and the engine says that it had the tokens.
#[tokio::test]
async fn a_conversation_stays_with_its_workers() {
    let adaptive = PolicyFile::policy("adaptive", "adaptive").unwrap();
    let fleet = FleetPlan::pull(2, 2).decided_by(adaptive).start().await.unwrap();
    let mut conversation = Conversation::new(0, &PLAN);
    let mut before: Option<Reply> = None;
    for turn in 0..PLAN.turns {
        let reply = right(fleet.client(), &conversation.ask(&PLAN)).await;
        conversation.answered(&reply.text);
        if let Some(before) = &before {
            assert_eq!(workers(&reply), workers(before), "turn {turn}");
            let whole_blocks = before.prompt_tokens.unwrap() / 16 * 16;
            assert!(
                reply.cached_tokens >= whole_blocks,
                "turn {turn}: {} of {whole_blocks}",
                reply.cached_tokens
            );
        } else {
            assert_eq!(reply.cached_tokens, 0);
        }
        before = Some(reply);
    }
    assert_eq!(fleet.host.metrics().await.unwrap().sum("sluice_sessions", &[]), 1.0);
}

/// One id, two API keys, two models' worth of endpoints: all are sessions of their own.
#[tokio::test]
async fn a_conversation_id_is_its_tenants_own() {
    let fleet = FleetPlan::unified(1).start().await.unwrap();
    let sessions = async || fleet.host.metrics().await.unwrap().sum("sluice_sessions", &[]);
    let ask = |key: &str| {
        Ask::completion(&words(1, 20), 4).header("authorization", key).with("conversation_id", "c-1")
    };
    let mut expected = 0.0;
    for (key, is_new) in [("Bearer mine", true), ("Bearer mine", false), ("Bearer theirs", true)] {
        right(fleet.client(), &ask(key)).await;
        expected += f64::from(u8::from(is_new));
        assert_eq!(sessions().await, expected, "{key}");
    }
    let nobody = Ask::completion(&words(1, 20), 4).with("conversation_id", "c-1");
    right(fleet.client(), &nobody).await;
    assert_eq!(sessions().await, 3.0, "without a key");
    let chat =
        Ask::question("hello", 4).header("authorization", "Bearer mine").with("conversation_id", "c-1");
    right(fleet.client(), &chat).await;
    assert_eq!(sessions().await, 4.0, "another endpoint renders prompts otherwise");
}

/// A stolen id must not lead to the owner's workers: what the thief's first turn sees is no session at all.
#[tokio::test]
async fn a_stolen_conversation_id_finds_nothing() {
    let guest = PolicyFile::guest("session-teller", "session-teller").unwrap();
    let fleet = FleetPlan::unified(1).decided_by(guest).start().await.unwrap();
    let ask = |key: &str| {
        Ask::completion(&words(2, 20), 4).header("authorization", key).with("conversation_id", "c-2")
    };
    for (key, expected) in [
        ("Bearer mine", "no session"),
        ("Bearer mine", "turn 1"),
        ("Bearer theirs", "no session"),
        ("Bearer mine", "turn 2"),
    ] {
        let reply = right(fleet.client(), &ask(key)).await;
        assert_eq!(reply.decision.unwrap().reason, expected, "{key}");
    }
}

/// The header names a conversation as the body does.
#[tokio::test]
async fn headers_name_conversations() {
    let guest = PolicyFile::guest("session-teller", "session-teller").unwrap();
    let fleet = FleetPlan::unified(1).decided_by(guest).start().await.unwrap();
    for (name, expected) in
        [("x-conversation-id", "no session"), ("x-session-id", "turn 1"), ("x-other-id", "no session")]
    {
        let reply = right(fleet.client(), &Ask::completion(&words(3, 20), 4).header(name, "c-3")).await;
        assert_eq!(reply.decision.unwrap().reason, expected, "{name}");
    }
}

/// Clients that name no conversation stay with their workers, too, where turns are kept.
#[tokio::test]
async fn a_conversation_without_a_name_stays_with_its_workers() {
    let adaptive = PolicyFile::policy("adaptive", "adaptive").unwrap();
    let fleet = FleetPlan::hosted(3, 3).decided_by(adaptive).start().await.unwrap();
    for number in 0..3 {
        let mut messages = vec![message("user", &words(50 + number, 300))];
        let mut before = None;
        for turn in 0..3 {
            let reply = right(fleet.client(), &Ask::chat(&messages, 8)).await;
            let decode = workers(&reply).1;
            assert_eq!(*before.get_or_insert(decode.clone()), decode, "{number} turn {turn}");
            messages.push(message("assistant", &reply.text));
            messages.push(message("user", &words(90 + turn, 20)));
        }
    }
    let metrics = fleet.host.metrics().await.unwrap();
    let lookups = |result| metrics.sum("sluice_session_lookups_total", &[("result", result)]);
    assert_eq!(metrics.sum("sluice_sessions", &[]), 3.0);
    assert_eq!((lookups("hit"), lookups("miss")), (6.0, 3.0));
}

async fn delete(host: &Host, path: &str, headers: &[(&str, &str)]) -> (u16, serde_json::Value) {
    let answer = host.client().request(Method::DELETE, path, Bytes::new(), headers).await.unwrap();
    (answer.status, answer.json())
}

/// Its client ends a conversation, over all endpoints; nobody else can, or learns that there is one.
#[tokio::test]
async fn clients_end_their_own_conversations() {
    let guest = PolicyFile::guest("session-teller", "session-teller").unwrap();
    let fleet = FleetPlan::unified(1).decided_by(guest).start().await.unwrap();
    let mine = [("authorization", "Bearer mine")];
    let ask = |key: &str| {
        Ask::completion(&words(4, 20), 4).header("authorization", key).with("conversation_id", "a/b c")
    };
    let seen = async |ask: &Ask| right(fleet.client(), ask).await.decision.unwrap().reason;
    let chat =
        Ask::question("hello", 4).header("authorization", "Bearer mine").with("conversation_id", "a/b c");
    right(fleet.client(), &ask("Bearer mine")).await;
    right(fleet.client(), &chat).await;
    for (path, headers) in [
        ("/v1/sessions/a%2Fb%20c", &[("authorization", "Bearer theirs")][..]),
        ("/v1/sessions/a%2Fb%20c", &[]),
        ("/v1/sessions/other", &mine),
        ("/v1/sessions/", &mine),
    ] {
        let (status, body) = delete(&fleet.host, path, headers).await;
        assert_eq!((status, &body["error"]["code"]), (404, &"session_not_found".into()), "{path}");
    }
    assert_eq!(seen(&ask("Bearer mine")).await, "turn 1");
    let (status, body) = delete(&fleet.host, "/v1/sessions/a%2Fb%20c", &mine).await;
    assert_eq!((status, body), (204, serde_json::Value::Null));
    assert_eq!(seen(&ask("Bearer mine")).await, "no session");
    assert_eq!(seen(&chat).await, "no session");
    // With the last turn.
    let last = ask("Bearer mine").header("x-sluice-session", "end");
    assert_eq!(seen(&last).await, "turn 1");
    assert_eq!(seen(&ask("Bearer mine")).await, "no session");
    let wrong = fleet.client().ask(&ask("Bearer mine").header("x-sluice-session", "stop")).await.unwrap();
    assert_eq!(wrong.status, 400);
}

/// What operators are told of a conversation, less what goes on with time.
fn lasting(session: &serde_json::Value) -> serde_json::Value {
    let mut session = session.clone();
    for changing in ["idle_ms", "expires_in_ms"] {
        session[changing].take();
    }
    session
}

#[tokio::test]
async fn operators_see_and_drop_conversations() {
    let fleet = FleetPlan::pull(1, 2).start().await.unwrap();
    let ask = |key: &str, id: &str| {
        Ask::completion(&words(5, 40), 4).header("authorization", key).with("conversation_id", id)
    };
    for (key, id) in [("Bearer a", "one"), ("Bearer a", "two"), ("Bearer b", "one"), ("Bearer a", "one")] {
        right(fleet.client(), &ask(key, id)).await;
    }
    let admin = fleet.host.admin();
    let listing = admin.get("/admin/sessions").await.unwrap().json();
    let ids: Vec<_> =
        listing["listed"].as_array().unwrap().iter().map(|told| told["id"].as_str().unwrap()).collect();
    assert_eq!(
        (ids, &listing["all_listed"]),
        (vec!["one", "one", "two"], &serde_json::Value::Bool(true)),
        "{listing}"
    );
    let newest = &listing["listed"][0];
    assert_eq!((&newest["turns"], &newest["gaps"]["count"]), (&2.into(), &1.into()), "{listing}");
    let (tenant, holder) = (newest["tenant"].as_str().unwrap(), newest["holder"].as_str().unwrap());
    assert!(holder.starts_with("main/decode-"), "{listing}");
    let count = async |path: String| {
        let answer = admin.get(&path).await.unwrap();
        (answer.status, answer.json()["listed"].as_array().map_or(0, Vec::len))
    };
    assert_eq!(count(format!("/admin/sessions?tenant={tenant}")).await, (200, 2));
    assert_eq!(count("/admin/sessions?holder=main/prefill-0".into()).await, (200, 0));
    assert_eq!(count("/admin/sessions?limit=1".into()).await, (200, 1));
    assert_eq!(count("/admin/sessions?moon=1".into()).await, (400, 0));
    assert_eq!(count("/admin/sessions/one".into()).await, (200, 2));
    assert_eq!(count(format!("/admin/sessions/one?tenant={tenant}")).await, (200, 1));
    assert_eq!(count("/admin/sessions/none".into()).await, (404, 0));
    let order = async |path: &str, headers: &[(&str, &str)]| {
        let answer = admin.request(Method::DELETE, path, Bytes::new(), headers).await.unwrap();
        (answer.status, answer.json()["dropped"].clone())
    };
    assert_eq!(order("/admin/sessions", &[]).await.0, 400, "all of them, by a slip");
    assert_eq!(order("/admin/sessions/two", &[("origin", "http://evil")]).await.0, 403);
    assert_eq!(order("/admin/sessions/two", &[]).await, (200, 1.into()));
    assert_eq!(order("/admin/sessions/two", &[]).await.0, 404);
    let metrics = fleet.host.metrics().await.unwrap();
    assert_eq!(metrics.sum("sluice_sessions_evicted_total", &[("reason", "dropped")]), 1.0);

    let address = admin.base().trim_start_matches("http://").to_owned();
    let sluice = async |arguments: &[&str]| {
        run_to_end(&[&["sessions"], arguments, &["--admin", &address]].concat(), SOON).await.unwrap()
    };
    let listed = sluice(&["list", "--holder", holder]).await;
    assert!(listed.code == Some(0) && listed.stdout.contains(tenant), "{listed:?}");
    let shown = sluice(&["show", "one", "--tenant", tenant]).await;
    assert!(shown.code == Some(0) && shown.stdout.contains("decoded last by"), "{shown:?}");
    assert_eq!(sluice(&["drop"]).await.code, Some(2), "which ones?");
    let dropped = sluice(&["drop", "--tenant", tenant]).await;
    assert_eq!((dropped.code, dropped.stdout.as_str()), (Some(0), "1 dropped\n"), "{dropped:?}");
    assert_eq!(count("/admin/sessions".into()).await, (200, 1));
}

const SNAPSHOT: &str = "[sessions]\nsnapshot_file = \"sessions.snapshot\"\nsnapshot_interval_ms = 100\n";

async fn fleet_with_snapshot() -> Fleet {
    let guest = PolicyFile::guest("session-teller", "session-teller").unwrap();
    let mut plan = FleetPlan::unified(1).decided_by(guest);
    plan.host.tables = SNAPSHOT.to_owned();
    plan.start().await.unwrap()
}

async fn snapshots(host: &Host, outcome: &str, wanted: impl Fn(f64) -> bool) -> f64 {
    let labels = [("outcome", outcome)];
    host.until_metric("sluice_session_snapshots_total", &labels, wanted, SOON).await.unwrap()
}

/// However a host ends, the next one knows its conversations: turns, holder and gaps.
#[tokio::test]
async fn conversations_outlive_the_host() {
    let ask = Ask::completion(&words(6, 40), 4).with("conversation_id", "c-6");
    for is_killed in [false, true] {
        let mut fleet = fleet_with_snapshot().await;
        for _ in 0..3 {
            right(fleet.client(), &ask).await;
        }
        let listed = async |host: &Host| {
            let listing = host.admin().get("/admin/sessions").await.unwrap().json();
            assert_eq!(listing["sessions"], 1, "{listing}");
            (lasting(&listing["listed"][0]), listing["workloads"].clone())
        };
        let before = listed(&fleet.host).await;
        assert_eq!(before.0["turns"], 3);
        if is_killed {
            // Whatever was being written when the last turn ended, the second one after that has it.
            let written = snapshots(&fleet.host, "written", |_| true).await;
            snapshots(&fleet.host, "written", |count| count >= written + 2.0).await;
            fleet.host.process().kill().await.unwrap();
        } else {
            fleet.host.process().terminate().unwrap();
            assert_eq!(fleet.host.process().ended(SOON).await.unwrap(), Some(0), "{}", fleet.host.log());
        }
        let fleet = fleet.host_again().await.unwrap();
        assert_eq!(listed(&fleet.host).await, before, "killed: {is_killed}");
        assert_eq!(snapshots(&fleet.host, "restored", |_| true).await, 1.0);
        let reply = right(fleet.client(), &ask).await;
        assert_eq!(reply.decision.unwrap().reason, "turn 3", "killed: {is_killed}");
    }
}

/// A snapshot that cannot be used costs what is in it, and is kept for people to look at.
#[tokio::test]
async fn bad_snapshots_are_refused_with_a_reason() {
    /// What is done to the file's text.
    type Harm = fn(String) -> String;
    const CASES: [(&str, Harm); 4] = [
        ("it was cut off", |text| text[..text.len() / 2].to_owned()),
        ("they were changed", |text| text.replacen("\"turns\":1", "\"turns\":7", 1)),
        ("it is of version 9", |text| text.replacen("{\"sluice_sessions\":1", "{\"sluice_sessions\":9", 1)),
        ("it does not begin as a snapshot", |_| "hello\n".to_owned()),
    ];
    let ask = Ask::completion(&words(7, 40), 4).with("conversation_id", "c-7");
    let mut fleet = fleet_with_snapshot().await;
    for (why, harm) in CASES {
        right(fleet.client(), &ask).await;
        fleet.host.process().terminate().unwrap();
        assert_eq!(fleet.host.process().ended(SOON).await.unwrap(), Some(0), "{}", fleet.host.log());
        let path = fleet.host.folder().join("sessions.snapshot");
        let good = fs::read_to_string(&path).unwrap();
        fs::write(&path, harm(good.clone())).unwrap();
        fleet = fleet.host_again().await.unwrap();
        let host = &fleet.host;
        assert!(host.log_tells(why), "{why}: {}", fleet.host.log());
        assert_eq!(snapshots(host, "refused", |_| true).await, 1.0, "{why}");
        let aside = fs::read_to_string(host.folder().join("sessions.snapshot.refused")).unwrap();
        assert_eq!(aside, harm(good), "{why}");
        let told = host.admin().get("/admin/sessions").await.unwrap().json();
        assert_eq!(told["sessions"], 0, "{told}");
        assert!(told["snapshot"]["refused"].as_str().unwrap().contains(why), "{told}");
    }
}

/// Two hosts that write one file would take each other's holds for their own.
#[tokio::test]
async fn a_snapshot_is_one_hosts_alone() {
    let fleet = fleet_with_snapshot().await;
    let config = fleet.host.folder().join("sluice.toml");
    let second = run_to_end(&["serve", "--config", config.to_str().unwrap()], SOON).await.unwrap();
    assert_eq!(second.code, Some(2), "{second:?}");
    assert!(second.stderr.contains("belongs to another host that runs"), "{second:?}");
    assert!(second.stderr.contains("snapshot_file"), "{second:?}");
}
