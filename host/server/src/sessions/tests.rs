//! The store does what a list that is gone through each time would do.

use std::sync::Arc;

use proptest::prelude::*;
use sluice_core::history::chain::Chain;
use sluice_core::history::scope::Scope;
use sluice_core::session::PromptMark;

use super::order::bytes;
use super::*;

const TTL_MS: u64 = 1_000;

fn config(max_sessions: usize, max_bytes: usize) -> config::Sessions {
    config::Sessions {
        ttl_ms: TTL_MS,
        max_sessions,
        max_bytes,
        snapshot_file: None,
        snapshot_interval_ms: 1_000,
    }
}

fn scope(tenant: &str) -> Scope {
    Scope {
        tenant: tenant.to_owned(),
        model: "m".to_owned(),
        adapter: None,
        salt: None,
        endpoint: "/v1/chat/completions".into(),
    }
}

fn named(conversation: &str, tenant: &str) -> ConversationKey {
    ConversationKey::named(&Arc::new(scope(tenant)), conversation)
}

/// Of one message.
fn chain(number: usize) -> Chain {
    let message = format!(r#"{{"role":"user","content":"{number}"}}"#);
    Chain::of_messages(&scope("t"), [message.as_bytes()]).expect("a history")
}

/// Even numbers have names, odd ones histories.
fn key(number: usize) -> ConversationKey {
    match number % 2 {
        0 => named(&"n".repeat(number * 40 + 1), "t"),
        _ => ConversationKey::derived(&Arc::new(scope("t")), chain(number).end()),
    }
}

fn turn(ended_at_ms: u64) -> TurnRecord {
    TurnRecord {
        decode: 1,
        prefill: 2,
        prompt: PromptMark::default(),
        prompt_tokens: 1,
        output_tokens: 1,
        started_at_ms: ended_at_ms.saturating_sub(3),
        ended_at_ms,
    }
}

fn store(max_sessions: usize, max_bytes: usize) -> (MemoryStore, figures::Evictions) {
    let evictions = figures::Evictions::default();
    (MemoryStore::new(&config(max_sessions, max_bytes), evictions.clone()), evictions)
}

/// The same as a list, the longest idle first.
struct Model {
    max_sessions: usize,
    max_bytes: usize,
    sessions: Vec<(ConversationKey, Session)>,
    gone: [u64; 4],
    /// Those that went for room or age.
    told: Vec<(ConversationKey, Evicted)>,
}

impl Model {
    fn get(&self, key: &ConversationKey, now_ms: u64) -> Option<&Session> {
        let found = self.sessions.iter().find(|(other, _)| other == key);
        found.map(|(_, session)| session).filter(|session| now_ms - session.ended_at_ms < TTL_MS)
    }

    fn end_turn(&mut self, key: &ConversationKey, turn: &TurnRecord, now_ms: u64) -> Session {
        let session = Session::after(self.get(key, now_ms), turn);
        self.sessions.retain(|(other, _)| other != key);
        self.sessions.push((key.clone(), session.clone()));
        loop {
            let total: usize = self.sessions.iter().map(|(key, _)| bytes(key)).sum();
            let why = match self.sessions.len() {
                count if count > self.max_sessions => Evicted::Count,
                count if total > self.max_bytes && count > 1 => Evicted::Bytes,
                _ => return session,
            };
            self.told.push((self.sessions.remove(0).0, why));
            self.gone[why as usize] += 1;
        }
    }

    fn remove(&mut self, why: Evicted, is_gone: impl Fn(&(ConversationKey, Session)) -> bool) -> bool {
        let (gone, left): (Vec<_>, _) = self.sessions.drain(..).partition(is_gone);
        self.sessions = left;
        self.gone[why as usize] += gone.len() as u64;
        let was_there = !gone.is_empty();
        if why != Evicted::Dropped {
            self.told.extend(gone.into_iter().map(|(key, _)| (key, why)));
        }
        was_there
    }
}

#[derive(Debug, Clone)]
enum Step {
    Turn(usize),
    Wait(u64),
    Drop(usize),
    Sweep,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..12_usize).prop_map(Step::Turn),
        3 => (0..400_u64).prop_map(Step::Wait),
        1 => (0..12_usize).prop_map(Step::Drop),
        1 => Just(Step::Sweep),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..120)
}

