//! libFuzzer's way into [`sluice_fuzz::sse`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    sluice_fuzz::sse::check(input);
});
