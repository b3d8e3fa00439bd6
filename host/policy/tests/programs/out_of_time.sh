#!/bin/sh
# Ends as by the bound on CPU time.
cat >/dev/null
kill -XCPU $$
