//! What the books say, case by case.

use sluice_engine_sdk::leg::{HoldOf, HoldWanted, ReceiveWanted, VERSION, Wanted};
use sluice_engine_sdk::wire::{
    Attempt, BlockRef, Direction, Epoch, HoldEnd, Rect, Refused, Subject, ToEngine, ToHost, TransferId, Verb,
};
use sluice_sim::engine::SequenceId;

use super::books::Books;
use super::effects::{Came, Effects};

const ONE: SequenceId = SequenceId(1);
const ID: TransferId = TransferId(7);
const ATTEMPT: Attempt = Attempt { id: ID, epoch: Epoch(0) };

fn wanted(of: HoldOf) -> Wanted {
    let hold = HoldWanted {
        transfer: ID,
        of,
        position_tokens: 2,
        fill_ms: 1,
        ttl_ms: 1,
        margin_ms: 0,
        renewable: false,
    };
    Wanted { version: VERSION, hold: Some(hold), receive: None }
}

fn blocks() -> Vec<BlockRef> {
    (1..4).map(|index| BlockRef { index, generation: 5 }).collect()
}

/// Books of an engine with blocks of 4 tokens that is attached and has a leg of 9 prompt tokens.
fn books() -> Books {
    let mut books = Books::new(4);
    books.attached();
    books.submit(ONE, wanted(HoldOf::Prompt), vec![300; 9]);
    books
}

fn ready(effects: &Effects) -> Vec<(u32, u32)> {
    let rect = |message: &ToHost| match message {
        ToHost::Ready { rect: Rect { first, end, first_layer: 0, end_layer: 1 }, .. } => Some((*first, *end)),
        _ => None,
    };
    effects.say.iter().filter_map(rect).collect()
}

#[test]
fn whole_positions_are_told_as_they_are_computed_and_cached_ones_at_once() {
    let mut books = books();
    let effects = books.progress(ONE, 4, blocks);
    let ToHost::Hold { hold } = &effects.say[0] else { panic!("{effects:?}") };
    assert_eq!((&hold.blocks, hold.extent.end_token), (&blocks(), 9));
    assert_eq!(effects.retain, [1, 2, 3]);
    let mut parts = vec![ready(&effects)];
    for computed in [5, 5, 7, 9] {
        let effects = books.progress(ONE, computed, blocks);
        let is_filled = effects.say.contains(&ToHost::Filled { id: ID });
        assert_eq!(is_filled, computed == 9);
        parts.push(ready(&effects));
    }
    assert_eq!(parts, [vec![(0, 2)], vec![], vec![], vec![(2, 3)], vec![(3, 5)]]);
    assert_eq!(books.filling(), []);
    assert_eq!(books.finished(ONE, None).0.map(|held| (held.tokens, held.cached_tokens)), Some((9, 4)));
}

#[test]
fn an_answer_tells_of_a_hold_that_is_one() {
    type Happens = fn(&mut Books) -> Effects;
    let ended = |end| move |books: &mut Books| books.told(ToEngine::HoldEnded { id: ID, end }, 0);
    let delivered = ended(HoldEnd::Delivered);
    let cases: [(&str, bool, Option<Happens>); 6] = [
        ("nothing", true, None),
        (
            "refused",
            false,
            Some(|books| books.told(ToEngine::Refused { subject: Subject::Hold(ID), why: Refused::Full }, 0)),
        ),
        (
            "expired",
            false,
            Some(|books| books.told(ToEngine::HoldEnded { id: ID, end: HoldEnd::Expired }, 0)),
        ),
        ("detached", false, Some(|books| books.detached("gone"))),
        ("attached anew", false, Some(Books::attached)),
        ("thrown out", false, Some(|books| books.not_running(ONE))),
    ];
    for (name, is_held, happens) in cases {
        let mut books = books();
        books.progress(ONE, 4, blocks);
        if let Some(happens) = happens {
            happens(&mut books);
        }
        books.progress(ONE, 9, blocks);
        assert_eq!(books.finished(ONE, None).0.is_some(), is_held, "{name}");
    }
    // By push it may be delivered before the answer.
    let mut books = books();
    books.progress(ONE, 9, blocks);
    delivered(&mut books);
    assert!(books.finished(ONE, None).0.is_some());
}

