#!/bin/busybox sh
# PID 1 of a guest that runs one command: the script `run` of the shared folder `job`.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in /mods/*.ko; do insmod "$m"; done
share() { mount -t 9p -o "ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose" "$1" "$2"; }
# The folders of Debian are in memory, so that there is a place for every mount.
mount -t tmpfs root /newroot
mkdir -p /debian /newroot/tmp /newroot/run /newroot/proc /newroot/sys /newroot/dev /newroot/job /newroot/root
share debian /debian
for folder in usr etc var; do
  mkdir /newroot/$folder
  mount --bind /debian/$folder /newroot/$folder
done
for link in bin lib lib64 sbin; do ln -s usr/$link /newroot/$link; done
share job /newroot/job
while read -r tag folder; do
  mkdir -p "/newroot$folder"
  share "$tag" "/newroot$folder"
done </newroot/job/shares
mount --move /proc /newroot/proc
mount --move /sys /newroot/sys
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount --move /dev /newroot/dev
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
in_debian() { chroot /newroot "$@"; }
in_debian ip link set lo up
# Devices need no network card: each one is on an interface of its own that sends nowhere.
for n in 0 1; do
  in_debian ip link add d$n type dummy
  in_debian ip addr add 10.9.$n.1/24 dev d$n
  in_debian ip link set d$n up
  in_debian rdma link add rxe$n type rxe netdev d$n
done
echo "guest-output"
in_debian /bin/bash /job/run 2>&1
echo "guest-status=$?"
poweroff -f
