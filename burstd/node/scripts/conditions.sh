# Looks at this machine's GPUs, disks and mounts at an interval, and keeps in $1/condition the reason for which the node is
# to be drained, for watch.sh; the file is there as long as the fault is. What is only a note is printed when it begins.
# What may hang for good, as nvidia-smi on a dead GPU does, runs aside: nobody waits for it, and it is not started again
# until it has ended. Needs the function gpu_states (gpu_states.sh).
# $1: folder with the table "NAME=VERDICT:TIMES:WORD ... interval=SECONDS" in the file verdicts (verdict_table of
# burstd/domain/health.py).
set -u
LC_ALL=C
TZ=UTC
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL TZ PATH
folder=$1
within=20
read -r table <"$folder/verdicts" || :
interval=${table##*interval=}

# Each of the next functions prints its findings, "NAME WORDS" a line.

gpus() {
    gpu_states "$within" >"$folder/gpu_states"
    seen=0
    while read -r state; do
        case $state in gpu_state=*) ;; *) continue ;; esac
        seen=$((seen + 1))
        gpu=${state#gpu_state=}
        gpu=${gpu%% *}
        case $gpu in 0000????:*) gpu=${gpu#0000} ;; esac
        errors=0
        slowed=
        for word in $state; do
            value=${word#*=}
            case $word in
            errors=*[!0-9]* | errors=) ;;
            errors=*) errors=$((errors + value)) ;;
            remap_failed=Yes) echo "gpu_remap_failed GPU $gpu has bad memory that cannot be replaced" ;;
            remap_pending=Yes) echo "gpu_remap_pending GPU $gpu has bad memory in use until it is reset" ;;
            recovery=None | recovery=N_A | recovery=) ;;
            recovery=*) echo "gpu_reset GPU $gpu needs '$(echo "$value" | tr _ ' ')'" ;;
            slowed=*) slowed="$slowed, $value" ;;
            process=*) stranger "$value" && echo "gpu_stranger process $value of no job is on GPU $gpu" ;;
            esac
        done
        [ "$errors" -eq 0 ] || echo "gpu_errors GPU $gpu has $errors uncorrectable memory errors"
        [ -z "$slowed" ] || echo "gpu_slow GPU $gpu is slowed (${slowed#, })"
    done <"$folder/gpu_states"
    [ "$seen" -gt 0 ] || { echo "gpu_silent nvidia-smi does not answer"; return; }
    [ -s "$folder/gpus" ] || echo "$seen" >"$folder/gpus"
    read -r before <"$folder/gpus"
    [ "$seen" -ge "$before" ] || echo "gpu_lost nvidia-smi shows $seen of $before GPUs"
}

# Whether a process is in no job's cgroup, where jobs have one.
stranger() {
    for scope in /sys/fs/cgroup/system.slice/*slurmstepd.scope /sys/fs/cgroup/*/slurm*; do
        [ -d "$scope" ] || continue
        jobs=$(cat "/proc/$1/cgroup") || return 1
        case $jobs in */job_[0-9]*) return 1 ;; esac
        return 0
    done
    return 1
}

disks() {
    for path in /tmp /var /var/spool/slurmd /var/spool/slurm /var/lib/slurm; do
        [ -d "$path" ] || continue
        if df -Pk "$path" | awk 'NR == 2 && $4 ~ /^[0-9]+$/ { full = $4 < 65536 } END { exit !full }'; then
            echo "disk_full $path is full"
        elif df -Pi "$path" | awk 'NR == 2 && $2 > 0 { full = $4 ~ /^[0-9]+$/ && $4 == 0 } END { exit !full }'; then
            echo "disk_full $path has no inode left"
        fi
    done
}

# Of file systems that hold something for jobs: where they are mounted, and their type. burstd looks after its own trees.
mounted() {
    awk '$3 ~ /^(nfs4?|cifs|smb3|lustre|gpfs|beegfs.*|ceph|glusterfs|afs|wekafs|ext[234]|xfs|btrfs|zfs|fuse(\..*)?)$/ &&
        $1 != "burstd" && $2 !~ /^\/(proc|sys|dev|run|snap|media|var\/lib\/(docker|containers?|containerd|kubelet))(\/|$)/ &&
        !seen[$2]++ { print $2, $3 }' /proc/self/mounts
}

