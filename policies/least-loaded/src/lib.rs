//! least-loaded
