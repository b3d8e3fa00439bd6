//! What an emulator is started with.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use sluice_sim::engine::EngineConfigError;
use sluice_sim::model::ModelError;
use sluice_sim::{EngineConfig, Model, TimeModel};
use thiserror::Error;

use crate::kv::MAX_BLOCK_BYTES;

/// What the emulator is used for. It names itself so; the API is the same for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Prefills, and hands KV over.
    Prefill,
    /// Decodes from KV that a prefill engine made.
    Decode,
    /// Does both alone.
    Unified,
}

impl Role {
    /// The name used in configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Unified => "unified",
        }
    }
}

/// How KV moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Connector {
    /// Not at all: `kv_transfer_params` are ignored.
    None,
    /// The reader reads (vLLM's `NixlConnector`).
    Pull,
    /// The router's host moves it, over the KV link: see `--kv-link`.
    Host,
}

/// Whose manners the wire has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Wire {
    /// vLLM 0.32: no `kv_transfer_params` in streams.
    #[value(name = "0.32")]
    V0_32,
    /// vLLM 0.33: `kv_transfer_params` in the chunk that carries `finish_reason`; takes a pre-tokenised prompt.
    #[value(name = "0.33")]
    V0_33,
}

impl Wire {
    /// What `GET /version` says.
    pub fn version(self) -> &'static str {
        match self {
            Self::V0_32 => "0.32.0",
            Self::V0_33 => "0.33.0",
        }
    }
}

/// What to do when KV cannot be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LoadFailure {
    /// Answer 500.
    Fail,
    /// Compute the prompt here.
    Recompute,
}

/// Faults built in on purpose, to prove that tests would see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Read remote KV, count it, and leave the blocks as they are.
    pub skip_kv_copy: bool,
}

/// All settings of an emulator.
#[derive(Debug, Clone, PartialEq)]
pub struct EmulatorConfig {
    /// What it is used for.
    pub role: Role,
    /// HTTP address; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// KV socket address; port 0 lets the system choose.
    pub kv_listen: SocketAddr,
    /// Served model name.
    pub model: String,
    /// Stands for the model's weights: engines that share KV need the same.
    pub seed: u64,
    /// KV bytes a token, a multiple of 64. Real models have 1,000 times more.
    pub kv_bytes_per_token: usize,
    /// Tokens a KV block.
    pub block_tokens: usize,
    /// KV blocks, one of which is set aside, as in vLLM.
    pub blocks: usize,
    /// Prompt and answer together, in tokens.
    pub max_model_len: usize,
    /// Sequences in the batch.
    pub max_num_seqs: usize,
    /// Tokens one step computes.
    pub max_step_tokens: usize,
    /// Whether full blocks are found again by later prompts.
    pub prefix_caching: bool,
    /// How long things take.
    pub time: TimeModel,
    /// How KV moves.
    pub connector: Connector,
    /// Socket of the host that moves KV, for [`Connector::Host`].
    pub kv_link: Option<PathBuf>,
    /// The engine's name for that host, as the router's file calls its worker; by default role and HTTP port, such as
    /// `decode-8200`.
    pub name: Option<String>,
    /// Whose manners the wire has.
    pub wire: Wire,
    /// Address of the KV socket that answers name, where it is not the one listened on (vLLM's
    /// VLLM_NIXL_SIDE_CHANNEL_HOST, which may be set wrong).
    pub kv_advertise: Option<SocketAddr>,
    /// How long a prefill leg's blocks are kept for their reader.
    pub kv_lease_ms: u64,
    /// Whether a decode engine gives KV back to prefill.
    pub bidirectional: bool,
    /// With fewer tokens to read back than this, prefill computes them.
    pub kv_recompute_threshold: usize,
    /// How long a decode engine keeps the blocks of a turn.
    pub decoder_ttl_ms: u64,
    /// What to do when KV cannot be fetched.
    pub load_failure: LoadFailure,
    /// Answer 500 where a real engine would die or hang.
    pub soft_failures: bool,
    /// Whether `usage` tells cached tokens (vLLM's `--enable-prompt-tokens-details`).
    pub report_cached_tokens: bool,
    /// Whether answers carry `x-request-id` (vLLM's `--enable-request-id-headers`).
    pub request_id_headers: bool,
    /// Faults built in on purpose.
    pub faults: Faults,
}

