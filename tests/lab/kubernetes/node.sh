#!/bin/sh
# Makes a node of the box that it runs in: its network a bridge for pods, containerd with its images, the kubelet.
#   node.sh NAME ADDRESS SUBNET FIRST-POD LAST-POD GATEWAY CPUS CGROUP [GPU...]
# Programs are in /opt/kubernetes, what names the node to the API server in /etc/kubernetes, images in /run/node.
set -eu
name=$1 address=$2 subnet=$3 first=$4 last=$5 gateway=$6 cpus=$7 cgroup=$8
tree=/sys/fs/cgroup
hierarchies=$(cut -d: -f2 /proc/self/cgroup | grep .) || {
  echo "this machine has no control groups of version 1, and the lab's kubelet needs them" >&2
  exit 1
}

# A cgroup hierarchy for each controller (or several in one), all with one root: the whole machine's, or our own.
mount_hierarchies() {
  for options in $hierarchies; do
    mkdir -p "$tree/${options#name=}"
    mount -t cgroup -o "$options" cgroup "$tree/${options#name=}"
  done
}

if [ -z "${BURSTD_INSIDE:-}" ]; then
  mount -t tmpfs cgroup "$tree"
  mount_hierarchies
  for hierarchy in "$tree"/*; do
    mkdir -p "$hierarchy/$cgroup"
    for file in cpuset.cpus cpuset.mems; do
      # Nothing may run in a new one before it is told where.
      [ ! -e "$hierarchy/$file" ] || cat "$hierarchy/$file" >"$hierarchy/$cgroup/$file"
    done
    echo $$ >"$hierarchy/$cgroup/cgroup.procs"
    umount "$hierarchy"
  done
  export BURSTD_INSIDE=1
  exec unshare --cgroup "$0" "$@"
fi
mount_hierarchies

# The pods' bridge takes the box's place in the lab's network, so that pods are there too.
hardware=$(cat /sys/class/net/eth0/address)
ip link add br0 address "$hardware" type bridge
ip addr flush dev eth0
ip link set eth0 master br0
ip addr add "$address/${subnet#*/}" dev br0
ip link set br0 up

# What the kubelet would set on the whole machine, it finds set.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=/run/node/sys/${setting%=*}
  mkdir -p "${file%/*}"
  echo "${setting#*=}" >"$file"
  mount --bind "$file" "/proc/sys/${setting%=*}"
done
ln -sf null /dev/kmsg

# As many processors as a node of a cluster has: pods ask for them and are given their shares of those that there are.
mount -t tmpfs cpus /sys/devices/system/cpu
[ ! -d /sys/devices/system/node ] || mount -t tmpfs nodes /sys/devices/system/node
number=0
while [ "$number" -lt "$cpus" ]; do
  topology=/sys/devices/system/cpu/cpu$number/topology
  mkdir -p "$topology"
  echo "$number" >"$topology/core_id"
  echo 0 >"$topology/physical_package_id"
  number=$((number + 1))
done
echo "0-$((cpus - 1))" >/sys/devices/system/cpu/online

cd /run/node
mkdir -p cni
cat >cni/10-lab.conflist <<END
{"cniVersion": "0.4.0", "name": "lab", "plugins": [{"type": "bridge", "bridge": "br0", "ipam": {
  "type": "host-local", "dataDir": "/run/node/addresses", "routes": [{"dst": "0.0.0.0/0"}],
  "ranges": [[{"subnet": "$subnet", "rangeStart": "$first", "rangeEnd": "$last", "gateway": "$gateway"}]]}}]}
END
# The runtime may not be able to make itself less likely to be killed for memory.
cat >containerd.toml <<'END'
version = 2
root = "/run/node/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/run/node/cni"
END
setsid containerd --config containerd.toml >/var/log/containerd.log 2>&1 </dev/null &
tries=0
until ctr version >/dev/null 2>&1; do
  tries=$((tries + 1))
  [ "$tries" -lt 600 ] || { tail -3 /var/log/containerd.log >&2; exit 1; }
  sleep 0.05
done

ctr -n k8s.io images import images.tar >/dev/null
# An image's layer with this file in it is unpacked already, in a folder of its name.
for mark in containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/.burstd-layer-*; do
  mount --bind "/images/${mark##*/.burstd-layer-}" "${mark%/*}"
done

mkdir -p /var/lib/kubelet
setsid /opt/kubernetes/kubelet --kubeconfig=/etc/kubernetes/kubeconfig --hostname-override="$name" \
  --node-ip="$address" --client-ca-file=/etc/kubernetes/ca.crt --tls-cert-file=/etc/kubernetes/kubelet.crt \
  --tls-private-key-file=/etc/kubernetes/kubelet.key --anonymous-auth=false --authorization-mode=AlwaysAllow \
  --container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
  --root-dir=/var/lib/kubelet --cert-dir=/run/node/pki --volume-plugin-dir=/run/node/volume-plugins \
  --cgroup-driver=cgroupfs --cgroups-per-qos=false --enforce-node-allocatable= --fail-swap-on=false \
  --eviction-hard= --image-gc-high-threshold=100 --node-status-update-frequency=1s --kube-api-qps=100 \
  --kube-api-burst=200 --event-qps=0 --registry-qps=0 --serialize-image-pulls=false --max-pods=60 --healthz-port=0 \
  --read-only-port=0 --make-iptables-util-chains=false >/var/log/kubelet.log 2>&1 </dev/null &
kubelet=$!

sockets=/var/lib/kubelet/device-plugins
shift 8
if [ $# -gt 0 ]; then
  # As NVIDIA's are numbered, those of a node that are left to pods.
  for number in "$@"; do mknod -m 666 "/dev/nvidia$number" c 195 "$number"; done
  until [ -S "$sockets/kubelet.sock" ]; do
    kill -0 "$kubelet" 2>/dev/null || { tail -3 /var/log/kubelet.log >&2; exit 1; }
    sleep 0.05
  done
  setsid python3 /opt/device_plugin.py "$sockets" nvidia.com/gpu /dev/nvidia "$@" >/var/log/device_plugin.log 2>&1 \
    </dev/null &
fi
