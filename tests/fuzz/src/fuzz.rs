//! libFuzzer's way into the targets; FUZZ_TARGET says which.
#![no_main]

use std::sync::OnceLock;

use sluice_fuzz::{TARGETS, Target};

/// Names the target of this process.
const TARGET_VARIABLE: &str = "FUZZ_TARGET";

static TARGET: OnceLock<Target> = OnceLock::new();

fn chosen() -> Target {
    let name = std::env::var(TARGET_VARIABLE).unwrap_or_default();
    let found = TARGETS.into_iter().find(|(target, _)| *target == name);
    let Some((_, target)) = found else {
        panic!("{TARGET_VARIABLE} is {name:?}: {}", TARGETS.map(|(name, _)| name).join(", "));
    };
    target
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    TARGET.get_or_init(chosen)(input);
});
