//! Where a host may listen.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use sluice_transfer::link::{BindError, LinkListener, Settings};

fn bind(path: &Path) -> Result<LinkListener, BindError> {
    LinkListener::bind(path, Settings::default())
}

#[test]
fn a_socket_is_this_users_alone_and_goes_with_its_listener() {
    let folder = tempfile::tempdir().unwrap();
    // The folder is made too, for this user only.
    let path = folder.path().join("run").join("kv.sock");
    let listener = bind(&path).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
    drop(listener);
    assert!(!path.exists());
    drop(bind(&path).unwrap());
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv.sock");
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
    drop(other);
    assert!(path.exists());
    drop(bind(&path).unwrap());

    // Another host is about to listen: it found nobody, and has not bound yet.
    let mut lock = path.clone().into_os_string();
    lock.push(".lock");
    let lock = std::fs::File::open(lock).unwrap();
    lock.try_lock().unwrap();
    assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
    drop(lock);

    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_folder_that_others_may_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (mode, is_safe) in [(0o700, true), (0o755, true), (0o770, false), (0o777, false), (0o1777, false)] {
        std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        match bind(&folder.path().join("kv.sock")) {
            Ok(_) => assert!(is_safe, "{mode:o}"),
            Err(error) => {
                assert!(!is_safe && matches!(error, BindError::FolderOpen { .. }), "{mode:o}: {error}")
            }
        }
    }
    let long = folder.path().join("x".repeat(120));
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
    let refused = bind(&long).unwrap_err();
    assert!(matches!(refused, BindError::System { .. }), "{refused}");
}
