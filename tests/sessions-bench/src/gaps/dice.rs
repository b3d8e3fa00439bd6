//! Chance from a seed: the same seed draws the same.

use std::f64::consts::TAU;

use sluice_policy_sdk::pick::mix;

/// Numbers drawn one after the other.
#[derive(Debug, Clone)]
pub struct Dice {
    seed: u64,
    drawn: u64,
}

impl Dice {
    /// Those of this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// Even, above 0 and up to 1.
    pub fn share(&mut self) -> f64 {
        self.drawn += 1;
        const LARGEST: f64 = (1_u64 << 53) as f64;
        ((mix(self.seed, self.drawn) >> 11) + 1) as f64 / LARGEST
    }

    /// Whether something of this probability happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.share() <= probability
    }

    /// Even, from one up to but without the other.
    pub fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (1.0 - self.share()) * (to - from)
    }

    /// How often something happens in a row, at least once: `mean` times on the average.
    pub fn times(&mut self, mean: f64) -> usize {
        let goes_on = 1.0 - 1.0 / mean.max(1.0);
        let mut times = 1;
        while self.happens(goes_on) {
            times += 1;
        }
        times
    }

    /// Log-normal, by its median and the standard deviation of its logarithm.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let normal = (-2.0 * self.share().ln()).sqrt() * (TAU * self.share()).cos();
        median * (sigma * normal).exp()
    }

    /// Between events that come at random, `mean` apart.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.share().ln()
    }
}
