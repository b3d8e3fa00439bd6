//! KV that engines read from each other, over the KV socket.

use std::time::Duration;

use sluice_sim::engine::{Finish, Load, Loaded, SequenceId};

use super::Driver;
use crate::client::{Delivery, Source};
use crate::config::LoadFailure;
use crate::kv::{self, MAX_BLOCK_BYTES, ReadError};
use crate::transfer_params::RemoteKv;

/// How long vLLM waits for an engine that does not answer.
const HANDSHAKE_LIMIT_MS: f64 = 5_000.0;

/// vLLM does not begin to read what its holder lets go of so soon.
const DECLINED_BEFORE_END_S: f64 = 5.0;

/// What became of work on the KV socket.
pub(super) enum Moved {
    Read { sequence: SequenceId, began: Duration, result: Result<Vec<u8>, ReadError> },
    Released(Result<bool, ReadError>),
}

impl Driver {
    pub(super) fn read(&mut self, blocks: &[u32]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for block in blocks {
            bytes.extend(self.engine.read_block(*block)?);
            if bytes.len() > MAX_BLOCK_BYTES {
                return None;
            }
        }
        self.transfers.served_bytes += bytes.len() as u64;
        Some(bytes)
    }

    fn block_bytes(&self) -> usize {
        self.config.block_tokens * self.config.kv_bytes_per_token
    }

    fn handshake_limit(&self) -> Duration {
        self.config.time.scaled_ms(HANDSHAKE_LIMIT_MS)
    }

    pub(super) fn release_remote(&mut self, remote: RemoteKv) {
        let (block_bytes, limit) = (self.block_bytes(), self.handshake_limit());
        self.moving.spawn(async move { Moved::Released(kv::release(&remote, block_bytes, limit).await) });
    }

    /// Starts to fetch what an admitted sequence wants.
    pub(super) fn fetch(&mut self, load: Load) {
        let source = self.sinks.get_mut(&load.sequence).and_then(|sink| sink.source.take());
        let Some(Source::Known(remote)) = source else {
            // vLLM waits for ever when it was not told where to read.
            return;
        };
        if load.blocks.is_empty() {
            return self.release_remote(remote);
        }
        let began = self.clock.now();
        let reads_until_s = self.clock.machine_s(began) + DECLINED_BEFORE_END_S;
        if remote.expires_at_s.is_some_and(|end| end <= reads_until_s) {
            // The holder has let go, or is about to. With the policy `recompute` vLLM never comes back from this.
            if self.config.load_failure == LoadFailure::Fail {
                self.failed(load.sequence, "the hold has expired");
            }
            return;
        }
        // Both lists end at the same token; what is cached here need not be read.
        let Some(skip) = remote.blocks.len().checked_sub(load.blocks.len()) else {
            return self.failed(load.sequence, "fewer remote blocks than the prompt needs");
        };
        let block_bytes = self.block_bytes();
        let takes = self.config.time.transfer(load.blocks.len() * block_bytes);
        let not_before = self.clock.instant(self.link.book(began, takes));
        let limit = self.handshake_limit();
        self.moving.spawn(async move {
            let result =
                kv::read_blocks(&remote, &remote.blocks[skip..], block_bytes, limit, not_before).await;
            Moved::Read { sequence: load.sequence, began, result }
        });
    }

    pub(super) fn moved(&mut self, moved: Option<Moved>) {
        match moved {
            Some(Moved::Read { sequence, began, result: Ok(bytes) }) => {
                self.transfers.read_bytes.observe(bytes.len() as f64);
                self.transfers.read_s.observe(self.clock.now().saturating_sub(began).as_secs_f64());
                let content = match self.config.faults.skip_kv_copy {
                    true => Loaded::AsTheyAre,
                    false => Loaded::Bytes(&bytes),
                };
                self.engine.loaded(sequence, content);
            }
            Some(Moved::Read { sequence, result: Err(error), .. }) => {
                self.failed(sequence, &error.to_string())
            }
            Some(Moved::Released(Ok(freed))) => self.transfers.released_early += u64::from(freed),
            Some(Moved::Released(Err(error))) => tracing::warn!(%error, "the holder could not be told"),
            // A task ends without a result only when the emulator is being dropped.
            None => {}
        }
    }

    fn failed(&mut self, sequence: SequenceId, why: &str) {
        tracing::warn!(why, "KV could not be fetched");
        self.transfers.failed += 1;
        match self.config.load_failure {
            LoadFailure::Recompute => {
                self.engine.loaded(sequence, Loaded::Nothing);
            }
            LoadFailure::Fail => {
                self.engine.abort(sequence, Finish::Error);
                if let Some(sink) = self.sinks.remove(&sequence) {
                    let _ = sink.deliver.try_send(Delivery::Failed);
                }
            }
        }
    }
}
