//! The watcher sees what happens to the folder. Each wait is for an event, with a deadline far beyond what it takes.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sluice_core::verdict::Verdict;
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

struct Watched {
    folder: tempfile::TempDir,
    host: Arc<PolicyHost>,
    events: Receiver<String>,
    _watcher: Watcher,
}

/// A followed folder with version 0 of `main`.
fn watched() -> Watched {
    watched_with(|policies| fs::write(policies.join("main.wasm"), guest::text(0)).unwrap())
}

/// A followed folder that begins as `fill` leaves it.
fn watched_with(fill: impl FnOnce(&Path)) -> Watched {
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
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("policies").join(name)
    }

    /// Beside the folder, not in it.
    fn outside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Waits for this event; gives those that came before it.
    fn expect(&self, wanted: &str) -> Vec<String> {
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
    fn expect_version(&self, wasm: &[u8]) -> Vec<String> {
        self.expect(&format!("main={}", digest(wasm)))
    }
}

fn digest(wasm: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("main.wasm");
    fs::write(&file, wasm).unwrap();
    sluice_policy::check_file(&file, None, &guest::limits()).unwrap().digest
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_rewritten_file() {
    let watched = watched();
    watched.put("main.wasm", &guest::text(1));
    watched.expect_version(&guest::text(1));
}

#[test]
fn a_file_renamed_into_place() {
    let watched = watched();
    let staged = watched.path(".main.wasm.tmp");
    fs::write(&staged, guest::text(1)).unwrap();
    fs::rename(staged, watched.path("main.wasm")).unwrap();
    watched.expect_version(&guest::text(1));
}

#[test]
fn a_broken_file_and_its_cure() {
    let watched = watched();
    watched.put("main.wasm", b"no wasm");
    watched.expect("refused main not-wasm");
    watched.put("main.wasm", &guest::text(1));
    watched.expect_version(&guest::text(1));
}

/// The old version decides until the last byte is there, and the pieces are told of once.
#[test]
fn a_slow_copy_in_pieces() {
    let watched = watched();
    let new = guest::text(1);
    let (first, rest) = new.split_at(new.len() / 3);
    watched.put("main.wasm", first);
    watched.expect("refused main truncated");
    let mut file = fs::File::options().append(true).open(watched.path("main.wasm")).unwrap();
    let (second, last) = rest.split_at(rest.len() - 1);
    file.write_all(second).unwrap();
    // A look of ours is a look at the second piece, whether or not the watcher had one.
    assert!(!watched.host.reload().swapped);
    file.write_all(last).unwrap();
    drop(file);
    let between = watched.expect_version(&new);
    assert_eq!(between, [""; 0]);
}

/// What editors leave beside a file is no policy: backups, swap files, locks, half-written copies.
#[test]
fn an_editors_save() {
    let watched = watched();
    let beside =
        [".main.wasm.swp", "4913", "#main.wasm#", "main.wasm.part", ".goutputstream-1", "main.wasm.bak"];
    for name in beside {
        watched.put(name, &guest::text(9));
    }
    symlink("user@machine.1234", watched.path(".#main.wasm")).unwrap();
    // The old file becomes the backup, and a new one is written in its place.
    fs::rename(watched.path("main.wasm"), watched.path("main.wasm~")).unwrap();
    watched.put("main.wasm", &guest::text(1));
    let between = watched.expect_version(&guest::text(1));
    // The file was not there for a moment, which may have been seen; it went on deciding.
    assert!(
        between.iter().all(|event| event == "removed main true" || event.starts_with("main=")),
        "{between:?}"
    );
    // And a save in place: emptied, then written.
    watched.put("main.wasm", b"");
    watched.put("main.wasm", &guest::text(2));
    let between = watched.expect_version(&guest::text(2));
    assert!(between.iter().all(|event| event == "refused main truncated"), "{between:?}");
    assert_eq!(watched.host.generation().names().collect::<Vec<_>>(), ["main"]);
}

/// As Kubernetes mounts a ConfigMap: each name links into `..data`, which links to a folder of that version, and the one
/// link is swapped.
#[test]
fn swapped_links() {
    let version = |policies: &Path, tag: u32| {
        let folder = policies.join(format!("..v{tag}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("main.wasm"), guest::text(tag)).unwrap();
        fs::write(folder.join("other.wasm"), guest::text(100 + tag)).unwrap();
        symlink(format!("..v{tag}"), policies.join("..data_tmp")).unwrap();
        fs::rename(policies.join("..data_tmp"), policies.join("..data")).unwrap();
    };
    let watched = watched_with(|policies| {
        version(policies, 0);
        for name in ["main.wasm", "other.wasm"] {
            symlink(Path::new("..data").join(name), policies.join(name)).unwrap();
        }
    });
    let both = |tag| format!("main={},other={}", digest(&guest::text(tag)), digest(&guest::text(100 + tag)));
    watched.expect(&both(0));
    for tag in 1..4 {
        version(&watched.path(""), tag);
        fs::remove_dir_all(watched.path(&format!("..v{}", tag - 1))).unwrap();
        let between = watched.expect(&both(tag));
        assert_eq!(between, [""; 0], "both came into force at once");
    }
}

/// Whoever may link to a file may as well put it there: links are followed wherever they lead. What changes there
/// makes no event here, and is seen all the same.
#[test]
fn a_link_out_of_the_folder() {
    let watched = watched_with(|policies| {
        let outside = policies.with_file_name("outside.wasm");
        fs::write(&outside, guest::text(0)).unwrap();
        symlink(outside, policies.join("main.wasm")).unwrap();
    });
    watched.expect_version(&guest::text(0));
    fs::write(watched.outside("outside.wasm"), guest::text(1)).unwrap();
    watched.expect_version(&guest::text(1));
    // Everybody may write there: no longer to be trusted.
    set_mode(&watched.outside("outside.wasm"), 0o666);
    watched.expect("refused main world-writable");
    assert!(watched.host.generation().default_policy().is_some());
}

#[test]
fn a_file_removed_and_restored() {
    let watched = watched();
    watched.put("other.wasm", &guest::text(1));
    let (main, other) = (digest(&guest::text(0)), digest(&guest::text(1)));
    let both = format!("main={main},other={other}");
    watched.expect(&both);
    fs::remove_file(watched.path("other.wasm")).unwrap();
    watched.expect("removed other false");
    watched.expect(&format!("main={main}"));
    watched.put("other.wasm", &guest::text(1));
    watched.expect(&both);
    // The one that decides goes on deciding.
    fs::remove_file(watched.path("main.wasm")).unwrap();
    watched.expect("removed main true");
    assert!(watched.host.generation().default_policy().is_some());
    watched.put("main.wasm", &guest::text(2));
    watched.expect(&format!("main={},other={other}", digest(&guest::text(2))));
}

/// Runs a test as a user whom permissions bind, and all threads that it starts.
fn bound_by_permissions(test: impl FnOnce() + Send + 'static) {
    const NOBODY: u32 = 65_534;
    let ended = std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(NOBODY)).unwrap();
        }
        test();
    })
    .join();
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn permission_lost_and_regained() {
    bound_by_permissions(|| {
        let watched = watched();
        watched.expect_version(&guest::text(0));
        let staged = watched.path(".staged");
        fs::write(&staged, guest::text(1)).unwrap();
        set_mode(&staged, 0o000);
        fs::rename(&staged, watched.path("main.wasm")).unwrap();
        watched.expect("refused main unreadable");
        assert!(watched.host.generation().default_policy().is_some());
        set_mode(&watched.path("main.wasm"), 0o644);
        watched.expect_version(&guest::text(1));
        assert_eq!(watched.host.status()[0].refusal, None);

        // The same with the folder.
        watched.put(".staged", &guest::text(2));
        set_mode(&watched.path(""), 0o000);
        watched.expect("folder unusable");
        assert!(watched.host.generation().default_policy().is_some());
        set_mode(&watched.path(""), 0o755);
        fs::rename(&staged, watched.path("main.wasm")).unwrap();
        watched.expect_version(&guest::text(2));
    });
}

