#!/bin/bash
# Runs one command per connection: the first line is the command, the rest is its input.
# Answers with its output and a last line with its exit status.
export PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/root
read -r command
bash -c "$command" 2>&1
status=$?
echo
echo "status=$status"
