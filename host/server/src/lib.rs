//! The Sluice host process
