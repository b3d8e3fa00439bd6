//! What a worker is expected to cost a request, in milliseconds. One pure function per term.

/// Where no output length is known in advance, answers are taken to be about this long: what most published
/// benchmarks ask for.
const TYPICAL_OUTPUT_TOKENS: u32 = 128;

/// So many more sequences in the batch double the time of a decode step. Decoding is bound by memory bandwidth,
/// so a step grows far slower than its batch.
const STEP_DOUBLING_REQUESTS: f32 = 32.0;

/// What staying with the session's worker is worth: more than the noise of measured figures, less than
/// any queue.
const AFFINITY_MS: f32 = 0.5;

/// Computing what is queued and then this prompt's uncached part.
pub fn prefill_ms(backlog_tokens: u32, uncached_tokens: u32, tokens_per_s: f32) -> f32 {
    (backlog_tokens as f32 + uncached_tokens as f32) / tokens_per_s * 1_000.0
}

/// Generating the answer. The measured step lags behind; the booked requests are counted at once.
pub fn decode_ms(step_ms: f32, requests: u32, max_output_tokens: u32) -> f32 {
    let tokens = max_output_tokens.min(TYPICAL_OUTPUT_TOKENS) as f32;
    step_ms * (1.0 + requests as f32 / STEP_DOUBLING_REQUESTS) * tokens
}

/// KV blocks that are not there: some sequence will be preempted, and so many tokens computed again.
pub fn shortage_ms(needed_blocks: u32, free_blocks: u32, block_tokens: u32, tokens_per_s: f32) -> f32 {
    let missing = needed_blocks.saturating_sub(free_blocks) as f32;
    missing * block_tokens as f32 / tokens_per_s * 1_000.0
}

/// Handing KV blocks over: what was measured beyond the bytes' own time, and that time, where the link's rate is
/// known.
pub fn handoff_ms(overhead_ms: f32, tokens: u32, bytes_per_token: u32, link_mb_per_s: f32) -> f32 {
    const BYTES_PER_MS_AT_1_MB_PER_S: f32 = 1_000.0;
    let bytes = tokens as f32 * bytes_per_token as f32;
    let link_ms =
        if link_mb_per_s > 0.0 { bytes / (link_mb_per_s * BYTES_PER_MS_AT_1_MB_PER_S) } else { 0.0 };
    overhead_ms.max(0.0) + link_ms
}

/// A tie, or nearly one, goes to the worker that knows the session.
pub fn affinity_ms(knows_session: bool) -> f32 {
    if knows_session { -AFFINITY_MS } else { 0.0 }
}

/// What a worker's failures cost: a leg that fails is sent again elsewhere, after about this long.
pub fn trouble_ms(failure_rate: f32) -> f32 {
    const RETRY_MS: f32 = 1_000.0;
    // Expected failures before a success; a worker that always fails still has a price, not an infinite one.
    // Not a number counts as no failure: `max` takes the other side.
    let rate = f32::min(failure_rate.max(0.0), 0.95);
    rate / (1.0 - rate) * RETRY_MS
}

/// A measured figure, or what is assumed where nothing was measured.
pub fn measured_or(measured: f32, assumed: u32) -> f32 {
    if measured > 0.0 { measured } else { assumed as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill() {
        for (backlog, uncached, rate, expected) in [
            (0, 0, 1_000.0, 0.0),
            (0, 500, 1_000.0, 500.0),
            (500, 500, 1_000.0, 1_000.0),
            (0, 500, 2_000.0, 250.0),
        ] {
            assert_eq!(prefill_ms(backlog, uncached, rate), expected, "{backlog} {uncached} {rate}");
        }
    }

    #[test]
    fn decode() {
        for (step, requests, max_output, expected) in [
            (10.0, 0, 100, 1_000.0),
            (10.0, 32, 100, 2_000.0),
            (20.0, 0, 100, 2_000.0),
            (10.0, 0, 1_000_000, 1_280.0),
            (10.0, 0, 0, 0.0),
        ] {
            assert_eq!(decode_ms(step, requests, max_output), expected, "{step} {requests} {max_output}");
        }
    }

    #[test]
    fn shortage() {
        for (needed, free, expected) in [(10, 10, 0.0), (10, 100, 0.0), (10, 0, 160.0), (10, 5, 80.0)] {
            assert_eq!(shortage_ms(needed, free, 16, 1_000.0), expected, "{needed} {free}");
        }
    }

    #[test]
    fn handoff() {
        for (overhead, tokens, bytes_per_token, link, expected) in [
            (2.0, 0, 100_000, 1_000.0, 2.0),
            (2.0, 1_000, 100_000, 1_000.0, 102.0),
            (2.0, 1_000, 100_000, 0.0, 2.0),
            (f32::NAN, 0, 0, 0.0, 0.0),
        ] {
            assert_eq!(
                handoff_ms(overhead, tokens, bytes_per_token, link),
                expected,
                "{overhead} {tokens} {link}"
            );
        }
    }

    #[test]
    fn affinity() {
        assert!(affinity_ms(true) < affinity_ms(false));
        // One uncached token more at 1,000 tokens/s, or one request more, outweighs it.
        assert!(prefill_ms(0, 1, 1_000.0) > -affinity_ms(true));
        assert!(decode_ms(10.0, 1, 100) - decode_ms(10.0, 0, 100) > -affinity_ms(true));
    }

    #[test]
    fn trouble() {
        for (rate, expected) in [(0.0, 0.0), (0.5, 1_000.0), (0.9, 9_000.0), (f32::NAN, 0.0), (-1.0, 0.0)] {
            assert!((trouble_ms(rate) - expected).abs() < 1.0, "{rate}: {}", trouble_ms(rate));
        }
        assert!(trouble_ms(1.0).is_finite() && trouble_ms(1.0) > trouble_ms(0.9));
    }

    #[test]
    fn nothing_measured() {
        for (measured, expected) in [(0.0, 7.0), (3.5, 3.5), (f32::NAN, 7.0), (-1.0, 7.0)] {
            assert_eq!(measured_or(measured, 7), expected, "{measured}");
        }
    }
}
