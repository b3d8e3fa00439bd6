use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::history::tokens::Sequence;

fn hold(epoch: u64, ids: &[u32], usable_until_ms: u64) -> Hold<u64> {
    let block_tokens = NonZeroU32::new(2).expect("not 0");
    Hold {
        handle: epoch * 100,
        held: Held::of_sequence(Sequence::of_ids(ids), block_tokens),
        holder: Holder { worker: epoch % 2, engine: "e".into() },
        usable_until_ms,
        epoch: Epoch(epoch),
    }
}

fn prompt(ids: &[u32]) -> Prompt {
    Prompt { sequence: Sequence::of_ids(ids), has_media: false }
}

fn branches(holds: &[Hold<u64>]) -> Branches<u64> {
    let mut branches = Branches::default();
    for hold in holds {
        assert!(branches.put(hold.clone(), 0).is_empty());
    }
    branches
}

fn epochs(ended: &[(Hold<u64>, Ended)]) -> Vec<(u64, Ended)> {
    ended.iter().map(|(hold, why)| (hold.epoch.0, *why)).collect()
}

#[test]
fn the_longest_proven_hold_that_is_usable_is_best() {
    let branches = branches(&[
        hold(1, &[1, 2, 3, 4, 9, 9], 1_000),
        hold(2, &[1, 2, 3, 4, 5, 6], 50),
        hold(3, &[1, 2, 3, 8], 1_000),
    ]);
    let best = |ids: &[u32], now_ms| {
        branches.best(&prompt(ids), now_ms).map(|best| (best.epoch.0, best.cut.tokens(), best.worker))
    };
    for (ids, now_ms, expected) in [
        (&[1, 2, 3, 4, 5, 6, 7][..], 49, Ok((2, 6, 0))),
        (&[1, 2, 3, 4, 5, 6, 7], 50, Ok((1, 4, 1))),
        (&[1, 2, 3, 4, 9, 9, 7], 0, Ok((1, 6, 1))),
        // Alike are three tokens of each: the shortest goes.
        (&[1, 2, 3, 7], 0, Ok((3, 3, 1))),
        (&[2, 2, 3], 0, Err(Refusal::LessThanABlock { proven_tokens: 0, block_tokens: 2 })),
        (&[1, 2, 3, 4], 1_000, Err(Refusal::Expired)),
    ] {
        assert_eq!(best(ids, now_ms), expected, "{ids:?} at {now_ms}");
    }
    assert_eq!(Branches::<u64>::default().best(&prompt(&[1, 2, 3]), 0), Err(Refusal::NothingHeld));
}

#[test]
fn of_two_who_race_one_gets_it() {
    let mut branches = branches(&[hold(1, &[1, 2, 3], 1_000), hold(2, &[1, 2, 4], 1_000)]);
    let looked = [(); 2].map(|()| branches.best(&prompt(&[1, 2, 3, 4]), 0).expect("one is held"));
    assert_eq!(branches.take(looked[0].epoch, 5).map(|hold| hold.handle), Ok(100));
    assert_eq!(branches.take(looked[1].epoch, 5), Err(Refusal::Gone));
    assert_eq!(branches.take(Epoch(2), 1_000), Err(Refusal::Expired));
    assert_eq!(epochs(&branches.expire(1_000)), [(2, Ended::Expired)]);
    assert!(branches.is_empty());
}

#[test]
fn what_goes_for_a_newcomer() {
    let four =
        [hold(1, &[1, 1, 1], 90), hold(2, &[1, 2], 1_000), hold(3, &[1, 3], 1_000), hold(4, &[1, 4], 1_000)];
    for (newcomer, now_ms, expected) in [
        (hold(5, &[2, 2], 1_000), 0, &[(1, Ended::Crowded)][..]),
        (hold(5, &[2, 2], 1_000), 90, &[(1, Ended::Expired)]),
        (hold(5, &[1, 3, 5], 1_000), 0, &[(3, Ended::Superseded)]),
        (hold(5, &[1, 3], 1_000), 90, &[(1, Ended::Expired), (3, Ended::Superseded)]),
    ] {
        let mut branches = branches(&four);
        assert_eq!(epochs(&branches.put(newcomer, now_ms)), expected);
        assert!(branches.holds().iter().any(|hold| hold.epoch == Epoch(5)));
    }
}

