//! Some seconds of each target in every test run, from a fixed seed: no panic, no broken promise. A hang is ended by the
//! test runner's own limit.

use std::path::{Path, PathBuf};

use sluice_fuzz::Target;
use sluice_fuzz::mutate::{self, Mutator};

/// Inputs of one target: together some seconds in a debug build.
const JSON_INPUTS: usize = 50_000;
const SSE_INPUTS: usize = 8_000;
/// Each is compiled if it can be.
const WASM_INPUTS: usize = 1_500;
/// Each is loaded with a policy of its own.
const SETTINGS_INPUTS: usize = 600;
const VERDICT_INPUTS: usize = 20_000;
const LINK_INPUTS: usize = 50_000;

/// Of all inputs, one in so many at least must be more than garbage, or little is tested.
const GARBAGE_AT_MOST: usize = 20;

/// Of inputs that are more than garbage, one in so many is changed further.
const KEPT_ONE_IN: usize = 8;

/// Seeds longer than this make each input slow, in bytes.
const SEED_BYTES_AT_MOST: usize = 16 * 1_024;

fn run(target: Target, name: &str, inputs: usize, dictionary: &str, more_seeds: &[&str]) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = std::iter::once(here.join("seeds").join(name));
    let folders = folders.chain(more_seeds.iter().map(|folder| here.join(folder)));
    let mut seeds: Vec<(PathBuf, Vec<u8>)> = folders.flat_map(|folder| files(&folder)).collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "no seeds of {name}");
    for (path, seed) in &seeds {
        checked(target, seed, &path.display().to_string());
    }
    let longest = seeds.iter().map(|(_, seed)| seed.len()).max().unwrap_or_default();
    let mut mutator = Mutator::new(1, seeds.into_iter().map(|(_, seed)| seed).collect(), dictionary);
    if name == "wasm" {
        // Cut, a binary means nothing.
        mutator = mutator.up_to(longest);
    }
    let mut meaningful = 0;
    for number in 0..inputs {
        let input = mutator.next_input();
        if checked(target, &input, &format!("input {number}")) {
            meaningful += 1;
            if meaningful % KEPT_ONE_IN == 0 {
                mutator.keep(input);
            }
        }
    }
    assert!(meaningful > inputs / GARBAGE_AT_MOST, "only {meaningful} of {inputs} inputs mean anything");
}

fn checked(target: Target, input: &[u8], what: &str) -> bool {
    std::panic::catch_unwind(|| target(input)).unwrap_or_else(|_| {
        panic!("{what} breaks a promise (see above): {:?}", String::from_utf8_lossy(input));
    })
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).expect("a folder of seeds").flatten();
    let files = entries.filter_map(|entry| Some((entry.path(), std::fs::read(entry.path()).ok()?)));
    files.filter(|(_, bytes)| bytes.len() <= SEED_BYTES_AT_MOST).collect()
}

#[test]
fn client_json() {
    run(sluice_fuzz::client_json::check, "client_json", JSON_INPUTS, mutate::WIRE, &[]);
}

#[test]
fn upstream_json() {
    run(sluice_fuzz::upstream_json::check, "upstream_json", JSON_INPUTS, mutate::WIRE, &[]);
}

#[test]
fn sse() {
    run(sluice_fuzz::sse::check, "sse", SSE_INPUTS, mutate::WIRE, &["../cases/vllm_sse"]);
}

#[test]
fn wasm() {
    // Guests from Rust are larger, and many of them never end: `make fuzz` begins with them too.
    run(sluice_fuzz::wasm::check, "wasm", WASM_INPUTS, mutate::WASM, &["../guests/wat"]);
}

#[test]
fn settings() {
    run(sluice_fuzz::settings::check, "settings", SETTINGS_INPUTS, mutate::SETTINGS, &[]);
}

#[test]
fn verdicts() {
    run(sluice_fuzz::verdicts::check, "verdicts", VERDICT_INPUTS, mutate::NUMBERS, &[]);
}

#[test]
fn link_wire() {
    run(sluice_fuzz::link_wire::check, "link_wire", LINK_INPUTS, mutate::NUMBERS, &[]);
}
