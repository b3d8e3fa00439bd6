//! Every bound of the protocol, with its reason. Times are milliseconds.

pub use sluice_engine_sdk::wire::{MAX_BLOCKS, MAX_LAYERS};

/// Pairs of ranks of one transfer: 16 producing ranks that feed 16 others one to one, or 4 that feed 4 each.
pub const MAX_LINKS: usize = 16;

/// Producing processes of one transfer: a rank each, at most.
pub const MAX_SOURCES: usize = 16;

/// Rectangles of one region. Progress by chunks or by layers needs a handful; a region that is in more pieces than
/// this is a peer that means no good, and its transfer ends.
pub const MAX_RECTS: usize = 256;

/// Operations of one attempt that are posted and not yet over. Enough to keep a fabric busy, few enough that an abort
/// is soon through; what is ready beyond them waits in a region, which costs nothing.
pub const MAX_OPS_IN_FLIGHT: usize = 64;

// A registration's links have their place in the room beside its blocks.
const _: () = assert!(MAX_LINKS * 4 < 4096);

/// Bytes of one encoded message: a registration of [`MAX_BLOCKS`] blocks, with room for the rest of it.
pub const MAX_MESSAGE_BYTES: usize = MAX_BLOCKS * 12 + 4096;

/// Until something unanswered is first said again. Longer than a round trip and a queue in front of it.
pub const RESEND_MS: u64 = 200;

/// How often that wait is doubled: the longest is 3.2 s.
pub const RESEND_DOUBLINGS: u32 = 4;

/// How often an unanswered end of a READ is said again before the consumer lets go. The holder's lease ends it then.
pub const DONE_SENDS: u32 = 6;

/// How long a side waits for a peer's own word on writes (or reads) in flight before it closes the endpoint between them.
/// Not a deadline of quarantine: the blocks come back when the endpoint is closed, whenever that is.
pub const FENCE_PATIENCE_MS: u64 = 5_000;

/// How long an expired hold keeps its blocks for a reader that began in time: the time of a large read. After it the
/// blocks go, and the reader is refused its confirmation.
pub const READER_GRACE_MS: u64 = 2_000;

/// How long it is remembered up to which epoch an id is over. Longer than any message can be under way: a connection
/// that stands still for half of this must have been closed.
pub const CLOSED_KEEP_MS: u64 = 120_000;

/// The longest lease, and the longest that one attempt may take.
pub const MAX_WAIT_MS: u64 = 600_000;

/// How many things one engine's owner may hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Holds, ended ones whose blocks are still pinned included.
    pub holds: usize,
    /// Attempts of which this engine is the producer.
    pub sources: usize,
    /// Attempts of which this engine is the consumer, quarantined ones included.
    pub sinks: usize,
    /// Ids remembered as over.
    pub closed: usize,
}

impl Default for Limits {
    /// Eight thousand requests in flight, and a thousand a second that end and are remembered for [`CLOSED_KEEP_MS`].
    fn default() -> Self {
        Self { holds: 8_192, sources: 8_192, sinks: 8_192, closed: 131_072 }
    }
}