#[test]
fn a_folder_that_everybody_may_write_changes_nothing() {
    let watched = watched();
    watched.expect_version(&guest::text(0));
    set_mode(&watched.path(""), 0o777);
    watched.expect("folder writable");
    watched.put("main.wasm", &guest::text(1));
    watched.host.reload();
    let in_force = watched.host.generation().default_policy().map(|policy| policy.digest().to_owned());
    assert_eq!(in_force, Some(digest(&guest::text(0))));
    // The group may write: who is in it is the operator's say.
    set_mode(&watched.path(""), 0o775);
    watched.expect_version(&guest::text(1));
}

#[test]
fn a_folder_replaced_as_a_whole() {
    let watched = watched();
    let (old, new) = (watched.outside("policies"), watched.outside("new"));
    fs::create_dir(&new).unwrap();
    fs::write(new.join("main.wasm"), guest::text(1)).unwrap();
    fs::rename(&old, watched.outside("old")).unwrap();
    fs::rename(&new, &old).unwrap();
    watched.expect_version(&guest::text(1));
    // The new folder is followed too.
    fs::write(old.join("main.wasm"), guest::text(2)).unwrap();
    watched.expect_version(&guest::text(2));
}

/// File systems give a new folder the old one's number, so more than that must tell them apart.
#[test]
fn a_folder_removed_and_made_again() {
    let watched = watched();
    watched.expect_version(&guest::text(0));
    for tag in 1..4 {
        fs::remove_dir_all(watched.path("")).unwrap();
        assert!(watched.host.reload().folder_error.is_some());
        assert!(watched.host.generation().default_policy().is_some());
        fs::create_dir(watched.path("")).unwrap();
        watched.put("main.wasm", &guest::text(tag));
        watched.expect_version(&guest::text(tag));
        watched.put("main.wasm", &guest::text(10 + tag));
        watched.expect_version(&guest::text(10 + tag));
    }
}

