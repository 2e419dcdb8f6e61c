# Enters a running job on the terminal that this has, as the job's user.
# $1: uid, $2: gid, $3: the job's number, $4: TERM, $5: 'raw' where nobody types;
# $6: a token; then a command, or nothing: a shell.
uid=$1 gid=$2 job=$3 term=$4 raw=$5 token=$6
shift 6
account=$(getent passwd "$uid") || { echo "this node has no user with uid $uid" >&2; exit 1; }
shell=${account##*:}
home=${account%:*} home=${home##*:}
[ $# -gt 0 ] || set -- "${shell:-/bin/sh}"
terminal=$(tty) || { echo "there is no terminal" >&2; exit 1; }
if [ -n "$raw" ]; then
    stty raw -echo
    exec </dev/null
fi

# A process of the job, of this user: its environment and directory are the job's.
task=
for found in $(grep -lzsx "SLURM_JOB_ID=$job" /proc/[0-9]*/environ | sort -V); do
    task=${found#/proc/} task=${task%/environ}
    [ "$(stat -c %u "/proc/$task" 2>/dev/null)" != "$uid" ] || break
    task=
done

# What the shell has started ends with it, with the terminal, and when burstd says so: a pod's terminal outlives burstd's
# connection. burstd finds this by the token.
# shellcheck disable=SC2016
setsid sh -c '
    session_of() { sed "s/.*) //" "$1/stat" 2>/dev/null | cut -d " " -f 4; }
    trap "over=1" TERM
    over= session=$(session_of "/proc/$1")
    while [ -z "$over" ] && [ -d "/proc/$1" ] && [ -e "$2" ]; do sleep 1; done
    for one in /proc/[0-9]*; do
        [ "$(session_of "$one")" != "$session" ] || kill -KILL "${one#/proc/}"
    done' sh "$$" "$terminal" "$token" </dev/null >/dev/null 2>&1 &
if [ "$(id -u)" -eq 0 ]; then
    chown "$uid" "$terminal"
    # Slurm ends what is in the cgroup of the job, and limits it.
    [ -z "$task" ] || while IFS=: read -r _ controllers path; do
        case $path in
        */job_"$job"/*) echo "$$" >"/sys/fs/cgroup${controllers:+/$controllers}$path/cgroup.procs" ;;
        esac
    done <"/proc/$task/cgroup" 2>/dev/null
    drop="setpriv --reuid $uid --regid $gid --init-groups"
fi

# Every value in quotes; what has no name that sh takes is left out.
# shellcheck disable=SC2016
exec ${drop:-} env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$home" USER="${account%%:*}" LOGNAME="${account%%:*}" \
    SHELL="$shell" SLURM_JOB_ID="$job" sh -c '
    task=$1 term=$2
    shift 2
    cd 2>/dev/null || cd /
    if [ -n "$task" ]; then
        cd "/proc/$task/cwd" && cd "$(pwd -P)"
        eval "$(sed -z "s/'\''/&\\\\&&/g; s/^\([A-Za-z_][A-Za-z0-9_]*\)=\(.*\)$/export \1='\''\2'\''/; t; d" \
            "/proc/$task/environ" | tr "\0" "\n")"
    fi 2>/dev/null
    export TERM="$term"
    exec "$@"' sh "$task" "$term" "$@"
