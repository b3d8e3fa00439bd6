//! Numbers whose bits all depend on all bits of others.

/// Mixes two numbers into one whose bits all depend on all bits of both. Not a cryptographic hash.
pub const fn mix(seed: u64, salt: u64) -> u64 {
    scramble(scramble(seed).wrapping_add(salt).wrapping_add(GOLDEN_GAMMA))
}

/// 2^64 divided by the golden ratio, made odd: keeps small neighbouring inputs apart, and zero from zero.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64: a bijection in which each input bit flips each output bit about half the time.
const fn scramble(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
