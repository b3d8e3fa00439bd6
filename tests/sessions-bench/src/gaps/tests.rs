use super::*;

/// Conversations of a case.
const COUNT: usize = 500;

#[test]
fn adaptive_holds_much_less_and_misses_little() {
    for seed in [1, 2] {
        for promise in &PROMISES {
            let rows = compare(promise.behaviour, COUNT, None, seed).unwrap();
            let found = promise.held_against(&rows);
            assert!(found.is_kept, "{}, seed {seed}: {}", promise.name, found.measured);
        }
    }
}

/// Where turns crowd each other out, leaving early what is unlikely to come back must not cost what is likely to.
#[test]
fn crowded_it_finds_as_many() {
    for Promise { behaviour, name, .. } in PROMISES {
        let rows = compare(behaviour, COUNT, Some(BOUNDED_BLOCKS), 1).unwrap();
        let (fixed, adaptive) = (longest(&rows), rows.last().unwrap().outcome);
        let lost = 100.0 * (fixed.hit_rate() - adaptive.hit_rate());
        assert!(lost <= 4.0, "{name}: loses {lost:.1} of 100");
        assert!(adaptive.held_block_seconds <= fixed.held_block_seconds, "{name}");
    }
}

#[test]
fn a_fixed_time_is_kept_as_long_as_it_says() {
    let turn = |gap_ms| behaviour::Turn { gap_ms, tokens: 160, finish: sluice_core::facts::Finish::Stop };
    let turns = vec![turn(0), turn(28_000), turn(29_500), turn(60_000)];
    let one = [behaviour::Conversation { starts_ms: 0, turns }];
    let outcome = simulate(&one, &Keeper::Fixed(30_000), None);
    // The second gap ends within the margin, the third is too long, and the last turn is held for nothing.
    assert_eq!((outcome.later_turns, outcome.hits), (3, 1));
    assert_eq!(outcome.held_block_seconds, 10.0 * (28.0 + 29.5 + 30.0 + 30.0));
}

/// Two conversations of half of the room, and one more: the oldest goes.
#[test]
fn the_oldest_makes_room() {
    let turn = |gap_ms| behaviour::Turn { gap_ms, tokens: 160, finish: sluice_core::facts::Finish::Stop };
    let talk = |starts_ms| behaviour::Conversation { starts_ms, turns: vec![turn(0), turn(20_000)] };
    let outcome = simulate(&[talk(0), talk(1), talk(2)], &Keeper::Fixed(60_000), Some(40));
    assert_eq!((outcome.hits, outcome.crowded), (2, 2));
}

#[test]
fn a_seed_is_the_same_each_time() {
    let drawn = |seed| {
        let rows = compare(Behaviour::Mix, 50, None, seed).unwrap();
        rows.into_iter().map(|row| row.outcome).collect::<Vec<_>>()
    };
    assert_eq!(drawn(7), drawn(7));
    assert_ne!(drawn(7), drawn(8));
}
