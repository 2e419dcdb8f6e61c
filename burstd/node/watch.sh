# Asks every few seconds whether the cloud takes this machine back, and drains its node in Slurm if so; ends when an
# interruption was told. Needs neither burstd nor the cloud's queue. The words are those of burstd/core/notices.py.
# $1: the node's name. $2: file with the provider's script, which prints "interruption SECONDS" (of its end, since 1970)
# or "rebalance", or nothing.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
name=$1
script=$2
told=

# Prints the notice as a reason, or nothing.
notice() {
    said=$(timeout 20 sh "$script" </dev/null 2>/dev/null | head -n 1)
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

# Drains the node with this reason, unless it says so, or worse, already. What a person wrote stays in front.
drain() {
    known=$(timeout 20 sinfo -h -N -n "$name" -o '%T|%E' | head -n 1) && [ -n "$known" ] || return 1
    before=
    case $known in
    drain*"|"*"burstd: interruption"*) return 0 ;;
    drain*"|"*"burstd: rebalance hint")
        [ "$1" != "burstd: rebalance hint" ] || return 0
        before=${known#*|}
        before=${before%burstd: rebalance hint}
        ;;
    drain*"|none") ;;
    drain*) before="${known#*|}; " ;;
    esac
    timeout 20 scontrol update NodeName="$name" State=DRAIN Reason="$before$1"
}

while :; do
    reason=$(notice)
    if [ -n "$reason" ] && [ "$reason" != "$told" ] && drain "$reason"; then
        told=$reason
        case $reason in *interruption*) exit 0 ;; esac
    fi
    sleep 5
done
