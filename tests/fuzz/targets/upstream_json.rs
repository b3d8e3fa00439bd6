//! libFuzzer's way into [`sluice_fuzz::upstream_json`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    sluice_fuzz::upstream_json::check(input);
});