#[test]
fn a_hold_that_is_known_by_proofs_is_superseded_as_well() {
    let by_proofs = |epoch, ids: &[u32]| {
        let hold = hold(epoch, ids, 1_000);
        Hold { held: hold.held.into_proofs(NonZeroU32::new(2).expect("not 0")), ..hold }
    };
    let mut one = branches(&[by_proofs(1, &[1, 2, 3, 4, 5])]);
    assert!(one.put(by_proofs(2, &[1, 2, 3, 5, 5, 6]), 0).is_empty());
    assert_eq!(epochs(&one.put(by_proofs(3, &[1, 2, 3, 4, 6, 6]), 0)), [(1, Ended::Superseded)]);
}

#[test]
fn holds_of_a_replaced_engine_are_lost() {
    let mut both = branches(&[hold(1, &[1, 2], 1_000), hold(2, &[2, 2], 1_000)]);
    assert!(both.engine_is(1, "e").is_empty());
    assert_eq!(epochs(&both.engine_is(1, "other")), [(1, Ended::Lost)]);
    assert_eq!(epochs(&both.drop_of(Some(1))), []);
    assert_eq!(epochs(&both.drop_of(None)), [(2, Ended::Dropped)]);
}

#[test]
fn what_expired_is_not_renewed() {
    let mut one = branches(&[hold(1, &[1, 2], 1_000)]);
    assert!(one.renew(Epoch(1), 2_000, 999) && !one.renew(Epoch(2), 9_000, 0));
    assert_eq!(one.next_expiry_ms(), Some(2_000));
    assert!(!one.renew(Epoch(1), 9_000, 2_000));
}

#[test]
fn deadlines_leave_a_margin() {
    for (answered_at_ms, held_for_ms, margin_ms, expected) in
        [(1_000, 480_000, 2_000, 479_000), (1_000, 500, 2_000, 1_000), (1, u64::MAX, 0, u64::MAX)]
    {
        assert_eq!(usable_until_ms(answered_at_ms, held_for_ms, margin_ms), expected);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put { ids: Vec<u32>, for_ms: u64 },
    Take { ids: Vec<u32>, after_ms: u64 },
    Expire,
    Restarted(u64),
    Passes(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let ids = || prop::collection::vec(0..2_u32, 2..8);
    prop_oneof![
        4 => (ids(), 0..100_u64).prop_map(|(ids, for_ms)| Step::Put { ids, for_ms }),
        4 => (ids(), 0..50_u64).prop_map(|(ids, after_ms)| Step::Take { ids, after_ms }),
        1 => Just(Step::Expire),
        1 => (0..2_u64).prop_map(Step::Restarted),
        2 => (0..60_u64).prop_map(Step::Passes),
    ]
}

proptest! {
    /// Whatever is done in whatever order: each hold ends once, a taken one is usable and proven, and what best says is best.
    #[test]
    fn each_hold_ends_once(steps in prop::collection::vec(step(), 1..60)) {
        let (mut branches, mut now_ms, mut put, mut over) = (Branches::default(), 0, 0, Vec::new());
        for step in steps {
            match step {
                Step::Put { ids, for_ms } => {
                    put += 1;
                    let ended = branches.put(hold(put, &ids, now_ms + for_ms), now_ms);
                    over.extend(ended.iter().map(|(hold, _)| hold.epoch.0));
                }
                Step::Take { ids, after_ms } => {
                    let prompt = prompt(&ids);
                    let Ok(best) = branches.best(&prompt, now_ms) else { continue };
                    now_ms += after_ms;
                    let cuts = branches.holds().iter().filter(|hold| hold.is_usable(now_ms - after_ms));
                    prop_assert!(cuts.filter_map(|hold| hold.held.cut_for(&prompt).ok()).all(|cut| cut <= best.cut));
                    if let Ok(taken) = branches.take(best.epoch, now_ms) {
                        prop_assert!(taken.is_usable(now_ms));
                        prop_assert_eq!(taken.held.cut_for(&prompt), Ok(best.cut));
                        over.push(taken.epoch.0);
                    }
                }
                Step::Expire => over.extend(branches.expire(now_ms).iter().map(|(hold, _)| hold.epoch.0)),
                Step::Restarted(worker) => {
                    over.extend(branches.engine_is(worker, "new").iter().map(|(hold, _)| hold.epoch.0));
                }
                Step::Passes(ms) => now_ms += ms,
            }
            prop_assert!(branches.holds().len() <= HOLDS_AT_MOST);
        }
        over.extend(branches.drop_of(None).iter().map(|(hold, _)| hold.epoch.0));
        over.sort_unstable();
        prop_assert_eq!(over, (1..=put).collect::<Vec<_>>());
    }
}
