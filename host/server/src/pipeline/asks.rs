//! What a decode leg is asked beyond what its client asks: what the next turn of the conversation needs to use this one.

use super::call::Call;
use crate::config::PoolMode;
use crate::fleet::Worker;
use crate::request::Asks;
use crate::telemetry::labels::Fallback;

/// The first version whose streams name the KV that the engine keeps, and which takes prompts as token ids beside their text.
const TELLS_IN_STREAMS_FROM: (u32, u32) = (0, 33);

/// What a leg to this worker is asked. Nothing where no later turn could make use of it.
pub(super) fn of(call: &Call<'_>, worker: &Worker) -> Asks {
    let config = &call.pool.config;
    if config.mode != PoolMode::Bidirectional || call.chain.is_none() || call.request.unsplittable.is_some() {
        return Asks::default();
    }
    let version = worker.seen().version.clone();
    if call.request.streams && !version.as_deref().is_some_and(tells_in_streams) {
        call.pool.metrics.fallback(Fallback::StreamTellsNothing);
        call.app.telemetry.warn_once(&format!("streams {} {}", config.name, worker.name), || {
            format!(
                "worker {:?} of pool {:?} is vLLM {}, whose streams do not say what KV it keeps: turns that are \
                 streamed are not used again (whole answers are); {}.{} and later say it",
                worker.name,
                config.name,
                version.as_deref().unwrap_or("of an unknown version"),
                TELLS_IN_STREAMS_FROM.0,
                TELLS_IN_STREAMS_FROM.1
            )
        });
        return Asks::default();
    }
    Asks { token_ids: true, unstreamed: false }
}

/// Whether a leg to this worker may carry the prompt's token ids, so that it is not tokenised again, and perhaps otherwise.
pub(super) fn takes_ids(worker: &Worker) -> bool {
    worker.seen().version.as_deref().is_some_and(tells_in_streams)
}

/// Whether an engine of this version says in a stream what KV it keeps. Of what cannot be read nothing is expected.
fn tells_in_streams(version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').split(|letter: char| !letter.is_ascii_digit());
    let mut next = || parts.next().and_then(|part| part.parse::<u32>().ok());
    let (major, minor) = (next(), next());
    major.zip(minor).is_some_and(|version| version >= TELLS_IN_STREAMS_FROM)
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
            assert_eq!(tells_in_streams(version), expected, "{version}");
        }
    }
}