#[test]
fn what_is_no_file_keeps_nobody_waiting() {
    let watched = watched();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, watched.path("pipe.wasm"), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap();
    watched.expect("refused pipe unreadable");
    symlink("/dev/zero", watched.path("endless.wasm")).unwrap();
    watched.expect("refused endless unreadable");
    fs::create_dir(watched.path("folder.wasm")).unwrap();
    watched.expect("refused folder unreadable");
    let _socket = std::os::unix::net::UnixListener::bind(watched.path("socket.wasm")).unwrap();
    watched.expect("refused socket unreadable");
    watched.put("main.wasm", &guest::text(1));
    watched.expect_version(&guest::text(1));
}

/// The same code in a file of its own: a custom section makes its digest new.
fn marked(wasm: &[u8], mark: u32) -> Vec<u8> {
    // Id, length of the rest, length of the name, name, number.
    let section = [&[0, 6, 1, b'm'][..], &mark.to_le_bytes()].concat();
    [wasm, &section].concat()
}

/// A folder that changes each 10 ms for 10 s: policies answer all the while, the last version wins, and what came
/// before leaves nothing behind.
#[test]
fn a_thousand_rewrites() {
    const REWRITES: u32 = 1_000;
    const APART: Duration = Duration::from_millis(10);
    /// Open files of what else this process does meanwhile.
    const FILES_OF_OTHERS: usize = 50;
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let watched = watched();
    let base = guest::text(0);
    watched.expect_version(&base);
    let files_before = open_files();

    let stop = Arc::new(AtomicBool::new(false));
    let (host, stopped) = (Arc::clone(&watched.host), Arc::clone(&stop));
    let asking = std::thread::spawn(move || {
        let facts = guest::facts(guest::seed::GOOD);
        let mut answers = 0_u64;
        while !stopped.load(Ordering::Relaxed) {
            let answer = host.generation().default_policy().expect("one decides").route(&facts);
            assert_eq!(answer, Ok(Verdict::UseDefault), "after {answers} answers");
            answers += 1;
        }
        answers
    });
    let mut seen = vec![Arc::downgrade(&watched.host.generation())];
    for mark in 1..=REWRITES {
        let staged = watched.path(".staged");
        fs::write(&staged, marked(&base, mark)).unwrap();
        // Every other one in place, where a half-written file can be seen.
        if mark % 2 == 0 {
            fs::rename(&staged, watched.path("main.wasm")).unwrap();
        } else {
            fs::copy(&staged, watched.path("main.wasm")).unwrap();
        }
        if watched.events.recv_timeout(APART).is_ok_and(|event| event.starts_with("main=")) {
            seen.push(Arc::downgrade(&watched.host.generation()));
        }
    }
    watched.put("main.wasm", &guest::text(1));
    watched.expect_version(&guest::text(1));
    stop.store(true, Ordering::Relaxed);
    assert!(asking.join().unwrap() > 0);

    let generation = watched.host.generation();
    assert!(seen.len() > 10, "{} generations", seen.len());
    assert!(generation.number >= seen.len() as u64);
    // The first that is still there is the one in force; policies went with their generations.
    let alive: Vec<_> = seen.iter().filter_map(std::sync::Weak::upgrade).map(|old| old.number).collect();
    assert!(alive.iter().all(|number| *number == generation.number), "{alive:?}");
    assert!(generation.default_policy().unwrap().instances() <= guest::limits().instances_per_policy);
    let files_after = open_files();
    assert!(files_after <= files_before + FILES_OF_OTHERS, "{files_before} open files became {files_after}");
}
