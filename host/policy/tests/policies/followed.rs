//! A folder that is followed. Each wait is for an event, with a deadline far beyond what it takes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sluice_policy::{Generation, HostConfig, LoadError, Observer, OpenError, PolicyHost, Watcher};

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

    fn removed(&self, name: &str, kept: bool) {
        let _ = self.0.send(format!("removed {name} {kept}"));
    }

    fn folder_refused(&self, error: &OpenError) {
        let kind = if matches!(error, OpenError::WorldWritable { .. }) { "writable" } else { "unusable" };
        let _ = self.0.send(format!("folder {kind}"));
    }
}

pub struct Watched {
    folder: tempfile::TempDir,
    pub host: Arc<PolicyHost>,
    pub events: Receiver<String>,
    _watcher: Watcher,
}

/// A followed folder with version 0 of `main`.
pub fn watched() -> Watched {
    watched_with(|policies| fs::write(policies.join("main.wasm"), guest::text(0)).unwrap())
}

/// A followed folder that begins as `fill` leaves it.
pub fn watched_with(fill: impl FnOnce(&Path)) -> Watched {
    let folder = tempfile::tempdir().unwrap();
    // A folder inside, so that the folder itself can be replaced.
    let policies = folder.path().join("policies");
    fs::create_dir(&policies).unwrap();
    fill(&policies);
    follow(folder)
}

fn follow(folder: tempfile::TempDir) -> Watched {
    let (sender, events) = channel();
    let config = HostConfig {
        folder: folder.path().join("policies"),
        default: "main".to_owned(),
        limits: guest::limits(),
        cache_folder: None,
        compiler: None,
    };
    let host = PolicyHost::open(config, Arc::new(Events(sender))).unwrap();
    let watcher = host.watch().unwrap();
    Watched { folder, host, events, _watcher: watcher }
}

impl Watched {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("policies").join(name)
    }

    /// Beside the folder, not in it.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Waits for this event; gives those that came before it.
    pub fn expect(&self, wanted: &str) -> Vec<String> {
        let mut before = Vec::new();
        loop {
            let event = self
                .events
                .recv_timeout(DEADLINE)
                .unwrap_or_else(|error| panic!("{error}: waiting for {wanted:?}, after {before:?}"));
            if event == wanted {
                return before;
            }
            before.push(event);
        }
    }

    /// Waits until `main` alone decides, as exactly this file, however many pieces were seen before.
    pub fn expect_version(&self, wasm: &[u8]) -> Vec<String> {
        self.expect(&format!("main={}", digest(wasm)))
    }
}

pub fn digest(wasm: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("main.wasm");
    fs::write(&file, wasm).unwrap();
    sluice_policy::check_file(&file, None, &guest::limits()).unwrap().digest
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
