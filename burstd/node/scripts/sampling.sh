# Has the sampler (sampler.py) run on this machine, the one that is sent and no other, and prints what it has measured:
# "uptime SECONDS" since boot, "sampler STATE", then "use RUN BASE64" for each run of a job, those with news first, and
# "more" where not all fits. $1: a name for this version and its settings. $2: seconds between samples. $3: percent
# below which a GPU is idle. $4: bytes to print at most; the rest comes at the next call. The others: runs whose file is
# of no use any more, as JOB-START with the job's number and the whole seconds since boot of its start here; with a +
# before it one whose file is sent as if it never had been. Standard input: sampler.py; empty: the sampler is to end.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 077
version=$1
every=$2
idle=$3
left=$4
shift 4
folder=/run/burstd/sampler
unit=burstd-sampler
install -d -m 0755 /run/burstd
mkdir -p "$folder/jobs" "$folder/sent"
for run in "$@"; do
    rm -f "$folder/sent/${run#+}"
    [ "$run" != "${run#+}" ] || rm -f "$folder/jobs/$run.use"
done

# Whether the process of the file pid is the sampler of this version.
runs() {
    { read -r pid <"$folder/pid"; } 2>/dev/null || return 1
    tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -q -x "$folder/sampler.$1.py"
}

new=$(mktemp "$folder/source.XXXXXX")
trap 'rm -f "$new"' EXIT
cat >"$new"
state=running
{ read -r before <"$folder/version"; } 2>/dev/null || before=
if [ ! -s "$new" ] || [ "$before" != "$version" ] || ! runs "$version"; then
    if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then
        systemctl stop "$unit" 2>/dev/null
        systemctl reset-failed "$unit" 2>/dev/null
    fi
    [ -z "$before" ] || ! runs "$before" || kill "$pid" 2>/dev/null
    rm -f "$folder"/sampler.*.py "$folder/pid" "$folder/version"
    if [ ! -s "$new" ]; then
        state=ended
    elif ! command -v python3 >/dev/null; then
        state=no_python
    else
        state=started
        mv "$new" "$folder/sampler.$version.py"
        echo "$version" >"$folder/version"
        # The shell's own number is that of python3 after exec.
        # shellcheck disable=SC2016
        set -- /bin/sh -c 'echo $$ >"$1/pid"; exec nice -n 10 python3 -I "$1/sampler.$2.py" "$1/jobs" "$3" "$4"' sh \
            "$folder" "$version" "$every" "$idle"
        if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then
            systemd-run --quiet --collect --unit="$unit" --property=Restart=always --property=RestartSec=5 \
                --property=TimeoutStopSec=5 --property=OOMScoreAdjust=500 "$@" || state=refused
        else
            setsid "$@" </dev/null >/dev/null 2>&1 &
        fi
        # Until then the next visit would not see it, and start a second one.
        tries=50
        until [ "$state" = refused ] || [ "$tries" -eq 0 ] || runs "$version"; do
            sleep 0.1
            tries=$((tries - 1))
        done
    fi
fi
read -r uptime _ </proc/uptime
echo "uptime $uptime"
echo "sampler $state"

# Runs in their order: those that were never sent, the newest first; those that changed since they were sent,
# as the files of running jobs do at each sample; the others. Of these the one that was sent longest ago comes first.
# sent/RUN is as old as the call that sent the run's file. Names are numbers and a hyphen.
# shellcheck disable=SC2010,SC2012
in_turn() {
    ls -t "$folder/jobs" | grep -E '^[0-9]+-[0-9]+\.use$' | while read -r name; do
        [ -e "$folder/sent/${name%.use}" ] || echo "${name%.use}"
    done
    for class in changed same; do
        ls -tr "$folder/sent" | grep -E '^[0-9]+-[0-9]+$' | while read -r run; do
            # In no POSIX before 2024, but in dash, bash and busybox.
            # shellcheck disable=SC3013
            if [ ! -e "$folder/jobs/$run.use" ]; then
                rm -f "$folder/sent/$run"
            elif [ "$folder/sent/$run" -nt "$folder/jobs/$run.use" ]; then
                [ "$class" = changed ] || echo "$run"
            else
                [ "$class" = same ] || echo "$run"
            fi
        done
    done
}

left_out=
for run in $(in_turn); do
    : >"$folder/sending"
    text=$(base64 -w 0 "$folder/jobs/$run.use") || continue
    if [ "$((left - ${#text} - 20))" -lt 0 ]; then
        left_out=yes
        continue
    fi
    left=$((left - ${#text} - 20))
    echo "use $run $text"
    mv "$folder/sending" "$folder/sent/$run"
done
[ -z "$left_out" ] || echo more
exit 0
