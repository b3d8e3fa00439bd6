//! What happens to the set in force when files come, change and go.

use std::os::unix::fs::symlink;
use std::sync::Arc;

use sluice_core::verdict::Verdict;
use sluice_policy::{Change, HostConfig, PolicyHost, PolicyState, PolicyStatus};

use crate::guest::{self, Bench};

pub fn status(bench: &Bench, name: &str) -> PolicyStatus {
    bench.host.status().into_iter().find(|status| status.name == name).expect(name)
}

fn digest(bench: &Bench, name: &str) -> Option<String> {
    bench.host.generation().policy(name).map(|policy| policy.digest().to_owned())
}

#[test]
fn the_first_look_loads_what_is_good_and_says_what_is_not() {
    let bench = guest::bench(&[
        ("main.wasm", &guest::text(0)),
        ("broken.wasm", b"no wasm"),
        (".hidden.wasm", b"half written"),
        ("readme.txt", b"text"),
    ]);
    assert_eq!(bench.log.take(), ["loaded main", "refused broken not-wasm false", "generation 1 main"]);
    let broken = status(&bench, "broken");
    assert_eq!((broken.state, broken.version), (PolicyState::Refused, None));
    assert!(broken.refusal.is_some_and(|refusal| refusal.message.contains("broken.wasm")));
    let main = status(&bench, "main");
    assert_eq!((main.state, main.is_default, main.generation_since), (PolicyState::Loaded, true, Some(1)));
    assert_eq!(bench.host.status().len(), 2);
}

/// However many files lie beside it, and whatever their names sort to, the one that decides gets its place.
#[test]
fn the_default_is_looked_at_first() {
    let names: Vec<String> = (0..100).map(|number| format!("a{number:03}.wasm")).collect();
    let text = guest::text(0);
    let mut files: Vec<(&str, &[u8])> =
        names.iter().map(|name| (name.as_str(), b"text".as_slice())).collect();
    files.push(("main.wasm", &text));
    let bench = guest::bench(&files);
    assert_eq!(status(&bench, "main").state, PolicyState::Loaded);
    let refused = |kind| {
        bench
            .host
            .status()
            .iter()
            .filter(|status| status.refusal.as_ref().is_some_and(|refusal| refusal.kind == kind))
            .count()
    };
    assert_eq!((refused("not-wasm"), refused("too-many-policies")), (63, 37));
}

#[test]
fn a_bad_file_leaves_the_old_version_in_force() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    let old = digest(&bench, "main");
    bench.log.take();
    bench.put("main.wasm", b"no wasm");
    let outcome = bench.host.reload();
    assert!(!outcome.swapped && outcome.generation == 1, "{outcome:?}");
    assert_eq!(bench.log.take(), ["refused main not-wasm true"]);
    bench.host.reload();
    assert_eq!(bench.log.take(), [""; 0], "told once");
    bench.put("main.wasm", b"no WASM either");
    bench.host.reload();
    assert_eq!(bench.log.take(), ["refused main not-wasm true"], "another content");
    assert_eq!(digest(&bench, "main"), old);
    let told = status(&bench, "main");
    assert_eq!(
        (told.state, told.refusal.map(|refusal| refusal.kind)),
        (PolicyState::Loaded, Some("not-wasm"))
    );

    bench.put("main.wasm", &guest::text(1));
    bench.host.reload();
    assert_eq!(bench.log.take(), ["loaded main", "generation 2 main"]);
    assert_ne!(digest(&bench, "main"), old);
    assert_eq!(status(&bench, "main").refusal, None);
}

#[test]
fn a_copy_in_pieces_ends_in_force() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    bench.log.take();
    let new = guest::text(1);
    for end in [0, 100, new.len() / 2, new.len() - 1] {
        bench.put("main.wasm", &new[..end]);
        assert!(!bench.host.reload().swapped, "{end} bytes");
        assert_eq!(status(&bench, "main").refusal.map(|refusal| refusal.kind), Some("truncated"));
    }
    assert_eq!(bench.log.take(), ["refused main truncated true"], "told once");
    bench.put("main.wasm", &new);
    bench.host.reload();
    assert_eq!(bench.log.take(), ["loaded main", "generation 2 main"]);
}

#[test]
fn files_changed_together_are_one_generation() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0)), ("other.wasm", &guest::text(0))]);
    bench.log.take();
    let before = bench.host.generation();
    bench.put("main.wasm", &guest::text(1));
    bench.put("other.wasm", &guest::text(2));
    bench.put("third.wasm", &guest::text(3));
    bench.remove("main.wasm");
    bench.put("main.wasm", &guest::text(4));
    bench.host.reload();
    let log = bench.log.take();
    assert_eq!(log, ["loaded main", "loaded other", "loaded third", "generation 2 main,other,third"]);
    // Who took the old generation goes on with it.
    assert_eq!(before.number, 1);
    let old = before.default_policy().expect("is there");
    assert_eq!(old.route(&guest::facts(guest::seed::GOOD)), Ok(Verdict::UseDefault));
}

