//! The watcher sees what happens to the folder itself, and to the right to read it.

use std::fs;

use crate::followed::{digest, set_mode, watched};
use crate::guest;

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
