//! Each bad file is refused for its own reason.

use std::path::Path;

use sluice_core::verdict::Verdict;
use sluice_policy::{CheckError, Fault, Hook, Limits, Refusal, TrialAnswer, check_file};

use crate::guest::{self, Text};

/// The refusal of these bytes as a policy file, and its sentence.
fn refusal(bytes: &[u8]) -> (Refusal, String) {
    refusal_with(bytes, None)
}

fn refusal_with(bytes: &[u8], settings: Option<&str>) -> (Refusal, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.wasm");
    std::fs::write(&file, bytes).unwrap();
    refusal_of(&file, settings)
}

fn refusal_of(file: &Path, settings: Option<&str>) -> (Refusal, String) {
    match check_file(file, settings, &guest::limits()) {
        Err(CheckError::Load(error)) => {
            let sentence = error.to_string();
            (error.reason, sentence)
        }
        Err(other) => panic!("{other}"),
        Ok(checked) => panic!("was accepted: {checked:?}"),
    }
}

fn component(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

#[test]
fn good_policies_pass() {
    for name in ["hello-policy", "round-robin", "random", "least-loaded", "vllm-defaults", "adaptive"] {
        let checked = check_file(&guest::built("policies", name), None, &guest::limits());
        let checked = checked.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!checked.description.version.is_empty(), "{name}");
        let decides = |row: &&sluice_policy::TrialRow| matches!(&row.answer, TrialAnswer::Verdict(verdict) if *verdict != Verdict::UseDefault);
        assert!(checked.trial.iter().filter(decides).count() > 5, "{name}: {:?}", checked.trial);
    }
}

#[test]
fn a_component_is_taken_as_it_is() {
    let module = guest::text(0);
    let component = wit_component::ComponentEncoder::default().module(&module).unwrap().encode().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other-language.wasm");
    std::fs::write(&file, component).unwrap();
    assert!(check_file(&file, None, &guest::limits()).is_ok());
}

