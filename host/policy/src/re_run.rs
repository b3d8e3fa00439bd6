//! Which calls are run again to compare the answers.

/// Whether this call, by its number, is one of the `one_in`; 0 is never. Spread out as if by chance: at each multiple
/// of a number, a guest that keeps count could always be well just then.
pub(crate) fn is_due(number: u64, one_in: u32) -> bool {
    one_in > 0 && mixed(number).is_multiple_of(u64::from(one_in))
}

/// Each bit of the number in each bit of the result (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_one_in_so_many() {
        for (one_in, expected) in [(0, 0..=0), (1, 100_000..=100_000), (256, 330..=450), (50, 1_850..=2_150)]
        {
            let due = (1..=100_000).filter(|number| is_due(*number, one_in)).count();
            assert!(expected.contains(&due), "one in {one_in}: {due}");
        }
    }

    #[test]
    fn no_guest_that_counts_its_calls_is_spared() {
        for period in 2..=64_u64 {
            for phase in 0..period {
                let due = (0..4_000_u64).any(|round| is_due(round * period + phase + 1, 256));
                assert!(due, "a guest that is odd in each {period}th call, from {phase} on");
            }
        }
    }
}
