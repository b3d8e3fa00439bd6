//! The rules of kept turns, by small turns.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;

use proptest::prelude::*;

use super::found::{Found, of_history, of_tokens};
use super::table::{BRANCHES_AT_MOST, Table};
use super::*;
use crate::history::guard::{Prompt, Refusal};
use crate::history::scope::{ConversationKey, Scope};
use crate::history::tokens::Sequence;
use crate::verdict::Keep;

/// A turn with a name.
#[derive(Debug, Clone)]
struct Small {
    name: u64,
    held: Option<Rc<Held>>,
    tokens: u32,
    lease: Lease,
    mark: Option<Digest>,
    usable_until_ms: u64,
}

impl Turn for Small {
    fn holder(&self) -> u64 {
        self.name % 2
    }

    fn tokens(&self) -> u32 {
        self.tokens
    }

    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn lease_mut(&mut self) -> &mut Lease {
        &mut self.lease
    }

    fn mark(&self) -> Option<Digest> {
        self.mark
    }

    fn held(&self) -> Option<&Held> {
        self.held.as_deref()
    }

    fn usable_until_ms(&self) -> u64 {
        self.usable_until_ms
    }
}

const TWO: NonZeroU32 = NonZeroU32::new(2).expect("not 0");

fn lease(ttl_ms: u32, now_ms: u64) -> Lease {
    Lease::new(Keep { ttl_ms, heartbeat_ms: None }, now_ms)
}

/// Of an engine that keeps it by itself.
fn engines(name: u64, ids: &[u32]) -> Small {
    let held = Some(Held::of_sequence(Sequence::of_ids(ids), TWO).into());
    let tokens = ids.len() as u32;
    Small { name, held, tokens, lease: lease(1_000, 0), mark: None, usable_until_ms: 1_000 }
}

/// Of a host that moves it.
fn hosted(name: u64, chain: &Chain) -> Small {
    let (mark, tokens) = (Some(chain.mark()), 10 + name as u32);
    Small { name, held: None, tokens, lease: lease(1_000, 0), mark, usable_until_ms: u64::MAX }
}

fn key(name: &str) -> ConversationKey {
    let scope = Scope {
        tenant: "t".to_owned(),
        model: "m".to_owned(),
        adapter: None,
        salt: None,
        endpoint: Cow::Borrowed("/v1/chat/completions"),
    };
    ConversationKey::named(&Arc::new(scope), name)
}

/// Each character a message.
fn chain(messages: &str) -> Chain {
    Chain::of_messages(&key("").scope, messages.as_bytes().chunks(1)).expect("a history")
}

fn prompt(ids: &[u32]) -> Prompt {
    Prompt { sequence: Sequence::of_ids(ids), has_media: false }
}

fn table(turns: &[Small]) -> Table<Small> {
    let mut table = Table::bounded(100);
    for turn in turns {
        assert!(table.put(key("c"), turn.clone(), None).is_empty());
    }
    table
}

fn names(ended: Vec<(Small, Ended)>) -> Vec<(u64, Ended)> {
    ended.into_iter().map(|(turn, why)| (turn.name, why)).collect()
}

#[test]
fn the_longest_proven_part_that_is_to_be_had_is_best() {
    let short_lease = Small { lease: lease(40, 0), ..engines(4, &[5, 6, 7]) };
    let turns = table(&[
        engines(1, &[1, 2, 3, 4, 9, 9]),
        Small { usable_until_ms: 50, ..engines(2, &[1, 2, 3, 4, 5, 6]) },
        engines(3, &[1, 2, 3, 8]),
        short_lease,
    ]);
    let turns = turns.of(&key("c"));
    let best = |ids: &[u32], now_ms| {
        let of = |found: Found| (found.number, found.tokens, found.holder, found.left_ms);
        of_tokens(&turns, &prompt(ids), now_ms).map(of)
    };
    for (ids, now_ms, expected) in [
        (&[5, 6, 7, 8][..], 39, Ok((4, 3, 0, 1))),
        (&[5, 6, 7, 8], 40, Err(Refusal::Expired)),
        (&[1, 2, 3, 4, 5, 6, 7], 40, Ok((2, 6, 0, 10))),
        (&[1, 2, 3, 4, 5, 6, 7], 50, Ok((1, 4, 1, 950))),
        (&[1, 2, 3, 4, 9, 9, 7], 0, Ok((1, 6, 1, 1_000))),
        // Alike are three tokens of each: the shortest goes.
        (&[1, 2, 3, 7], 0, Ok((3, 3, 1, 1_000))),
        (&[1, 2, 3, 4], 1_000, Err(Refusal::Expired)),
    ] {
        assert_eq!(best(ids, now_ms), expected, "{ids:?} at {now_ms}");
    }
    let one = table(&[engines(1, &[1, 2])]).of(&key("c"));
    let too_little = Refusal::LessThanABlock { proven_tokens: 0, block_tokens: 2 };
    assert_eq!(of_tokens(&one, &prompt(&[2, 2, 3]), 0), Err(too_little));
    assert_eq!(of_tokens::<Small>(&[], &prompt(&[1, 2, 3]), 0), Err(Refusal::NothingHeld));
    assert_eq!(of_history(&one, None, 0), None, "nobody would compare it");
}

