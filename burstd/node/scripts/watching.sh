# Starts the watch over this machine (watch.sh) in the background, in place of one that runs.
# $1: the node's name. $2, $3, $4, $5: lengths of watch.sh, kernel_log.sh, conditions.sh and the table of verdicts, in bytes;
# an empty table: the machine does not look for faults. $6, $7, $8: as watch.sh has its last ones. Standard input: the
# four, then the provider's script, which may be empty.
set -eu
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 077
name=$1
folder=/run/burstd
unit=burstd-watch
install -d -m 0755 "$folder"
# Of bytes head reads no more than it is told, so that the rest is the script.
new=$(mktemp -d "$folder/watch.XXXXXX")
head -c "$2" >"$new/watch.sh"
head -c "$3" >"$new/kernel_log.sh"
head -c "$4" >"$new/conditions.sh"
head -c "$5" >"$new/verdicts"
cat >"$new/notice.sh"
[ "$(cat "$new/watch.sh" "$new/kernel_log.sh" "$new/conditions.sh" "$new/verdicts" | wc -c)" -eq "$(($2 + $3 + $4 + $5))" ] ||
    { echo "the script came through cut short" >&2; exit 1; }

old=$(cat "$folder/watch.pid" 2>/dev/null || true)
if [ -n "$old" ] && tr '\0' '\n' <"/proc/$old/cmdline" 2>/dev/null | grep -q -x "$folder/watch/watch.sh"; then
    kill -- "-$old" 2>/dev/null || kill "$old" 2>/dev/null || true
fi
rm -f "$folder/watch.pid"
with_systemd=
if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then
    with_systemd=1
    systemctl stop "$unit" 2>/dev/null || true
fi
rm -rf "$folder/watch"
mv "$new" "$folder/watch"
set -- /bin/sh "$folder/watch/watch.sh" "$name" "$folder/watch" "" "$6" "$7" "$8"
if [ -n "$with_systemd" ]; then
    # A process that the kernel does not let go, as nvidia-smi on a dead GPU, holds up no later start.
    systemd-run --quiet --collect --unit="$unit" --property=Restart=on-failure --property=RestartSec=5 \
        --property=TimeoutStopSec=5 "$@"
else
    setsid "$@" </dev/null >/dev/null 2>&1 &
    echo $! >"$folder/watch.pid"
fi
# From here on the watch decides, and not the user data (node.yaml.in).
: >"$folder/node"
