# Follows the kernel's log for what NVIDIA's driver says of its GPUs (Xids), for I/O errors of disks, and for the end of
# slurmd; keeps in $1/unhealthy the reason for which the node is to be drained, for watch.sh. The worst holds; nothing takes
# it back. What is only a note is printed, Xids once for each job and GPU; $1/notes has one for each job. A flood costs no more than its reading: a line
# starts a process only where it brings news.
# $1: folder with the table "NUMBER=VERDICT ... NAME=VERDICT:TIMES:WORD ..." in the file verdicts (verdict_table of
# burstd/domain/health.py).
# $2: a FIFO that is read in place of the kernel's log, if it is there: where a machine shares its kernel.
# $3: not empty: what is in the kernel's log already does not count.
set -u
LC_ALL=C
TZ=UTC
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL TZ PATH
folder=$1
fifo=$2
follow=--follow
[ -z "${3:-}" ] || follow=--follow-new
read -r table <"$folder/verdicts" || :
table=" $table "
level=0
noted=

follow() {
    if [ -p "$fifo" ]; then
        cat <>"$fifo"
    else
        dmesg "$follow" --time-format iso 2>/dev/null
    fi
}

# Sets verdict for the Xid and its text. The words of 154 are those of burstd/domain/health.py.
judge() {
    found=${table#*" $xid="}
    if [ "$found" != "$table" ]; then
        verdict=${found%% *}
        return
    fi
    verdict=note
    [ "$xid" = 154 ] || return 0
    case ${text##*" to "} in
    *Reboot*) verdict=requeue ;;
    *Reset* | *Drain*) verdict=drain ;;
    esac
}

