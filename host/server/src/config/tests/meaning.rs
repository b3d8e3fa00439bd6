//! What good configurations mean.

use std::path::{Path, PathBuf};

use sluice_core::facts::Role;

use crate::config::meant::worker_id;
use crate::config::{BUILTIN, Config, PolicyCache, PoolMode, Tls, UpstreamTls, UrlError, WorkerUrl, parse};

const POOL: &str = "
[[pool]]
name = 'llama'
model = 'meta-llama/Llama-3.1-8B-Instruct'
mode = 'pull'
[[pool.worker]]
name = 'p0'
role = 'prefill'
url = 'http://10.0.0.1:8100'
[[pool.worker]]
name = 'd0'
role = 'decode'
url = 'http://Decode-0.example:8200/'
can_prefill = true
zone = 3
[[pool.worker]]
name = 'u0'
role = 'unified'
url = 'http://[::1]'
";

fn good(path: &str, text: &str) -> Config {
    parse(Path::new(path), text).unwrap_or_else(|fault| panic!("{fault}"))
}

#[test]
fn a_pool_means_what_it_says() {
    let config = good("sluice.toml", POOL);
    let pool = &config.pools[0];
    assert_eq!((pool.name.as_str(), pool.mode), ("llama", PoolMode::Pull));
    let seen: Vec<_> = pool
        .workers
        .iter()
        .map(|worker| {
            (worker.role, worker.url.authority.as_str(), worker.can_prefill, worker.zone, worker.line)
        })
        .collect();
    assert_eq!(
        seen,
        [
            (Role::Prefill, "10.0.0.1:8100", false, 0, 6),
            (Role::Decode, "decode-0.example:8200", true, 3, 10),
            (Role::Unified, "[::1]:80", false, 0, 16),
        ]
    );
}

#[test]
fn where_compiled_policies_are_kept() {
    let cache = |key: &str| good("/etc/sluice/sluice.toml", &format!("[policy]\n{key}\n{POOL}")).policy.cache;
    assert_eq!(cache(""), PolicyCache::Usual);
    assert_eq!(cache("cache_dir = 'off'"), PolicyCache::Off);
    assert_eq!(cache("cache_dir = './off'"), PolicyCache::In(PathBuf::from("/etc/sluice/./off")));
    assert_eq!(cache("cache_dir = '/var/cache/x'"), PolicyCache::In(PathBuf::from("/var/cache/x")));
}

#[test]
fn sections_may_be_left_out() {
    let config = good("sluice.toml", POOL);
    assert_eq!(config.policy.default, BUILTIN);
    assert!(config.server.admin_listen.ip().is_loopback());
    assert!(config.policy.wall_bound_ms >= config.policy.cpu_budget_ms);
}

#[test]
fn the_policy_folder_starts_from_the_file() {
    for (path, folder, expected) in [
        ("sluice.toml", "policies.d", "policies.d"),
        ("/etc/sluice/sluice.toml", "policies.d", "/etc/sluice/policies.d"),
        ("conf/sluice.toml", "../p", "conf/../p"),
        ("conf/sluice.toml", "/srv/p", "/srv/p"),
    ] {
        let config = good(path, &format!("[policy]\nfolder = '{folder}'\n{POOL}"));
        assert_eq!(config.policy.folder, PathBuf::from(expected));
    }
}

#[test]
fn certificates_start_from_the_file() {
    let text =
        "[server]\ntls_cert_file = 'c.pem'\ntls_key_file = '/k.pem'\n[upstream]\nca_file = 'tls/ca.pem'\n";
    let config = good("/etc/sluice.toml", &format!("{text}{POOL}"));
    let tls = Tls { cert_file: "/etc/c.pem".into(), key_file: "/k.pem".into() };
    assert_eq!(config.server.tls, Some(tls));
    assert_eq!(config.upstream, UpstreamTls { ca_file: Some("/etc/tls/ca.pem".into()), client: None });
    assert_eq!(good("/etc/sluice.toml", POOL).upstream, UpstreamTls::default());
}