#[test]
fn blocks_are_confirmed_in_the_use_in_which_they_were_named_and_not_after_it() {
    let mut books = books();
    books.progress(ONE, 9, blocks);
    let confirm = |books: &mut Books, blocks: Vec<BlockRef>| {
        let effects = books.told(ToEngine::Confirm { attempt: ATTEMPT, number: 3, blocks }, 0);
        matches!(effects.say[..], [ToHost::Confirmed { number: 3, held: true, .. }])
    };
    assert!(confirm(&mut books, blocks()));
    assert!(!confirm(&mut books, vec![BlockRef { index: 1, generation: 6 }]));
    assert!(!confirm(&mut books, vec![blocks()[0], BlockRef { index: 9, generation: 5 }]));
    books.told(ToEngine::HoldEnded { id: ID, end: HoldEnd::Expired }, 0);
    assert!(confirm(&mut books, blocks()), "they are not freed yet");
    assert_eq!(books.told(ToEngine::Freed { blocks: blocks() }, 0).release, [1, 2, 3]);
    assert!(!confirm(&mut books, blocks()));
}

#[test]
fn an_id_that_is_open_is_not_said_again() {
    let mut books = books();
    books.progress(ONE, 9, blocks);
    books.submit(SequenceId(2), wanted(HoldOf::Prompt), vec![300; 9]);
    assert_eq!(books.progress(SequenceId(2), 9, blocks), Effects::default());
    assert_eq!(books.finished(SequenceId(2), None).0, None);
    books.submit(SequenceId(3), wanted(HoldOf::Turn), vec![300; 9]);
    assert_eq!(books.finished(SequenceId(3), Some((blocks(), &[300; 10]))).1, Effects::default());
    assert_eq!(books.named.len(), 3);
}

/// What is said of a wish to receive, and what the sequence is told at once.
fn loaded(books: &mut Books, direction: Direction, prompt: usize) -> Effects {
    let receive = ReceiveWanted {
        transfer: ID,
        epoch: 0,
        source: "other".to_owned(),
        verb: Verb::Read,
        direction,
        tokens: None,
        position_tokens: 2,
        threshold_tokens: 1,
        first_byte_ms: 1,
        whole_ms: 1,
    };
    books.submit(ONE, Wanted { version: VERSION, hold: None, receive: Some(receive) }, vec![300; prompt]);
    books.load(ONE, blocks(), 0, 0)
}

#[test]
fn from_decode_comes_only_what_is_proven() {
    for (direction, prompt, proofs) in [
        (Direction::PrefillToDecode, 9, Some(0)),
        (Direction::PrefillToDecode, 1, Some(0)),
        (Direction::DecodeToPrefill, 9, Some(4)),
        (Direction::DecodeToPrefill, 1, None),
    ] {
        let effects = loaded(&mut books(), direction, prompt);
        match (&effects.say[..], proofs) {
            ([ToHost::Receive { receive }], Some(proofs)) => assert_eq!(receive.proofs.len(), proofs),
            // Nothing is asked for, and the hold let go.
            ([ToHost::Release { id: ID }], None) => assert_eq!(effects.came, [(ONE, Came::Nothing)]),
            (said, _) => panic!("{direction:?} of {prompt}: {said:?}"),
        }
    }
}

#[test]
fn a_transfer_that_is_under_way_is_not_asked_for_again() {
    let mut books = books();
    loaded(&mut books, Direction::PrefillToDecode, 9);
    let again = loaded(&mut books, Direction::PrefillToDecode, 9);
    assert_eq!((again.say, again.came), (vec![], vec![(ONE, Came::Nothing)]));
    assert_eq!(books.named.len(), 3);
}

#[test]
fn less_may_come_and_counts_as_less() {
    let mut books = books();
    loaded(&mut books, Direction::DecodeToPrefill, 9);
    for (end_token, left) in [(7, 7), (8, 7), (3, 3)] {
        books.told(ToEngine::Cut { attempt: ATTEMPT, end_token }, 0);
        assert_eq!(books.receives[&ATTEMPT].wanted.end, left, "a cut never adds");
    }
    let effects = books.told(ToEngine::Completed { attempt: ATTEMPT }, 5);
    assert_eq!((effects.came, effects.release), (vec![(ONE, Came::Tokens(3))], vec![1, 2, 3]));
}
