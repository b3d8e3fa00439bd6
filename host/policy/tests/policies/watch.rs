//! The watcher sees what happens to the files of the folder.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::followed::{digest, set_mode, watched, watched_with};
use crate::guest;

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
