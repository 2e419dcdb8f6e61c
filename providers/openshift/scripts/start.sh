# Starts slurmd in a pod; burstd/node/scripts/slurmd.sh hands over to this where it is. slurmctld must expect the node.
# $1: the node's name. Further arguments: options for slurmd, --conf-server among them.
#
# slurmd gets a copy of the cluster's configuration in which lines are replaced: the plug-ins for cgroups need rights
# that a pod lacks, and a device plug-in hands over GPUs of any numbers. Seen with Slurm 22.05, 24.11 and 26.05:
# - `slurmd -G --conf-server` asks slurmctld for the configuration, leaves it beside SlurmdSpoolDir with a link to it at
#   /run/slurm/conf, and registers nothing. With GPUs whose files are not there it waits 19 s before it gives up, having
#   the configuration.
# - A slurmd with a file of its own goes on with it after `scontrol reconfigure`. slurmctld says in its log that the
#   node's slurm.conf differs (DebugFlags=NO_CONF_HASH keeps it quiet).
# And where the pod does not run as root:
# - slurmctld gives the configuration to root and to SlurmUser only, and takes registrations from them only, whatever
#   SlurmdUser is: the pod must run as SlurmUser's uid.
# - That user must have a name here; the cluster's SlurmdSpoolDir must be his own, or not be there and its folder be
#   writable (slurmd does chmod on it).
# - `srun` from elsewhere runs as the pod's user, whoever asks; with 22.05 only where slurmctld's SlurmdUser is the same,
#   and then no more on nodes whose slurmd runs as root. A batch job of anybody else fails, as slurmstepd gives him its
#   folder and script, which only root may (chown: Operation not permitted); with $keeper, a library whose chown does
#   nothing, it runs as the pod's user, but cannot `srun` inside.
set -eu
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 022
room=/run/burstd
conf=$room/conf
keeper=/usr/lib/burstd/keepowner.so
name=$1
shift
fail() { echo "$*" >&2; exit 1; }
# For what is not this machine's fault: burstd/node/validation.py knows the number.
later() { echo "$*" >&2; exit 75; }
# The lines of standard input that say what went wrong, on one line.
why() {
    awk '/[Ff]atal|[Ee]rror|unrecogni[sz]ed|invalid/ { bad = bad $0 " " }
        { last = $0 }
        END { print substr(bad ? bad : last, 1, 300) }'
}
# As in burstd/node/scripts/slurmd.sh. An image for another user than root must have it.
[ -e /etc/burstd/task-prolog ] || { mkdir -p /etc/burstd && ln -s /bin/true /etc/burstd/task-prolog; } 2>/dev/null || :
[ ! -e "$room/environment" ] || . "$room/environment"
mkdir -p "$room"
lives() { read -r pid 2>/dev/null <"$room/slurmd.pid" && [ -d "/proc/$pid" ]; }
# Whether slurmctld still waits for the boot of a node whose slurmd is up: see burstd/node/scripts/slurmd.sh.
overlooked() {
    [ "$(($(date +%s) - $(cat "$room/slurmd.started")))" -ge 10 ] || return 1
    timeout 5 scontrol -o show node "$name" 2>/dev/null | grep -E -q 'State=[A-Z_+]*POWER(ING_UP|ED_DOWN)'
}

# One at a time: who asked for the last may have lost patience, and it goes on all the same. No user may hold the lock.
umask 077
exec 9>"$room/start.lock"
umask 022
flock -w 50 9 || fail "another start of slurmd takes more than 50 s"

# To be repeated: one that runs under this name is left alone, unless slurmctld does not count it.
if lives; then
    if [ -e "$room/slurmd.started" ] && [ "$(cat "$room/name")" = "$name" ] && ! overlooked; then exit 0; fi
    rm -f "$room/slurmd.started"
    kill "$pid" 2>/dev/null || true
    tries=200
    while lives; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "the slurmd that runs does not end within 20 s"
        sleep 0.1
    done
