#!/bin/sh
# A program of another version.
echo "unknown command $1" >&2
exit 2
