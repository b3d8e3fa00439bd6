//! Every bound of an exchange, with its reason.

/// Engines attached at a time, those that are leaving included: far more than one host has accelerators.
pub const MAX_ENGINES: usize = 256;

/// Commands that wait for the thread. Some hundred bytes each; more than a thread that is well leaves for 10 ms.
pub const MAX_COMMANDS: usize = 16_384;

/// Commands that are obeyed before copies and deadlines have their turn again.
pub const MAX_COMMANDS_PER_STEP: usize = 1_024;

/// Receives that wait for an endpoint between two engines to be closed: those of one engine that has as many open as it
/// may. One more is refused to its engine, which then computes.
pub const MAX_WAITING: usize = 8_192;

/// Until an engine that has not answered is asked again, in milliseconds: five times as long as a consumer waits.
pub const ASK_AGAIN_MS: u64 = 1_000;

/// Events that wait for one engine. Whoever leaves so many unread is no longer listening.
pub const MAX_ENGINE_EVENTS: usize = 65_536;

/// Messages between engines that wait. One more is dropped, which the protocol outlives: consumers ask again.
pub const MAX_MESSAGES: usize = 65_536;

/// What is delivered to the machines before commands and copies have their turn again.
pub const MAX_DELIVERIES_PER_STEP: usize = 16_384;

/// The longest rest of the thread, in milliseconds. Each command and each completion ends a rest; this bounds only
/// what an injected clock that was moved by hand would be seen late by.
pub const MAX_REST_MS: u64 = 1_000;

/// Until an endpoint that still has a copy under way is closed again, in milliseconds: some slices of a copy thread.
pub const CLOSE_AGAIN_MS: u64 = 1;

/// How long a stop may take, in milliseconds: what is being copied is some slices of 512 KiB, a thousandth of this.
pub const STOP_MS: u64 = 2_000;
