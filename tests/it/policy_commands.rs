//! `sluice policy`: from nothing to a policy in force, by the commands that the help names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_harness::process::{finish, run_to_end};
use sluice_harness::{Ask, FleetPlan, PolicyFile, artifacts, until};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{SOON, right};

/// A cold build of the SDK and its macros, on a busy machine.
const BUILT_WITHIN: Duration = Duration::from_secs(300);

/// One target folder for every run of this test: only the first build is cold.
fn target() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    executable.ancestors().nth(3).unwrap().join("policy-new")
}

async fn in_folder(dir: &Path, program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).env("CARGO_TARGET_DIR", target());
    // What cargo tells the test it runs is not for the cargo that the test runs.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "RUSTC_WRAPPER"] {
        command.env_remove(name);
    }
    let ended = finish(command, &arguments.join(" "), BUILT_WITHIN).await.unwrap();
    assert_eq!(ended.code, Some(0), "{arguments:?}\n{}\n{}", ended.stdout, ended.stderr);
}

#[tokio::test]
async fn a_new_policy_tests_builds_checks_and_decides() {
    let parent = TempDir::new().unwrap();
    let shown = parent.path().display().to_string();
    let made = run_to_end(&["policy", "new", "my-policy", "--parent", &shown], SOON).await.unwrap();
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let dir = parent.path().join("my-policy");
    in_folder(&dir, "cargo", &["test", "--quiet"]).await;
    in_folder(&dir, artifacts::binary().unwrap(), &["policy", "build"]).await;
    in_folder(&dir, artifacts::binary().unwrap(), &["policy", "check", "my-policy.wasm"]).await;

    let wasm = std::fs::read(dir.join("my-policy.wasm")).unwrap();
    let fleet = FleetPlan::pull(1, 1).decided_by(PolicyFile::new("my-policy", wasm)).start().await.unwrap();
    let decision = right(fleet.client(), &Ask::completion("hello", 4)).await.decision.unwrap();
    assert_eq!((decision.policy.as_str(), decision.source.as_str()), ("my-policy", "policy"));
}

/// Nothing of what is there is overwritten, and a name that no crate may have is refused.
#[tokio::test]
async fn new_refuses_what_it_cannot_make() {
    let parent = TempDir::new().unwrap();
    let shown = parent.path().display().to_string();
    std::fs::create_dir(parent.path().join("taken")).unwrap();
    std::fs::write(parent.path().join("taken/precious"), "x").unwrap();
    for name in ["taken", "Not A Name", "../outside"] {
        let refused = run_to_end(&["policy", "new", name, "--parent", &shown], SOON).await.unwrap();
        assert!(
            refused.code.is_some_and(|code| code != 0) && !refused.stderr.is_empty(),
            "{name}: {refused:?}"
        );
    }
    assert_eq!(std::fs::read_to_string(parent.path().join("taken/precious")).unwrap(), "x");
}

#[tokio::test]
async fn check_says_what_the_host_would_say() {
    let folder = TempDir::new().unwrap();
    let put = |policy: PolicyFile| {
        let path = folder.path().join(format!("{}.wasm", policy.name));
        std::fs::write(&path, policy.wasm).unwrap();
        path.display().to_string()
    };
    let good = put(PolicyFile::policy("good", "adaptive").unwrap());
    let checked = run_to_end(&["policy", "check", &good], SOON).await.unwrap();
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(checked.stdout.contains("good: adaptive"), "{}", checked.stdout);
    // Each case says what it was.
    for (case, shown) in [
        ("a second turn ", ["route", "8", "0", "2000", "1600", "200"]),
        ("a very long prompt ", ["route", "8", "0", "1000000", "0", "any"]),
        ("a prompt of one token ", ["route", "8", "0", "1", "0", "1"]),
        ("late binding, no decode worker left ", ["bind-decode", "2", "0", "2000", "0", "200"]),
        ("the end of a second turn ", ["retain", "8", "0", "2000", "1600", "200"]),
        ("a late heartbeat ", ["heartbeat", "8", "84", "2000", "1800", "200"]),
    ] {
        let found = checked.stdout.lines().find_map(|line| line.strip_prefix(case)).unwrap_or_default();
        let words: Vec<_> = found.split_whitespace().take(shown.len()).collect();
        assert_eq!(words, shown, "{case}in {}", checked.stdout);
    }
    for (guest, told) in
        [("bad-row", "trial case"), ("no-world", "world"), ("endless-configure", "did not end")]
    {
        let bad = put(PolicyFile::guest(guest, guest).unwrap());
        let checked = run_to_end(&["policy", "check", &good, &bad], SOON).await.unwrap();
        assert_eq!(checked.code, Some(1), "{}", checked.stdout);
        assert!(checked.stderr.contains(told) && checked.stderr.contains(guest), "{}", checked.stderr);
    }
}

/// Settings that are there but cannot be read are no reason to check a policy without them.
#[tokio::test]
async fn check_reads_settings_as_the_host_does() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("p.wasm"), PolicyFile::policy("p", "adaptive").unwrap().wasm).unwrap();
    std::os::unix::fs::symlink(path("nowhere.toml"), path("p.toml")).unwrap();
    let file = path("p.wasm").display().to_string();
    let checked = run_to_end(&["policy", "check", &file], SOON).await.unwrap();
    assert_eq!(checked.code, Some(1), "{}", checked.stdout);
    assert!(checked.stderr.contains("p.toml"), "{}", checked.stderr);
}

#[tokio::test]
async fn list_shows_what_is_in_force_and_why_not() {
    let good = PolicyFile::policy("good", "round-robin").unwrap();
    let fleet = FleetPlan::unified(1).decided_by(good.clone()).start().await.unwrap();
    let broken = PolicyFile::new("broken", good.wasm).truncated();
    fleet.host.drop_policy(&broken).unwrap();
    fleet.host.until_refused("broken", SOON).await.unwrap();
    // By name, since people write it so.
    let admin = fleet.host.admin().base().replace("http://127.0.0.1", "localhost");
    let listed = until("a list", SOON, async || {
        let ended = run_to_end(&["policy", "list", "--admin", &admin], SOON).await.unwrap();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        Some(ended.stdout)
    })
    .await
    .unwrap();
    for part in ["good", "loaded", "default", "broken", "refused", "ends too early"] {
        assert!(listed.contains(part), "{part:?} is missing in:\n{listed}");
    }
    let nonsense = run_to_end(&["policy", "list", "--admin", "localhost"], SOON).await.unwrap();
    assert_eq!(nonsense.code, Some(2));
    assert!(nonsense.stderr.contains("write localhost:PORT"), "{}", nonsense.stderr);
    let nobody = run_to_end(&["policy", "list", "--admin", "127.0.0.1:1"], SOON).await.unwrap();
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.stderr.contains("cure: "), "{}", nobody.stderr);
}
