#!/usr/bin/env bash
# Installs Debian packages that are missing, as root; otherwise says what to run.
set -euo pipefail
missing=()
for package in "$@"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
  echo "missing: ${missing[*]}. Install them with this system's package manager, then run again." >&2
  exit 1
fi
if [ "$(id -u)" != 0 ]; then
  echo "missing: ${missing[*]}. Run: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
apt-get update -q
apt-get install -q -y --no-install-recommends "${missing[@]}"
