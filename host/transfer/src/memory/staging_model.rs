//! The staging ring held against a list of what is out.

use proptest::prelude::*;

use super::staging::*;

#[derive(Debug, Clone, Copy)]
enum Act {
    Take(u64),
    GiveBack(usize),
    GiveBackTwice(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..700_u64).prop_map(Act::Take),
        2 => (0..8_usize).prop_map(Act::GiveBack),
        1 => (0..8_usize).prop_map(Act::GiveBackTwice),
    ]
}

proptest! {
    #[test]
    fn pieces_never_overlap_and_room_comes_back(acts in prop::collection::vec(act(), 1..200)) {
        let mut ring = StagingRing::new(1_050);
        let (mut out, mut back): (Vec<Staged>, Vec<Staged>) = (Vec::new(), Vec::new());
        for act in acts {
            match act {
                Act::Take(len) => match ring.take(len) {
                    Ok(new) => {
                        prop_assert_eq!(new.len, len);
                        prop_assert!(new.offset % 64 == 0 && new.offset + len <= ring.bytes());
                        let apart = |old: &Staged| old.offset + old.len <= new.offset || new.offset + len <= old.offset;
                        prop_assert!(out.iter().all(apart), "two pieces overlap");
                        out.push(new);
                    }
                    Err(StagingError::Full { .. }) => prop_assert!(!out.is_empty(), "an empty ring is full"),
                    Err(StagingError::Never { .. }) => prop_assert!(len == 0 || len > ring.bytes()),
                    Err(refused) => prop_assert!(false, "{}", refused),
                },
                Act::GiveBack(at) if !out.is_empty() => {
                    let piece = out.remove(at % out.len());
                    prop_assert_eq!(ring.give_back(piece), Ok(()));
                    back.push(piece);
                }
                Act::GiveBackTwice(at) if !back.is_empty() => {
                    let piece = back[at % back.len()];
                    let again = ring.give_back(piece);
                    prop_assert!(matches!(again, Err(StagingError::NotOut { .. })), "given back twice");
                }
                Act::GiveBack(_) | Act::GiveBackTwice(_) => {}
            }
            prop_assert!(ring.used_bytes() <= ring.bytes());
        }
        for piece in out.into_iter().rev() {
            prop_assert_eq!(ring.give_back(piece), Ok(()));
        }
        prop_assert_eq!(ring.used_bytes(), 0);
        prop_assert!(ring.take(ring.bytes()).is_ok(), "an empty ring has all its room");
    }
}

#[test]
fn room_is_used_again_in_the_order_it_was_taken() {
    let mut ring = StagingRing::new(256);
    let pieces: Vec<_> = (0..4).map(|_| ring.take(64).unwrap()).collect();
    assert!(matches!(ring.take(1), Err(StagingError::Full { pieces: 4, .. })));
    ring.give_back(pieces[1]).unwrap();
    assert!(ring.take(1).is_err(), "the piece before it is still out");
    ring.give_back(pieces[0]).unwrap();
    assert_eq!(ring.take(128).unwrap().offset, 0);
}

#[test]
fn the_number_of_pieces_is_bounded() {
    let mut ring = StagingRing::new(64 * (MAX_STAGED as u64 + 1));
    for _ in 0..MAX_STAGED {
        ring.take(1).unwrap();
    }
    assert!(matches!(ring.take(1), Err(StagingError::Full { pieces: MAX_STAGED, .. })));
}