#[test]
fn what_did_not_change_is_not_compiled_again() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0)), ("other.wasm", &guest::text(0))]);
    let before = bench.host.generation();
    bench.put("other.wasm", &guest::text(1));
    bench.host.reload();
    let after = bench.host.generation();
    let same = |name| Arc::ptr_eq(before.policy(name).unwrap(), after.policy(name).unwrap());
    assert!(same("main") && !same("other"));
    assert!(!bench.host.reload().swapped, "nothing changed");
}

#[test]
fn settings_are_part_of_a_version() {
    let tagged = std::fs::read(guest::built("guests", "tagged")).unwrap();
    let bench = guest::bench(&[("main.wasm", &tagged)]);
    let reason = || {
        let generation = bench.host.generation();
        match generation.default_policy().unwrap().route(&guest::facts(0)).unwrap() {
            Verdict::Route(route) => route.reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(reason().as_deref(), Some("untagged"));
    bench.put("main.toml", b"tag = 'blue'");
    assert!(bench.host.reload().swapped);
    assert_eq!(reason().as_deref(), Some("blue"));
    bench.put("main.toml", b"tag = ");
    bench.host.reload();
    assert_eq!(reason().as_deref(), Some("blue"));
    let refusal = status(&bench, "main").refusal.expect("refused");
    assert!(refusal.message.contains("main.toml: line 1"), "{}", refusal.message);
    bench.remove("main.toml");
    bench.host.reload();
    assert_eq!(reason().as_deref(), Some("untagged"));
}

/// A change of settings alone does not read like one of code, in the log and afterwards.
#[test]
fn what_a_version_changed_is_told() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    bench.put("main.toml", b"a = 1");
    bench.host.reload();
    bench.put("main.wasm", &guest::text(1));
    bench.put("main.toml", b"a = 2");
    bench.host.reload();
    bench.put("main.wasm", &guest::text(2));
    bench.host.reload();
    let log = bench.log.take();
    let loaded: Vec<_> = log.iter().filter(|line| line.starts_with("loaded")).collect();
    assert_eq!(
        loaded,
        ["loaded main", "loaded main settings", "loaded main code-and-settings", "loaded main"]
    );
    let detail = bench.host.detail("main").unwrap();
    assert_eq!(detail.status.changed, Some(Change::Code));
    let earlier: Vec<_> = detail.earlier.iter().map(|earlier| earlier.changed).collect();
    assert_eq!(earlier, [Change::CodeAndSettings, Change::Settings, Change::First]);
    let settings: Vec<_> = detail.earlier.iter().map(|earlier| earlier.settings_digest.as_deref()).collect();
    assert!(settings[0].is_some() && settings[0] != settings[1] && settings[2].is_none(), "{settings:?}");
    assert_eq!(detail.status.settings_digest.as_deref(), settings[0]);
    assert_eq!(detail.earlier[1].digest, detail.earlier[2].digest);
}

#[test]
fn settings_without_a_policy_are_told_once_and_listed() {
    let bench = guest::bench(&[
        ("main.wasm", &guest::text(0)),
        ("main.toml", b"a = 1"),
        ("bindings.toml", b""),
        (".hidden.toml", b""),
        ("builtin.toml", b""),
        ("mian.toml", b"a = 1"),
    ]);
    let only = |name: &str| format!("refused {name} settings-only false");
    assert_eq!(bench.log.take(), ["loaded main", &only("builtin"), &only("mian"), "generation 1 main"]);
    bench.put("other.toml", b"");
    bench.host.reload();
    assert_eq!(bench.log.take(), [only("other")], "each once");
    let told = status(&bench, "mian");
    assert_eq!(told.state, PolicyState::SettingsOnly);
    let why = told.refusal.expect("says what to do").message;
    assert!(
        why.contains("mian.toml: ") && why.ends_with("give both the same name, or take it away"),
        "{why}"
    );
    assert_eq!(bench.host.status().len(), 4);

    bench.put("other.wasm", &guest::text(1));
    bench.remove("mian.toml");
    bench.host.reload();
    assert_eq!(bench.log.take(), ["loaded other", "generation 2 main,other"]);
    assert_eq!(status(&bench, "other").state, PolicyState::Loaded);
    // Its file goes and its settings stay; then it is bound, which is the worse of the two.
    bench.remove("other.wasm");
    bench.host.reload();
    assert_eq!(status(&bench, "other").state, PolicyState::SettingsOnly);
    let binding = "[[workload]]\nname = 'w'\nmatch = { model = 'm' }\npolicy = 'other'\n";
    bench.put("bindings.toml", binding.as_bytes());
    bench.host.reload();
    assert_eq!(status(&bench, "other").state, PolicyState::Missing);
    bench.remove("main.wasm");
    bench.host.reload();
    assert_eq!(status(&bench, "main").state, PolicyState::RemovedButBound);
}

#[test]
fn removing_a_file_removes_the_policy_but_for_the_default() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0)), ("other.wasm", &guest::text(0))]);
    bench.log.take();
    bench.remove("other.wasm");
    bench.host.reload();
    assert_eq!(bench.log.take(), ["removed other false", "generation 2 main"]);
    bench.remove("main.wasm");
    bench.host.reload();
    assert_eq!(bench.log.take(), ["removed main true"]);
    bench.host.reload();
    assert_eq!(bench.log.take(), [""; 0], "told once");
    assert!(bench.host.generation().default_policy().is_some());
    assert_eq!(status(&bench, "main").state, PolicyState::RemovedButBound);
    bench.put("main.wasm", &guest::text(0));
    assert!(!bench.host.reload().swapped, "it is in force already");
    assert_eq!(status(&bench, "main").state, PolicyState::Loaded);
}

