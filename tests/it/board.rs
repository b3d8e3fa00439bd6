//! `/metrics` as Prometheus wants it, and the Grafana board that reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hyper::Method;
use serde_json::{Value, json};
use sluice_harness::{Ask, Fleet, FleetPlan, Host, HostPlan, Metrics, MockEngine, Mode, PolicyFile};
use sluice_sim::words as made_up;

use crate::{SOON, right};

/// A host that has met what makes series come into being: streams, a policy's fault, a refused file, strange clients.
async fn used_host() -> Host {
    let engine = |request: &sluice_harness::Recorded| match () {
        () if request.is_prefill() => sluice_harness::Canned::prefilled(),
        () if request.body["stream"] == true => {
            let chunk = r#"{"choices":[{"index":0,"text":" x","finish_reason":null}]}"#;
            let events = [chunk, chunk, chunk, chunk, chunk, "[DONE]"];
            sluice_harness::Canned::events(&events, sluice_harness::mock_engine::End::Whole)
        }
        () => sluice_harness::Canned::completed(),
    };
    let (prefill, decode) =
        (MockEngine::start(engine).await.unwrap(), MockEngine::start(engine).await.unwrap());
    let plan = HostPlan::new(Mode::Pull).worker("prefill", prefill.url()).worker("decode", decode.url());
    let mut plan = HostPlan { policy_keys: "labels = [\"x-mood\"]\n".into(), ..plan.policy("active") };
    plan.pool = "kv_bytes_per_token = 64\nprobe_kv = true\n".into();
    let host = Host::start(&plan, &[PolicyFile::guest("active", "on-demand").unwrap()]).await.unwrap();
    host.until_ready().await.unwrap();
    for (model, mood, stream) in [
        ("emulated", "fine", false),
        ("emulated", "fine", true),
        ("emulated", "trap", true),
        ("emulated", "reject", false),
        ("a-strange-model", "strange-mood", false),
    ] {
        let body = json!({"model": model, "prompt": "hi", "stream": stream}).to_string();
        let headers = [("x-mood", mood), ("x-request-id", "a-strange-id"), ("authorization", "strange-key")];
        host.client().request(Method::POST, "/v1/completions", body.into(), &headers).await.unwrap();
    }
    host.drop_policy(&PolicyFile::new("broken", b"no wasm".to_vec())).unwrap();
    host.until_refused("broken", SOON).await.unwrap();
    host.until_metric("sluice_kv_probes_total", &[], |probes| probes >= 1.0, SOON).await.unwrap();
    host
}

/// A host that has moved KV, and whose decode engine keeps a turn.
async fn host_that_moves_kv() -> Fleet {
    let policy = PolicyFile::policy("active", "adaptive").unwrap().settings("push = true\n");
    let fleet = FleetPlan::hosted(1, 1).decided_by(policy).start().await.unwrap();
    let ask = Ask::completion(&made_up(1, 320), 4).with("conversation_id", "one");
    right(fleet.client(), &ask).await;
    let kept = [("event", "kept")];
    fleet.host.until_metric("sluice_kept_turns_total", &kept, |turns| turns == 1.0, SOON).await.unwrap();
    fleet
}

/// What both kinds of hosts tell.
async fn told() -> String {
    let (host, fleet) = (used_host().await, host_that_moves_kv().await);
    let text = async |host: &Host| host.client().get("/metrics").await.unwrap().text();
    text(&host).await + &text(&fleet.host).await
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
}

