//! The watcher sees what happens to the folder. Each wait is for an event, with a deadline far beyond what it takes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sluice_policy::{Generation, HostConfig, LoadError, Observer, PolicyHost, Watcher};

use crate::guest;

/// Only reached when the event never comes.
const DEADLINE: Duration = Duration::from_secs(60);

struct Events(Sender<String>);

impl Observer for Events {
    fn swapped(&self, generation: &Generation) {
        let digests: Vec<_> =
            generation.policies().map(|policy| format!("{}={}", policy.name(), policy.digest())).collect();
        let _ = self.0.send(digests.join(","));
    }

    fn refused(&self, name: &str, error: &LoadError, _: bool) {
        let _ = self.0.send(format!("refused {name} {}", error.reason.kind()));
    }
}

struct Watched {
    folder: tempfile::TempDir,
    events: Receiver<String>,
    _watcher: Watcher,
}

fn watched() -> Watched {
    let folder = tempfile::tempdir().unwrap();
    // A folder inside, so that the folder itself can be replaced.
    std::fs::create_dir(folder.path().join("policies")).unwrap();
    std::fs::write(folder.path().join("policies/main.wasm"), guest::text(0)).unwrap();
    let (sender, events) = channel();
    let config = HostConfig {
        folder: folder.path().join("policies"),
        default: "main".to_owned(),
        limits: guest::limits(),
        cache_folder: None,
    };
    let host = PolicyHost::open(config, Arc::new(Events(sender))).unwrap();
    let watcher = host.watch().unwrap();
    let watched = Watched { folder, events, _watcher: watcher };
    watched.expect_version(&guest::text(0));
    watched
}

impl Watched {
    fn expect(&self, wanted: impl Fn(&str) -> bool) {
        loop {
            let event = self.events.recv_timeout(DEADLINE).expect("the watcher sees the change");
            if wanted(&event) {
                return;
            }
        }
    }

    /// Waits until exactly this file decides, however many pieces were seen before.
    fn expect_version(&self, wasm: &[u8]) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("main.wasm");
        std::fs::write(&file, wasm).unwrap();
        let digest = sluice_policy::check_file(&file, None, &guest::limits()).unwrap().digest;
        self.expect(|event| event == format!("main={digest}"));
    }
}

#[test]
fn a_rewritten_file() {
    let watched = watched();
    std::fs::write(watched.folder.path().join("policies/main.wasm"), guest::text(1)).unwrap();
    watched.expect_version(&guest::text(1));
}

#[test]
fn a_file_renamed_into_place() {
    let watched = watched();
    let staged = watched.folder.path().join("policies/.main.wasm.tmp");
    std::fs::write(&staged, guest::text(1)).unwrap();
    std::fs::rename(staged, watched.folder.path().join("policies/main.wasm")).unwrap();
    watched.expect_version(&guest::text(1));
}

#[test]
fn a_broken_file_and_its_cure() {
    let watched = watched();
    let file = watched.folder.path().join("policies/main.wasm");
    std::fs::write(&file, b"no wasm").unwrap();
    watched.expect(|event| event == "refused main not-wasm");
    std::fs::write(&file, guest::text(1)).unwrap();
    watched.expect_version(&guest::text(1));
}

#[test]
fn a_folder_replaced_as_a_whole() {
    let watched = watched();
    let (old, new) = (watched.folder.path().join("policies"), watched.folder.path().join("new"));
    std::fs::create_dir(&new).unwrap();
    std::fs::write(new.join("main.wasm"), guest::text(1)).unwrap();
    std::fs::rename(&old, watched.folder.path().join("old")).unwrap();
    std::fs::rename(&new, &old).unwrap();
    watched.expect_version(&guest::text(1));
    // The new folder is followed too.
    std::fs::write(old.join("main.wasm"), guest::text(2)).unwrap();
    watched.expect_version(&guest::text(2));
}
