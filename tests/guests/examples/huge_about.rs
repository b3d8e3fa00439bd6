//! Its sentence about itself is longer than a line of a table.

sluice_guests::describes_itself!(about: "x".repeat(513));
