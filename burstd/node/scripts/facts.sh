# Says what this machine is, as KEY=VALUE lines; a key may come several times. Reads only.
# $1: pattern of the GPUs' device files. Further arguments: users whose numbers are wanted.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
say() { printf '%s=%s\n' "$1" "$2"; }
mib() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print int($2 / 1024), int($4 / 1024) }'; }
devices=$1
shift

say clock "$(date +%s.%N)"
say uid "$(id -u)"
say hostname "$(uname -n)"
say kernel "$(uname -r)"
[ -r /etc/os-release ] && say os "$(. /etc/os-release; echo "${ID:-} ${VERSION_ID:-${VERSION_CODENAME:-}}")"
say cpus "$(getconf _NPROCESSORS_ONLN)"
say memory_mib "$(awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo)"
say tmp_mib "$(set -- $(mib /tmp); echo "${1:-}")"
say free_mib "$(set -- $(mib /var); echo "${2:-}")"
for user; do
    say user "$user $(id -u "$user" 2>/dev/null || echo -) $(id -g "$user" 2>/dev/null || echo -)"
done
for device in $devices; do
    [ -c "$device" ] && say gpu_device "$device"
done
if command -v nvidia-smi >/dev/null; then
    # A GPU that has fallen off the bus makes nvidia-smi fail, or hang.
    timeout 20 nvidia-smi -L 2>&1 | while read -r line; do say gpu_name "$line"; done
fi
command -v slurmd >/dev/null && say slurmd "$(slurmd -V 2>&1)"
command -v munged >/dev/null && command -v unmunge >/dev/null && say munge "$(munged -V 2>&1)"
command -v sshfs >/dev/null && say sshfs 1
[ -c /dev/fuse ] && say fuse 1
[ -d /run/systemd/system ] && say systemd 1
say end 1