impl Default for EmulatorConfig {
    fn default() -> Self {
        let engine = EngineConfig::default();
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            role: Role::Unified,
            listen: loopback,
            kv_listen: loopback,
            model: "emulated".into(),
            seed: 0,
            kv_bytes_per_token: engine.model.kv_bytes_per_token(),
            block_tokens: engine.block_tokens,
            blocks: engine.blocks,
            max_model_len: engine.max_model_tokens,
            max_num_seqs: engine.max_sequences,
            max_step_tokens: engine.max_step_tokens,
            prefix_caching: engine.prefix_caching,
            time: engine.time,
            connector: Connector::Pull,
            kv_link: None,
            name: None,
            wire: Wire::V0_32,
            kv_advertise: None,
            kv_lease_ms: 30_000,
            bidirectional: false,
            kv_recompute_threshold: 64,
            decoder_ttl_ms: 480_000,
            load_failure: LoadFailure::Fail,
            soft_failures: false,
            report_cached_tokens: true,
            request_id_headers: true,
            faults: Faults::default(),
        }
    }
}

/// Why settings cannot be used.
#[derive(Debug, Error, PartialEq)]
pub enum InvalidConfig {
    /// See [`ModelError`].
    #[error(transparent)]
    Model(#[from] ModelError),
    /// See [`EngineConfigError`].
    #[error(transparent)]
    Engine(#[from] EngineConfigError),
    /// A block must fit a frame of the KV socket.
    #[error(
        "a KV block of {0} bytes (block_tokens x kv_bytes_per_token) is above {MAX_BLOCK_BYTES}: lower one of the two"
    )]
    BlockTooLarge(usize),
    /// The host is found by its socket.
    #[error("connector `host` needs the socket of the host: give kv_link a path")]
    NoKvLink,
    /// Two ways to move KV.
    #[error("kv_link is for connector `host`, not for `{0}`: leave one of the two out")]
    KvLinkUnused(&'static str),
    /// What a host takes for a name.
    #[error(
        "name is {0:?}: use 1 to {MAX_NAME_BYTES} visible ASCII characters, as the worker's in the router's file"
    )]
    Name(String),
}

/// Bytes of an engine's name: the host's bound.
const MAX_NAME_BYTES: usize = 64;

impl EmulatorConfig {
    /// The engine's part of the settings, checked as far as it can be without building one.
    pub fn engine(&self) -> Result<EngineConfig, InvalidConfig> {
        let model = Model::new(self.seed, self.kv_bytes_per_token)?;
        match (self.connector, &self.kv_link) {
            (Connector::Host, None) => return Err(InvalidConfig::NoKvLink),
            (Connector::None, Some(_)) => return Err(InvalidConfig::KvLinkUnused("none")),
            (Connector::Pull, Some(_)) => return Err(InvalidConfig::KvLinkUnused("pull")),
            _ => {}
        }
        let is_name = |name: &String| {
            (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if let Some(name) = self.name.as_ref().filter(|name| !is_name(name)) {
            return Err(InvalidConfig::Name(name.clone()));
        }
        let block_bytes = self.block_tokens.saturating_mul(self.kv_bytes_per_token);
        if block_bytes > MAX_BLOCK_BYTES {
            return Err(InvalidConfig::BlockTooLarge(block_bytes));
        }
        Ok(EngineConfig {
            model,
            block_tokens: self.block_tokens,
            blocks: self.blocks,
            max_sequences: self.max_num_seqs,
            max_step_tokens: self.max_step_tokens,
            max_model_tokens: self.max_model_len,
            prefix_caching: self.prefix_caching,
            time: self.time,
        })
    }
}
