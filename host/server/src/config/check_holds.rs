//! Whether what engines hold can be fetched in the time that is configured.

use super::errors::Problems;
use super::limits;
use super::meant::{Config, PoolMode};
use super::written::Written;

/// A handle must be dispatched, on a connection that may take all its time, before the blocks are given away.
pub(super) fn leases_outlast_connecting(written: &Written, config: &Config, problems: &mut Problems<'_>) {
    let needed_ms = limits::HOLD_MARGIN_MS + config.server.connect_timeout_ms;
    for (written_pool, pool) in written.pools.iter().zip(&config.pools) {
        let field = written_pool.kv_lease_ms.as_ref().or(written.server.connect_timeout_ms.as_ref());
        if let Some(field) = field
            && pool.mode.splits()
            && pool.kv_lease_ms <= needed_ms
        {
            let what = format!(
                "kv_lease_ms ({}) of pool {:?} is over before a decode worker is connected: connect_timeout_ms ({}) and \
                 a margin of {} ms come first",
                pool.kv_lease_ms,
                pool.name,
                config.server.connect_timeout_ms,
                limits::HOLD_MARGIN_MS
            );
            let cure = match pool.mode {
                PoolMode::HostManaged => "raise kv_lease_ms, or lower connect_timeout_ms",
                _ => {
                    "start the engines with a longer kv_lease_duration and say so here, or lower connect_timeout_ms"
                }
            };
            problems.at(field.span(), what, cure);
        }
    }
}

/// A turn's blocks must be usable for some time, or keeping them is for nothing.
pub(super) fn turns_can_be_fetched(written: &Written, config: &Config, problems: &mut Problems<'_>) {
    let connect_ms = config.server.connect_timeout_ms;
    let needed_ms = limits::HOLD_MARGIN_MS + limits::DECLINED_BEFORE_END_MS + connect_ms;
    for (written_pool, pool) in written.pools.iter().zip(&config.pools) {
        let field = written_pool.decoder_ttl_ms.as_ref().or(written.server.connect_timeout_ms.as_ref());
        if let Some(field) = field
            && pool.mode == PoolMode::Bidirectional
            && pool.decoder_ttl_ms <= needed_ms
        {
            let what = format!(
                "decoder_ttl_ms ({}) of pool {:?} leaves no time to use what is kept: connect_timeout_ms ({connect_ms}), \
                 a margin of {} ms, and the last {} ms, in which prefill engines fetch no more, come off it",
                pool.decoder_ttl_ms,
                pool.name,
                limits::HOLD_MARGIN_MS,
                limits::DECLINED_BEFORE_END_MS
            );
            let cure = "start the decode engines with a longer decoder_kv_blocks_ttl and say so here";
            problems.at(field.span(), what, cure);
        }
    }
}
