# Clears a machine that was another node of what users have left in memory and in temporary directories. May be repeated,
# and cut off. $1: the name of the node that it is to be. Standard input: the new /etc/burstd/node.json.
# Ends with 75 (EX_TEMPFAIL) while a job step runs.
set -eu
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 022
name=$1
fail() { echo "$*" >&2; exit 1; }
first_uid=$(awk '$1 == "UID_MIN" { uid = $2 } END { print uid + 0 ? uid : 1000 }' /etc/login.defs 2>/dev/null || echo 1000)
# Whoever burstd enters as is no user of the cluster.
own_uid=${SUDO_UID:-0}
is_user() { [ "$1" -ge "$first_uid" ] && [ "$1" -ne 65534 ] && [ "$1" -ne "$own_uid" ]; }
command_line() { tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null || :; }
# Prints the process ids of all processes of users.
user_processes() {
    for directory in /proc/[0-9]*; do
        uid=$(awk '$1 == "Uid:" { print $2 }' "$directory/status" 2>/dev/null) || continue
        [ -z "$uid" ] || ! is_user "$uid" || echo "${directory#/proc/}"
    done
}

[ "$(id -u)" -eq 0 ] || fail "only root can clear it of what users left: let burstd enter as root"
for directory in /proc/[0-9]*; do
    pid=${directory#/proc/}
    { read -r program <"$directory/comm"; } 2>/dev/null || continue
    case $program in slurmd | slurmstepd) ;; *) continue ;; esac
    # A user may call a process so, with any arguments.
    uid=$(awk '$1 == "Uid:" { print $2 }' "$directory/status" 2>/dev/null) || continue
    { [ -n "$uid" ] && ! is_user "$uid"; } || continue
    case $program in
    slurmd)
        # It is the new node already: it was cleared before, and is not touched again.
        case " $(command_line "$pid")" in *" -N $name "*) exit 0 ;; esac
        ;;
    slurmstepd)
        # "slurmstepd infinity" holds a cgroup and is no step.
        case $(command_line "$pid") in
        *infinity*) ;;
        *) echo "a job step still runs ($(command_line "$pid"))" >&2; exit 75 ;;
        esac
        ;;
    esac
done

# The watch would drain the node that the machine was.
watch=$(cat /run/burstd/watch.pid 2>/dev/null || :)
if [ -n "$watch" ] && command_line "$watch" | grep -q -F /run/burstd/watch/watch.sh; then
    kill -- "-$watch" 2>/dev/null || kill "$watch" 2>/dev/null || :
fi
rm -f /run/burstd/watch.pid
[ ! -d /run/systemd/system ] || systemctl stop burstd-watch 2>/dev/null || :

tries=50
while left=$(user_processes); [ -n "$left" ]; do
    [ "$tries" -gt 0 ] || fail "processes of users do not end: $(command_line "${left%%
*}")"
    tries=$((tries - 1))
    for pid in $left; do kill -KILL "$pid" 2>/dev/null || :; done
    sleep 0.1
done
# Files of ordinary users, in directories that any user may write to.
for directory in /tmp /var/tmp /dev/shm; do
    [ -d "$directory" ] || continue
    find "$directory" -xdev -mindepth 1 -depth -uid "+$((first_uid - 1))" ! -uid 65534 ! -uid "$own_uid" \
        \( -type d -exec rm -rf -- {} + -o -delete \) || fail "files of users in $directory cannot be removed"
done
awk -v first="$first_uid" 'NR > 1 && $8 >= first && $8 != 65534 { print $2 }' /proc/sysvipc/shm 2>/dev/null |
    while read -r segment; do ipcrm -m "$segment" || fail "shared memory of users cannot be removed"; done
if [ -e /etc/burstd/node.json ]; then
    cat >/etc/burstd/node.json.new
    mv -f /etc/burstd/node.json.new /etc/burstd/node.json
fi
