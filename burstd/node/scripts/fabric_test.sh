# One end of a test of the network between two machines, on which no job has run so far.
# $1: "listen" or "start" begins the end that waits, and leaves it running ("listen": once it has its port); "run" waits for
# the end that asks, prints what it said and ends with its status. $2: seconds that it may take. $3: port. $4: address of the
# end that waits. The rest: the program and its arguments.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
WORLD_SIZE=2 MASTER_PORT=$3 MASTER_ADDR=$4
export LC_ALL PATH WORLD_SIZE MASTER_PORT MASTER_ADDR
umask 077
mode=$1 limit=$2
shift 4
[ "$mode" = run ] && RANK=1 || RANK=0
export RANK
base=/tmp/burstd-fabric-test.$RANK
command -v "$1" >/dev/null || exit 127

# What a burstd that was killed began and did not see the end of: it has another port.
for file in /tmp/burstd-fabric-test.[01].pid; do
    read -r old port 2>/dev/null <"$file" || continue
    [ "$port" != "$MASTER_PORT" ] || continue
    case $(tr '\0' ' ' 2>/dev/null <"/proc/$old/cmdline") in "timeout -k 1 "*) kill -KILL "-$old" ;; esac
done

setsid timeout -k 1 "$limit" "$@" </dev/null >"$base.out" 2>&1 &
pid=$!
echo "$pid $MASTER_PORT" >"$base.pid"
case $mode in
start) exit 0 ;;
run)
    wait "$pid"
    status=$?
    tail -c 16384 "$base.out"
    [ "$status" != 124 ] || echo "no end within $limit s"
    exit "$status"
    ;;
esac
tries=0
socket=$(printf ':%04X [0-9A-F]*:[0-9A-F]* 0A' "$MASTER_PORT")
until grep -q "$socket" /proc/net/tcp /proc/net/tcp6 2>/dev/null; do
    tries=$((tries + 1))
    if [ "$tries" -gt 50 ] || ! kill -0 "$pid" 2>/dev/null; then
        tail -c 4096 "$base.out"
        echo "does not listen on port $MASTER_PORT"
        exit 1
    fi
    sleep 0.2
done