/// Every text under these keys, however deep.
fn texts<'a>(value: &'a Value, keys: &[&str], found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                match member.as_str() {
                    Some(text) if keys.contains(&key.as_str()) => found.push(text),
                    _ => texts(member, keys, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|item| texts(item, keys, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_board_asks_for_what_there_is() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/grafana/sluice.json");
    let board: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let told = told().await;
    let metrics = Metrics::parse(&told).unwrap();
    let mut queries = Vec::new();
    texts(&board, &["expr", "query"], &mut queries);
    let asked: BTreeSet<_> =
        queries.iter().flat_map(|query| words(query)).filter(|word| word.starts_with("sluice_")).collect();
    assert!(asked.len() > 20, "{asked:?}");
    let missing: Vec<_> = asked.iter().filter(|name| !metrics.has(name)).collect();
    assert!(missing.is_empty(), "the board asks for {missing:?}, which no host has");
    // Whatever is told of policies and of KV that the host moves is looked at.
    let is_of = |name: &String| {
        ["policy", "transfer", "kept", "holds", "session", "sessions"]
            .iter()
            .any(|of| name.starts_with(&format!("sluice_{of}_")))
    };
    let told = families(&told).into_keys().filter(is_of);
    let is_shown = |name: &String| asked.iter().any(|asked| asked.starts_with(name));
    let unseen: Vec<_> = told.filter(|name| !is_shown(name)).collect();
    assert!(unseen.is_empty(), "the board shows nothing of {unseen:?}");
    let titles: Vec<_> = board["panels"].as_array().unwrap().iter().map(|panel| &panel["title"]).collect();
    for row in
        ["Requests", "Phases", "KV transfers", "KV that the host moves", "Policies", "Fleet", "Admission"]
    {
        assert!(titles.iter().any(|title| *title == row), "{row}: {titles:?}");
    }
    let ids: BTreeSet<_> =
        board["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), titles.len(), "each panel has an id of its own");
    let corners: BTreeSet<_> = board["panels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|panel| (panel["gridPos"]["x"].as_u64(), panel["gridPos"]["y"].as_u64()))
        .collect();
    assert_eq!(corners.len(), titles.len(), "no panel lies on another");
}

/// What a family's lines say of it.
#[derive(Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    for line in text.lines() {
        let mut parts = line.splitn(4, ' ');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                families.entry(name.into()).or_default().kind = kind.into();
            }
            (Some("#"), Some("HELP"), Some(name), Some(help)) => {
                families.entry(name.into()).or_default().help = help.into();
            }
            _ => {
                // A family's samples follow its lines and begin with its name.
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let keys =
                    line.split(['{', ',']).filter_map(|part| Some(part.split_once("=\"")?.0.to_owned()));
                let owner = families.iter_mut().rfind(|(family, _)| name.starts_with(family.as_str()));
                if let Some((_, family)) = owner {
                    family.labels.extend(keys);
                }
            }
        }
    }
    families
}

/// Units and things counted that a gauge's name may end with, and states: 1 or 0, or how many are in it.
const ENDS: [&str; 10] = [
    "_seconds",
    "_tokens",
    "_requests",
    "_handles",
    "_sessions",
    "_bytes",
    "_blocks",
    "_per_second",
    "_engines",
    "_holds",
];
const STATES: [&str; 10] = [
    "_up",
    "_attached",
    "_open",
    "_free",
    "_generation",
    "_draining",
    "_safe_to_stop",
    "_moves",
    "_queue",
    "_waiting",
];

/// Labels whose values are configured, or names of policies, or of a fixed set.
const LABELS: [&str; 25] = [
    "decode",
    "direction",
    "end",
    "endpoint",
    "event",
    "handle",
    "hook",
    "kind",
    "le",
    "leg",
    "mode",
    "outcome",
    "phase",
    "policy",
    "pool",
    "prefill",
    "reason",
    "result",
    "role",
    "sink",
    "source",
    "task",
    "tenant",
    "verb",
    "worker",
];

#[tokio::test]
async fn names_follow_prometheus_conventions() {
    let text = told().await;
    let families = families(&text);
    assert!(families.len() > 20, "{text}");
    for (name, Family { kind, help, labels }) in &families {
        let well_spelt =
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        assert!(name.starts_with("sluice_") && well_spelt, "{name}");
        assert!(help.len() > 10, "{name} says of itself: {help:?}");
        // The exposition adds `_total` to a counter's samples.
        let sample = if kind == "counter" { format!("{name}_total") } else { name.clone() };
        assert!(text.lines().any(|line| line.starts_with(&sample)), "{sample} has no sample");
        let ends_well = ENDS.iter().chain(&STATES).any(|end| name.ends_with(end));
        assert!(kind == "counter" || ends_well, "{kind} {name} has no unit");
        assert!(!name.ends_with("_total"), "{name} would be {name}_total");
        for other in ["_ms", "milliseconds", "_us", "_kb", "_mb", "percent"] {
            assert!(!name.contains(other), "{name} is not in a base unit");
        }
        for label in labels {
            assert!(
                LABELS.contains(&label.as_str()),
                "{name} has the label {label:?}: are its values bounded?"
            );
        }
    }
    assert!(!text.contains("strange"), "a client's words are in a label: {text}");
}
