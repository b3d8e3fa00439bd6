#!/bin/sh
# Could not do its work.
echo "no room for an engine" >&2
exit 75