fi

server=
left=$#
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    case $word in
    --conf-server)
        server=$1
        shift
        left=$((left - 1))
        ;;
    --conf-server=*) server=${word#*=} ;;
    *) set -- "$@" "$word" ;;
    esac
done

# slurmd makes SlurmdSpoolDir, and no folder above it.
fetch() {
    slurmd -N "$name" --conf-server "$server" -G </dev/null >"$room/fetch.log" 2>&1 9>&- &
    fetching=$!
}

# Prints the folder of the configuration: that of slurmctld, or the image's.
source_of_conf() {
    if [ -z "$server" ]; then
        dirname "${SLURM_CONF:-/etc/slurm/slurm.conf}"
        return
    fi
    rm -f /run/slurm/conf
    fetch
    tries=300
    until [ -e /run/slurm/conf/slurm.conf ]; do
        tries=$((tries - 1))
        if grep -q 'Invalid user id' "$room/fetch.log" 2>/dev/null; then
            kill "$fetching" 2>/dev/null || true
            fail "slurmctld at $server wants nothing of uid $(id -u): a pod must run as root, or as SlurmUser's uid"
        fi
        if [ "$tries" -eq 0 ] || ! kill -0 "$fetching" 2>/dev/null; then
            spool=$(sed -n 's/.*mkdir(\(\/[^)]*\)): No such file or directory.*/\1/p' "$room/fetch.log" | tail -n 1)
            if [ -n "$spool" ] && [ ! -d "$spool" ] && mkdir -p "$spool"; then
                fetch
                continue
            fi
            kill "$fetching" 2>/dev/null || true
            later "slurmctld at $server gives no configuration to uid $(id -u): $(why <"$room/fetch.log")"
        fi
        sleep 0.1
    done
    # The other files come in the same moment; it only goes on where it waits for GPUs.
    tries=10
    while kill -0 "$fetching" 2>/dev/null && [ "$tries" -gt 0 ]; do
        tries=$((tries - 1))
        sleep 0.1
    done
    kill "$fetching" 2>/dev/null || true
    wait "$fetching" 2>/dev/null || true
    readlink -f /run/slurm/conf
}

# Prints the value of key $2 in the slurm.conf of folder $1.
value() { sed -n "s/^[[:space:]]*$2[[:space:]]*=[[:space:]]*\([^[:space:]#]*\).*/\1/Ip" "$1/slurm.conf" | tail -n 1; }

# Prints the lines that are put into the place of the cluster's.
lines() {
    printf '%s\n' "${BURSTD_SLURM_CONF:-}"
    # slurmd sees the host's CPUs and memory; those of the node's line in slurm.conf are right.
    given=$(value "$conf.new" SlurmdParameters)
    case $given in
    *config_overrides*) ;;
    *) echo "SlurmdParameters=${given:+$given,}config_overrides" ;;
    esac
    echo "SlurmdPidFile=$room/slurmd.pid"
    [ "$(id -u)" -ne 0 ] || return 0
    echo "SlurmdUser=$(id -un)"
    echo "SlurmdSpoolDir=$room/spool"
    echo "SlurmdLogFile=$room/slurmd.log"
}

# Replaces settings of the file $1 by those of standard input; a key that is given twice counts as a mistake in Slurm.
replace() {
    awk '
        function key(line) { sub(/=.*/, "", line); gsub(/[[:space:]]/, "", line); return tolower(line) }
        NR == FNR { if ($0 ~ /=/) { ours[key($0)] = 1; more[++count] = $0 } next }
        dropped { dropped = /\\$/; next }
        /=/ && key($0) in ours { dropped = /\\$/; next }
        { print }
        END { for (i = 1; i <= count; i++) print more[i] }
    ' - "$1" >"$1.new"
    mv -f "$1.new" "$1"
}

