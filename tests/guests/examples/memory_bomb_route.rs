//! Takes memory in `route` until there is none, and touches all of it.

use sluice_policy_sdk::{Facts, Policy, Verdict, export};

const CHUNK_BYTES: usize = 1 << 20;

struct Guest;

impl Policy for Guest {
    fn configure(_settings: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn route(&self, _facts: &Facts) -> Verdict {
        let mut taken = Vec::new();
        loop {
            taken.push(std::hint::black_box(vec![1_u8; CHUNK_BYTES]));
        }
    }
}

export!(Guest);
