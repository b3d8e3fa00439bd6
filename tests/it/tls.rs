//! TLS from client to engine and back; certificates that are none are told with the worker's name, and renewed ones are
//! taken while the host runs.

use std::time::Duration;

use serde_json::{Value, json};
use sluice_harness::{Canned, Host, HostPlan, MockEngine, Mode, until};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::SOON;
use crate::certificates::Authority;

/// A certificate is looked for every 10 s.
const RENEWED_WITHIN: Duration = Duration::from_secs(40);

fn address(host: &Host) -> String {
    host.client().base().trim_start_matches("https://").to_owned()
}

fn request(body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A host with a certificate of its own, in front of one engine.
async fn host(folder: &TempDir, engine: &MockEngine, upstream: &str, more: &str) -> Host {
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
    let file = |name: &str| folder.path().join(name).display().to_string();
    plan.server = format!(
        "tls_cert_file = \"{}\"\ntls_key_file = \"{}\"\n{more}\n",
        file("host.pem"),
        file("host-key.pem")
    );
    plan.upstream = upstream.into();
    Host::start(&plan, &[]).await.unwrap()
}

#[tokio::test]
async fn all_the_way_and_back() {
    let folder = TempDir::new().unwrap();
    let (ours, workers) = (Authority::new("ours"), Authority::new("workers"));
    ours.signs("127.0.0.1").write(folder.path(), "host");
    ours.signs("the-host").write(folder.path(), "client");
    std::fs::write(folder.path().join("ca.pem"), workers.pem()).unwrap();
    // The engine asks for a certificate: the host shows its own.
    let acceptor = workers.signs("127.0.0.1").acceptor(Some(&ours));
    let chunk = r#"{"id":"c","choices":[{"index":0,"text":" a","finish_reason":"length"}]}"#;
    let engine = MockEngine::start_at("127.0.0.1:0", Some(acceptor), move |request| {
        if request.body["stream"] == true {
            Canned::events(&[chunk, "[DONE]"], sluice_harness::mock_engine::End::Whole)
        } else {
            Canned::completed()
        }
    });
    let engine = engine.await.unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let upstream = format!(
        "ca_file = \"{}\"\nclient_cert_file = \"{}\"\nclient_key_file = \"{}\"\n",
        file("ca.pem"),
        file("client.pem"),
        file("client-key.pem")
    );
    let host = host(&folder, &engine, &upstream, "").await;
    host.until_ready().await.unwrap();

    for stream in [false, true] {
        let mut client = ours.connect(&address(&host)).await.unwrap();
        assert_eq!(client.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let asked = json!({"model": "emulated", "prompt": "hi", "stream": stream});
        client.write_all(request(&asked).as_bytes()).await.unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
        assert!(got.contains(if stream { "data: [DONE]" } else { "two words" }), "{got}");
    }
    assert_eq!(engine.seen().len(), 2);
    // A refusal is told over TLS as it is without.
    let mut client = ours.connect(&address(&host)).await.unwrap();
    client.write_all(b"nonsense\r\n\r\n").await.unwrap();
    let mut got = String::new();
    client.read_to_string(&mut got).await.unwrap();
    assert!(got.contains("\"malformed_http\""), "{got}");
}

/// A worker whose certificate is not to be believed takes no work, and the fleet says why.
#[tokio::test]
async fn workers_certificates_are_checked() {
    let folder = TempDir::new().unwrap();
    let (known, unknown) = (Authority::new("known"), Authority::new("unknown"));
    std::fs::write(folder.path().join("ca.pem"), known.pem()).unwrap();
    let upstream = format!("ca_file = \"{}\"", folder.path().join("ca.pem").display());
    for (pair, why) in [
        (known.signs_until("127.0.0.1", 2_020), "expired"),
        (unknown.signs("127.0.0.1"), "UnknownIssuer"),
        (known.signs("elsewhere.example"), "not valid for name"),
    ] {
        let engine =
            MockEngine::start_at("127.0.0.1:0", Some(pair.acceptor(None)), |_| Canned::completed()).await;
        let engine = engine.unwrap();
        let mut plan = HostPlan::new(Mode::Unified).worker("unified", engine.url());
        plan.upstream.clone_from(&upstream);
        let host = Host::start(&plan, &[]).await.unwrap();
        let told = until("the host to say why", SOON, async || {
            host.worker("unified-0").await.ok()?["last_error"].as_str().map(str::to_owned)
        })
        .await
        .unwrap();
        assert!(told.contains(engine.url()) && told.contains("TLS") && told.contains(why), "{told}");
        let asked = json!({"model": "emulated", "prompt": "hi"});
        assert_eq!(host.client().post("/v1/completions", &asked).await.unwrap().status, 503, "{why}");
        assert_eq!(engine.seen().len(), 0, "{why}");
    }
}

/// An engine without TLS behind an https url is told as that.
#[tokio::test]
async fn a_worker_without_tls_is_told() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("ca.pem"), Authority::new("any").pem()).unwrap();
    let engine = MockEngine::well_behaved().await.unwrap();
    let url = engine.url().replace("http://", "https://");
    let mut plan = HostPlan::new(Mode::Unified).worker("unified", &url);
    plan.upstream = format!("ca_file = \"{}\"", folder.path().join("ca.pem").display());
    let host = Host::start(&plan, &[]).await.unwrap();
    until("the host to say why", SOON, async || {
        let told = host.worker("unified-0").await.ok()?["last_error"].as_str().map(str::to_owned)?;
        (told.contains(&url) && told.contains("TLS")).then_some(())
    })
    .await
    .unwrap();
}

