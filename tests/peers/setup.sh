#!/usr/bin/env bash
# Installs the routers that the bench compares with into one folder, without root and without touching the system:
# vllm-router from the Python package index, nginx unpacked from the distribution's package.
#
#   tests/peers/setup.sh DIR
#
# One that cannot be had is said and left out: the bench goes on without it and counts its budgets as missed. Doing it
# again is free.
set -uo pipefail

VLLM_ROUTER=0.1.17
dir=$(realpath -m "${1:?usage: tests/peers/setup.sh DIR}")
say() { printf 'peers: %s\n' "$*" >&2; }
mkdir -p "$dir"
cd "$dir" || exit 1

vllm_router() {
  if venv/bin/python -c "import importlib.metadata as m; assert m.version('vllm-router') == '$VLLM_ROUTER'" 2>/dev/null; then
    return 0
  fi
  command -v python3 >/dev/null || { say 'python3 is missing (Debian: apt-get install python3 python3-venv)'; return 1; }
  say "vllm-router $VLLM_ROUTER into $dir/venv"
  rm -rf venv
  python3 -m venv venv || { say 'this python3 makes no virtual environments (Debian: apt-get install python3-venv)'; return 1; }
  venv/bin/python -m pip install --quiet --disable-pip-version-check "vllm-router==$VLLM_ROUTER"
}

nginx() {
  [ -x nginx/usr/sbin/nginx ] && nginx/usr/sbin/nginx -v 2>/dev/null && return 0
  rm -rf nginx
  mkdir -p nginx/usr/sbin
  # One that is installed will do.
  if type -P nginx >/dev/null; then ln -s "$(type -P nginx)" nginx/usr/sbin/nginx; return; fi
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { say 'install nginx with the package manager'; return 1; }
  say "nginx from the distribution into $dir/nginx"
  (
    cd nginx || exit 1
    apt-get download -qq nginx 2>/dev/null || { apt-get update -qq && apt-get download -qq nginx; } || exit 1
    dpkg-deb -x nginx_*.deb . && rm -f nginx_*.deb && usr/sbin/nginx -v
  ) || { rm -rf nginx; return 1; }
}

vllm_router || say "vllm-router $VLLM_ROUTER could not be installed: its budgets will be missed"
nginx || say 'nginx could not be installed: its budgets will be missed'
exit 0
