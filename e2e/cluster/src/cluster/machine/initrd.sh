#!/bin/busybox sh
# Loads the modules that the root disk needs, and switches to it.
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
for m in /mods/*.ko; do insmod "$m"; done
init=/sbin/init.node
mkdir -p /proc && mount -t proc proc /proc
if grep -qw systemd /proc/cmdline; then init="/lib/systemd/systemd --unit=node.service"; fi
umount /proc
mount -t ext4 -o noatime /dev/vda /newroot && mount --move /dev /newroot/dev && exec switch_root /newroot $init
