//! Guests that misbehave, one file each
