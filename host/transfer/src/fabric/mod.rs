//! What copies bytes from one memory to another.
