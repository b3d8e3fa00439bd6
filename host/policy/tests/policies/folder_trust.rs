//! Folders, names and files that are not taken as they are.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use sluice_policy::{HostConfig, OpenError, PolicyHost};

use crate::guest;
use crate::reload::status;

#[test]
fn a_folder_in_trouble_changes_nothing() {
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    bench.log.take();
    std::fs::set_permissions(bench.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let outcome = bench.host.reload();
    assert!(outcome.folder_error.is_some_and(|error| error.contains("; run `chmod o-w ")));
    bench.host.reload();
    assert_eq!(bench.log.take(), ["folder refused"], "told once");
    assert!(
        bench.host.folder_refusal().is_some_and(|refusal| refusal.contains("; run `chmod o-w ")),
        "and shown"
    );
    std::fs::rename(bench.path(), bench.path().with_extension("away")).unwrap();
    assert!(bench.host.reload().folder_error.is_some());
    assert!(bench.host.generation().default_policy().is_some());
    std::fs::rename(bench.path().with_extension("away"), bench.path()).unwrap();
    std::fs::set_permissions(bench.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!((bench.host.reload().folder_error, bench.host.folder_refusal()), (None, None));
}

#[test]
fn a_folder_that_cannot_be_trusted_refuses_the_start() {
    let open = |folder: &std::path::Path| {
        let config = HostConfig {
            folder: folder.to_owned(),
            default: "main".to_owned(),
            limits: guest::limits(),
            cache_folder: None,
            compiler: None,
        };
        PolicyHost::open(config, Arc::new(())).err()
    };
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(open(&folder.path().join("absent")), Some(OpenError::Folder { .. })));
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o757)).unwrap();
    assert!(matches!(open(folder.path()), Some(OpenError::WorldWritable { mode: 0o757, .. })));
}

#[test]
fn names_that_no_policy_may_have() {
    let bench = guest::bench(&[("a b.wasm", &guest::text(0)), ("fine-1.2_x.wasm", &guest::text(0))]);
    assert_eq!(
        bench.log.take(),
        ["loaded fine-1.2_x", "refused a?b bad-name false", "generation 1 fine-1.2_x"]
    );
}

#[test]
fn a_name_cannot_pass_for_anothers_nor_reach_a_log_as_it_is() {
    let long = format!("{}.wasm", "x".repeat(200));
    let bench = guest::bench(&[
        ("ma\nin.wasm", &guest::text(0)),
        (&long, &guest::text(0)),
        ("main.wasm", &guest::text(0)),
    ]);
    let shown_long = format!("{}?", "x".repeat(63));
    let mut log = bench.log.take();
    log.sort();
    assert_eq!(
        log,
        [
            "generation 1 main".to_owned(),
            "loaded main".to_owned(),
            "refused ma?in bad-name false".to_owned(),
            format!("refused {shown_long} bad-name false"),
        ]
    );
    let refusal = status(&bench, "ma?in").refusal.expect("refused");
    assert!(!refusal.message.contains('\n'), "{}", refusal.message);
    assert_eq!(status(&bench, "main").refusal, None);
}

#[test]
fn settings_that_cannot_be_read_are_not_no_settings() {
    let bench = guest::bench(&[]);
    symlink(bench.path().join("nowhere"), bench.path().join("main.toml")).unwrap();
    bench.put("main.wasm", &guest::text(0));
    bench.host.reload();
    assert!(bench.host.generation().default_policy().is_none());
    let refusal = status(&bench, "main").refusal.expect("refused");
    assert_eq!(refusal.kind, "unreadable");
    assert!(refusal.message.contains("main.toml"), "{}", refusal.message);
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    /// Only reached when the look never ends.
    const DEADLINE: Duration = Duration::from_secs(60);
    let bench = guest::bench(&[("main.wasm", &guest::text(0))]);
    std::fs::create_dir(bench.path().join("folder.wasm")).unwrap();
    symlink("/dev/zero", bench.path().join("endless.wasm")).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let pipe = bench.path().join("pipe.wasm");
    rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (done, ended) = channel();
    let host = Arc::clone(&bench.host);
    std::thread::spawn(move || done.send(host.reload()));
    let outcome = ended.recv_timeout(DEADLINE).expect("nothing blocks");
    let names: Vec<_> = outcome.refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["endless", "folder", "pipe"]);
}