# automount takes file systems off that nobody uses, CVMFS among them: asking for one brings it back.
mounts() {
    [ -e "$folder/mounts" ] || { mounted >"$folder/mounts.new" && mv "$folder/mounts.new" "$folder/mounts"; }
    while read -r path type; do
        place=$(printf '%b' "$path")
        timeout -k 1 "$within" stat -f "$place" >/dev/null 2>&1
        case $? in
        0) grep -q -F " $path $type " /proc/self/mounts || echo "mount_lost $place is not mounted any more" ;;
        124 | 137) echo "mount_silent $place does not answer" ;;
        *) echo "mount_lost $place is broken" ;;
        esac
    done <"$folder/mounts"
}

# Starts one of them, unless it still runs.
start() {
    ! runs "$1" || return 0
    rm -f "$folder/$1.found"
    { "$1" >"$folder/$1.finds"; mv "$folder/$1.finds" "$folder/$1.found"; } </dev/null 2>/dev/null &
    echo "$!" >"$folder/$1.pid"
}

runs() {
    { read -r pid <"$folder/$1.pid"; } 2>/dev/null && kill -0 "$pid" 2>/dev/null && [ ! -e "$folder/$1.found" ]
}

# Counts how often in a row each finding was made, prints new notes, and writes the reason down for the worst that is more
# than a note. A finding keeps the words and the time that it had when it became so. $1: what was found.
judge() {
    touch "$folder/counts"
    awk -v table="$table" -v now="$(date -u +%Y-%m-%dT%H:%M:%SZ)" -v counts="$folder/counts" '
        BEGIN {
            level["close_when_idle"] = level["drain"] = 1; level["requeue"] = 2
            words = split(table, word, " ")
            for (i = 1; i <= words; i++) {
                split(word[i], part, "=")
                if (split(part[2], value, ":") == 3) { names[++known] = part[1]; verdict[part[1]] = value[1]
                    times[part[1]] = value[2]; begins[part[1]] = value[3] }
            }
        }
        FILENAME == counts { count[$1] = $2; at[$1] = $3; line = $0; sub(/^[^ ]+ [^ ]+ [^ ]+ /, "", line); held[$1] = line; next }
        !($1 in found) { name = $1; sub(/^[^ ]+ /, ""); gsub(/[^A-Za-z0-9 ,.:\/_()\047-]/, "?"); found[name] = substr($0, 1, 120) }
        END {
            for (i = 1; i <= known; i++) {
                name = names[i]
                if (!(name in found) || verdict[name] == "ignore") continue
                n = count[name] + 1
                grave = level[verdict[name]] + 0
                if (n < times[name]) grave = 0
                if (n == 1) print begins[name] ": " found[name]
                if (!grave || at[name] == "" || at[name] == "-") { at[name] = grave ? now : "-"; held[name] = found[name] }
                print name, n, at[name], held[name] >(counts ".new")
                if (grave > worst) { worst = grave
                    reason = "burstd: " begins[name] ", " held[name] " at " at[name] ", jobs " (grave > 1 ? "are requeued" : "end first") }
            }
            if (reason != "") print reason >(counts ".reason")
        }' "$folder/counts" "$1"
    if [ -e "$folder/counts.new" ]; then mv "$folder/counts.new" "$folder/counts"; else : >"$folder/counts"; fi
    if [ -e "$folder/counts.reason" ]; then
        mv "$folder/counts.reason" "$folder/condition"
    else
        rm -f "$folder/condition"
    fi
    : >"$folder/looked"
}

while :; do
    with_gpus=
    for device in /dev/nvidia[0-9]*; do
        [ -c "$device" ] && command -v nvidia-smi >/dev/null && with_gpus=gpus
    done
    for look in $with_gpus disks mounts; do start "$look"; done
    left=$((within + 5))
    while [ "$left" -gt 0 ] && { runs gpus || runs disks || runs mounts; }; do
        sleep 1
        left=$((left - 1))
    done
    : >"$folder/found"
    for look in $with_gpus disks mounts; do
        if [ -e "$folder/$look.found" ]; then
            cat "$folder/$look.found" >>"$folder/found"
        elif [ "$look" = gpus ]; then
            echo "gpu_silent nvidia-smi does not answer" >>"$folder/found"
        elif [ "$look" = mounts ]; then
            echo "mount_silent a file system does not answer" >>"$folder/found"
        fi
    done
    judge "$folder/found"
    sleep "$interval"
done
