//! Small, stable, unkeyed hashes for routing. Not for anything that must resist an adversary.

/// Finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit moves every output bit.
pub fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Hash of a byte string, eight bytes a step, the same on every host.
pub fn bytes(seed: u64, data: &[u8]) -> u64 {
    let mut state = mix(mix(seed) ^ data.len() as u64);
    let mut chunks = data.chunks_exact(8);
    for chunk in &mut chunks {
        let mut lane = [0; 8];
        lane.copy_from_slice(chunk);
        // One multiply a step: a long prompt is hashed on the request path.
        state = (state ^ u64::from_le_bytes(lane)).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    }
    let mut lane = [0; 8];
    let rest = chunks.remainder();
    lane[..rest.len()].copy_from_slice(rest);
    mix(state ^ u64::from_le_bytes(lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_order_and_seed_matter() {
        let hashes = [
            bytes(0, b""),
            bytes(0, b"\0"),
            bytes(0, b"\0\0\0\0\0\0\0\0"),
            bytes(1, b""),
            bytes(0, b"abcdefgh12345678"),
            bytes(0, b"12345678abcdefgh"),
        ];
        let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
        assert_eq!(distinct.len(), hashes.len());
    }
}
