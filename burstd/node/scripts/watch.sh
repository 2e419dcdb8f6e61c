# Asks every few seconds whether the cloud takes this machine back, and what kernel_log.sh and conditions.sh have found;
# drains its node in Slurm if so. Ends with the machine: a slurmctld that dies before it has saved the node's state forgets the
# drain, so it is said again where the node no longer bears it; a hint is said once, as a person may overrule it.
# Thousands of machines may hear of their end at one instant: so each waits a moment of its own, and longer each time
# while slurmctld does not answer. Needs neither burstd nor the cloud's queue. The words are those of
# burstd/planner/lifecycle/spot_notices.py.
# $1: the node's name. $2: folder with notice.sh, the provider's script, which prints "interruption SECONDS" (of its end,
# since 1970) or "rebalance", or nothing; empty: it has none. With the file verdicts the machine looks for its own faults.
# $3: "own" for a node of the site's own: its jobs are never requeued; what it has said is taken back when a disk has room,
# or a mount is there, again; and it is said once, as a person may overrule it. Empty for a machine of burstd's.
# $4: after so many seconds without a sign of burstd's life (Extra of the node, which burstd writes anew every few minutes)
# the machine powers itself off; 0 or empty: never. $5: folder of jobs' data, and $6: so many seconds after the last sign or
# job it stays while there is some. A job that runs is never cut off.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
# A pod whose user has no name has one there.
# shellcheck source=/dev/null
[ ! -r /run/burstd/environment ] || . /run/burstd/environment
name=$1
folder=$2
own=${3:-}
held=$own
comment=
noted=
next_note=0
told=
wait=5
quiet=0
alone=${4:-0}
jobs=${5:-}
longer=${6:-0}
sign=
heard=
worked=
next_sign=0

# Up to 4 s, by chance.
pause() {
    ms=$(($(od -A n -N 2 -t u2 /dev/urandom) % 4000))
    sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
}

# Prints the notice as a reason, or nothing.
notice() {
    [ -s "$folder/notice.sh" ] || return 0
    said=$(timeout 20 sh "$folder/notice.sh" </dev/null 2>/dev/null | head -n 1)
    case $said in
    rebalance) echo "burstd: rebalance hint" ;;
    "interruption "*)
        seconds=${said#interruption }
        if end=$(date -u -d "@${seconds%%.*}" +%Y-%m-%dT%H:%M:%SZ 2>/dev/null); then
            echo "burstd: interruption, ends $end"
        else
            echo "burstd: interruption"
        fi
        ;;
    esac
}

# Sets rank to how bad a reason of ours is; 0: it is none of ours.
rate() {
    case $1 in
    *"burstd: interruption" | *"burstd: interruption, ends "*) rank=4 ;;
    *"burstd: unhealthy, "*", jobs are requeued" | *"burstd: unusable, "*", jobs are requeued") rank=3 ;;
    *"burstd: unhealthy, "*", jobs end first" | *"burstd: unusable, "*", jobs end first") rank=2 ;;
    *"burstd: rebalance hint") rank=1 ;;
    *) rank=0 ;;
    esac
}

# Drains the node with this reason, unless it says so, or worse, already. What a person wrote stays in front. A node that
# is powered down has no machine of ours any more, one that is powered up after we told may have another.
drain() {
    known=$(timeout 20 sinfo -a -h -N -n "$name" -o '%T|%E' | head -n 1) && [ -n "$known" ] || return 1
    case ${known%%"|"*} in
    *"~" | *"%") return 0 ;;
    *"#") [ -z "$told" ] || return 0 ;;
    esac
    before=
    case $known in
    drain*"|none") ;;
    drain*"|"*)
        before=${known#*|}
        rate "$1"
        new=$rank
        rate "$before"
        [ "$rank" -lt "$new" ] || return 0
        [ "$rank" -gt 0 ] && before=${before%"burstd: "*} || before="$before; "
        ;;
    esac
    timeout 20 scontrol update NodeName="$name" State=DRAIN Reason="$before$1"
}

# Sets sick to the worse of what is known of the machine; of two that are as bad the first.
faults() {
    sick=
    worst=0
    for file in "$folder/unhealthy" "$folder/condition"; do
        { read -r fault <"$file"; } 2>/dev/null || continue
        rate "$fault"
        [ "$rank" -gt "$worst" ] || continue
        worst=$rank
        sick=$fault
    done
    [ -z "$own" ] || sick=$(echo "$sick" | sed 's/, jobs are requeued$/, jobs end first/')
}

# Ends the drain of a node of the site's own for what has gone away by itself. What a person wrote stays.
take_back() {
    known=$(timeout 20 sinfo -a -h -N -n "$name" -o '%T|%E' | head -n 1) && [ -n "$known" ] || return 1
    case $known in
    drain*"|burstd: unusable, "*", jobs end first")
        timeout 20 scontrol update NodeName="$name" State=UNDRAIN && echo "undrained, no longer ${known#*burstd: }"
        ;;
    esac
}

# Ends the watch where slurmctld does not know the node's name; one that does not answer is waited for.
require_known_name() {
    until known=$(timeout 20 sinfo -a -h -N -n "$name" -o %N); do
        echo "slurmctld does not answer: asked again in 15 s" >&2
        sleep 15
    done
    [ -n "$known" ] || {
        echo "Slurm knows no node $name: add the node's name in Slurm to ExecStart= (systemctl edit burstd-node-watch)" >&2
        exit 78
    }
}