# GPUs by the numbers that gres.conf counts with, whichever the device plug-in has handed over: as links, in their order.
number_gpus() {
    [ "${BURSTD_GPUS:-0}" -gt 0 ] && [ -e "$conf.new/gres.conf" ] || return 0
    ! grep -q -i '^[^#]*AutoDetect=[^o]' "$conf.new/gres.conf" || return 0
    rm -rf "$room/gpu"
    mkdir -p "$room/gpu"
    index=0
    for device in $(ls /dev | grep -x 'nvidia[0-9][0-9]*' | sort -k 1.7n); do
        ln -s "/dev/$device" "$room/gpu/nvidia$index"
        index=$((index + 1))
    done
    [ "$index" -eq 0 ] || sed -i "s,/dev/nvidia\([0-9[]\),$room/gpu/nvidia\1,g" "$conf.new/gres.conf"
}

# A pod that is smaller than its node's line would be filled with more than it has.
compare() {
    line=$(SLURM_CONF=$conf/slurm.conf timeout 10 scontrol -o show node "$name" 2>/dev/null) || return 0
    for pair in "CPUTot ${BURSTD_CPUS:-} CPUs" "RealMemory ${BURSTD_MEMORY_MIB:-} MiB"; do
        set -- $pair
        [ "$#" -eq 3 ] || continue
        wants=$(echo "$line" | sed -n "s/.* $1=\([0-9]*\).*/\1/p")
        [ "${wants:-0}" -le "$2" ] || fail "$name has $wants $3 in slurm.conf, and this pod $2: give it a larger size"
    done
}

folder=$(source_of_conf)
[ -e "$folder/slurm.conf" ] || fail "there is no slurm.conf in $folder, and no slurmctld to ask was named"
rm -rf "$conf.new"
mkdir -p "$conf.new"
cp -RL "$folder"/. "$conf.new/"
chmod -R u+w "$conf.new"
lines >"$room/lines"
replace "$conf.new/slurm.conf" <"$room/lines"
if [ -n "${BURSTD_SLURM_CONF:-}" ]; then
    # No cgroups: 22.05 has no such plug-in, but there version 1's does nothing as long as it is not used.
    plugin=disabled
    case $(slurmd -V) in *" 22."*) plugin=cgroup/v1 ;; esac
    echo "CgroupPlugin=$plugin" >"$conf.new/cgroup.conf"
fi
number_gpus
rm -rf "$conf"
mv "$conf.new" "$conf"
# Where programs of Slurm look that are started in the pod.
mkdir -p /run/slurm
ln -sfn "$conf" /run/slurm/conf
compare

spool=$(value "$conf" SlurmdSpoolDir)
log=$(value "$conf" SlurmdLogFile)
filled() { echo "$1" | sed "s,%n,$name,g; s,%h,$(uname -n),g"; }
mkdir -p "$(filled "${spool:-/var/spool/slurmd}")"
if [ -n "$log" ]; then
    mkdir -p "$(dirname "$(filled "$log")")"
    filled "$log" >"$room/log"
fi
cd /
if [ "$(id -u)" -ne 0 ] && [ -e "$keeper" ]; then
    LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$keeper
    export LD_PRELOAD
fi
if ! slurmd -N "$name" -f "$conf/slurm.conf" "$@" -b </dev/null >"$room/slurmd.out" 2>&1 9>&-; then
    # Its last words may be in its log only.
    [ ! -s "$room/log" ] || tail -n 5 "$(cat "$room/log")" >>"$room/slurmd.out" || :
    fail "slurmd does not start: $(why <"$room/slurmd.out")"
fi
# From 24.11 on it returns before its daemon has said who it is.
tries=100
until lives; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || fail "slurmd started, and is gone: $(tail -n 5 "$(cat "$room/log")" 2>/dev/null | why)"
    sleep 0.1
done
echo "$name" >"$room/name"
date +%s >"$room/slurmd.started"
