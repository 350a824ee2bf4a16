#!/bin/busybox sh
# Loads what the root disk needs, and goes there.
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
for m in /mods/*.ko; do insmod "$m"; done
mount -t ext4 -o noatime /dev/vda /newroot && mount --move /dev /newroot/dev && exec switch_root /newroot /sbin/init.node
