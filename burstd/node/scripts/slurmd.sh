# Starts slurmd under a name. One that runs under this name already is left alone, unless slurmctld does not count it;
# one under another name is replaced.
# $1: the name. Further arguments: options for slurmd, words of [A-Za-z0-9_.,:/=@%+-] only.
set -eu
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 022
name=$1
# A pod has a way of its own.
if [ -r /burstd/start.sh ]; then exec sh /burstd/start.sh "$@"; fi
fail() { echo "$*" >&2; exit 1; }
# The lines of standard input that say what went wrong, on one line: what was fatal, which comes last, if anything was.
why() {
    awk '/[Ff]atal/ { fatal = fatal $0 " " }
        /[Ee]rror|unrecogni[sz]ed|invalid/ { bad = bad $0 " " }
        { last = $0 }
        END { said = fatal ? fatal : bad ? bad : last; print substr(said, length(said) > 300 ? length(said) - 299 : 1) }'
}
# Prints the process ids of slurmd (slurmstepd is another program).
slurmds() {
    for directory in /proc/[0-9]*; do
        { read -r program <"$directory/comm"; } 2>/dev/null || continue
        [ "$program" != slurmd ] || echo "${directory#/proc/}"
    done
}
# Whether a process was started under our name.
named() { tr '\0' '\n' <"/proc/$1/cmdline" 2>/dev/null | grep -x -A1 -e -N | grep -q -x -F -e "$name"; }
gone() { [ -z "$(slurmds)" ]; }
# Whether it takes connections.
listens() {
    ports=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == "0A" { print "socket:[" $10 "]" }')
    for pid in $(slurmds); do
        readlink "/proc/$pid"/fd/* 2>/dev/null | grep -q -x -F -e "$ports" && return
    done
    return 1
}
# The end of the log that slurm.conf names.
log_end() {
    for conf in /run/slurm/conf/slurm.conf "${SLURM_CONF:-/etc/slurm/slurm.conf}"; do
        file=$(sed -n 's/^[[:space:]]*SlurmdLogFile[[:space:]]*=[[:space:]]*\([^[:space:]#]*\).*/\1/Ip' "$conf" 2>/dev/null | tail -n 1)
        file=$(echo "$file" | sed "s,%n,$name,g; s,%h,$(uname -n),g")
        [ ! -s "$file" ] || { tail -n 5 "$file"; return; }
    done
}
age_s() {
    awk -v hz="$(getconf CLK_TCK)" 'NR == 1 { up = $1; next } { sub(/.*\) /, ""); print int(up - $20 / hz) }' \
        /proc/uptime "/proc/$1/stat" 2>/dev/null || echo 0
}
# Whether slurmctld still waits for the boot of a node whose slurmd is up: a slurmctld that was started again meanwhile
# counts the boot from then on, and takes no notice of a slurmd that says it booted before. Or it has powered the node
# down since slurmd has registered, and hears it no more. No job can be on the node.
overlooked() {
    [ "$(age_s "$1")" -ge 10 ] && timeout 5 scontrol -o show node "$name" 2>/dev/null | grep -E -q 'State=[A-Z_+]*POWER(ING_UP|ED_DOWN)'
}

others=
for pid in $(slurmds); do
    if named "$pid" && ! overlooked "$pid"; then exit 0; fi
    others="$others $pid"
done
with_systemd=
[ ! -d /run/systemd/system ] || with_systemd=1
if [ -n "$others" ]; then
    [ -z "$with_systemd" ] || systemctl stop slurmd || true
    kill $others 2>/dev/null || true
    tries=200
    until gone; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "the slurmd that runs does not end within 20 s"
        sleep 0.1
    done
fi

install -d -m 0755 /run/slurm /var/log/slurm /etc/burstd /run/burstd
# Where a pool limits GPU memory by MPS, slurm.conf names this TaskProlog for every node.
[ -e /etc/burstd/task-prolog ] || ln -sfn /bin/true /etc/burstd/task-prolog
if [ -n "$with_systemd" ]; then
    # -b tells slurmctld that the node has booted since it asked for it, though the kernel may be older than that. A
    # later restart of slurmd must not say so again: slurmctld would believe that the jobs on the node are lost.
    printf 'SLURMD_OPTIONS="-N %s"\n' "$*" >/etc/burstd/slurmd.env
    printf 'SLURMD_OPTIONS="-N %s -b"\n' "$*" >/run/burstd/slurmd-first.env
    install -d -m 0755 /etc/systemd/system/slurmd.service.d
    cat >/etc/systemd/system/slurmd.service.d/burstd.conf <<END
[Unit]
# The configuration comes from slurmctld; some distributions start slurmd only where there is a file.
ConditionPathExists=
[Service]
EnvironmentFile=-/etc/burstd/slurmd.env
EnvironmentFile=-/run/burstd/slurmd-first.env
ExecStartPost=-/bin/rm -f /run/burstd/slurmd-first.env
END
    systemctl daemon-reload
    systemctl enable --quiet slurmd
    if ! systemctl restart slurmd; then
        this=$(systemctl show --value -p InvocationID slurmd)
        journalctl -q --sync || : # its last words may be on their way
        fail "slurmd does not start: $(journalctl -q -o cat _SYSTEMD_INVOCATION_ID="$this" | why)"
    fi
else
    log=$(mktemp)
    slurmd -N "$@" -b </dev/null >"$log" 2>&1 || fail "slurmd does not start: $(why <"$log"; rm -f "$log")"
    # Its daemon may end when its first process has ended well. Where slurmctld is down it goes on asking, and listens
    # when it has its configuration.
    tries=50
    until listens; do
        ! gone || fail "slurmd started, and is gone: $({ cat "$log"; log_end; } | why; rm -f "$log")"
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || break
        sleep 0.1
    done
    rm -f "$log"
fi