#[test]
fn of_two_who_race_one_gets_it() {
    let mut table = table(&[engines(1, &[1, 2, 3]), engines(2, &[1, 2, 4])]);
    let look = || of_tokens(&table.of(&key("c")), &prompt(&[1, 2, 3, 4]), 0).expect("one is kept").number;
    let looked = [look(), look()];
    assert_eq!(table.take(&key("c"), looked[0]).map(|turn| turn.name), Some(1));
    assert!(table.take(&key("c"), looked[1]).is_none() && table.take(&key("other"), 2).is_none());
    table.put(key("c"), engines(3, &[1, 2, 3]), None);
    assert!(table.take(&key("c"), looked[1]).is_none(), "a number never comes again");
}

#[test]
fn what_is_taken_is_looked_at_again_before_it_is_sent() {
    let turn = Small { usable_until_ms: 50, ..engines(1, &[1, 2]) };
    assert!(turn.is_usable(49) && !turn.is_usable(50), "its lease would last");
    assert!(Small { lease: lease(10, 0), ..turn }.is_usable(49), "who took it needs no lease");
}

#[test]
fn what_goes_for_a_newcomer() {
    let four = [1, 2, 3, 4].map(|name| engines(name, &[1, name as u32]));
    let by_proofs = |name, ids: &[u32]| {
        let held = Held::of_sequence(Sequence::of_ids(ids), TWO).into_proofs(TWO);
        Small { held: Some(held.into()), ..engines(name, ids) }
    };
    let two = [by_proofs(1, &[1, 2, 3, 4, 5]), by_proofs(2, &[1, 2, 4, 4])];
    for (turns, newcomer, expected) in [
        (&four[..], engines(5, &[2, 2]), &[(1, Ended::Crowded)][..]),
        (&four, engines(5, &[1, 3, 5]), &[(3, Ended::Superseded)]),
        (&four, engines(5, &[1, 1]), &[(1, Ended::Superseded)]),
        (&two, by_proofs(3, &[1, 2, 3, 5, 5, 6]), &[]),
        (&two, by_proofs(3, &[1, 2, 3, 4, 6, 6]), &[(1, Ended::Superseded)]),
    ] {
        let mut table = table(turns);
        assert_eq!(names(table.put(key("other"), newcomer.clone(), None)), []);
        assert_eq!(names(table.put(key("c"), newcomer, None)), expected);
    }
    let mut small = Table::bounded(2);
    for (name, expected) in [(1, &[][..]), (2, &[]), (3, &[(1, Ended::Crowded)])] {
        let turn = engines(name, &[1, 2]);
        assert_eq!(names(small.put(key(&name.to_string()), turn, None)), expected);
    }
    assert_eq!(small.size(), (2, 4));
}

