//! Engine and host speak of one hold by different ways: whatever comes first, the exchange is told what it must be.

use proptest::prelude::*;
use sluice_engine_sdk::wire::{EngineId, proofs};

use super::*;

/// Two ranks, each on a thread of its own, and the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Actor {
    First,
    Second,
    Host,
}

/// One hold, as it is to go.
#[derive(Debug, Clone)]
struct Script {
    keeps: bool,
    releases: bool,
}

const EXTENT: Extent = Extent { first_token: 0, end_token: 40, position_tokens: 16 };
const PROOFS: usize = 2;

fn peer(number: usize) -> Peer {
    Peer { engine: EngineId::of_name(&number.to_string()), incarnation: 1 }
}

fn whole(number: usize) -> Whole {
    Whole { peer: peer(number), layers: 1, ranks: 2 }
}

fn some_proofs() -> Vec<Proof> {
    proofs(&[7; 40], 16)
}

/// A hold of an engine of its own on its way, and what the exchange was told of it.
struct Going {
    number: usize,
    script: Script,
    first: usize,
    second: usize,
    host: usize,
    told: Vec<&'static str>,
    is_detached: bool,
}

impl Going {
    fn id(&self) -> TransferId {
        TransferId(self.number as u128)
    }

    fn tell(&mut self, holds: &Holds, what: &'static str) {
        self.told.push(what);
        if what == "release" {
            // As the exchange tells the engine, and so the holds.
            holds.end(peer(self.number), self.id());
        }
    }

    fn follow(&mut self, holds: &Holds, word: Option<Word>) {
        match word {
            None => {}
            Some(Word::Release) => self.tell(holds, "release"),
            Some(Word::Keep { .. }) => self.tell(holds, "renew"),
        }
    }

    fn progress(&mut self, holds: &Holds, progress: Option<Progress>) {
        match progress {
            None => {}
            Some(Progress::Ready(..)) => self.tell(holds, "ready"),
            Some(Progress::Filled) => {
                self.tell(holds, "filled");
                let word = holds.filled(self.id());
                self.follow(holds, word);
            }
        }
    }

    fn act(&mut self, holds: &Holds, actor: Actor) {
        let (id, from) = (self.id(), peer(self.number));
        let step = match actor {
            Actor::First => &mut self.first,
            Actor::Second => &mut self.second,
            Actor::Host => &mut self.host,
        };
        *step += 1;
        match (actor, *step) {
            // What was under way when it went comes to nothing.
            (Actor::First, 1) if self.is_detached => {
                let begun = holds.begin(whole(self.number), id, EXTENT, some_proofs());
                assert_eq!(begun, Err(Refused::NoSource));
            }
            (Actor::First | Actor::Second, _) if self.is_detached => {}
            (Actor::First, 1) => holds.begin(whole(self.number), id, EXTENT, some_proofs()).unwrap(),
            (Actor::First, 2) => {
                self.tell(holds, "hold");
                let (reported, word) = holds.said(from, id);
                reported.into_iter().for_each(|progress| self.progress(holds, Some(progress)));
                self.follow(holds, word);
            }
            (Actor::First, 3) => self.progress(holds, holds.report(from, id, Rank(0), Report::Filled)),
            (Actor::Second, 1) => self.progress(holds, holds.report(from, id, Rank(1), Report::Filled)),
            (Actor::Host, 1) if self.script.keeps => {
                let now = holds.word(id, Word::Keep { for_ms: 9 }).map(|_| Word::Keep { for_ms: 9 });
                self.follow(holds, now);
            }
            (Actor::Host, 2) if self.script.releases => {
                let now = holds.word(id, Word::Release).map(|_| Word::Release);
                self.follow(holds, now);
            }
            _ => {}
        }
    }

    fn detach(&mut self, holds: &Holds) {
        self.is_detached = true;
        holds.end_all(peer(self.number));
    }

    fn has_ended_well(&self, holds: &Holds) {
        let count = |what| self.told.iter().filter(|told| **told == what).count();
        let at = |what| self.told.iter().position(|told| *told == what);
        let told = &self.told;
        assert!(told.is_empty() || told[0] == "hold", "nothing before the hold itself: {told:?}");
        assert!(count("release") <= 1 && count("renew") <= 1 && count("filled") <= 1, "{told:?}");
        assert!(
            at("renew").is_none_or(|at_ms| at("filled").is_some_and(|filled| filled < at_ms)),
            "{told:?}"
        );
        if self.is_detached {
            return assert_eq!(holds.get(self.id()), None);
        }
        assert_eq!(count("release"), usize::from(self.script.releases), "{told:?}");
        if self.script.releases {
            return assert_eq!(holds.get(self.id()), None);
        }
        assert_eq!((count("renew"), count("filled")), (usize::from(self.script.keeps), 1), "{told:?}");
        assert!(holds.get(self.id()).is_some_and(|held| held.is_filled && held.has_proofs));
    }
}

