#!/bin/sh
# Refuses, and says why.
cat >/dev/null
echo "function 7 is odd" >&2
exit 1
