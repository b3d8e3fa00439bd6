//! What a request weighs on the workers it is sent to, and how the host's own bookings and an engine's
//! scraped figures make one picture.

/// What one request adds to a worker while it runs there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Requests.
    pub requests: u32,
    /// Tokens still to be prefilled.
    pub prefill_tokens: u32,
    /// Context of the decoding sequence.
    pub context_tokens: u32,
    /// KV blocks it will fill.
    pub kv_blocks: u32,
}

/// Of a request's token limit, how much is booked as KV up front: most answers end long before their limit, and
/// booking it whole would make a fleet look full.
const OUTPUT_TOKENS_BOOKED_AT_MOST: u32 = 256;

impl Share {
    /// A prefill leg: the uncached part of the prompt, and the blocks of all of it.
    pub fn prefill(prompt_tokens: u32, cached_tokens: u32, block_tokens: u32) -> Self {
        Self {
            requests: 1,
            prefill_tokens: prompt_tokens.saturating_sub(cached_tokens),
            context_tokens: 0,
            kv_blocks: prompt_tokens.div_ceil(block_tokens.max(1)),
        }
    }

    /// A decode leg whose prompt arrives as KV.
    pub fn decode(prompt_tokens: u32, max_output_tokens: u32, block_tokens: u32) -> Self {
        let tokens = prompt_tokens.saturating_add(max_output_tokens.min(OUTPUT_TOKENS_BOOKED_AT_MOST));
        Self {
            requests: 1,
            prefill_tokens: 0,
            context_tokens: prompt_tokens,
            kv_blocks: tokens.div_ceil(block_tokens.max(1)),
        }
    }

    /// A whole request on one worker.
    pub fn unified(
        prompt_tokens: u32,
        cached_tokens: u32,
        max_output_tokens: u32,
        block_tokens: u32,
    ) -> Self {
        Self {
            prefill_tokens: prompt_tokens.saturating_sub(cached_tokens),
            ..Self::decode(prompt_tokens, max_output_tokens, block_tokens)
        }
    }
}

/// What an engine said of itself at its last scrape, and what this host had booked on it at that moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scraped {
    /// Requests it ran.
    pub running: u32,
    /// Requests it had queued.
    pub waiting: u32,
    /// KV blocks it has.
    pub kv_blocks_total: u32,
    /// KV blocks free then.
    pub kv_blocks_free: u32,
    /// Requests this host had there then.
    pub booked_requests: u32,
    /// KV blocks this host had booked there then.
    pub booked_kv_blocks: u32,
}

/// Requests and blocks on one worker now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests.
    pub running: u32,
    /// Requests.
    pub waiting: u32,
    /// KV blocks.
    pub kv_blocks_free: u32,
}

/// Joins bookings (exact, of this moment, this host's alone) with a scrape (everybody's, some time old): what
/// the scrape saw beyond our own bookings of then is other clients' work, and is taken to go on.
pub fn load_now(scraped: &Scraped, booked_requests: u32, booked_kv_blocks: u32) -> Load {
    let foreign = scraped.running.saturating_add(scraped.waiting).saturating_sub(scraped.booked_requests);
    let requests = booked_requests.saturating_add(foreign);
    let waiting = scraped.waiting.min(requests);
    let booked_since = booked_kv_blocks.saturating_sub(scraped.booked_kv_blocks);
    let returned_since = scraped.booked_kv_blocks.saturating_sub(booked_kv_blocks);
    Load {
        running: requests - waiting,
        waiting,
        kv_blocks_free: scraped
            .kv_blocks_free
            .saturating_sub(booked_since)
            .saturating_add(returned_since)
            .min(scraped.kv_blocks_total),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_legs() {
        assert_eq!(
            Share::prefill(1_000, 960, 16),
            Share { requests: 1, prefill_tokens: 40, context_tokens: 0, kv_blocks: 63 }
        );
        assert_eq!(
            Share::decode(1_000, 4_096, 16),
            Share { requests: 1, prefill_tokens: 0, context_tokens: 1_000, kv_blocks: 79 }
        );
        assert_eq!(
            Share::unified(100, 400, 10, 16),
            Share { requests: 1, prefill_tokens: 0, context_tokens: 100, kv_blocks: 7 }
        );
        assert_eq!(Share::decode(u32::MAX, u32::MAX, 0).kv_blocks, u32::MAX);
    }

    #[test]
    fn bookings_and_scrapes_make_one_picture() {
        let scraped = Scraped {
            running: 5,
            waiting: 2,
            kv_blocks_total: 100,
            kv_blocks_free: 40,
            booked_requests: 3,
            booked_kv_blocks: 30,
        };
        // Four requests are other clients'. Ours of now replace ours of then.
        assert_eq!(load_now(&scraped, 3, 30), Load { running: 5, waiting: 2, kv_blocks_free: 40 });
        assert_eq!(load_now(&scraped, 6, 50), Load { running: 8, waiting: 2, kv_blocks_free: 20 });
        assert_eq!(load_now(&scraped, 0, 0), Load { running: 2, waiting: 2, kv_blocks_free: 70 });
        assert_eq!(load_now(&Scraped::default(), 2, 8), Load { running: 2, waiting: 0, kv_blocks_free: 0 });
        // An engine may say anything.
        let absurd = Scraped { running: u32::MAX, waiting: u32::MAX, ..Scraped::default() };
        assert_eq!(load_now(&absurd, 2, 8), Load { running: 0, waiting: u32::MAX, kv_blocks_free: 0 });
    }
}
