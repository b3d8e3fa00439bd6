//! The admin API's token: asked for where it is configured, and nowhere left out beyond this machine.

use std::fs;

use hyper::Method;
use sluice_harness::process::run_to_end;
use sluice_harness::{Answer, Host, HostPlan, Mode};
use tempfile::TempDir;

use crate::SOON;

const TOKEN: &str = "0123456789abcdef-admin";

fn plan(folder: &TempDir, listen: &str) -> HostPlan {
    let file = folder.path().join("admin.token");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let server = format!("admin_token_file = \"{}\"\n", file.display());
    HostPlan {
        server,
        admin_listen: listen.into(),
        ..HostPlan::new(Mode::Unified).worker("unified", "http://127.0.0.1:1")
    }
}

async fn ask(host: &Host, path: &str, authorization: Option<&str>) -> Answer {
    let headers: Vec<_> = authorization.map(|value| ("authorization", value)).into_iter().collect();
    host.admin().request(Method::GET, path, Default::default(), &headers).await.unwrap()
}

#[tokio::test]
async fn the_admin_api_asks_for_its_token() {
    let folder = TempDir::new().unwrap();
    let host = Host::start(&plan(&folder, "127.0.0.1:0"), &[]).await.unwrap();
    let good = format!("Bearer {TOKEN}");
    let wrong = format!("Bearer {TOKEN}x");
    for path in [
        "/admin/policies",
        "/admin/policies/x",
        "/admin/decisions",
        "/admin/fleet",
        "/admin/tenants",
        "/nothing",
    ] {
        for shown in [None, Some("Bearer"), Some(wrong.as_str()), Some(TOKEN)] {
            let answer = ask(&host, path, shown).await;
            assert_eq!(
                (answer.status, answer.header("www-authenticate")),
                (401, Some("Bearer")),
                "{path} {shown:?}"
            );
            assert!(!answer.text().contains(TOKEN), "{}", answer.text());
        }
        assert_ne!(ask(&host, path, Some(&good)).await.status, 401, "{path}");
    }
    let elsewhere = [("x-api-key", TOKEN)];
    let answer =
        host.admin().request(Method::GET, "/admin/fleet", Default::default(), &elsewhere).await.unwrap();
    assert_eq!(answer.status, 401, "a token has one place: {}", answer.text());
    let drain = "/admin/workers/main/unified-0/drain";
    let order = host.admin().request(Method::POST, drain, Default::default(), &[]).await.unwrap();
    assert_eq!(order.status, 401);
    for (path, status) in [("/health", 200), ("/ready", 503), ("/metrics", 200)] {
        assert_eq!(ask(&host, path, None).await.status, status, "{path} is open to probes");
    }
    assert!(!host.log_tells(TOKEN), "{}", host.log());
}

#[tokio::test]
async fn commands_show_the_token() {
    let folder = TempDir::new().unwrap();
    let host = Host::start(&plan(&folder, "127.0.0.1:0"), &[]).await.unwrap();
    let admin = host.admin().base().to_owned();
    let file = folder.path().join("admin.token").display().to_string();
    for command in [
        &["fleet"][..],
        &["tenants"],
        &["policy", "list"],
        &["policy", "explain", "--json"],
        &["drain", "main/unified-0"],
    ] {
        let with = [command, &["--admin", &admin, "--token-file", &file]].concat();
        let ended = run_to_end(&with, SOON).await.unwrap();
        assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.stderr);
        let ended = run_to_end(&[command, &["--admin", &admin]].concat(), SOON).await.unwrap();
        assert_eq!(ended.code, Some(1), "{command:?}");
        assert!(ended.stderr.contains("--token-file"), "{}", ended.stderr);
    }
}

/// Beyond this machine a token is a must, and one that can be guessed is none.
#[tokio::test]
async fn beyond_loopback_a_token_is_a_must() {
    let folder = TempDir::new().unwrap();
    let host = Host::start(&plan(&folder, "0.0.0.0:0"), &[]).await.unwrap();
    assert!(host.log_tells("plain HTTP"), "{}", host.log());
    drop(host);
    fs::create_dir(folder.path().join("policies.d")).unwrap();
    let config = folder.path().join("sluice.toml");
    let with_token = plan(&folder, "0.0.0.0:0");
    let without = HostPlan { server: String::new(), ..with_token.clone() };
    fs::write(folder.path().join("admin.token"), "short\n").unwrap();
    for (plan, told) in [(without, "not a loopback address"), (with_token, "is shorter than 16 bytes")] {
        fs::write(&config, plan.toml()).unwrap();
        let ended =
            run_to_end(&["check-config", "--config", &config.display().to_string()], SOON).await.unwrap();
        assert_eq!(ended.code, Some(2), "{}", ended.stdout);
        assert!(ended.stderr.contains(told) && ended.stderr.contains("cure: "), "{}", ended.stderr);
    }
}
