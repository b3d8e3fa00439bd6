#!/usr/bin/env bash
# Installs NIXL into a virtual environment of its own (340 MB), for `make bench-transfer-peers`.
#
#   tests/peers/nixl/setup.sh DIR
#
# Without its dependencies but numpy: torch and CUDA, 5 GB, are not needed to move host memory. Doing it again is free.
set -euo pipefail

NIXL=1.5.1
NUMPY=2.4.6
dir=$(realpath -m "${1:?usage: tests/peers/nixl/setup.sh DIR}")
say() { printf 'peers: %s\n' "$*" >&2; }

if "$dir/bin/python" -c "from importlib.metadata import version as v; assert (v('nixl-cu12'), v('numpy')) == ('$NIXL', '$NUMPY')" 2>/dev/null; then
  exit 0
fi
command -v python3 >/dev/null || { say 'python3 is missing (Debian: apt-get install python3 python3-venv)'; exit 1; }
# What is about to be removed must be one of ours.
[[ ! -e $dir || -f $dir/pyvenv.cfg ]] || { say "$dir holds something else; name a new folder"; exit 1; }
say "NIXL $NIXL into $dir"
rm -rf "$dir"
python3 -m venv "$dir" || { say 'this python3 makes no virtual environments (Debian: apt-get install python3-venv)'; exit 1; }
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "nixl-cu12==$NIXL" "numpy==$NUMPY"
