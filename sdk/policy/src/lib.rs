//! Write routing policies for Sluice
