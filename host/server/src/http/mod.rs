//! What HTTP and JSON need, apart from any decision: bodies, errors, top-level members, SSE events.

pub mod body;
pub mod body_budget;
pub mod content_type;
pub mod error;
pub mod internal;
pub mod json_scan;
pub mod members;
pub mod refusal;
pub mod segments;
pub mod sse;
pub mod telling;
pub mod token_ids;
