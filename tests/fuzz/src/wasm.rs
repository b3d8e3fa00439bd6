//! A policy's file: whatever bytes are dropped into the folder, the host goes on.

use std::sync::{Mutex, OnceLock, PoisonError};

use sluice_core::testing;

use crate::policy_host::{self, Bench};

/// What is in force at first.
const QUIET: &str = include_str!("../../guests/wat/quiet.wat");

/// A text is assembled first, so that changes of it make other programs and not only broken ones. Says whether there is
/// something that the runtime would look at.
pub fn check(input: &[u8]) -> bool {
    static BENCH: OnceLock<Mutex<Bench>> = OnceLock::new();
    let text = std::str::from_utf8(input).ok().filter(|text| text.starts_with(['(', ';']));
    let Some(bytes) = text.map_or_else(|| Some(input.to_vec()), policy_host::assembled) else { return false };
    let first = || Mutex::new(Bench::new(&policy_host::assembled(QUIET).expect("a guest")));
    let bench = BENCH.get_or_init(first).lock().unwrap_or_else(PoisonError::into_inner);
    bench.write("wasm", &bytes);
    let refusal = bench.reload();
    let policy = bench.policy().expect("one is always in force");
    for hook in 0..4 {
        // A fault is an answer too; a wrong answer to these very questions is one that the check lets through.
        let facts = testing::table(&[testing::prefill(), testing::decode(), testing::unified()]);
        if let Ok(answer) = policy_host::ask(&policy, hook, facts.clone()) {
            crate::verdicts::assert_executable(&answer, &facts);
        }
    }
    refusal.is_none_or(|refusal| !["not-wasm", "truncated", "invalid"].contains(&refusal.kind()))
}
