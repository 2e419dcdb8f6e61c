# Hands the cluster's munge key over and has munged use it. May be repeated, and cut off, at any point.
# Standard input: a credential of the head's munged and a newline, then the key. $1: the key's size in bytes.
set -eu
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 077
key=/etc/munge/munge.key
fail() { echo "$*" >&2; exit 1; }
answers() { munge -n </dev/null 2>/dev/null | unmunge >/dev/null 2>&1; }
# A credential can be decoded once by one munged, so what is said of it is kept.
believes() { verdict=$(printf '%s\n' "$credential" | unmunge -n 2>&1); }
with_systemd() { [ -d /run/systemd/system ]; }
# At most ten seconds for what is no more than a fork and a bind.
wait_until() {
    tries=100
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.1
    done
}

read -r credential
# A pod that has the key from a Secret started its munged with it, and an ordinary user cannot start another.
if [ -e /burstd/key/munge.key ] || [ "$(id -u)" -ne 0 ]; then
    verdict="munged does not answer"
    if answers && believes; then exit 0; fi
    fail "$verdict. The Secret that the provider's key_secret names must hold the cluster's key as munge.key"
fi
[ -d /etc/munge ] || install -d -m 0700 -o munge -g munge /etc/munge
rm -f /etc/munge/.munge.key.*
new=$(mktemp /etc/munge/.munge.key.XXXXXX)
trap 'rm -f "$new"' EXIT
cat >"$new"
[ "$(wc -c <"$new")" -eq "$1" ] || fail "the munge key came through cut short"
chown munge:munge "$new"
chmod 0400 "$new"
if cmp -s "$new" "$key"; then
    chown munge:munge "$key"
    chmod 0400 "$key"
    if answers && believes; then exit 0; fi
else
    mv -f "$new" "$key"
fi

# munged reads its key when it starts: one that runs may have another.
if with_systemd; then
    systemctl enable --quiet munge
    systemctl restart munge || fail "munged does not start: $(journalctl -q -u munge -n 3 -o cat | tr '\n' ' ')"
else
    if answers || [ -S /run/munge/munge.socket.2 ]; then munged --stop 2>/dev/null || rm -f /run/munge/munge.socket.2; fi
    install -d -m 0755 -o munge -g munge /run/munge
    install -d -m 0711 -o munge -g munge /var/lib/munge
    install -d -m 0700 -o munge -g munge /var/log/munge
    log=$(mktemp)
    runuser -u munge -- munged </dev/null >"$log" 2>&1 || fail "munged does not start: $(tr '\n' ' ' <"$log"; rm -f "$log")"
    rm -f "$log"
fi
wait_until answers || fail "munged started, but does not answer within 10 s"
believes || fail "munged does not accept a credential of the head: $verdict"
