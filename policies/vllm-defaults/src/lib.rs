//! vllm-defaults
