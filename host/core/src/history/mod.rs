//! What of a conversation's KV a request can reuse: which conversation it continues, and what is proven of it.
//!
//! - [`scope`]: what conversations never cross; [`chain`]: digests over a request's history; [`lines`]: the
//!   conversation that a request continues where its client names none.
//! - [`tokens`]: sequences of tokens, and how far two of them are proven to be equal; [`guard`]: what of a holder's
//!   KV may be used for a prompt.
//!
//! What is held, until when, and who gets it, is told in [`crate::kept`].
//!
//! Digests only find. What they find may be wrong (history edited, answers resent without their reasoning, another
//! chat template), which costs time. Only equal token ids prove, and what is not proven is not used: the engines
//! do not compare, and would answer as if the prompt had been another.

mod canonical;
pub mod chain;
mod digest;
pub mod guard;
pub mod lines;
pub mod scope;
pub mod tokens;

pub use digest::Digest;