# Writes what jobs here have met, the last five of them, into the node's comment, where burstd reads it: once a minute at
# most, and not where somebody else has written there.
note() {
    [ -s "$folder/notes" ] && [ "$comment" != foreign ] || return 0
    seconds=$(date +%s)
    [ "$seconds" -ge "$next_note" ] || return 0
    text="burstd: $(awk '!seen[$2]++' "$folder/notes" | tail -n 5 | paste -s -d ';')"
    [ "$text" != "$noted" ] || return 0
    next_note=$((seconds + 60))
    if [ -z "$comment" ]; then
        comment=$(timeout 20 sinfo -a -h -N -n "$name" -O Comment:300 | head -n 1) || { comment=''; return 0; }
        case ${comment%%"  "*} in
        "" | " " | "(null)" | "N/A" | "burstd: job "*) comment=ours ;;
        *) comment=foreign; return 0 ;;
        esac
    fi
    ! timeout 20 scontrol update NodeName="$name" Comment="$text" || noted=$text
}

# Whether a step of a job is here. "slurmstepd infinity" holds a cgroup and is none.
runs_a_job() {
    for directory in /proc/[0-9]*; do
        { read -r program <"$directory/comm"; } 2>/dev/null || continue
        [ "$program" = slurmstepd ] || continue
        case $(tr '\0' ' ' <"$directory/cmdline" 2>/dev/null) in *infinity*) ;; *) return 0 ;; esac
    done
    return 1
}

has_data() {
    [ -n "$jobs" ] || return 1
    for entry in "$jobs"/*; do
        case $entry in */cache | */\*) ;; *) return 0 ;; esac
    done
    return 1
}

# Whether slurmctld says that no job is here, and none can start. One that has jobs between two steps knows of them; a
# slurmctld that does not answer starts nothing, and is given as long again.
is_free() {
    if ! timeout 20 sinfo -a -h -N -n "$name" -o %T >"$folder/state" 2>/dev/null; then
        [ "$silent" -ge $((2 * alone)) ]
        return
    fi
    case $(head -n 1 "$folder/state") in
    "") return 1 ;;
    drained* | *"~" | *"%" | *"!") return 0 ;;
    down*) return 0 ;;
    idle* | reserved* | maint* | planned*) drain "burstd: silent for $((silent / 3600)) h, powers itself off" ;;
    esac
    # If it has just been drained, the next look says whether a job was quicker.
    return 1
}

# Powers the machine off where burstd has been silent for too long. An Extra that is somebody else's says nothing, and a
# machine without Slurm's commands cannot hear.
attend() {
    [ "$alone" -gt 0 ] || return 0
    read -r up _ </proc/uptime
    up=${up%%.*}
    [ "$up" -ge "$next_sign" ] || return 0
    every=$((alone / 12))
    [ "$every" -le 600 ] || every=600
    next_sign=$((up + every))
    [ -n "$heard" ] || { heard=$up worked=$up; }
    command -v scontrol >/dev/null || heard=$up
    new=$(timeout 20 scontrol -a -o show node "$name" 2>/dev/null | sed -n 's/.* Extra=\([^ ]*\).*/\1/p')
    case $new in
    "" | "$sign") ;;
    '{"burstd-alive":'*) sign=$new heard=$up ;;
    *) heard=$up ;;
    esac
    ! runs_a_job || worked=$up
    silent=$((up - heard))
    if [ "$silent" -lt "$alone" ] || [ "$worked" -eq "$up" ]; then return 0; fi
    if has_data && { [ "$silent" -lt $((alone + longer)) ] || [ $((up - worked)) -lt "$longer" ]; }; then return 0; fi
    is_free && ! runs_a_job || return 0
    echo "no sign of burstd's life for $silent s: powers off"
    if [ -r /burstd/start.sh ]; then
        kill -TERM 1
    elif [ -d /run/systemd/system ]; then
        systemctl poweroff
    else
        poweroff 2>/dev/null || kill -TERM 1
    fi
}

if [ -s "$folder/verdicts" ]; then
    sh "$folder/kernel_log.sh" "$folder" "${folder%/*}-kernel-log" "$own" &
    sh "$folder/conditions.sh" "$folder" &
fi
pause
[ -z "$own" ] || require_known_name
while :; do
    next=5
    reason=$(notice)
    storm=$reason
    faults
    rate "$reason"
    [ "$worst" -le "$rank" ] || reason=$sick storm=
    news=
    if [ -n "$reason" ] && [ "$reason" != "$told" ]; then
        news=1
        [ -z "$storm" ] || pause
    fi
    quiet=$((quiet - 1))
    if [ -n "$held" ] && [ -z "$reason" ] && [ -e "$folder/looked" ]; then
        if take_back; then held='' told=''; else next=30; fi
    elif [ -n "$news" ] ||
        { [ -z "$own" ] && [ -n "$reason" ] && [ "$quiet" -le 0 ] && [ "$reason" != "burstd: rebalance hint" ]; }; then
        if drain "$reason"; then
            told=$reason
            held=$own
            wait=5
            # What leaves jobs alone may be followed by worse; Slurm is asked no oftener for that.
            case $reason in
            *"jobs end first") quiet=6 ;;
            "burstd: rebalance hint") ;;
            *) next=30 ;;
            esac
        else
            next=$wait
            wait=$((wait * 2))
            [ "$wait" -le 30 ] || wait=30
        fi
    fi
    note
    attend
    sleep "$next"
done