/// A bad new pair leaves the old certificate in force, loudly; a good one is shown from the next handshake on.
#[tokio::test]
async fn renewed_certificates_are_taken() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new("ours");
    let (old, new) = (authority.signs("127.0.0.1"), authority.signs("127.0.0.1"));
    old.write(folder.path(), "host");
    let engine = MockEngine::well_behaved().await.unwrap();
    let host = host(&folder, &engine, "", "").await;
    let shown = async || {
        let client = authority.connect(&address(&host)).await.unwrap();
        client.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let counted = async |outcome: &str| {
        until(&format!("a renewal to be {outcome}"), RENEWED_WITHIN, async || {
            let metrics = host.admin().metrics().await.ok()?;
            (metrics.sum("sluice_tls_renewals_total", &[("outcome", outcome)]) == 1.0).then_some(())
        })
        .await
        .unwrap();
    };
    assert_eq!(&shown().await, old.der());
    std::fs::write(folder.path().join("host-key.pem"), "no key").unwrap();
    counted("refused").await;
    assert!(host.log_tells("the old certificate stays in force"));
    assert_eq!(&shown().await, old.der());
    new.write(folder.path(), "host");
    counted("taken").await;
    assert_eq!(&shown().await, new.der());
}

/// Who speaks no TLS, or does not speak at all, holds no connection for long.
#[tokio::test]
async fn a_handshake_has_its_time() {
    let folder = TempDir::new().unwrap();
    Authority::new("ours").signs("127.0.0.1").write(folder.path(), "host");
    let engine = MockEngine::well_behaved().await.unwrap();
    let host = host(&folder, &engine, "", "header_timeout_ms = 500").await;
    for said in ["", "GET /health HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut client = TcpStream::connect(address(&host)).await.unwrap();
        client.write_all(said.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        let closed = timeout(SOON, client.read_to_end(&mut got)).await;
        assert!(closed.is_ok(), "the host closes after {said:?}");
    }
    let failures = host.admin().metrics().await.unwrap().sum("sluice_tls_handshake_failures_total", &[]);
    assert_eq!(failures, 2.0);
}

/// A host that cannot serve as it is told does not start.
#[tokio::test]
async fn unusable_files_are_told_at_the_start() {
    let folder = TempDir::new().unwrap();
    Authority::new("ours").signs("127.0.0.1").write(folder.path(), "host");
    let file = |name: &str| folder.path().join(name).display().to_string();
    for (server, upstream, why) in [
        (format!("tls_cert_file = \"{}\"\ntls_key_file = \"/none.pem\"", file("host.pem")), "", "/none.pem"),
        (
            format!("tls_cert_file = \"{0}\"\ntls_key_file = \"{0}\"", file("host.pem")),
            "",
            "holds no private key",
        ),
        (String::new(), "ca_file = \"/none.pem\"", "/none.pem cannot be read"),
    ] {
        let mut plan = HostPlan::new(Mode::Unified).worker("unified", "http://127.0.0.1:1");
        plan.server.clone_from(&server);
        plan.upstream = upstream.into();
        let told = Host::start(&plan, &[]).await.expect_err("it must not start").to_string();
        assert!(told.contains(why) && told.contains("cure:"), "{server}{upstream}: {told}");
    }
}
