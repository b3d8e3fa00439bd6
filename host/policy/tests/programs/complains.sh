#!/bin/sh
# Complains without end.
cat >/dev/null
yes complaint | head -c 1000000 >&2
exit 1