#[test]
fn labels_are_lower_case() {
    let config = good("sluice.toml", &format!("[policy]\nlabels = ['X-Team', 'x-trace']\n{POOL}"));
    assert_eq!(config.policy.labels, ["x-team", "x-trace"]);
}

#[test]
fn listeners_may_share_a_port_on_different_addresses_or_leave_it_to_the_system() {
    for (listen, admin) in [
        ("10.0.0.1:8000", "127.0.0.1:8000"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("0.0.0.0:8000", "127.0.0.1:8001"),
        ("127.0.0.1:8000", "[::1]:8000"),
    ] {
        let server = format!("[server]\nlisten = '{listen}'\nadmin_listen = '{admin}'\n");
        assert_eq!(good("sluice.toml", &(server + POOL)).server.listen.to_string(), listen);
    }
}

#[test]
fn bounds_are_inside() {
    for written in
        ["kv_lease_ms = 3001", "kv_lease_ms = 86_400_000", "block_tokens = 0x10", "max_model_len = 1"]
    {
        good("sluice.toml", &POOL.replace("mode = 'pull'", &format!("mode = 'pull'\n{written}")));
    }
}

#[test]
fn ids_are_fnv_1a_of_the_names() {
    assert_eq!(worker_id("llama", "p0"), 0xab57_5d55_0eab_6863);
    assert_ne!(worker_id("ab", "c"), worker_id("a", "bc"));
    let config = good("sluice.toml", POOL);
    let moved = good("sluice.toml", &POOL.replace("10.0.0.1:8100", "10.0.0.2:9000"));
    assert_eq!(config.pools[0].workers[0].id, worker_id("llama", "p0"));
    assert_eq!(config.pools[0].workers[0].id, moved.pools[0].workers[0].id);
}

#[test]
fn addresses() {
    let parsed = |text: &str| WorkerUrl::parse(text).map(|url| (url.host, url.port, url.authority));
    let url = |host: &str, port, authority: &str| Ok((host.to_owned(), port, authority.to_owned()));
    assert_eq!(parsed("http://h:1"), url("h", 1, "h:1"));
    assert_eq!(parsed("HTTP://Big.Name"), url("big.name", 80, "big.name:80"));
    assert_eq!(parsed("http://[2001:DB8::0:1]:65535/"), url("2001:db8::1", 65535, "[2001:db8::1]:65535"));
    assert_eq!(parsed("http://vllm_0.pods.cluster.local:8000"), {
        url("vllm_0.pods.cluster.local", 8000, "vllm_0.pods.cluster.local:8000")
    });
    assert_eq!(parsed("https://h"), url("h", 443, "h:443"));
    assert_eq!(parsed("HTTPS://[::1]:8443"), url("::1", 8443, "[::1]:8443"));
    for (text, tls) in [("http://h:1", false), ("https://h:1", true)] {
        let url = WorkerUrl::parse(text).expect("valid");
        assert_eq!((url.tls, url.to_string().as_str()), (tls, text));
    }
    for bad in [
        "http://",
        "http://a..b",
        "http://-a",
        "http://a b",
        "http://10.1",
        "http://256.0.0.1",
        "http://[::1",
    ] {
        assert!(matches!(parsed(bad), Err(UrlError::Host { .. })), "{bad}");
    }
    for bad in ["http://h:", "http://h:0", "http://h:65536", "http://h:+1", "http://h:x"] {
        assert!(matches!(parsed(bad), Err(UrlError::Port { .. })), "{bad}");
    }
    for bad in ["http://h/v1", "http://h/?a", "http://h?a", "http://h#a", "http://h//"] {
        assert_eq!(parsed(bad), Err(UrlError::Path { likely: "http://h:80".to_owned() }), "{bad}");
    }
    assert!(matches!(parsed("http://::1"), Err(UrlError::Brackets { .. })));
    assert!(matches!(parsed("http://0.0.0.0:8000"), Err(UrlError::Unspecified { .. })));
    assert!(matches!(parsed("tcp://h:1"), Err(UrlError::Scheme { .. })));
    assert_eq!(parsed("h:1"), Err(UrlError::NoScheme { likely: Some("http://h:1".to_owned()) }));
}
