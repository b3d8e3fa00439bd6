//! What a node tells its host.

use std::io;

use super::engines::AttachedEngine;

/// Something to be logged and counted. Told by the thread of the engine's link, which waits until it is taken.
#[derive(Debug)]
pub enum NodeEvent {
    /// An engine is attached, with all its ranks.
    Attached(AttachedEngine),
    /// An engine that was attached is not any more: its holds are lost, what it was to receive has failed.
    Detached {
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
    /// A process was not let in, and was told why.
    Refused {
        /// Which, as the kernel says; 0 from another PID namespace.
        pid: u32,
        /// Whether it may come in later, without anybody's doing: it tries again.
        is_passing: bool,
        /// What, where and what to do.
        text: String,
    },
    /// An engine described a hold or a transfer that cannot be. It was told so, and computes.
    Invalid {
        /// Which.
        name: String,
        /// What is wrong.
        text: String,
    },
    /// The exchange has failed: nothing is moved any more, and engines compute. The host must be started anew.
    Stopped,
    /// The system lets no connections in. Told of the first of a row.
    NotAccepting(io::ErrorKind),
}
