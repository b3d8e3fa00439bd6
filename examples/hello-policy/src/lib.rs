//! The smallest policy
