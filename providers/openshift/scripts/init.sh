# Process 1 of a burst node's container: makes munge ready, then waits until slurmd has come and gone, or until the pod
# is told to end. Runs as root, or as an ordinary user.
#
# /burstd holds the scripts of the provider and, in key/, the cluster's Secret; /run is memory that anybody may write at
# first. BURSTD_* in the environment: see providers/openshift/pods/manifest.py.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 022
room=/run/burstd
key=/burstd/key/munge.key
me=$(id -u)
say() { echo "burstd: $*"; }
answers() { munge -n </dev/null 2>/dev/null | unmunge >/dev/null 2>&1; }

# slurmd, and every program of Slurm, wants its user to have a name. Images of OpenShift let group 0 write /etc/passwd;
# with the library nss_wrapper a copy does. What programs that come later need is left in $room/environment.
name_me() {
    ! id -un >/dev/null 2>&1 || return 0
    line="burst:x:$me:$(id -g):burst node:/tmp:/bin/sh"
    if [ -w /etc/passwd ]; then
        echo "$line" >>/etc/passwd
        return 0
    fi
    for wrapper in /usr/lib*/libnss_wrapper.so /usr/lib/*/libnss_wrapper.so; do
        [ -e "$wrapper" ] || continue
        { cat /etc/passwd; echo "$line"; } >"$room/passwd"
        cat >"$room/environment" <<END
LD_PRELOAD=$wrapper NSS_WRAPPER_PASSWD=$room/passwd NSS_WRAPPER_GROUP=/etc/group
export LD_PRELOAD NSS_WRAPPER_PASSWD NSS_WRAPPER_GROUP
END
        . "$room/environment"
        return 0
    done
    say "uid $me has no name here: the image's /etc/passwd must be writable for group 0, or name it; slurmd will not start"
}

# munged reads a key that is its own only. --force: an ordinary user cannot make /run safe from others, and there are
# no others: all processes of such a pod have the same uid.
start_munged() {
    set -- munged --key-file=/run/munge/munge.key --pid-file=/run/munge/munged.pid --seed-file=/run/munge/munged.seed \
        --log-file=/run/munge/munged.log
    mkdir -p -m 0755 /run/munge
    (umask 077 && cp "$key" /run/munge/munge.key) || return 1
    if [ "$me" -ne 0 ]; then
        set -- "$@" --force
    elif id munge >/dev/null 2>&1; then
        chown -R munge:munge /run/munge
        set -- runuser -u munge -- "$@"
    fi
    "$@" </dev/null >/run/burstd/munged.out 2>&1 || { say "munged does not start: $(tr '\n' ' ' <"$room/munged.out")"; return 1; }
    tries=100
    until answers; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { say "munged does not answer within 10 s"; return 1; }
        sleep 0.1
    done
}

# The process of slurmd: start.sh has it write its number there, at every start anew.
slurmd_lives() {
    read -r pid 2>/dev/null <"$room/slurmd.pid" && [ -d "/proc/$pid" ]
}

# Whether Slurm has switched the node off, or is about to: then nothing on it is needed any more. Asked every 5 s.
switched_off() {
    asked=$((${asked:-0} + 1))
    [ "$((asked % 5))" -eq 0 ] || return 1
    case $(timeout 5 sinfo -h -N -n "$(cat "$room/name")" -o %T 2>/dev/null | head -n 1) in
    *"~" | *"%" | *"!") return 0 ;;
    esac
    return 1
}

# Volumes are everybody's at first; in root's folders no user may put anything in the way.
[ "$me" -ne 0 ] || chmod 0755 /run "$BURSTD_SCRATCH"
mkdir -p -m 0755 "$room"
ended=
trap 'ended=1' TERM INT
name_me
[ ! -e "$key" ] || start_munged || exit 1
: >"$room/ready"
say "ready as $(id -un 2>/dev/null || echo "uid $me")"

# Waiting for the child reaps all that became children of process 1. `scontrol reconfigure` replaces slurmd by another
# process; the pod ends with one that stays away. start.sh says when it starts one anew.
shown=
absent=0
while [ "$absent" -lt 10 ]; do
    # prestop.sh says whether there may be something left to bring home; the kubelet ends the wait at the latest.
    if [ -n "$ended" ] && { [ ! -e "$room/stay" ] || ! slurmd_lives || switched_off; }; then
        break
    fi
    if [ -z "$shown" ] && [ -s "$room/log" ]; then
        shown=$(cat "$room/log")
        tail -n +1 -F "$shown" 2>/dev/null &
    fi
    if [ ! -e "$room/slurmd.started" ] || slurmd_lives; then
        absent=0
    else
        absent=$((absent + 1))
    fi
    sleep 1 &
    wait "$!"
done
if [ -z "$ended" ]; then
    say "slurmd has ended"
    exit 1
fi
if slurmd_lives; then
    kill "$pid"
    tries=50
    while slurmd_lives && [ "$tries" -gt 0 ]; do
        tries=$((tries - 1))
        sleep 0.1
    done
fi
say "told to end"
