#!/bin/sh
# Gives something that is no compiled code.
cat >/dev/null
echo "no code"
