//! A model of an inference engine: tokens, paged KV cache, time
