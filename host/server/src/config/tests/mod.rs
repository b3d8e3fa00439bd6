//! Tests of the configuration.

mod cases;
mod examples;
mod meaning;
mod mutations;
