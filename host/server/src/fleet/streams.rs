//! Whether an engine's streams say what KV it keeps of their turns.

use sluice_core::facts::Role;

use super::{Pool, Worker};
use crate::config::{PoolMode, StreamsBy};
use crate::telemetry::Telemetry;

/// The first version of vLLM whose streams do.
const TELLS_IN_STREAMS_FROM: (u32, u32) = (0, 33);

/// Whether an engine of this version does. Of what cannot be read nothing is expected.
pub fn tell_of_kept_kv(version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').split(|letter: char| !letter.is_ascii_digit());
    let mut next = || parts.next().and_then(|part| part.parse::<u32>().ok());
    let (major, minor) = (next(), next());
    major.zip(minor).is_some_and(|version| version >= TELLS_IN_STREAMS_FROM)
}

/// Says, once, of a decode engine whose streamed turns cannot be used again.
pub(super) fn tell(pool: &Pool, worker: &Worker, version: &str, telemetry: &Telemetry) {
    let config = &pool.config;
    let is_concerned = config.mode == PoolMode::Bidirectional
        && worker.role == Role::Decode
        && config.streams == StreamsBy::Engine
        && !tell_of_kept_kv(version);
    if is_concerned {
        telemetry.warn_once(&format!("streams {} {}", config.name, worker.name), || {
            format!(
                "worker {:?} of pool {:?} is version {version}, whose streams do not say what KV it keeps: no later turn \
                 uses a streamed one, and each keeps its blocks until decoder_kv_blocks_ttl is over. Versions from {}.{} on say it; streams = {:?} has this host make streams of whole \
                 answers",
                worker.name,
                config.name,
                TELLS_IN_STREAMS_FROM.0,
                TELLS_IN_STREAMS_FROM.1,
                StreamsBy::Host.name(),
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart() {
        for (version, expected) in [
            ("0.32.0", false),
            ("0.32.1rc1.dev40+gabcdef", false),
            ("0.33.0", true),
            ("0.33.0rc1", true),
            ("v0.40", true),
            ("1.0.0", true),
            ("0", false),
            ("dev", false),
            ("", false),
        ] {
            assert_eq!(tell_of_kept_kv(version), expected, "{version}");
        }
    }
}
