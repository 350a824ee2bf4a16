# Prints what a pod uses, from cgroups of version 1 or 2: charges.sh POD_UID CONTAINER_ID.
# One line per figure: its name, then bytes or microseconds. The reader adds figures of the same name.
for group in $(find /sys/fs/cgroup -type d -name "pod$1"); do
  for file in memory.current memory.usage_in_bytes; do
    [ -f "$group/$file" ] && echo "memory $(cat "$group/$file")"
  done
  for file in hugetlb.2MB.current hugetlb.2MB.usage_in_bytes; do
    [ -f "$group/$file" ] && echo "huge $(cat "$group/$file")"
  done
  [ -f "$group/cpuacct.usage" ] && echo "processor $(($(cat "$group/cpuacct.usage") / 1000))"
  [ -f "$group/cpu.stat" ] && sed -n 's/^usage_usec /processor /p' "$group/cpu.stat"
done
for pid in $(find /sys/fs/cgroup -type d -name "$2" -exec cat {}/cgroup.procs ';' | sort -u); do
  # A process that has ended uses nothing.
  awk '$1 == "RssAnon:" || $1 == "RssFile:" { private += $2 } $1 == "VmRSS:" { resident += $2 }
    END { print "private", private * 1024; print "resident", resident * 1024 }' "/proc/$pid/status" 2>/dev/null
done
exit 0
