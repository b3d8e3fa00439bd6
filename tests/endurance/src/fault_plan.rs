//! Which leg meets which fault: a pure function of a seed and the leg's number.

use std::time::Duration;

/// What may go wrong with one leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The engine answers 500 and does nothing.
    Status500,
    /// The engine works, and the connection closes without a byte of its answer.
    ClosedUnanswered,
    /// The engine works, and the connection breaks in the middle of its answer.
    BrokenOff,
    /// The engine works, and answers half a second late.
    Stall,
    /// Silence, until the connection closes.
    Hang,
    /// A page of HTML with status 200.
    Page,
    /// JSON that ends too soon, with status 200.
    HalfJson,
    /// A prefill leg's answer without its handle: the engine keeps blocks that nobody can fetch.
    NoHandle,
}

/// All of them.
pub const FAULTS: [Fault; 8] = [
    Fault::Status500,
    Fault::ClosedUnanswered,
    Fault::BrokenOff,
    Fault::Stall,
    Fault::Hang,
    Fault::Page,
    Fault::HalfJson,
    Fault::NoHandle,
];

/// How late a stalled answer is.
pub const STALL: Duration = Duration::from_millis(500);

/// How long a hanging connection stays open.
pub const HANG: Duration = Duration::from_secs(2);

/// One leg in so many meets a fault. A request has two legs, so one request in a hundred does.
pub const LEGS_PER_FAULT: u64 = 200;

/// The fault of a leg, if it meets one.
pub fn fault(seed: u64, leg: u64) -> Option<Fault> {
    let drawn = sluice_sim::model::mix(seed, leg);
    let kinds = FAULTS.len() as u64;
    let kind = (drawn / LEGS_PER_FAULT) % kinds;
    drawn.is_multiple_of(LEGS_PER_FAULT).then(|| FAULTS[kind as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_comes_about_equally_often() {
        let drawn: Vec<_> = (0..160_000).filter_map(|leg| fault(1, leg)).collect();
        assert!((700..900).contains(&drawn.len()), "{}", drawn.len());
        for kind in FAULTS {
            let count = drawn.iter().filter(|fault| **fault == kind).count();
            assert!((60..140).contains(&count), "{kind:?}: {count}");
        }
        assert_ne!(
            (0..1_000).find(|leg| fault(1, *leg).is_some()),
            (0..1_000).find(|leg| fault(2, *leg).is_some())
        );
    }
}
