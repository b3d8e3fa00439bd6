use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

const WASM_BEGINS: &[u8] = b"\0asm\x01\0\0\0";

#[test]
fn names_are_shown_short_and_clean_and_never_as_anothers() {
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    for (name, expected) in [
        ("fine-1.2_x", "fine-1.2_x"),
        ("a b", "a?b"),
        ("a\n\u{e9};\"b", "a????b"),
        ("", "?"),
        (long.as_str(), &format!("{}?", "x".repeat(NAME_BYTES_MAX - 1))),
    ] {
        let shown = shown_name(name);
        assert_eq!(shown, expected);
        assert!(shown.len() <= NAME_BYTES_MAX);
        assert_eq!(is_name(&shown), is_name(name), "{name:?} passes for {shown:?}");
    }
}

#[test]
fn settings_that_are_not_there_differ_from_those_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("a.toml"), "a = 1").unwrap();
    symlink(path("nowhere"), path("dangling.toml")).unwrap();
    symlink(path("round.toml"), path("round.toml")).unwrap();
    fs::create_dir(path("folder.toml")).unwrap();
    let kind = |name| read_settings(&path(name)).map_err(|refusal| refusal.kind());
    assert_eq!(kind("a.toml"), Ok(Some("a = 1".to_owned())));
    assert_eq!(kind("absent.toml"), Ok(None));
    for name in ["dangling.toml", "round.toml", "folder.toml"] {
        assert_eq!(kind(name), Err("unreadable"), "{name}");
    }
}

#[test]
fn who_may_write() {
    let here = || rustix::fs::statvfs(std::env::temp_dir());
    let mount = |flags| here().map(|here| StatVfs { f_flag: flags, ..here });
    let read_only = || mount(StatVfsMountFlags::RDONLY | StatVfsMountFlags::NOSUID);
    for (mode, everybody) in [(0o755, false), (0o775, false), (0o757, true), (0o1777, true), (0o002, true)] {
        assert_eq!(everybody_writes(mode, || mount(StatVfsMountFlags::NOSUID)), everybody, "{mode:o}");
        assert_eq!(everybody_writes(mode, || Err(rustix::io::Errno::IO)), everybody, "{mode:o}");
        assert!(!everybody_writes(mode, read_only), "{mode:o}");
    }
}

#[test]
fn a_file_that_everybody_may_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.wasm");
    fs::write(&file, WASM_BEGINS).unwrap();
    let read = |mode| {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        read_policy(&file).map_err(|refusal| (refusal.kind(), refusal.is_transient()))
    };
    assert_eq!(read(0o664), Ok(WASM_BEGINS.to_vec()));
    assert_eq!(read(0o666), Err(("world-writable", true)));
}

#[test]
fn only_regular_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    symlink("/dev/zero", path("endless")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    fs::write(path("file"), WASM_BEGINS).unwrap();
    for name in ["pipe", "endless", "folder"] {
        assert_eq!(read_policy(&path(name)).unwrap_err().kind(), "unreadable", "{name}");
        // As if it had become that after the first look.
        assert_eq!(open_regular(&path(name)).unwrap_err().kind(), "unreadable", "{name}");
    }
    assert_eq!(read_policy(&path("file")).unwrap(), WASM_BEGINS);
}