#[test]
fn files_that_are_no_policy() {
    let good = guest::text(0);
    let mut flipped = good.clone();
    flipped[9] = 0xff;
    let cases: [(&str, &str, Vec<u8>); 9] = [
        ("text", "not-wasm", b"fn main() {}".to_vec()),
        ("a picture", "not-wasm", b"\x89PNG\r\n\x1a\n".to_vec()),
        ("nothing", "truncated", Vec::new()),
        ("half", "truncated", good[..good.len() / 2].to_vec()),
        ("all but a byte", "truncated", good[..good.len() - 1].to_vec()),
        ("a module without a world", "no-world", component("(module)")),
        ("an empty component", "no-hooks", component("(component)")),
        ("another version", "wrong-version", guest::build(&Text::default(), "0.2.0")),
        ("a module that imports", "imports", component(r#"(module (import "env" "now" (func)))"#)),
    ];
    for (what, kind, bytes) in cases {
        let (reason, sentence) = refusal(&bytes);
        assert_eq!(reason.kind(), kind, "{what}: {sentence}");
        assert!(sentence.contains("bad.wasm"), "{what} names the file: {sentence}");
    }
    assert!(matches!(refusal(&flipped).0, Refusal::Invalid { .. } | Refusal::Truncated { .. }));
}

#[test]
fn sentences_say_what_was_found() {
    let (_, text) = refusal(b"fn main() {}");
    assert!(text.contains(r#"it begins with the text "fn main() {}""#), "{text}");
    let (_, picture) = refusal(b"\x89PNG\r\n\x1a\n");
    assert!(picture.contains("the bytes 89 50 4e 47"), "{picture}");
    let (_, version) = refusal(&guest::build(&Text::default(), "0.2.0"));
    assert!(
        version.contains("`sluice:policy/hooks@0.2.0`") && version.contains("`sluice:policy/hooks@0.1.0`")
    );
    let clock = r#"(component (import "wasi:clocks/wall-clock@0.2.0" (instance (export "now" (func)))))"#;
    let (_, imports) = refusal(&component(clock));
    assert!(imports.contains("imports `wasi:clocks/wall-clock@0.2.0`"), "{imports}");
    let other = r#"(component (core module $m) (export "my:own/thing" (core module $m)))"#;
    let (_, exports) = refusal(&component(other));
    assert!(exports.contains("it exports `my:own/thing`"), "{exports}");
}

#[test]
fn functions_cannot_hide_behind_the_types_import() {
    let sneaky = r#"(component
        (import "sluice:policy/types@0.1.0" (instance (export "now" (func))))
        (instance $hooks)
        (export "sluice:policy/hooks@0.1.0" (instance $hooks)))"#;
    let (reason, sentence) = refusal(&component(sneaky));
    assert!(matches!(reason, Refusal::NotUsable { step: "linked", .. }), "{sentence}");
}

#[test]
fn a_file_beyond_the_limit_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("huge.wasm");
    std::fs::File::create(&file).unwrap().set_len(33 * 1024 * 1024).unwrap();
    assert_eq!(refusal_of(&file, None).0.kind(), "too-large");
    assert_eq!(refusal_of(&folder.path().join("absent.wasm"), None).0.kind(), "unreadable");
    assert_eq!(refusal_of(folder.path(), None).0.kind(), "unreadable");
}

#[test]
fn a_memory_beyond_the_limit_is_refused_before_it_is_made() {
    let (reason, sentence) = refusal(&component("(module (memory 1000))"));
    assert_eq!(reason.kind(), "memory-too-large", "{sentence}");
}

#[test]
fn guests_that_misbehave_while_they_are_set_up() {
    let set_up = |name| match refusal_of(&guest::built("guests", name), None) {
        (Refusal::SetUp(fault), sentence) => (fault, sentence),
        other => panic!("{other:?}"),
    };
    let (endless, sentence) = set_up("endless-configure");
    assert_eq!(endless, Fault::CpuDeadline { hook: Hook::Configure, budget_ms: 100 });
    assert!(sentence.contains("`configure` did not end within 100 ms of CPU time"), "{sentence}");
    assert!(matches!(set_up("trap-configure").0, Fault::Trap { hook: Hook::Configure, .. }));
    let (reason, sentence) = refusal_of(&guest::built("guests", "refuses-settings"), None);
    assert!(matches!(reason, Refusal::ConfigureRefused { .. }), "{sentence}");
    assert_eq!(refusal_of(&guest::built("guests", "no-world"), None).0.kind(), "no-world");
}

#[test]
fn guests_that_misbehave_on_trial() {
    for (name, kind) in [
        ("trap-route", "trap"),
        ("endless-route", "cpu-deadline"),
        ("bad-row", "bad-row"),
        ("wrong-role", "bad-row"),
        ("impure", "impure"),
        ("impure-fiftieth", "impure"),
        ("impure-fiftieth-seed", "impure"),
    ] {
        let (reason, sentence) = refusal_of(&guest::built("guests", name), None);
        let Refusal::Trial { fault, .. } = reason else { panic!("{name}: {sentence}") };
        assert_eq!(fault.kind(), kind, "{name}: {sentence}");
    }
}

#[test]
fn a_guest_that_takes_all_memory() {
    // Time enough to touch all the memory it may have.
    let limits = Limits { cpu_budget_ms: 10_000, ..guest::limits() };
    let file = guest::built("guests", "memory-bomb-route");
    let Err(CheckError::Load(error)) = check_file(&file, None, &limits) else { panic!("is refused") };
    let Refusal::Trial { fault, .. } = error.reason else { panic!("{error}") };
    assert!(matches!(fault, Fault::Memory { limit_bytes: 16_777_216, .. }), "{fault}");
}

#[test]
fn a_configure_without_end_is_ended() {
    let text = Text { configure: "(loop $again (br $again))", ..Text::default() };
    let (reason, _) = refusal(&guest::build(&text, "0.1.0"));
    assert!(matches!(reason, Refusal::SetUp(Fault::CpuDeadline { hook: Hook::Configure, .. })));
}

#[test]
fn settings_are_checked() {
    let good = guest::text(0);
    let (reason, sentence) = refusal_with(&good, Some("a = 1\nb ="));
    assert_eq!(reason.kind(), "settings-syntax");
    assert!(sentence.contains("line 2"), "{sentence}");
    assert_eq!(refusal_with(&good, Some("a = nan")).0.kind(), "settings-value");
}

#[test]
fn a_policy_that_takes_long_to_configure_is_refused() {
    // Some tens of milliseconds, where half of a decision's 5 are allowed.
    let slow = "(local $left i32) (local.set $left (i32.const 50000000))
        (loop $again
          (local.set $left (i32.sub (local.get $left) (i32.const 1)))
          (br_if $again (local.get $left)))";
    let text = Text { configure: slow, ..Text::default() };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slow.wasm");
    std::fs::write(&file, guest::build(&text, "0.1.0")).unwrap();
    let limits = Limits { configure_cpu_budget_ms: 60_000, ..guest::limits() };
    let Err(CheckError::Load(error)) = check_file(&file, None, &limits) else { panic!("is refused") };
    assert_eq!(error.reason.kind(), "slow-set-up", "{error}");
    assert!(error.to_string().contains("it must stay under 2.5 ms"), "{error}");
}

#[test]
fn a_name_that_no_policy_may_have_is_refused_by_the_check_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a;b.wasm");
    std::fs::write(&file, guest::text(0)).unwrap();
    assert_eq!(refusal_of(&file, None).0.kind(), "bad-name");
}

#[test]
fn a_description_that_breaks_headers_is_refused() {
    // The version is 4 bytes at 2048: "1;\r\n". Its place in the answer: after the name's address and length.
    let describe = r"(i32.store (i32.const 2048) (i32.const 0x0a0d3b31))
        (i32.store (i32.const 1032) (i32.const 2048))
        (i32.store (i32.const 1036) (i32.const 4))";
    let text = Text { describe, ..Text::default() };
    let (reason, sentence) = refusal(&guest::build(&text, "0.1.0"));
    assert!(matches!(reason, Refusal::Description { part: "version", bytes: 4, .. }), "{sentence}");
}

#[test]
fn a_reason_too_long_for_a_header_fails_the_trial() {
    let route = "(call $unified (i32.const 0))
        (i32.store8 (i32.const 1052) (i32.const 1))
        (i32.store (i32.const 1056) (i32.const 8192))
        (i32.store (i32.const 1060) (i32.const 257))";
    let (reason, sentence) = refusal(&guest::build(&Text { route, ..Text::default() }, "0.1.0"));
    let Refusal::Trial { fault: Fault::BadValue { bad, .. }, .. } = reason else { panic!("{sentence}") };
    assert_eq!(bad.kind(), "reason", "{sentence}");
}

/// A function that uses so many variables inside, or after, what `open` and `close` make so many of.
fn tangled(count: usize, open: &str, close: &str, variables: usize, inside: bool) -> Vec<u8> {
    let declared = " i32".repeat(variables);
    let used: String = (1..=variables)
        .map(|variable| format!("(local.set {variable} (i32.add (local.get {variable}) (i32.const 1)))"))
        .collect();
    let body = if inside {
        format!("{}{used}{}", open.repeat(count), close.repeat(count))
    } else {
        format!("{}{used}", format!("{open}{close}").repeat(count))
    };
    let more = format!("(func (param i32) (local{declared}) {body})");
    guest::build(&Text { more, ..Text::default() }, "0.1.0")
}

/// Each of these is small, and would keep the compiler busy for long.
#[test]
fn what_takes_long_to_compile_is_refused_before() {
    let (open, close) = ("(loop ", "(br_if 0 (local.get 0))) ");
    let functions = Text { more: "(func)".repeat(70_000), ..Text::default() };
    let long = Text { more: format!("(func {})", "nop ".repeat(600_000)), ..Text::default() };
    for (what, bytes, sentence) in [
        ("nested loops", tangled(60, open, close, 2_000, true), "nested loops times variables"),
        ("deep loops", tangled(400, open, close, 120, true), "loops within each other"),
        (
            "branches",
            tangled(8_000, "(if (local.get 0) (then", ")) ", 8_000, false),
            "branches times variables",
        ),
        ("functions", guest::build(&functions, "0.1.0"), "functions, more than the 65536 allowed"),
        ("one long function", guest::build(&long, "0.1.0"), "bytes of code in one function"),
    ] {
        let (reason, found) = refusal(&bytes);
        assert_eq!(reason.kind(), "too-much-code", "{what}: {found}");
        assert!(found.contains(sentence), "{what}: {found}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("within.wasm");
    std::fs::write(&file, tangled(10, open, close, 100, true)).unwrap();
    assert!(check_file(&file, None, &guest::limits()).is_ok());
}
