//! A configuration that cannot work: exit code 2, and a message with file, line and cure. Nothing is started.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sluice_harness::process::run_to_end;
use sluice_harness::{HostPlan, Mode};
use tempfile::TempDir;

use crate::SOON;
use crate::certificates::Authority;

const URLS: [&str; 2] = ["http://127.0.0.1:1", "http://127.0.0.1:2"];

fn pull() -> HostPlan {
    HostPlan::new(Mode::Pull).worker("prefill", URLS[0]).worker("decode", URLS[1])
}

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("policies.d")).unwrap();
    fs::set_permissions(folder.path().join("policies.d"), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Serves with this configuration, which must be refused with a message that has all these parts, the first of them
/// beginning the line at fault.
async fn refused(folder: &TempDir, toml: &str, at: Option<&str>, parts: &[&str]) {
    for command in ["serve", "check-config"] {
        refused_by(command, folder, toml, at, parts).await;
    }
}

async fn refused_by(command: &str, folder: &TempDir, toml: &str, at: Option<&str>, parts: &[&str]) {
    let config: PathBuf = folder.path().join("sluice.toml");
    fs::write(&config, toml).unwrap();
    let shown = config.display().to_string();
    let ended = run_to_end(&[command, "--config", &shown], SOON).await.unwrap();
    assert_eq!(ended.code, Some(2), "{toml}\n{}", ended.stderr);
    assert_eq!(ended.stdout, "", "nothing was announced");
    let place = match at {
        None => format!("{shown}:"),
        Some(beginning) => {
            let line =
                toml.lines().position(|line| line.starts_with(beginning)).expect("a line of the file") + 1;
            format!("{shown}:{line}:")
        }
    };
    for part in parts.iter().copied().chain([place.as_str(), "cure: "]) {
        assert!(ended.stderr.contains(part), "{part:?} is missing in:\n{}", ended.stderr);
    }
}

#[tokio::test]
async fn mistakes_are_told_with_line_and_cure() {
    let folder = folder();
    let mut unknown_key = pull();
    unknown_key.server = "listn = \"x\"".into();
    refused(
        &folder,
        &unknown_key.toml(),
        Some("listn"),
        &["unknown key \"listn\"", "did you mean \"listen\"?"],
    )
    .await;

    let mut twice = pull().worker("decode", "http://127.0.0.1:3");
    twice.workers[2].name = "prefill-0".into();
    let toml = twice.toml();
    refused(&folder, &toml, None, &["worker \"prefill-0\" is named twice", "first on line"]).await;

    let same_url = pull().worker("decode", URLS[1]);
    refused(&folder, &same_url.toml(), None, &["stands twice in pool \"main\"", "an engine is one worker"])
        .await;

    let no_decode = HostPlan::new(Mode::Pull).worker("prefill", URLS[0]);
    let parts = ["is a pull pool without a decode worker", "role = \"decode\""];
    refused(&folder, &no_decode.toml(), Some("mode ="), &parts).await;
}

#[tokio::test]
async fn a_taken_port_is_told() {
    let folder = folder();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for key in ["listen", "admin_listen"] {
        let free = format!("\n{key} = \"127.0.0.1:0\"");
        let toml = pull().toml().replace(&free, &format!("\n{key} = \"{address}\""));
        let parts = ["cannot listen on", &address, &format!("server.{key}")];
        refused_by("serve", &folder, &toml, Some(key), &parts).await;
    }
}

#[tokio::test]
async fn a_policy_folder_that_is_missing_or_everybodys_is_told() {
    let folder = folder();
    let policies = folder.path().join("policies.d");
    fs::set_permissions(&policies, fs::Permissions::from_mode(0o777)).unwrap();
    refused(&folder, &pull().toml(), Some("folder"), &["policies.d", "chmod o-w"]).await;
    fs::remove_dir(&policies).unwrap();
    refused(&folder, &pull().toml(), Some("folder"), &["policies.d", "create it"]).await;
}

/// A certificate, its key and the authority: the message points at the line of the file at fault.
#[tokio::test]
async fn files_of_tls_that_do_not_fit_are_told() {
    let folder = folder();
    let path = folder.path();
    let authority = Authority::new("ours");
    authority.signs("127.0.0.1").write(path, "host");
    authority.signs("127.0.0.1").write(path, "other");
    fs::write(path.join("ca.pem"), authority.pem()).unwrap();
    let server = |cert: &str, key: &str| HostPlan {
        server: format!("tls_cert_file = \"{cert}\"\ntls_key_file = \"{key}\"\n"),
        ..pull()
    };
    let upstream = |ca: &str, cert: &str, key: &str| HostPlan {
        upstream: format!("ca_file = \"{ca}\"\nclient_cert_file = \"{cert}\"\nclient_key_file = \"{key}\"\n"),
        ..pull()
    };
    let good = ["host.pem", "host-key.pem"];
    for (plan, line, what) in [
        (server("absent.pem", good[1]), "tls_cert_file", "cannot be read"),
        (server(good[0], "absent.pem"), "tls_key_file", "cannot be read"),
        (server(good[0], "other-key.pem"), "tls_key_file", "is not the key of"),
        (server(good[0], "ca.pem"), "tls_key_file", "holds no private key"),
        (upstream("absent.pem", good[0], good[1]), "ca_file", "cannot be read"),
        (upstream("ca.pem", "absent.pem", good[1]), "client_cert_file", "cannot be read"),
        (upstream("ca.pem", good[0], "absent.pem"), "client_key_file", "cannot be read"),
    ] {
        refused(&folder, &plan.toml(), Some(line), &[what]).await;
    }
}

#[tokio::test]
async fn a_missing_file_is_told() {
    let folder = folder();
    let missing = folder.path().join("absent.toml").display().to_string();
    for command in
        [&["serve", "--config", missing.as_str()][..], &["check-config", "--config", missing.as_str()]]
    {
        let ended = run_to_end(command, SOON).await.unwrap();
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(&missing), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn check_config_says_what_serve_would() {
    let folder = folder();
    let config = folder.path().join("sluice.toml");
    fs::write(&config, pull().toml()).unwrap();
    let shown = config.display().to_string();
    let good = run_to_end(&["check-config", "--config", &shown], SOON).await.unwrap();
    assert_eq!((good.code, good.stderr.as_str()), (Some(0), ""));
    assert!(good.stdout.contains("1 pool, 2 workers") && !good.stdout.contains("note"), "{}", good.stdout);
    fs::write(&config, pull().policy("absent").toml()).unwrap();
    let noted = run_to_end(&["check-config", "--config", &shown], SOON).await.unwrap();
    assert_eq!((noted.code, noted.stderr.as_str()), (Some(0), ""));
    assert!(
        noted.stdout.contains("note: there is no ") && noted.stdout.contains("absent.wasm"),
        "{}",
        noted.stdout
    );
    fs::write(&config, HostPlan::new(Mode::Unified).toml()).unwrap();
    let bad = run_to_end(&["check-config", "--config", &shown], SOON).await.unwrap();
    assert_eq!(bad.code, Some(2));
    assert!(bad.stderr.contains("cure: ") && bad.stdout.is_empty(), "{}", bad.stderr);
}

/// What is wrong in bindings.toml is told with that file's line, and what would not decide with what was meant.
#[tokio::test]
async fn check_config_tells_what_is_wrong_with_bindings() {
    let folder = folder();
    let config = folder.path().join("sluice.toml");
    let shown = config.display().to_string();
    fs::write(&config, pull().policy("main").toml()).unwrap();
    let policies = folder.path().join("policies.d");
    fs::write(policies.join("main.wasm"), "").unwrap();
    let bindings = policies.join("bindings.toml");
    let checked = async |text: &str| {
        fs::write(&bindings, text).unwrap();
        run_to_end(&["check-config", "--config", &shown], SOON).await.unwrap()
    };
    let bad = checked("[[workload]]\nname = \"batch\"\n  match = {}  \npolicy = \"main\"\n").await;
    assert_eq!((bad.code, bad.stdout.as_str()), (Some(2), ""));
    let expected = format!(
        "{}:3: workload \"batch\" matches every request\n  3 |   match = {{}}  \n    |   ^^^^^^^^^^\n  cure: say what",
        bindings.display()
    );
    assert!(bad.stderr.starts_with(&expected), "{}\nis not\n{expected}", bad.stderr);
    let typos = "[[workload]]\nname = \"batch\"\nmatch = { model = \"emulatde\" }\npolicy = \"mian\"\n";
    let noted = checked(typos).await;
    assert_eq!((noted.code, noted.stderr.as_str()), (Some(0), ""));
    for part in [
        "note: workload \"batch\": there is no ",
        "mian.wasm: the built-in default decides; did you mean \"main\"?",
        "note: workload \"batch\": nothing matches: no pool serves model \"emulatde\"; did you mean \"emulated\"?",
    ] {
        assert!(noted.stdout.contains(part), "{part:?} is missing in:\n{}", noted.stdout);
    }
}

#[tokio::test]
async fn help_needs_no_configuration() {
    for arguments in
        [&["--help"][..], &["serve", "--help"], &["policy", "new", "--help"], &["emulate", "--help"]]
    {
        let ended = run_to_end(arguments, SOON).await.unwrap();
        assert_eq!(ended.code, Some(0), "{arguments:?}");
        assert!(ended.stdout.contains("Usage: sluice"), "{}", ended.stdout);
    }
    assert_eq!(run_to_end(&["serve", "--port", "1"], SOON).await.unwrap().code, Some(2));
}

/// Engines could not attach, or others could take their place.
#[tokio::test]
async fn a_socket_that_cannot_be_is_told() {
    let folder = folder();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    for (socket, why) in
        [("missing/deeper/kv.sock", "No such file or directory"), ("open/kv.sock", "is writable by others")]
    {
        let mut plan = HostPlan { mode: Mode::HostManaged, ..pull() };
        plan.tables = format!("[transfer]\nsocket = {socket:?}\n");
        let parts = ["engines cannot attach at", socket, why, "set [transfer] socket to a path in a folder"];
        refused_by("serve", &folder, &plan.toml(), Some("socket ="), &parts).await;
        // What may be there by the time of the start is no mistake yet.
        if !socket.starts_with("missing") {
            refused_by("check-config", &folder, &plan.toml(), Some("socket ="), &parts).await;
        }
    }
}

/// The examples, as they are; each names a policy folder that a user makes.
#[tokio::test]
async fn the_examples_are_good() {
    let folder = folder();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/configs");
    let mut found = 0;
    for example in fs::read_dir(examples).unwrap() {
        let example = example.unwrap().path();
        let config = folder.path().join(example.file_name().unwrap());
        fs::copy(&example, &config).unwrap();
        let arguments = ["check-config", "--config", &config.display().to_string()];
        let ended = run_to_end(&arguments, SOON).await.unwrap();
        assert_eq!(ended.code, Some(0), "{}: {}", example.display(), ended.stderr);
        assert!(ended.stdout.contains(": good: 1 pool, "), "{}", ended.stdout);
        found += 1;
    }
    assert_eq!(found, 4);
}

/// What a file says to no end is told, and is no mistake. A socket that a start could not make is one.
#[tokio::test]
async fn what_is_no_mistake_is_noted() {
    let folder = folder();
    let told = async |plan: &HostPlan| {
        let config = folder.path().join("sluice.toml");
        fs::write(&config, plan.toml()).unwrap();
        let ended =
            run_to_end(&["check-config", "--config", &config.display().to_string()], SOON).await.unwrap();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout
    };
    let mut plan = pull();
    plan.tables = "[transfer]\nsocket = \"missing/deeper/kv.sock\"\n".into();
    let unused = told(&plan).await;
    assert!(unused.contains("[transfer] does nothing: no pool has mode = \"host-managed\""), "{unused}");
    plan.mode = Mode::HostManaged;
    let config = folder.path().join("sluice.toml");
    fs::write(&config, plan.toml()).unwrap();
    let ended = run_to_end(&["check-config", "--config", &config.display().to_string()], SOON).await.unwrap();
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    for part in ["missing is no folder", "make the folder"] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
}
