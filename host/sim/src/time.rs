//! How long things take. Pure arithmetic: the caller waits.

use std::time::Duration;

use thiserror::Error;

/// Why a time model cannot be.
#[derive(Debug, Error, PartialEq)]
#[error("{name} is {value}: use a finite number {bound}")]
pub struct TimeModelError {
    name: &'static str,
    value: f64,
    bound: &'static str,
}

/// The speed of an engine and of the link it reads KV over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeModel {
    /// Prompt tokens computed per second.
    pub prefill_tokens_per_s: f64,
    /// What each prompt costs beside its tokens, however many of them are computed.
    pub prefill_base_ms: f64,
    /// One decode step, whatever the batch.
    pub decode_step_base_ms: f64,
    /// What each sequence of the batch adds to it.
    pub decode_step_per_sequence_ms: f64,
    /// KV bytes read from another engine per second.
    pub transfer_bytes_per_s: f64,
    /// All durations are multiplied by this: 0.1 is ten times faster, 0 takes no time at all.
    pub time_scale: f64,
}

impl Default for TimeModel {
    /// About an 8B model on one GPU, with 64-byte entries standing for 128 KiB of KV on a 20 GB/s link.
    fn default() -> Self {
        Self {
            prefill_tokens_per_s: 20_000.0,
            prefill_base_ms: 0.0,
            decode_step_base_ms: 6.0,
            decode_step_per_sequence_ms: 0.1,
            transfer_bytes_per_s: 10_000_000.0,
            time_scale: 1.0,
        }
    }
}

impl TimeModel {
    /// Checks that every number can be used.
    pub fn check(&self) -> Result<(), TimeModelError> {
        for (name, value) in [
            ("prefill_tokens_per_s", self.prefill_tokens_per_s),
            ("transfer_bytes_per_s", self.transfer_bytes_per_s),
        ] {
            if !value.is_finite() || value <= 0.0 {
                return Err(TimeModelError { name, value, bound: "above 0" });
            }
        }
        for (name, value) in [
            ("prefill_base_ms", self.prefill_base_ms),
            ("decode_step_base_ms", self.decode_step_base_ms),
            ("decode_step_per_sequence_ms", self.decode_step_per_sequence_ms),
            ("time_scale", self.time_scale),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(TimeModelError { name, value, bound: "of 0 or more" });
            }
        }
        Ok(())
    }

    /// One engine step: `decoding` sequences get a token each, and `prefill_tokens` prompt tokens are computed, with which
    /// `prompts` prompts are whole.
    /// Both share the engine, so a long prefill holds up the decoding beside it.
    pub fn step(&self, decoding: usize, prompts: usize, prefill_tokens: usize) -> Duration {
        let decode_ms = match decoding {
            0 => 0.0,
            count => self.decode_step_base_ms + self.decode_step_per_sequence_ms * count as f64,
        };
        let tokens_ms = prefill_tokens as f64 / self.prefill_tokens_per_s * 1_000.0;
        let prefill_ms = prompts as f64 * self.prefill_base_ms + tokens_ms;
        self.scaled_ms(decode_ms + prefill_ms)
    }

    /// Moving so many KV bytes over an idle link.
    pub fn transfer(&self, bytes: usize) -> Duration {
        self.scaled_ms(bytes as f64 / self.transfer_bytes_per_s * 1_000.0)
    }

    /// A time of the real world, such as a connect timeout, in this model's time.
    pub fn scaled_ms(&self, ms: f64) -> Duration {
        Duration::try_from_secs_f64(ms * self.time_scale / 1_000.0).unwrap_or(Duration::MAX)
    }
}

/// A link that carries one transfer after the other.
#[derive(Debug, Default)]
pub struct Link {
    busy_until: Duration,
}

impl Link {
    /// Books a transfer that takes `takes` on an idle link; says when it ends.
    pub fn book(&mut self, now: Duration, takes: Duration) -> Duration {
        self.busy_until = self.busy_until.max(now).saturating_add(takes);
        self.busy_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: TimeModel = TimeModel {
        prefill_tokens_per_s: 1_000.0,
        prefill_base_ms: 30.0,
        decode_step_base_ms: 5.0,
        decode_step_per_sequence_ms: 0.5,
        transfer_bytes_per_s: 1_000_000.0,
        time_scale: 1.0,
    };

    #[test]
    fn steps() {
        for (decoding, prompts, prefill, scale, expect_us) in [
            (0, 0, 0, 1.0, 0),
            (1, 0, 0, 1.0, 5_500),
            (4, 0, 0, 1.0, 7_000),
            (0, 0, 2_000, 1.0, 2_000_000),
            (0, 2, 2_000, 1.0, 2_060_000),
            (4, 1, 100, 1.0, 137_000),
            (4, 0, 100, 0.1, 10_700),
            (4, 1, 100, 0.0, 0),
        ] {
            let model = TimeModel { time_scale: scale, ..MODEL };
            assert_eq!(model.step(decoding, prompts, prefill).as_micros(), expect_us);
        }
    }

    #[test]
    fn a_link_carries_one_transfer_after_the_other() {
        let mut link = Link::default();
        let ms = Duration::from_millis;
        assert_eq!(link.book(ms(10), MODEL.transfer(5_000)), ms(15));
        assert_eq!(link.book(ms(11), MODEL.transfer(1_000)), ms(16));
        assert_eq!(link.book(ms(50), MODEL.transfer(1_000)), ms(51));
    }

    #[test]
    fn useless_numbers_are_named() {
        let error = TimeModel { prefill_tokens_per_s: 0.0, ..MODEL }.check().unwrap_err();
        assert_eq!(error.to_string(), "prefill_tokens_per_s is 0: use a finite number above 0");
        assert!(TimeModel { time_scale: f64::NAN, ..MODEL }.check().is_err());
        assert_eq!(MODEL.check(), Ok(()));
    }
}
