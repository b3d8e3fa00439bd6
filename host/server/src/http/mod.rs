//! What HTTP and JSON need, apart from any decision: bodies, errors, top-level members, SSE events.

pub mod body;
pub mod error;
pub mod json_scan;
pub mod members;
pub mod segments;
pub mod sse;
