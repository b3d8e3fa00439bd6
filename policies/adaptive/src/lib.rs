//! adaptive
