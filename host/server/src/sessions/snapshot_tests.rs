//! Snapshots: all comes back from a good one, nothing and a reason from any other.

use std::fs;
use std::io::Cursor;
use std::sync::Arc;

use serde_json::{Value, json};
use sluice_core::history::chain::Chain;
use sluice_core::history::scope::Scope;
use sluice_core::kept::saved::SavedAt;
use sluice_core::session::{PromptMark, TurnRecord};
use tempfile::TempDir;

use super::holds::{NoHolds, SavesHolds};
use super::moment::Moment;
use super::saving::{NotOurs, SnapshotFile};
use super::snapshot::{self, Contents, Refused};
use super::{ConversationKey, EndedTurn, Sessions, Walk};
use crate::config;
use crate::telemetry::metrics::Metrics;

const NOW_MS: u64 = 100_000;
const TTL_MS: u64 = 60_000;

/// Says that two things are held.
struct TwoHolds;

impl SavesHolds for TwoHolds {
    fn save(&self, at: SavedAt, now_ms: u64) -> Vec<Value> {
        vec![json!({"at": format!("{at:?}"), "now_ms": now_ms}), json!("another")]
    }

    fn restore(&self, _: SavedAt, _: Vec<Value>, _: u64, _: u64) {}
}

fn empty() -> Sessions {
    let config = config::Sessions {
        ttl_ms: TTL_MS,
        max_sessions: 100,
        max_bytes: 1 << 20,
        snapshot_file: None,
        snapshot_interval_ms: 1_000,
    };
    Sessions::new(&config, &Metrics::default())
}

fn scope(tenant: &str) -> Scope {
    Scope {
        tenant: tenant.to_owned(),
        model: "m".to_owned(),
        adapter: None,
        salt: Some("s".to_owned()),
        endpoint: "/v1/chat/completions".into(),
    }
}

