#!/bin/sh
# Does nothing for longer than any test waits.
exec sleep 1000