#[test]
fn a_default_that_never_was_is_told_as_missing() {
    let bench = guest::bench(&[("other.wasm", &guest::text(0))]);
    assert!(bench.host.generation().default_policy().is_none());
    assert_eq!(status(&bench, "main").state, PolicyState::Missing);
    bench.put("main.wasm", &guest::text(0));
    bench.host.reload();
    assert!(bench.host.generation().default_policy().is_some());
}

#[test]
fn swapped_links_are_followed() {
    let bench = guest::bench(&[]);
    for (version, tag) in [("..v1", 1), ("..v2", 2)] {
        std::fs::create_dir(bench.path().join(version)).unwrap();
        std::fs::write(bench.path().join(version).join("main.wasm"), guest::text(tag)).unwrap();
    }
    symlink("..v1", bench.path().join("..data")).unwrap();
    symlink("..data/main.wasm", bench.path().join("main.wasm")).unwrap();
    assert!(bench.host.reload().swapped);
    let first = digest(&bench, "main");
    symlink("..v2", bench.path().join("..new")).unwrap();
    std::fs::rename(bench.path().join("..new"), bench.path().join("..data")).unwrap();
    assert!(bench.host.reload().swapped);
    assert_ne!(digest(&bench, "main"), first);
}

/// Swaps a folder's one link while a look at it is under way: once `main` is loaded, and `other` is not.
struct SwapsMeanwhile {
    folder: std::path::PathBuf,
    done: std::sync::atomic::AtomicBool,
}

impl sluice_policy::Observer for SwapsMeanwhile {
    fn loaded(&self, policy: &sluice_policy::Policy, _: Change) {
        if policy.name() == "main" && !self.done.swap(true, std::sync::atomic::Ordering::Relaxed) {
            symlink("..v2", self.folder.join("..new")).unwrap();
            std::fs::rename(self.folder.join("..new"), self.folder.join("..data")).unwrap();
        }
    }
}

#[test]
fn files_swapped_together_during_a_look_come_into_force_together() {
    let folder = tempfile::tempdir().unwrap();
    let tagged = std::fs::read(guest::built("guests", "tagged")).unwrap();
    for version in ["..v1", "..v2"] {
        std::fs::create_dir(folder.path().join(version)).unwrap();
        for name in ["main", "other"] {
            let file = folder.path().join(version).join(name);
            std::fs::write(file.with_extension("wasm"), &tagged).unwrap();
            std::fs::write(file.with_extension("toml"), format!("tag = '{}'", &version[2..])).unwrap();
        }
    }
    symlink("..v1", folder.path().join("..data")).unwrap();
    for name in ["main.wasm", "main.toml", "other.wasm", "other.toml"] {
        symlink(std::path::Path::new("..data").join(name), folder.path().join(name)).unwrap();
    }
    let observer = SwapsMeanwhile { folder: folder.path().to_owned(), done: false.into() };
    let config = HostConfig {
        folder: folder.path().to_owned(),
        default: "main".to_owned(),
        limits: guest::limits(),
        cache_folder: None,
        compiler: None,
    };
    let host = PolicyHost::open(config, Arc::new(observer)).unwrap();
    let tags = || {
        let tag = |policy: &Arc<sluice_policy::Policy>| match policy.route(&guest::facts(0)).unwrap() {
            Verdict::Route(route) => route.reason.expect("the tag"),
            other => panic!("{other:?}"),
        };
        host.generation().policies().map(tag).collect::<Vec<_>>()
    };
    assert_eq!(tags(), ["v1", "v1"], "as both were before");
    assert!(host.reload().swapped);
    assert_eq!(tags(), ["v2", "v2"]);
}
