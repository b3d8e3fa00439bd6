//! What a transfer and a hold go through, as pure state machines.