fn all(store: &dyn SessionStore, mut walk: Walk) -> Vec<(ConversationKey, Session)> {
    let mut found = Vec::new();
    loop {
        let batch = store.batch(&mut walk, 3);
        if batch.is_empty() {
            return found;
        }
        found.extend(batch);
    }
}

proptest! {
    #[test]
    fn it_is_as_the_model(steps in steps(), max_sessions in 1..9_usize, max_bytes in 1_000..6_000_usize) {
        let (mut store, mut evictions) = store(max_sessions, max_bytes);
        let mut model = Model { max_sessions, max_bytes, sessions: Vec::new(), gone: [0; 4], told: Vec::new() };
        let mut now_ms = 10;
        for step in steps {
            let mut told = Vec::new();
            let mut tell = |key: &ConversationKey, why| told.push((key.clone(), why));
            match step {
                Step::Turn(number) => {
                    let (key, mark) = (key(number), (number % 2 == 1).then(|| chain(number).mark()));
                    let session = store.end_turn(key.clone(), mark, &turn(now_ms), now_ms, &mut tell);
                    prop_assert_eq!(session, model.end_turn(&key, &turn(now_ms), now_ms));
                }
                Step::Wait(ms) => now_ms += ms,
                Step::Drop(number) => {
                    let key = key(number);
                    let was_there = model.remove(Evicted::Dropped, |(other, _)| *other == key);
                    prop_assert_eq!(store.drop_one(&key), was_there);
                }
                Step::Sweep => {
                    store.sweep(now_ms, &mut tell);
                    model.remove(Evicted::Expired, |(_, session)| now_ms - session.ended_at_ms >= TTL_MS);
                }
                Step::Restart => {
                    let saved = (all(&store, Walk::oldest_first()), store.lines());
                    (store, evictions) = self::store(max_sessions, max_bytes);
                    store.restore(saved.0, &saved.1);
                    model.gone = [0; 4];
                }
            }
            prop_assert_eq!(told, std::mem::take(&mut model.told));
            prop_assert_eq!(&all(&store, Walk::oldest_first()), &model.sessions);
            let newest_first: Vec<_> = model.sessions.iter().rev().cloned().collect();
            prop_assert_eq!(all(&store, Walk::newest_first()), newest_first);
            let total = model.sessions.iter().map(|(key, _)| bytes(key)).sum();
            prop_assert_eq!(store.size(), Size { sessions: model.sessions.len(), bytes: total });
            for number in 0..12 {
                prop_assert_eq!(store.get(&key(number), now_ms), model.get(&key(number), now_ms).cloned());
                let is_there = model.sessions.iter().any(|(other, _)| *other == key(number));
                let found = store.find(&chain(number)).from;
                prop_assert_eq!(found.is_some(), is_there && number % 2 == 1, "{}: {:?}", number, found);
            }
            let why = [Evicted::Count, Evicted::Bytes, Evicted::Expired, Evicted::Dropped];
            prop_assert_eq!(why.map(|why| evictions.of(why)), model.gone);
        }
    }
}

#[test]
fn sessions_expire_to_the_millisecond() {
    let (store, evictions) = store(10, 1 << 20);
    store.end_turn(named("a", "t"), None, &turn(5_000), 5_000, &mut |_, _| ());
    assert!(store.get(&named("a", "t"), 5_999).is_some());
    assert!(store.get(&named("a", "t"), 6_000).is_none());
    // A turn after the expiry starts anew.
    store.end_turn(named("a", "t"), None, &turn(7_000), 7_000, &mut |_, _| ());
    assert_eq!(store.get(&named("a", "t"), 7_000).map(|session| session.turns), Some(1));
    store.sweep(9_000, &mut |_, _| ());
    assert_eq!((store.size(), evictions.of(Evicted::Expired)), (Size::default(), 1));
}

#[test]
fn a_session_never_crosses_tenants() {
    let (store, _) = store(10, 1 << 20);
    store.end_turn(named("a", "mine"), None, &turn(1), 1, &mut |_, _| ());
    assert!(store.get(&named("a", "theirs"), 1).is_none());
}

