//! An engine emulator that speaks vLLM's wire
