#!/usr/bin/env bash
# Runs each fuzz target for a time, guided by coverage. An input that breaks a promise, or takes 5 s, ends the run and is
# kept; what was found of interest is kept as well, so that the next run goes on from there.
#
#   tests/fuzz/run.sh BINARY DIR SECONDS [TARGET...]
set -euo pipefail
binary=$(realpath "$1") dir=$(realpath -m "$2") seconds=$3
shift 3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(client_json upstream_json sse wasm settings verdicts link_wire)
for target in "${targets[@]}"; do
  mkdir -p "$dir/$target/corpus" "$dir/$target/found"
  seeds=("$here/seeds/$target")
  dictionary=$here/tokens.dict bytes=8192
  case $target in
    sse) seeds+=("$here/../cases/vllm_sse") ;;
    wasm)
      seeds+=("$here/../guests/wat" "$dir/../policies" "$dir/../guests")
      # As long as the largest policy.
      dictionary=$here/wasm.dict bytes=65536
      ;;
    settings) dictionary=$here/settings.dict ;;
    verdicts | link_wire) dictionary=$here/numbers.dict ;;
  esac
  printf 'fuzz %s for %s s\n' "$target" "$seconds"
  log=$dir/$target/log
  FUZZ_TARGET=$target "$binary" "$dir/$target/corpus" "${seeds[@]}" -dict="$dictionary" -max_len=$bytes -timeout=5 \
    -rss_limit_mb=2048 -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$dir/$target/found/" 2>"$log" || {
    grep -v '^#' "$log" | tail -40 >&2
    printf 'fuzz %s: a promise is broken by the input above; it is kept in %s\n' "$target" "$dir/$target/found" >&2
    exit 1
  }
  runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
  coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -1)
  printf 'fuzz %s: %s inputs, %s, nothing found\n' "$target" "$runs" "$coverage"
done