fn chain() -> Chain {
    Chain::of_messages(&scope("a"), [br#"{"role":"user","content":"hi"}"#.as_slice()]).expect("a history")
}

/// Two named conversations of two tenants, and one without a name.
fn known() -> Sessions {
    let sessions = empty();
    let end = |key: ConversationKey, mark, started_at_ms, ended_at_ms| {
        let turn = TurnRecord {
            decode: u64::MAX,
            prefill: 7,
            prompt: PromptMark::of(b"once"),
            prompt_tokens: 40,
            output_tokens: 10,
            started_at_ms,
            ended_at_ms,
        };
        sessions.end_turn(EndedTurn { key, mark, workload: "chat", turn }, ended_at_ms, &mut |_, _| ());
    };
    let (a, b) = (sessions.scope(scope("a")), sessions.scope(scope("b")));
    end(ConversationKey::named(&a, "one"), None, 10_000, 20_000);
    end(ConversationKey::named(&b, "one"), None, 50_000, 60_000);
    end(ConversationKey::derived(&a, chain().end()), Some(chain().mark()), 70_000, 80_000);
    end(ConversationKey::named(&b, "one"), None, 85_000, 90_000);
    sessions
}

fn moment() -> Moment {
    Moment { machine: Some("this".to_owned()), up_ms: 5, wall_ms: 6 }
}

fn written() -> Vec<u8> {
    let mut out = Vec::new();
    let when = (SavedAt::End, moment(), NOW_MS);
    let bytes = snapshot::write(&known(), &TwoHolds, when, &mut out).expect("memory").bytes;
    assert_eq!(bytes, out.len() as u64);
    out
}

fn read(bytes: &[u8]) -> Result<Contents, Refused> {
    snapshot::read(Cursor::new(bytes), bytes.len() as u64)
}

fn all(sessions: &Sessions) -> Vec<(ConversationKey, u64)> {
    let batch = sessions.batch(&mut Walk::oldest_first(), 100);
    batch.into_iter().map(|(key, session)| (key, session.ended_at_ms)).collect()
}

#[test]
fn all_comes_back_as_old_as_it_is() {
    let mut contents = read(&written()).expect("a snapshot");
    assert_eq!((contents.at, &contents.when), (SavedAt::End, &moment()));
    assert_eq!(contents.holds, [json!({"at": "End", "now_ms": NOW_MS}), json!("another")]);
    let (before, sessions) = (known(), empty());
    // Another process, whose clock is elsewhere, 5 s later.
    let now_ms = 1_000_000;
    assert_eq!(snapshot::restore(&sessions, &mut contents, 1_000_000, 5_000, now_ms), 3);
    let later = |(key, ended_at_ms)| (key, ended_at_ms + now_ms - NOW_MS - 5_000);
    assert_eq!(all(&sessions), all(&before).into_iter().map(later).collect::<Vec<_>>());
    assert_eq!(sessions.workloads(), before.workloads());
    assert_eq!(sessions.find(&chain()), before.find(&chain()));
    let key = &sessions.named("b", "one")[0];
    let (now, then) = (sessions.get(key, now_ms), before.get(key, NOW_MS));
    let (now, then) = (now.expect("a session"), then.expect("a session"));
    assert_eq!((now.turns, now.holder, now.gaps, now.prompt), (2, Some(u64::MAX), then.gaps, then.prompt));
}

#[test]
fn what_expired_meanwhile_stays_away_with_what_finds_it() {
    let (mut contents, sessions) = (read(&written()).expect("a snapshot"), empty());
    // Idle for 80, 20 and 10 s when saved.
    assert_eq!(snapshot::restore(&sessions, &mut contents, TTL_MS, 45_000, NOW_MS), 1);
    assert_eq!((sessions.size().sessions, sessions.find(&chain()).from), (1, None));
    assert!(sessions.named("a", "one").iter().all(|key| sessions.get(key, NOW_MS).is_none()));
}

/// What is done to a good file, and what is said of it then.
type Harm = fn(Vec<u8>) -> Vec<u8>;

#[test]
fn no_other_file_is_believed() {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("JSON");
    // With the checksum that it would have.
    fn signed(text: &str) -> Vec<u8> {
        use sha2::{Digest, Sha256};
        let digest: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{text}{{\"sha256\":\"{digest}\"}}\n").into_bytes()
    }
    fn body(bytes: Vec<u8>) -> String {
        let text = String::from_utf8(bytes).expect("JSON");
        let end = text.trim_end().rfind('\n').expect("lines") + 1;
        text[..end].to_owned()
    }
    let cases: [(&str, Harm, &str); 11] = [
        ("empty", |_| Vec::new(), "it is empty"),
        ("something else", |_| b"\x7fELF\n\n".to_vec(), "does not begin"),
        ("cut within a line", |bytes| bytes[..bytes.len() / 2].to_vec(), "cut off"),
        ("cut between lines", |bytes| body(bytes).into_bytes(), "cut off"),
        ("cut at its very end", |bytes| bytes[..bytes.len() - 1].to_vec(), "cut off"),
        (
            "a byte changed",
            |bytes| {
                let text = String::from_utf8(bytes).expect("JSON");
                text.replacen("\"prompt_tokens\":40", "\"prompt_tokens\":41", 1).into_bytes()
            },
            "checksum",
        ),
        ("more behind it", |bytes| [bytes, b"{}\n".to_vec()].concat(), "checksum"),
        (
            "a later version",
            |bytes| signed(&body(bytes).replacen("\"sluice_sessions\":1", "\"sluice_sessions\":2", 1)),
            "version 2",
        ),
        (
            "a record that nobody knows",
            |bytes| signed(&(body(bytes) + "{\"moon\":1}\n")),
            "cannot be understood",
        ),
        (
            "a scope that is not there",
            |bytes| signed(&body(bytes).replace("\"scope\":1,", "\"scope\":9,")),
            "scope that is not there",
        ),
        ("a header alone that is none", |_| signed("{\"sluice_sessions\":1}\n"), "line 1 cannot"),
    ];
    for (what, harm, said) in cases {
        let harmed = harm(written());
        let refused = read(&harmed).expect_err(what).to_string();
        assert!(
            refused.contains(said),
            "{what}: {refused}\n{}",
            text(harmed.into_iter().take(300).filter(u8::is_ascii).collect())
        );
    }
    let refused = snapshot::read(Cursor::new(written()), u64::MAX).expect_err("too large");
    assert!(matches!(refused, Refused::TooLarge(_)), "{refused}");
}

/// Any cut and any flipped bit is noticed: none ends in a panic, or in other sessions.
#[test]
fn harm_anywhere_is_noticed() {
    let good = written();
    for at in (0..good.len()).step_by(7) {
        assert!(read(&good[..at]).is_err(), "cut at {at}");
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        assert!(read(&flipped).is_err(), "flipped at {at}");
    }
}

/// Figures from outside that are none spoil nothing.
#[test]
fn figures_that_are_none_are_left_out() {
    let sessions = empty();
    let mut contents = read(&written()).expect("a snapshot");
    let odd = serde_json::from_value(json!({"count": 3, "last_ms": 1, "mean_ms": -5.0, "variance": 1.0}));
    contents.workloads = vec![("chat".to_owned(), odd.expect("gaps"))];
    assert!(!contents.workloads[0].1.are_sound());
    let mut out = Vec::new();
    sessions.restore(Vec::new(), &[], contents.workloads);
    snapshot::write(&sessions, &NoHolds, (SavedAt::Running, moment(), 0), &mut out).expect("memory");
    assert!(read(&out).expect("a snapshot").workloads.is_empty());
}

#[test]
fn a_file_is_one_hosts_alone() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("sessions");
    let first = SnapshotFile::take(&path).expect("free");
    let second = SnapshotFile::take(&path).expect_err("taken");
    assert!(matches!(second, NotOurs::Taken(_)), "{second}");
    drop(first);
    drop(SnapshotFile::take(&path).expect("free again"));
    let missing = SnapshotFile::take(&folder.path().join("no/such")).expect_err("no folder");
    assert!(missing.to_string().contains("no/such.lock") && !missing.cure().is_empty(), "{missing}");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "the lock alone");
    let _: Arc<dyn SavesHolds> = Arc::new(NoHolds);
}
