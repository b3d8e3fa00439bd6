//! The command line of `sluice emulate`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ArgAction;
use sluice_sim::TimeModel;

use crate::config::{Connector, EmulatorConfig, Faults, InvalidConfig, LoadFailure, Role, Wire};

/// Runs an engine emulator: vLLM's HTTP API over a made-up model with real KV blocks. It needs no GPU and no weights,
/// and what it answers has no meaning, but the answer is wrong whenever the KV is.
#[derive(Debug, Clone, clap::Args)]
pub struct EmulateArgs {
    /// What the engine is used for.
    #[arg(long, value_enum, default_value = "unified")]
    role: Role,
    /// HTTP address. Port 0 lets the system choose; the address is printed.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Address of the KV socket, over which other emulators read blocks. Port 0 lets the system choose.
    #[arg(long, default_value = "127.0.0.1:0")]
    kv_listen: SocketAddr,
    /// Served model name; requests for another get 404.
    #[arg(long, default_value = "emulated")]
    model: String,
    /// Stands for the model's weights. Engines that share KV need the same seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// KV bytes a token, a multiple of 64. Real models have about 1,000 times more; --transfer-bytes-per-s makes up.
    #[arg(long, default_value_t = 64)]
    kv_bytes_per_token: usize,
    /// Tokens a KV block.
    #[arg(long, default_value_t = 16)]
    block_tokens: usize,
    /// KV blocks. One is set aside; the others must hold at least --max-model-len tokens.
    #[arg(long, default_value_t = 4096)]
    blocks: usize,
    /// Longest prompt and answer together, in tokens.
    #[arg(long, default_value_t = 32_768)]
    max_model_len: usize,
    /// Sequences that decode together; others wait.
    #[arg(long, default_value_t = 64)]
    max_num_seqs: usize,
    /// Tokens one step computes; longer prompts take several steps, with decoding in between.
    #[arg(long, default_value_t = 2_048)]
    max_step_tokens: usize,
    /// Compute every prompt from its first token, as if nothing was cached.
    #[arg(long)]
    no_prefix_caching: bool,
    /// Prompt tokens computed per second.
    #[arg(long, default_value_t = TimeModel::default().prefill_tokens_per_s)]
    prefill_tokens_per_s: f64,
    /// What each prompt costs beside its tokens, however many of them are computed, in milliseconds.
    #[arg(long, default_value_t = TimeModel::default().prefill_base_ms)]
    prefill_base_ms: f64,
    /// One decode step, whatever the batch, in milliseconds.
    #[arg(long, default_value_t = TimeModel::default().decode_step_base_ms)]
    decode_step_base_ms: f64,
    /// What each sequence of the batch adds to a decode step, in milliseconds.
    #[arg(long, default_value_t = TimeModel::default().decode_step_per_sequence_ms)]
    decode_step_per_sequence_ms: f64,
    /// KV bytes read from another engine per second.
    #[arg(long, default_value_t = TimeModel::default().transfer_bytes_per_s)]
    transfer_bytes_per_s: f64,
    /// Multiplies all durations: 0.1 is ten times faster, 0 takes no time. Leases stay as they are.
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
    /// How KV moves: `pull` as vLLM's NixlConnector, `host` by the router's host on this node, or `none`. Without it,
    /// `host` with --kv-link and `pull` else.
    #[arg(long, value_enum)]
    connector: Option<Connector>,
    /// Socket of the host that moves KV. The engine attaches to it when it is there, gives it its KV memory, and does
    /// what requests say in `kv_transfer_params.sluice`. Without a host, or when KV does not come, it computes.
    #[arg(long, value_name = "PATH")]
    kv_link: Option<PathBuf>,
    /// The engine's name for that host: what the router's file calls its worker (`engine`, or else `name`). Without it,
    /// role and port of the HTTP address, such as decode-8200.
    #[arg(long)]
    name: Option<String>,
    /// Whose manners the wire has: vLLM 0.32 or 0.33.
    #[arg(long, value_enum, default_value = "0.32")]
    wire: Wire,
    /// Address of the KV socket that answers name, where it is not the one listened on. Readers go there.
    #[arg(long)]
    kv_advertise: Option<SocketAddr>,
    /// How long a prefill leg's blocks are kept for their reader, in milliseconds.
    #[arg(long, default_value_t = 30_000)]
    kv_lease_ms: u64,
    /// Let decode keep a turn's blocks and give them back to prefill. Set it on both sides.
    #[arg(long)]
    bidirectional: bool,
    /// With fewer tokens to read back than this, prefill computes them.
    #[arg(long, default_value_t = 64)]
    kv_recompute_threshold: usize,
    /// How long decode keeps a turn's blocks, in milliseconds.
    #[arg(long, default_value_t = 480_000)]
    decoder_ttl_ms: u64,
    /// What to do when KV cannot be fetched (--connector pull): answer 500, or compute the prompt here.
    #[arg(long, value_enum, default_value = "fail")]
    load_failure: LoadFailure,
    /// Answer 500 where a real engine would die or hang.
    #[arg(long)]
    soft_failures: bool,
    /// Whether `usage` tells cached tokens.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    report_cached_tokens: bool,
    /// A fault built in on purpose (--connector pull): read remote KV, but leave the blocks as they are. Answers must turn wrong.
    #[arg(long)]
    fault_skip_kv_copy: bool,
}

