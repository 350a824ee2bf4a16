#!/bin/bash
# PID 1 of a virtual machine node, or its service of systemd. Settings of the individual node are on the second disk, at
# /etc/node.
export PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/root
if [ $$ = 1 ]; then
  mount -t proc proc /proc
  mount -t sysfs sys /sys
  mkdir -p /dev/pts /dev/shm
  mount -t devpts devpts /dev/pts
  mount -t tmpfs shm /dev/shm
  mount -t tmpfs run /run
  mount -t tmpfs tmp /tmp
  mount -t cgroup2 cgroup /sys/fs/cgroup
  mount --make-rshared /
  # The root cgroup must be empty before controllers are enabled for its children.
  mkdir /sys/fs/cgroup/init /sys/fs/cgroup/node
  echo $$ >/sys/fs/cgroup/init/cgroup.procs
  for c in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$c" >/sys/fs/cgroup/cgroup.subtree_control; done
fi
mkdir -p /run/netns
mount -o ro /dev/vdb /etc/node
. /etc/node/node.env
hostname "$NODE"
cp /etc/node/cni.conflist /etc/cni/net.d/
for m in overlay bridge br_netfilter veth nf_tables nft_chain_nat nft_numgen nft_fib_inet nft_masq nft_reject_inet \
  nft_ct rdma_rxe ib_uverbs rdma_ucm; do modprobe $m; done
ip link set lo up
ip addr add "$IP/24" dev eth0
ip link set eth0 up
ip route add default via "$GATEWAY"
ip -batch /etc/node/routes
echo 1 >/proc/sys/net/ipv4/ip_forward
rdma link add rxe0 type rxe netdev eth0
# Accepts commands only from the machine that runs the guest.
nft add table inet guest
nft add chain inet guest input '{ type filter hook input priority 0; }'
nft add rule inet guest input tcp dport 7070 ip saddr != "$GATEWAY" drop
busybox nc -ll -p 7070 -e /usr/local/sbin/guest-command &
containerd -c /etc/node/containerd.toml >/var/log/containerd.log 2>&1 &
while ! [ -S /run/containerd/containerd.sock ]; do sleep 0.2; done
kubelet --config=/etc/node/kubelet.yaml --kubeconfig=/etc/node/kubelet.kubeconfig --hostname-override="$NODE" \
  --node-ip="$IP" >/var/log/kubelet.log 2>&1 &
kube-proxy --config=/etc/node/proxy.yaml >/var/log/kube-proxy.log 2>&1 &
read -r uptime _ </proc/uptime
echo "node started after $uptime s"
# As PID 1, bash reaps orphans.
while :; do sleep 60; done
