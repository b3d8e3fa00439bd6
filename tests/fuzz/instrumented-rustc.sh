#!/usr/bin/env bash
# Compiles this workspace's own crates with coverage counters for libFuzzer, on a stable compiler. As cargo's
# RUSTC_WORKSPACE_WRAPPER it leaves dependencies as they are built anyway.
exec "$@" --cfg fuzzing -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1 \
  -Cpasses=sancov-module \
  -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares
