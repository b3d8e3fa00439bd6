//! Its version is longer than a header takes.

sluice_guests::describes_itself!(version: "x".repeat(65));