/// Branches of a conversation whose KV this host moves: what a later turn goes on from ends, what was asked again and what went
/// another way stays, few at a time.
#[test]
fn branches_are_kept_and_found_by_their_history() {
    let (mut table, key) = (Table::bounded(100), key("c"));
    let put = |table: &mut Table<Small>, name, messages: &str| {
        let chain = chain(messages);
        names(table.put(key.clone(), hosted(name, &chain), Some(&chain)))
    };
    let found = |table: &Table<Small>, messages: &str| {
        let found = of_history(&table.of(&key), Some(&chain(messages)), 0).expect("something is kept");
        (found.number, found.tokens)
    };
    assert_eq!(put(&mut table, 1, "a"), []);
    assert_eq!(put(&mut table, 2, "a"), [], "asked again: both may be continued");
    assert_eq!(found(&table, "axb"), (2, 12), "the newest of equals");
    assert_eq!(put(&mut table, 3, "axb"), [(1, Ended::Superseded), (2, Ended::Superseded)], "gone on from");
    assert_eq!(put(&mut table, 4, "ayc"), [], "another branch");
    assert_eq!((found(&table, "axbzd"), found(&table, "ayczd")), ((3, 13), (4, 14)));
    assert_eq!(found(&table, "o"), (4, 0), "the engines find out what is true of it");
    let over = table.went_on(&key, Some(&chain("ayczd")));
    assert_eq!(over.iter().map(|turn| turn.name).collect::<Vec<_>>(), [4]);
    for (name, messages, expected) in
        [(5, "e", &[][..]), (6, "f", &[]), (7, "g", &[]), (8, "h", &[(3, Ended::Crowded)])]
    {
        assert_eq!(put(&mut table, name, messages), expected, "the oldest of too many");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put {
        conversation: u8,
        ids: Vec<u32>,
        ttl_ms: u32,
    },
    Take {
        conversation: u8,
        ids: Vec<u32>,
    },
    TakeFirstToEnd(u64),
    TakeAllOf(u64),
    WentOn(u8),
    /// All that is due, with what its policy says.
    Look(Option<u32>),
    Passes(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let ids = || prop::collection::vec(0..2_u32, 2..8);
    prop_oneof![
        4 => (0..3_u8, ids(), 2..100_u32)
            .prop_map(|(conversation, ids, ttl_ms)| Step::Put { conversation, ids, ttl_ms }),
        4 => (0..3_u8, ids()).prop_map(|(conversation, ids)| Step::Take { conversation, ids }),
        1 => (0..2_u64).prop_map(Step::TakeFirstToEnd),
        1 => (0..2_u64).prop_map(Step::TakeAllOf),
        1 => (0..3_u8).prop_map(Step::WentOn),
        2 => prop::option::of(1..100_u32).prop_map(Step::Look),
        2 => (0..60_u64).prop_map(Step::Passes),
    ]
}

const TURNS_AT_MOST: usize = 6;

proptest! {
    /// Whatever is done in whatever order: each turn comes out once, what was found is proven, the table stays within its bounds, and
    /// nothing that is due is missed.
    #[test]
    fn each_turn_comes_out_once(steps in prop::collection::vec(step(), 1..80)) {
        let conversation = |number: u8| key(&number.to_string());
        let (mut table, mut now_ms, mut put, mut out) = (Table::bounded(TURNS_AT_MOST), 0, 0, Vec::new());
        for step in steps {
            match step {
                Step::Put { conversation: of, ids, ttl_ms } => {
                    put += 1;
                    let keep = Keep { ttl_ms, heartbeat_ms: Some(ttl_ms / 2) };
                    let turn = Small { lease: Lease::new(keep, now_ms), usable_until_ms: u64::MAX, ..engines(put, &ids) };
                    out.extend(names(table.put(conversation(of), turn, None)).iter().map(|(name, _)| *name));
                }
                Step::Take { conversation: of, ids } => {
                    let (key, prompt) = (conversation(of), prompt(&ids));
                    let turns = table.of(&key);
                    let Ok(found) = of_tokens(&turns, &prompt, now_ms) else { continue };
                    let cuts = turns.iter().filter(|(_, turn)| turn.left_ms(now_ms) > 0);
                    let mut cuts = cuts.filter_map(|(_, turn)| turn.held.as_ref()?.cut_for(&prompt).ok());
                    prop_assert!(cuts.all(|cut| Some(cut) <= found.cut));
                    let taken = table.take(&key, found.number).expect("nobody else was there");
                    prop_assert_eq!(taken.held.as_ref().and_then(|held| held.cut_for(&prompt).ok()), found.cut);
                    out.push(taken.name);
                }
                Step::TakeFirstToEnd(holder) => {
                    let of = |turn: &Small| turn.holder() == holder;
                    let taken = table.take_first_to_end(holder);
                    let others = table.all().into_iter().filter(|(_, turn)| of(turn));
                    let first = others.map(|(_, turn)| turn.lease.ends_at_ms()).min();
                    prop_assert!(first.is_none_or(|first| taken.as_ref().is_some_and(|turn| turn.lease.ends_at_ms() <= first)));
                    out.extend(taken.map(|turn| turn.name));
                }
                Step::TakeAllOf(holder) => {
                    let taken = table.take_all(|turn| turn.holder() == holder);
                    prop_assert!(taken.is_sorted_by_key(|turn| turn.name), "the oldest first");
                    out.extend(taken.iter().map(|turn| turn.name));
                }
                Step::WentOn(of) => out.extend(table.went_on(&conversation(of), None).iter().map(|turn| turn.name)),
                Step::Look(wanted_ms) => {
                    while let Some(due) = table.due(now_ms) {
                        let mut lease = due.turn.lease;
                        let next = match deadlines::next(&lease, now_ms, 0) {
                            deadlines::Next::Ask => deadlines::answered(&mut lease, wanted_ms, u64::MAX, now_ms, 0),
                            next => next,
                        };
                        match next {
                            deadlines::Next::GoesOn | deadlines::Next::Ask => prop_assert!(false, "nothing was due"),
                            deadlines::Next::HoldOn(for_ms) => {
                                lease.granted(for_ms, now_ms);
                                table.goes_on(&due.key, due.number, lease);
                            }
                            deadlines::Next::End(_) => out.extend(table.take(&due.key, due.number).map(|turn| turn.name)),
                        }
                    }
                    prop_assert!(table.next_due_ms().is_none_or(|at_ms| at_ms > now_ms));
                    prop_assert!(table.all().iter().all(|(_, turn)| turn.lease.left_ms(now_ms) > 0));
                }
                Step::Passes(ms) => now_ms += ms,
            }
            let all = table.all();
            let tokens = all.iter().map(|(_, turn)| u64::from(turn.tokens)).sum::<u64>();
            prop_assert_eq!(table.size(), (all.len(), tokens));
            prop_assert!(all.len() <= TURNS_AT_MOST);
            prop_assert!((0..3).all(|of| table.of(&conversation(of)).len() <= BRANCHES_AT_MOST));
            let due = all.iter().map(|(_, turn)| turn.lease.due_at_ms()).min();
            prop_assert_eq!(table.next_due_ms(), due);
        }
        out.extend(table.take_all(|_| true).iter().map(|turn| turn.name));
        out.sort_unstable();
        prop_assert_eq!(out, (1..=put).collect::<Vec<_>>());
    }
}
