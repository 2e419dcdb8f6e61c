# Runs when somebody ends the pod: the kubelet waits for it, then tells process 1. Drains the node in Slurm with what
# burstd reads as the notice of an interruption, so that its jobs are requeued and their output is brought home while
# the grace period lasts. Needs no burstd. The words are those of burstd/planner/lifecycle/spot_notices.py.
#
# Slurm takes this from root and SlurmUser only; where the pod runs as neither, the provider's watch tells burstd.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
room=/run/burstd
ends=$(($(date +%s) + ${BURSTD_GRACE_S:-30}))
[ ! -e "$room/environment" ] || . "$room/environment"
read -r name 2>/dev/null <"$room/name" || exit 0 # no slurmd so far
reason="burstd: interruption, ends $(date -u -d "@$ends" +%Y-%m-%dT%H:%M:%SZ)"

# Whether slurmctld speaks of this machine: the node may have another by now, if the kubelet was cut off.
is_this() {
    address=$(timeout 10 scontrol -o show node "$name" 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
    case $address in
    *[!0-9.]* | '') return 0 ;; # a name, or it cannot be told
    esac
    awk -v is="$address" '$1 == "|--" && $2 == is { found = 1 } END { exit !found }' /proc/net/fib_trie 2>/dev/null
}

known=$(timeout 10 sinfo -h -N -n "$name" -o '%T|%E' 2>/dev/null | head -n 1)
case ${known%%"|"*} in
*"~" | *"%" | *"!" | *"#") exit 0 ;; # burstd ends it, or no job was ever on it
esac
is_this || exit 0
: >"$room/stay"
before=
case $known in
drain*"|"*"burstd: interruption"*) exit 0 ;;
drain*"|"*"burstd: rebalance hint")
    before=${known#*|}
    before=${before%burstd: rebalance hint}
    ;;
drain*"|none" | drain*"|") ;;
drain*) before="${known#*|}; " ;;
esac
timeout 20 scontrol update NodeName="$name" State=DRAIN Reason="$before$reason" || exit 0
