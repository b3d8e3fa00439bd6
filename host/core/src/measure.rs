//! Smoothed figures: what the host measures of its workers and passes to policies.

/// A rate smoothed by decaying both its numerator and its denominator. Each observation decays all earlier ones by
/// its own denominator's share of a window, so that a long observation counts for many short ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SmoothedRatio {
    numerator: f64,
    denominator: f64,
    window: f64,
}

impl SmoothedRatio {
    /// A ratio over about the last `window` of its denominator (milliseconds of work, tokens, requests).
    pub const fn over(window: f64) -> Self {
        Self { numerator: 0.0, denominator: 0.0, window }
    }

    /// Adds an observation. One that is not finite, negative, or over nothing is left out.
    pub fn observe(&mut self, numerator: f64, denominator: f64) {
        if !numerator.is_finite() || !denominator.is_finite() || numerator < 0.0 || denominator <= 0.0 {
            return;
        }
        let kept = (-denominator / self.window).exp();
        self.numerator = self.numerator.mul_add(kept, numerator);
        self.denominator = self.denominator.mul_add(kept, denominator);
    }

    /// The figure, or 0 while nothing was observed.
    pub fn value(&self) -> f32 {
        if self.denominator > 0.0 { (self.numerator / self.denominator) as f32 } else { 0.0 }
    }
}

/// Bytes of text a token, per model: how prompts are sized before an engine counted them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BytesPerToken(SmoothedRatio);

/// Where the estimate starts: English text under the usual tokenizers.
const BYTES_PER_TOKEN_AT_START: f64 = 4.0;

/// How much the start counts: one prompt of this many tokens.
const START_WEIGHT_TOKENS: f64 = 256.0;

/// Tokens over which the estimate follows what is seen: some dozens of usual prompts.
const BYTES_PER_TOKEN_WINDOW_TOKENS: f64 = 50_000.0;

impl Default for BytesPerToken {
    fn default() -> Self {
        let mut ratio = SmoothedRatio::over(BYTES_PER_TOKEN_WINDOW_TOKENS);
        ratio.observe(BYTES_PER_TOKEN_AT_START * START_WEIGHT_TOKENS, START_WEIGHT_TOKENS);
        Self(ratio)
    }
}

impl BytesPerToken {
    /// An engine counted `tokens` for a prompt of `bytes`.
    pub fn observe(&mut self, bytes: usize, tokens: u32) {
        self.0.observe(bytes as f64, f64::from(tokens));
    }

    /// Tokens that a text of `bytes` most likely has; at least 1.
    pub fn tokens(&self, bytes: usize) -> u32 {
        // A token is at least a fraction of a byte: keeps a hostile ratio from blowing the estimate up.
        let per_token = f64::from(self.0.value()).max(0.25);
        ((bytes as f64 / per_token).ceil() as u32).max(1)
    }
}

/// What a transfer costs beyond its bytes' own time: from a decode leg's dispatch to its first token, less one
/// decode step, less the bytes over the link. Never below 0. An unmeasured link (0) takes nothing off.
pub fn transfer_overhead_ms(took_ms: f64, step_ms: f32, moved_bytes: f64, link_mb_per_s: f32) -> f64 {
    // 1 MB/s moves 1,000 bytes a millisecond.
    let bytes_ms = if link_mb_per_s > 0.0 { moved_bytes / (f64::from(link_mb_per_s) * 1_000.0) } else { 0.0 };
    (took_ms - f64::from(step_ms) - bytes_ms).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_empty_and_follows_what_it_sees() {
        let mut rate = SmoothedRatio::over(10.0);
        assert_eq!(rate.value(), 0.0);
        for _ in 0..50 {
            rate.observe(8_000.0, 2.0);
        }
        assert!((rate.value() - 4_000.0).abs() < 1.0);
        for _ in 0..100 {
            rate.observe(0.1, 0.001);
        }
        assert!((rate.value() - 4_000.0).abs() < 100.0, "tiny ones must not swing it: {}", rate.value());
        for _ in 0..50 {
            rate.observe(4_000.0, 2.0);
        }
        assert!((rate.value() - 2_000.0).abs() < 10.0, "a change is followed: {}", rate.value());
    }

    #[test]
    fn overhead_is_what_bytes_and_step_do_not_explain() {
        for (took_ms, step_ms, moved_bytes, link_mb_per_s, expected) in [
            (50.0, 10.0, 20_000_000.0, 1_000.0, 20.0),
            (50.0, 10.0, 20_000_000.0, 0.0, 40.0),
            (15.0, 10.0, 20_000_000.0, 1_000.0, 0.0),
        ] {
            assert_eq!(transfer_overhead_ms(took_ms, step_ms, moved_bytes, link_mb_per_s), expected);
        }
    }

    #[test]
    fn leaves_nonsense_out() {
        let mut rate = SmoothedRatio::over(10.0);
        rate.observe(10.0, 1.0);
        for (numerator, denominator) in
            [(f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 1.0), (1.0, 0.0), (1.0, -2.0)]
        {
            rate.observe(numerator, denominator);
        }
        assert_eq!(rate.value(), 10.0);
    }

    #[test]
    fn sizes_prompts_by_what_engines_counted() {
        let mut model = BytesPerToken::default();
        assert_eq!(model.tokens(4_000), 1_000);
        for _ in 0..40 {
            model.observe(10_000, 5_000);
        }
        let estimate = model.tokens(4_000);
        assert!((1_950..=2_050).contains(&estimate), "{estimate}");
        assert_eq!(model.tokens(0), 1);
    }
}