/// Turns, evictions and drops from many threads at once: what is counted is what is there.
#[test]
fn threads_leave_it_whole() {
    let (store, evictions) = store(64, 1 << 20);
    std::thread::scope(|threads| {
        for thread in 0..4_usize {
            let store = &store;
            threads.spawn(move || {
                for number in 0..2_000_usize {
                    let at_ms = number as u64;
                    let key = named(&((number * 7 + thread) % 200).to_string(), "t");
                    store.end_turn(key.clone(), None, &turn(at_ms), at_ms, &mut |_, _| ());
                    if number % 11 == 0 {
                        store.drop_one(&key);
                    }
                    if number % 301 == 0 {
                        store.sweep(at_ms, &mut |_, _| ());
                    }
                }
            });
        }
    });
    let left = all(&store, Walk::oldest_first());
    let total = left.iter().map(|(key, _)| bytes(key)).sum();
    assert_eq!(store.size(), Size { sessions: left.len(), bytes: total });
    assert!(left.len() <= 64 && evictions.of(Evicted::Count) > 0, "{}", left.len());
}

#[test]
fn scopes_are_shared_and_go_with_the_last_that_uses_them() {
    let sessions = Sessions::new(&config(10, 1 << 20), &Metrics::default());
    let one = sessions.scope(scope("mine"));
    assert!(Arc::ptr_eq(&one, &sessions.scope(scope("mine"))));
    let ended = |name: &str| EndedTurn {
        key: ConversationKey::named(&one, name),
        mark: None,
        workload: "default",
        turn: turn(5),
    };
    sessions.end_turn(ended("a"), 5, &mut |_, _| ());
    drop(sessions.scope(scope("theirs")));
    assert_eq!(sessions.scopes.all().len(), 2);
    sessions.sweep(6, &mut |_, _| ());
    assert_eq!(sessions.scopes.all().len(), 1);
    let keys = sessions.named("mine", "a");
    assert_eq!(keys.iter().filter(|key| sessions.drop_one(key)).count(), 1);
    assert!(sessions.named("theirs", "a").is_empty());
    drop((one, keys));
    sessions.sweep(7, &mut |_, _| ());
    assert!(sessions.scopes.all().is_empty());
}

#[test]
fn a_workload_learns_from_all_its_conversations() {
    let sessions = Sessions::new(&config(10, 1 << 20), &Metrics::default());
    let scope = sessions.scope(scope("t"));
    for (name, ended_at_ms) in [("a", 10), ("b", 20), ("a", 113), ("b", 323)] {
        let key = ConversationKey::named(&scope, name);
        let ended = EndedTurn { key, mark: None, workload: "chat", turn: turn(ended_at_ms) };
        sessions.end_turn(ended, ended_at_ms, &mut |_, _| ());
    }
    let gaps = sessions.gaps("chat");
    assert_eq!((gaps.count(), gaps.last_ms(), gaps.mean_ms()), (2, 300, 200.0));
    assert_eq!(sessions.gaps("other").count(), 0);
}

/// What sessions count for is what they take, and no more than is promised.
#[test]
fn a_session_takes_what_it_counts_for() {
    const SESSIONS: usize = 200_000;
    const NAMED_AT_MOST: usize = 500;
    // Just over a doubling of the map, where most of it is empty; and a common kind of name.
    let (store, _) = store(SESSIONS, usize::MAX);
    let scope = Arc::new(scope("t"));
    let before = resident_bytes();
    for number in 0..SESSIONS {
        let name = format!("{number:08x}-0000-4000-8000-000000000000");
        store.end_turn(ConversationKey::named(&scope, name), None, &turn(1), 1, &mut |_, _| ());
    }
    let (took, counted) = ((resident_bytes() - before) / SESSIONS, store.size().bytes / SESSIONS);
    assert!(took <= NAMED_AT_MOST, "{took} bytes");
    assert!(took <= counted * 5 / 4 && counted <= took * 5 / 4, "{took} bytes, {counted} counted");
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4_096
}
