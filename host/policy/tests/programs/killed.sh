#!/bin/sh
# Ends as a process that the system kills for its memory, before it has read anything.
kill -KILL $$