# Prints what is only a note. What is remembered of earlier ones has a bound: after many they are printed again.
note() {
    pid=${text#*pid=}
    pid=${pid#\'}
    pid=${pid%%[!0-9]*}
    job=
    case $noted in *" $xid/$gpu/$pid "*) return ;; esac
    if [ -n "$pid" ] && [ -r "/proc/$pid/cgroup" ]; then
        while read -r group; do
            case $group in
            */job_[0-9]*)
                job=${group#*/job_}
                job=${job%%[!0-9]*}
                ;;
            esac
        done <"/proc/$pid/cgroup"
    fi 2>/dev/null
    # Where jobs have no cgroups their environment tells, which they can change.
    if [ -z "$job" ] && [ -n "$pid" ] && [ -r "/proc/$pid/environ" ]; then
        job=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^SLURM_JOB_ID=\([0-9]\{1,10\}\)$/\1/p' | head -n 1)
    fi 2>/dev/null
    [ "${#noted}" -lt 8000 ] || noted=
    noted="$noted $xid/$gpu/$pid "
    case $job/$noted in
    /* | *" job$job "*) ;;
    *)
        noted="$noted job$job "
        echo "job $job: Xid $xid on GPU $gpu" >>"$folder/notes"
        ;;
    esac
    [ -n "$job" ] || job=-
    case $noted in *" $xid/$gpu/job$job "*) return ;; esac
    noted="$noted $xid/$gpu/job$job "
    echo "Xid $xid on GPU $gpu, job $job: ${text%%[!A-Za-z0-9 ,.=:;_/()-]*}"
}

# Writes the reason down, if it is worse than what is known. $1: how bad. $2: what it is. $3: what becomes of the jobs.
unhealthy() {
    [ "$1" -gt "$level" ] || return 0
    level=$1
    case $at in
    [0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]Z) ;;
    *) at=$(date -u +%Y-%m-%dT%H:%M:%SZ) ;;
    esac
    echo "burstd: $2 at $at, $3" >"$folder/unhealthy.new"
    mv -f "$folder/unhealthy.new" "$folder/unhealthy"
    cat "$folder/unhealthy"
}

# What comes of a finding that is no Xid. $1: its name. $2: what was found.
found() {
    entry=${table#*" $1="}
    entry=${entry%% *}
    case ${entry%%:*} in
    note)
        case $noted in *" $2 "*) return ;; esac
        noted="$noted $2 "
        echo "$2"
        ;;
    close_when_idle | drain) unhealthy 1 "${entry##*:}, $2" "jobs end first" ;;
    requeue) unhealthy 2 "${entry##*:}, $2" "jobs are requeued" ;;
    esac
}

# Sets disk to the disk of a line of the kernel that tells of an I/O error; fails for others, and for what is no disk of
# a node: a loop device, a CD, a stick's reader.
disk_error() {
    case $line in
    "EXT4-fs error (device "* | "XFS ("*"): "*)
        disk=${line#*"("}
        disk=${disk#"device "}
        disk=${disk%%")"*}
        ;;
    "nvme nvme"*": "*)
        disk=${line#"nvme "}
        disk=${disk%%:*}
        ;;
    *"/O error"*"dev "* | *"critical medium error, dev "*)
        disk=${line#*"dev "}
        disk=${disk%%,*}
        ;;
    *) return 1 ;;
    esac
    case $disk in
    *[!a-z0-9-]* | ?????????????????*) return 1 ;;
    nvme[0-9]* | sd[a-z]* | vd[a-z]* | xvd[a-z]* | dm-[0-9]* | md[0-9]*) ;;
    *) return 1 ;;
    esac
}

# What a process calls itself is in these lines too, so they must begin as the kernel's do.
lines='NVRM: (Xid \(PCI:|GPU .*fallen off the bus)'
lines="$lines|EXT4-fs error \(device |XFS \([a-z0-9-]+\): .*([Cc]orruption|I/O error|[Ss]hut(ting)? ?down)"
lines="$lines|(^|] |,[0-9+:]+ )(blk_update_request: |Buffer )?(I/O error[, ].*|critical medium error, )dev "
lines="$lines|nvme nvme[0-9]+: (controller is down|Removing after probe failure|Disabling device after reset)"
lines="$lines|[Oo]ut of memory: Killed process [0-9]+ \(slurmd\).* UID:0 "
while :; do
    follow | grep --line-buffered -a -E "$lines" | while read -r line; do
        at=
        case $line in
        [0-9][0-9][0-9][0-9]-*T*" "*)
            at=${line%%[,.+ ]*}Z
            line=${line#* }
            ;;
        esac
        case $line in "["*"] "*) line=${line#*"] "} ;; esac
        case $line in
        "NVRM: Xid (PCI:"*"): "[0-9]*)
            gpu=${line#"NVRM: Xid (PCI:"}
            gpu=${gpu%%")"*}
            text=${line#*"): "}
            xid=${text%%[!0-9]*}
            ;;
        "NVRM: GPU "*"fallen off the bus"*)
            gpu=${line#"NVRM: GPU "}
            gpu=${gpu#"at "}
            gpu=${gpu#PCI:}
            gpu=${gpu%% *}
            gpu=${gpu%:}
            xid=79
            text=
            ;;
        *"ut of memory: Killed process "*" (slurmd)"*)
            case $line in "Out of memory: "* | "Memory cgroup out of memory: "*) ;; *) continue ;; esac
            found slurmd_killed "slurmd was killed for want of memory"
            continue
            ;;
        *)
            ! disk_error || found io_error "I/O error of $disk"
            continue
            ;;
        esac
        case $gpu in
        "" | *[!0-9a-fA-F:.]* | ?????????????????*) continue ;;
        *.*) ;;
        *) gpu=$gpu.0 ;;
        esac
        case $xid in ??????*) continue ;; esac
        judge
        case $verdict in
        note) note ;;
        close_when_idle | drain) unhealthy 1 "unhealthy, Xid $xid on GPU $gpu" "jobs end first" ;;
        requeue) unhealthy 2 "unhealthy, Xid $xid on GPU $gpu" "jobs are requeued" ;;
        esac
    done
    echo "the kernel's log cannot be followed any more; again in a minute"
    sleep 60
done
