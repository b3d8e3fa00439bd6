//! The example configurations are the reference: they parse, and name every key with its default.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config::written::SHAPES;
use crate::config::{Config, PoolMode, load, parse};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/configs").join(name)
}

fn loaded(name: &str) -> Config {
    load(&example(name)).unwrap_or_else(|fault| panic!("{fault}"))
}

#[test]
fn examples_parse() {
    assert_eq!(loaded("vllm-pull.toml").pools[0].mode, PoolMode::Pull);
    assert_eq!(loaded("vllm-bidirectional.toml").pools[0].mode, PoolMode::Bidirectional);
    assert_eq!(loaded("host-managed.toml").pools[0].mode, PoolMode::HostManaged);
    assert_eq!(loaded("vllm-unified.toml").pools[0].mode, PoolMode::Unified);
}

#[test]
fn the_reference_explains_every_key() {
    let text = fs::read_to_string(example("vllm-pull.toml")).unwrap();
    for key in SHAPES[1..].iter().flat_map(|shape| shape.keys).filter(|key| **key != "worker") {
        let stands = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} = "));
        assert!(text.lines().any(stands), "{key} does not stand in vllm-pull.toml");
    }
}

#[test]
fn the_host_managed_example_writes_the_defaults() {
    let (example, reference) = (loaded("host-managed.toml"), loaded("vllm-pull.toml"));
    let (mut said, silent) = (example.transfer.clone(), reference.transfer);
    assert!(said.line.take().is_some());
    assert_eq!(said, silent);
    let engines: Vec<_> = example.pools[0].workers.iter().map(|worker| worker.engine.as_deref()).collect();
    assert_eq!(engines, [Some("prefill-0"), Some("decode-0")]);
}

#[test]
fn the_reference_writes_the_defaults() {
    let reference = loaded("vllm-pull.toml");
    let least = "[[pool]]\nname = 'p'\nmodel = 'm'\nmode = 'unified'\n\
                 [[pool.worker]]\nname = 'w'\nrole = 'unified'\nurl = 'http://h:1'\n";
    let least = parse(&example("vllm-pull.toml"), least).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(reference.server, least.server);
    assert_eq!(reference.sessions, least.sessions);
    assert_eq!(reference.policy, least.policy);
    assert_eq!(reference.telemetry, least.telemetry);
    assert_eq!(reference.tenants, least.tenants);
    let keys = |config: &Config| {
        let pool = &config.pools[0];
        (
            pool.block_tokens,
            pool.kv_bytes_per_token,
            pool.kv_lease_ms,
            pool.decoder_ttl_ms,
            pool.max_model_len,
        )
    };
    assert_eq!(keys(&reference), keys(&least));
}
