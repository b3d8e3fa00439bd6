#!/bin/sh
# Ends as by the bound on what it writes.
cat >/dev/null
kill -XFSZ $$