impl TryFrom<EmulateArgs> for EmulatorConfig {
    type Error = InvalidConfig;

    fn try_from(args: EmulateArgs) -> Result<Self, InvalidConfig> {
        let implied = if args.kv_link.is_some() { Connector::Host } else { Connector::Pull };
        let connector = args.connector.unwrap_or(implied);
        let config = Self {
            role: args.role,
            listen: args.listen,
            kv_listen: args.kv_listen,
            model: args.model,
            seed: args.seed,
            kv_bytes_per_token: args.kv_bytes_per_token,
            block_tokens: args.block_tokens,
            blocks: args.blocks,
            max_model_len: args.max_model_len,
            max_num_seqs: args.max_num_seqs,
            max_step_tokens: args.max_step_tokens,
            prefix_caching: !args.no_prefix_caching,
            time: TimeModel {
                prefill_tokens_per_s: args.prefill_tokens_per_s,
                prefill_base_ms: args.prefill_base_ms,
                decode_step_base_ms: args.decode_step_base_ms,
                decode_step_per_sequence_ms: args.decode_step_per_sequence_ms,
                transfer_bytes_per_s: args.transfer_bytes_per_s,
                time_scale: args.time_scale,
            },
            connector,
            kv_link: args.kv_link,
            name: args.name,
            wire: args.wire,
            kv_advertise: args.kv_advertise,
            kv_lease_ms: args.kv_lease_ms,
            bidirectional: args.bidirectional,
            kv_recompute_threshold: args.kv_recompute_threshold,
            decoder_ttl_ms: args.decoder_ttl_ms,
            load_failure: args.load_failure,
            soft_failures: args.soft_failures,
            report_cached_tokens: args.report_cached_tokens,
            request_id_headers: true,
            faults: Faults { skip_kv_copy: args.fault_skip_kv_copy },
        };
        config.engine()?.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        emulate: EmulateArgs,
    }

    fn parse(line: &str) -> Result<EmulatorConfig, String> {
        let words = std::iter::once("emulate").chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        cli.emulate.try_into().map_err(|error: InvalidConfig| error.to_string())
    }

    #[test]
    fn no_arguments_mean_the_defaults() {
        assert_eq!(parse(""), Ok(EmulatorConfig::default()));
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (line, expect) in [
            ("--kv-bytes-per-token 100", "kv_bytes_per_token is 100"),
            ("--blocks 100", "raise blocks or lower max_model_len"),
            ("--prefill-tokens-per-s 0", "prefill_tokens_per_s is 0"),
            ("--wire 0.31", "0.32, 0.33"),
            ("--block-tokens 4096 --kv-bytes-per-token 65536", "is above"),
            ("--connector host", "give kv_link a path"),
            ("--connector pull --kv-link kv.sock", "not for `pull`"),
            ("--kv-link kv.sock --name décode", "visible ASCII"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expect), "{line}: {error}");
        }
        assert_eq!(parse("--wire 0.33 --role decode").unwrap().wire, Wire::V0_33);
    }

    #[test]
    fn a_link_implies_its_connector() {
        let config = parse("--kv-link run/kv.sock --name decode-0").unwrap();
        assert_eq!((config.connector, config.name.as_deref()), (Connector::Host, Some("decode-0")));
        assert_eq!(config.kv_link, Some("run/kv.sock".into()));
    }
}
