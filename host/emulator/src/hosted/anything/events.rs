//! What may happen.

use proptest::prelude::*;
use sluice_engine_sdk::leg::HoldOf;

#[derive(Debug, Clone)]
pub enum Event {
    Submit {
        prompt: u64,
        tokens: usize,
        max_tokens: usize,
        hold: Option<HoldOf>,
        receive: bool,
        shows: bool,
    },
    Abort(usize),
    Step,
    Refuse(usize),
    Complete {
        which: usize,
        cut: Option<u32>,
    },
    Fail(usize),
    EndHold(usize),
    Free(usize),
    Confirm(usize),
    Expire,
    /// The next messages do not reach the host.
    Deafen(bool),
    Detach,
    Gone,
    Attach,
}

/// Any of it, the likely more often.
pub fn event() -> impl Strategy<Value = Event> {
    let hold = prop_oneof![Just(None), Just(Some(HoldOf::Prompt)), Just(Some(HoldOf::Turn))];
    let submit = (0_u64..3, 1_usize..24, 1_usize..10, hold, any::<bool>(), any::<bool>());
    prop_oneof![
        5 => submit.prop_map(|(prompt, tokens, max_tokens, hold, receive, shows)| {
            Event::Submit { prompt, tokens, max_tokens, hold, receive, shows }
        }),
        2 => any::<usize>().prop_map(Event::Abort),
        8 => Just(Event::Step),
        1 => any::<usize>().prop_map(Event::Refuse),
        4 => (any::<usize>(), proptest::option::of(0_u32..24))
            .prop_map(|(which, cut)| Event::Complete { which, cut }),
        2 => any::<usize>().prop_map(Event::Fail),
        2 => any::<usize>().prop_map(Event::EndHold),
        3 => any::<usize>().prop_map(Event::Free),
        1 => any::<usize>().prop_map(Event::Confirm),
        1 => Just(Event::Expire),
        1 => any::<bool>().prop_map(Event::Deafen),
        1 => Just(Event::Detach),
        1 => Just(Event::Gone),
        2 => Just(Event::Attach),
    ]
}
