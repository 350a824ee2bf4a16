#!/bin/bash
# One connection, one command: its first line is the command, the rest is the command's input.
# The answer is what it prints, and a last line with its exit status.
export PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/root
read -r command
bash -c "$command" 2>&1
status=$?
echo
echo "status=$status"
