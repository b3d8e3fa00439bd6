//! Files too large or too strange to be checked in: made here, and refused in bounded time and memory.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;

use sluice_policy::{CheckError, Refusal, check_file};

use crate::guest;

/// Checks bytes as a policy file; the refusal's kind, or `None`.
fn refused(bytes: &[u8]) -> Option<&'static str> {
    refusal(bytes).map(|refusal| refusal.kind())
}

fn refusal(bytes: &[u8]) -> Option<Refusal> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("strange.wasm");
    fs::write(&file, bytes).unwrap();
    refusal_of(&file)
}

fn refusal_of(file: &Path) -> Option<Refusal> {
    match check_file(file, None, &guest::limits()) {
        Ok(_) => None,
        Err(CheckError::Load(error)) => Some(error.reason),
        Err(other) => panic!("{other}"),
    }
}

/// Bytes that this thread has read from files so far.
fn bytes_read() -> u64 {
    let counters = fs::read_to_string("/proc/thread-self/io").unwrap();
    let count = counters.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
    count.parse().unwrap()
}

#[test]
fn a_file_of_100_mb_is_refused_unread() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("huge.wasm");
    File::create(&file).unwrap().set_len(100 * 1024 * 1024).unwrap();
    let before = bytes_read();
    assert_eq!(refusal_of(&file).map(|refusal| refusal.kind()), Some("too-large"));
    assert!(bytes_read() - before < 1024 * 1024, "{} bytes were read", bytes_read() - before);
}

/// Within the bound on size, so that only how it begins speaks against it.
#[test]
fn a_text_of_30_mb_is_refused_by_its_first_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.wasm");
    fs::write(&file, b"(module ;; in its text form").unwrap();
    File::options().write(true).open(&file).unwrap().set_len(30 * 1024 * 1024).unwrap();
    let before = bytes_read();
    let refusal = refusal_of(&file).expect("is no WASM");
    assert!(bytes_read() - before < 1024 * 1024, "{} bytes were read", bytes_read() - before);
    assert!(refusal.to_string().contains("begins with the text \"(module ;; in its text f\""), "{refusal}");
}

#[test]
fn a_policy_cut_anywhere_is_refused() {
    /// As many cuts of each file, all over it.
    const CUTS: usize = 40;
    for (group, name) in [("policies", "least-loaded"), ("guests", "tagged")] {
        let whole = fs::read(guest::built(group, name)).unwrap();
        for cut in (0..CUTS).map(|cut| whole.len() * cut / CUTS) {
            assert!(refused(&whole[..cut]).is_some(), "{name} cut to {cut} bytes");
        }
    }
}

/// The quiet guest with more in it.
fn quiet_with(more: &str) -> Vec<u8> {
    guest::from_text(&guest::text_of("quiet").replacen("(memory", &format!("{more} (memory"), 1))
}

#[test]
fn data_segments_of_many_megabytes_load_or_are_refused() {
    let segment = |bytes: usize, at: usize| {
        let mut text = format!("(data (i32.const {at}) \"");
        text.extend(std::iter::repeat_n("\\01", bytes));
        text + "\")"
    };
    let memory = r#"(memory (export "memory") 1)"#;
    let large = r#"(memory (export "memory") 200)"#;
    let quiet = |more: &str| {
        guest::from_text(&guest::text_of("quiet").replacen(memory, &format!("{large}{more}"), 1))
    };
    assert_eq!(refused(&quiet(&segment(12 << 20, 65_536))), None, "it fits in its memory");
    assert_eq!(refused(&quiet_with(&segment(1, 65_536))), Some("set-up"), "it does not");
    let many: String = (0..20_000).map(|number| segment(1, 65_536 + number * 16)).collect();
    assert_eq!(refused(&quiet(&many)), None, "many small ones");
}

#[test]
fn types_within_types_within_types() {
    // Each twice the one before: written out, the last has 2^40 parts.
    let mut types = "(type $t0 (tuple u8 u8))".to_owned();
    for step in 1..40 {
        let inner = step - 1;
        write!(types, "(type $t{step} (tuple $t{inner} $t{inner}))").unwrap();
    }
    let hooks = "(instance $hooks) (export \"sluice:policy/hooks@0.1.0\" (instance $hooks))";
    let component = wat::parse_str(format!("(component {types} {hooks})")).unwrap();
    let sentence = refusal(&component).unwrap().to_string();
    assert!(sentence.contains("type size"), "{sentence}");
}

#[test]
fn what_a_module_says_of_its_world_is_not_read() {
    // Types within types; no types at all; and packages that need one another.
    assert_eq!(refused(&guest::with_extra_types(40)), None);
    let plain = wat::parse_str(guest::text_of("quiet")).unwrap();
    assert_eq!(refused(&plain), Some("no-world"));
    let garbage = wat::parse_str(guest::text_of("quiet").replacen(
        "(memory",
        "(@custom \"component-type:x\" \"\\ff\") (memory",
        1,
    ));
    assert_eq!(refused(&garbage.unwrap()), None);
    let circle = "../../tests/fuzz/seeds/wasm/packages_in_a_circle.bin";
    assert_eq!(refused(&fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(circle)).unwrap()), None);
}

#[test]
fn components_within_components_within_components() {
    const DEPTH: usize = 5_000;
    let nested = |open: &str| wat::parse_bytes(format!("(component{open})").as_bytes()).unwrap().into_owned();
    // Built from the inside: the text parser has a bound of its own.
    let mut component = nested("");
    for _ in 0..DEPTH {
        component = enclosed(&component);
        if component.len() > 1 << 20 {
            break;
        }
    }
    assert!(refused(&component).is_some());
}

/// A component that holds this one: header, section 4, its length, and it.
fn enclosed(component: &[u8]) -> Vec<u8> {
    let mut outer = component[..8].to_vec();
    outer.push(4);
    let mut length = component.len();
    while length >= 0x80 {
        outer.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    outer.push(length as u8);
    outer.extend_from_slice(component);
    outer
}

#[test]
fn functions_that_are_slow_to_compile_still_load() {
    // One long function: blocks in blocks, and a thousand locals.
    let mut body = String::new();
    (0..2_000).for_each(|_| body.push_str("(block (br_if 0 (local.get 0)) "));
    (0..2_000).for_each(|_| body.push(')'));
    let more = format!("(func (param i32) (local {}) {body})", "i64 ".repeat(1_000));
    assert_eq!(refused(&quiet_with(&more)), None);
}
