# Starts the watch over this machine (watch.sh) in the background, in place of one that runs.
# $1: the node's name. $2: length of watch.sh in bytes. Standard input: watch.sh, then the provider's script.
set -eu
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 077
name=$1
length=$2
folder=/run/burstd
unit=burstd-watch
install -d -m 0755 "$folder"
# Of bytes head reads no more than it is told, so that the rest is the script.
new=$(mktemp -d "$folder/watch.XXXXXX")
head -c "$length" >"$new/watch.sh"
cat >"$new/notice.sh"
[ "$(wc -c <"$new/watch.sh")" -eq "$length" ] || { echo "the script came through cut short" >&2; exit 1; }

old=$(cat "$folder/watch.pid" 2>/dev/null || true)
if [ -n "$old" ] && tr '\0' '\n' <"/proc/$old/cmdline" 2>/dev/null | grep -q -x "$folder/watch/watch.sh"; then
    kill "$old" 2>/dev/null || true
fi
rm -f "$folder/watch.pid"
with_systemd=
if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then
    with_systemd=1
    systemctl stop "$unit" 2>/dev/null || true
fi
rm -rf "$folder/watch"
mv "$new" "$folder/watch"
set -- /bin/sh "$folder/watch/watch.sh" "$name" "$folder/watch/notice.sh"
if [ -n "$with_systemd" ]; then
    systemd-run --quiet --collect --unit="$unit" --property=Restart=on-failure --property=RestartSec=5 "$@"
else
    setsid "$@" </dev/null >/dev/null 2>&1 &
    echo $! >"$folder/watch.pid"
fi
