//! Which bytes of one engine are which bytes of another.
