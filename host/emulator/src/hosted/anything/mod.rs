//! Whatever a host says and whatever becomes of requests: answers stay right, a block that the host has is in no other use,
//! and all come back. The host here writes into what it may write into, at every step.

mod events;
mod world;

use proptest::prelude::*;
use sluice_engine_sdk::leg::HoldOf;
use sluice_sim::oracle::{self, Params};

use events::{Event, event};
use world::World;

fn play(events: Vec<Event>) -> World {
    let mut world = World::new();
    world.happen(0, Event::Attach);
    for (at, event) in events.into_iter().enumerate() {
        world.happen(at, event);
        world.check();
    }
    world.end();
    assert_eq!(world.engine.occupancy().blocks.used, 0);
    assert_eq!((world.books.named.len(), world.books.legs.len()), (0, 0));
    assert_eq!((world.books.holds.len(), world.books.receives.len()), (0, 0));
    for (sequence, (prompt, max_tokens)) in &world.asked {
        let right = oracle::complete(prompt, *max_tokens, &Params::default());
        assert_eq!(world.got.get(sequence), Some(&right), "{sequence:?}");
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn blocks_that_the_host_has_are_in_no_other_use_and_answers_stay_right(
        events in proptest::collection::vec(event(), 1..80),
    ) {
        play(events);
    }
}

#[test]
fn what_is_played_gets_everywhere() {
    let submit = |prompt, hold, receive| Event::Submit {
        prompt,
        tokens: 20,
        max_tokens: 3,
        hold,
        receive,
        shows: false,
    };
    let world = play(vec![
        submit(0, Some(HoldOf::Prompt), true),
        submit(1, Some(HoldOf::Turn), true),
        Event::Step,
        Event::Complete { which: 0, cut: None },
        Event::Step,
        Event::Confirm(0),
        Event::Complete { which: 0, cut: None },
        Event::Step,
        Event::Step,
        Event::Step,
        Event::Confirm(0),
    ]);
    assert_eq!((world.held, world.confirms), (1, 2));
}
