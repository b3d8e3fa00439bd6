#!/bin/sh
# Ends as a compiler that panicked.
cat >/dev/null
echo "panicked at index 7" >&2
exit 101
