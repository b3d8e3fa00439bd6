//! Its name is longer than a header takes.

sluice_guests::describes_itself!(name: "x".repeat(65));
