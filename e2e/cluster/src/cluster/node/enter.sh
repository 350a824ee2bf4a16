#!/bin/bash
# Holds a node's namespaces: runs in its network, mount and UTS namespace.
# enter.sh NODE NODE_FOLDER CNI_PLUGINS
set -eu
node=$1 folder=$2 plugins=$3
hostname "$node"
mount --make-rprivate /
# The node's own sysfs, for its network devices, with the machine's cgroups mounted into it.
mkdir -p "$folder/cgroup"
mount --rbind /sys/fs/cgroup "$folder/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$folder/cgroup" /sys/fs/cgroup
umount -l "$folder/cgroup"
bind() { mount --bind "$folder/$1" "$2"; }
bind kubelet /var/lib/kubelet
bind containerd /var/lib/containerd
bind mooncake /var/lib/mooncake
bind cni /etc/cni/net.d
bind cni-state /var/lib/cni
bind cdi /etc/cdi
bind log /var/log
bind etc /etc/node
mount --bind "$plugins" /opt/cni/bin
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
# As on nodes where pods see new mounts of the node.
mount --make-rshared /
touch /run/ready
exec sleep infinity
