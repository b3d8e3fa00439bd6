#!/usr/bin/env bash
# Builds the JavaScript guest into one file. Its toolchain (two npm packages, 38 MB) goes into DIR-tools. Nothing is done
# where recipe, source and interface are those of the last time.
#
#   tests/guests/javascript/build.sh DIR      -> DIR/javascript.wasm
set -euo pipefail
dir=$(realpath -m "${1:?usage: tests/guests/javascript/build.sh DIR}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wit=$(realpath "$here/../../../sdk/policy/wit")
tools=$dir-tools/javascript stamp=$dir-tools/javascript/stamp
digest=$(cat "$here"/* "$wit"/* | sha256sum | cut -d' ' -f1)
[ -f "$dir/javascript.wasm" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ] && exit 0
command -v node >/dev/null || bash "$here/../../setup/debian-package.sh" nodejs
command -v npm >/dev/null || bash "$here/../../setup/debian-package.sh" npm
mkdir -p "$tools"
cp "$here/package.json" "$here/package-lock.json" "$tools"
cd "$tools"
npm ci --silent --no-audit --no-fund
node "$here/componentize.mjs" "$wit" "$dir/javascript.wasm"
printf '%s' "$digest" >"$stamp"