proptest! {
    #[test]
    fn the_order_of_words_changes_nothing(
        scripts in prop::collection::vec((any::<bool>(), any::<bool>()), 1..4),
        steps in prop::collection::vec((0..4_usize, 0..20_usize), 0..40),
    ) {
        let holds = Holds::default();
        let going = |(number, (keeps, releases))| Going {
            number,
            script: Script { keeps, releases },
            first: 0,
            second: 0,
            host: 0,
            told: Vec::new(),
            is_detached: false,
        };
        (0..scripts.len()).for_each(|number| holds.take_in(peer(number)));
        let mut all: Vec<_> = scripts.into_iter().enumerate().map(going).collect();
        for (number, step) in steps {
            let count = all.len();
            let going = &mut all[number % count];
            match step {
                0 => going.detach(&holds),
                1..=8 => going.act(&holds, Actor::First),
                9..=13 => going.act(&holds, Actor::Second),
                _ => going.act(&holds, Actor::Host),
            }
        }
        for going in &mut all {
            for actor in [Actor::First, Actor::First, Actor::First, Actor::Second, Actor::Host, Actor::Host] {
                going.act(&holds, actor);
            }
            going.has_ended_well(&holds);
        }
        let left = all.iter().filter(|going| !going.is_detached && !going.script.releases).count();
        let state = holds.lock();
        prop_assert_eq!((state.holds.len(), state.proofs), (left, left * PROOFS));
    }
}

/// Past its bounds it forgets the oldest, and keeps what it can.
#[test]
fn bounds_are_kept() {
    let bounds = Bounds { proofs: 2 * PROOFS, early_reports: 2 };
    let holds = Holds { bounds, ..Holds::default() };
    holds.take_in(peer(0));
    let begin = |id| holds.begin(whole(0), TransferId(id), EXTENT, some_proofs());
    let has_proofs = |id| holds.get(TransferId(id)).is_some_and(|held| held.has_proofs);
    (0..3).for_each(|id| begin(id).unwrap());
    assert_eq!((has_proofs(0), has_proofs(1), has_proofs(2), holds.counts()), (true, true, false, (3, 1)));
    holds.end(peer(1), TransferId(0));
    assert_eq!((begin(0), begin(1)), (Err(Refused::Used), Err(Refused::Used)), "another engine ends nothing");
    holds.end(peer(0), TransferId(0));
    begin(3).unwrap();
    assert!(has_proofs(3), "there is room again");
    for id in 10..13 {
        assert_eq!(holds.report(peer(0), TransferId(id), Rank(1), Report::Filled), None);
        assert_eq!(holds.word(TransferId(id), Word::Release), None);
    }
    for (id, reports, word) in
        [(10, 0, Some(Word::Release)), (11, 1, Some(Word::Release)), (12, 1, Some(Word::Release))]
    {
        begin(id).unwrap();
        let (reported, said) = holds.said(peer(0), TransferId(id));
        assert_eq!((reported.len(), said), (reports, word), "{id}");
    }
}

/// A prompt gets what is equal, and of a hold that is none, or another's, nothing.
#[test]
fn only_what_is_equal_is_proven() {
    let holds = Holds::default();
    holds.take_in(peer(0));
    holds.begin(whole(0), TransferId(1), EXTENT, some_proofs()).unwrap();
    let of = |tokens: &[u32]| proofs(tokens, 16);
    let mut other = [7; 40];
    other[20] = 8;
    let wanted = Tokens { first: 0, end: 39 };
    let longer = Extent { end_token: 41, ..EXTENT };
    for (id, extent, wanted, shown, end) in [
        (1, EXTENT, wanted, of(&[7; 40]), Some(32)),
        (1, EXTENT, wanted, of(&[7; 400]), Some(32)),
        (1, EXTENT, Tokens { end: 20, ..wanted }, of(&[7; 40]), Some(20)),
        (1, EXTENT, wanted, of(&other), Some(16)),
        (1, EXTENT, Tokens { first: 16, end: 39 }, of(&other), None),
        (1, EXTENT, wanted, of(&[8; 40]), None),
        (1, EXTENT, wanted, Vec::new(), None),
        (1, longer, wanted, of(&[7; 40]), None),
        (2, EXTENT, wanted, of(&[7; 40]), None),
    ] {
        let expected = end.map(|end| Tokens { end, ..wanted }).ok_or(Refused::Unproven);
        assert_eq!(
            holds.proven(TransferId(id), extent, wanted, &shown),
            expected,
            "{id} {extent:?} {wanted:?}"
        );
    }
}
