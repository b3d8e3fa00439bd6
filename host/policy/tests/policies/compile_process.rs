//! Compilers that are processes of their own, and do what no compiler should.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_policy::{CodeFrom, HostConfig, Observer, PolicyHost};

use crate::guest::{self, Log};

/// A host whose one policy is compiled by `program`, and what was logged.
fn compiled_by(program: &Path) -> (Arc<PolicyHost>, Vec<String>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("main.wasm"), guest::text(0)).unwrap();
    let log = Arc::new(Log::default());
    let config = HostConfig {
        folder: folder.path().to_owned(),
        default: "main".to_owned(),
        limits: guest::limits(),
        cache_folder: None,
        compiler: Some(program.to_owned()),
    };
    let host = PolicyHost::open(config, Arc::clone(&log) as Arc<dyn Observer>).unwrap();
    (host, log.take(), folder)
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// No compiler: the policy decides all the same, and people are told what it cost.
#[test]
fn a_program_that_does_not_compile_is_done_without() {
    for (name, told) in [
        ("not_there.sh", "cannot be started: No such file"),
        ("says_nothing.sh", "is no compiler: exit status: 0"),
        ("knows_no_such_command.sh", "is no compiler: exit status: 2. unknown command compile-policy"),
    ] {
        let (host, log, _folder) = compiled_by(&program(name));
        let generation = host.generation();
        assert_eq!(generation.default_policy().unwrap().code(), CodeFrom::Compiled, "{name}");
        let trouble = host.compiler_trouble().unwrap();
        assert!(trouble.contains(told), "{name}: {trouble}");
        assert!(log.contains(&format!("compiled inside: {trouble}")), "{name}: {log:?}");
    }
}

/// What the file did to its compiler is told of the file; the host goes on.
#[test]
fn a_file_that_ends_its_compiler_is_refused() {
    for (name, kind, told) in [
        ("refuses.sh", "not-usable", "function 7 is odd"),
        ("panics.sh", "loader-failed", "panicked at index 7"),
        ("no_code.sh", "loader-failed", "gave what is no code"),
        ("out_of_time.sh", "not-usable", "it took more than 120 s of CPU time"),
        ("out_of_memory.sh", "not-usable", "the compiler ended by signal 6; it may use 4 GiB"),
        ("writes_without_end.sh", "not-usable", "its code is longer than 512 MiB"),
        ("complains.sh", "not-usable", "complaint"),
    ] {
        let (host, log, _folder) = compiled_by(&program(name));
        let status = host.status().into_iter().find(|policy| policy.name == "main").unwrap();
        let refusal = status.refusal.unwrap_or_else(|| panic!("{name}: {log:?}"));
        assert_eq!(refusal.kind, kind, "{name}: {}", refusal.message);
        assert!(
            refusal.message.contains(told) && refusal.message.len() < 8_192,
            "{name}: {}",
            refusal.message
        );
        assert_eq!(host.compiler_trouble(), None, "{name}");
    }
}

/// Whoever ends a compiler - the system for its memory, an operator - has nothing against the file: it stays to be
/// compiled, but not at once.
#[test]
fn a_compiler_that_others_end_is_started_again() {
    for (name, told) in
        [("killed.sh", "somebody ended the compiler by signal 9"), ("unable.sh", "no room for an engine")]
    {
        let (host, _log, _folder) = compiled_by(&program(name));
        let refusal = |host: &PolicyHost| host.status().remove(0).refusal.expect("not compiled yet");
        assert_eq!(refusal(&host).kind, "compiler-ended", "{name}");
        assert!(refusal(&host).message.contains(told), "{name}: {}", refusal(&host).message);
        host.reload();
        assert_eq!(refusal(&host).kind, "compiler-ended", "{name}: it waits its time");
        assert_eq!(host.compiler_trouble(), None, "{name}: it is not done in this process");
    }
}
