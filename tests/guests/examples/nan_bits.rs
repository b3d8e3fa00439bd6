//! Well-behaved, and its reason tells the bits of numbers that are none: they must be the same on every machine.

use std::hint::black_box;

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, facts: &Facts) -> Verdict {
        let (zero, infinite) = (|| black_box(0.0_f32), || black_box(f32::INFINITY));
        let quotient = zero() / zero();
        let made = [
            quotient,
            infinite() - infinite(),
            1.0 - quotient,
            black_box(-1.0_f32).sqrt(),
            f32::NAN * zero(),
        ];
        let told = facts.workers.failure_rate.iter().map(|rate| rate * 2.0);
        let bits: Vec<_> =
            made.into_iter().chain(told).map(|number| format!("{:08x}", number.to_bits())).collect();
        sluice_guests::first(facts).because(bits.join(" "))
    }
}

export!(Guest);
