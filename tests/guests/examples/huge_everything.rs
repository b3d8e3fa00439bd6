//! Its description is longer than any answer may be.

sluice_guests::describes_itself!(
    name: "x".repeat(1 << 20), version: "x".repeat(1 << 20), about: "x".repeat(1 << 20)
);
