# Reads a piece of a file that a job writes, as the job's user: no link leads him to what he may not read himself.
# $1: uid, $2: gid, $3: file, $4: the job's directory; $5: where to begin: -N for the last N lines, or the byte;
# $6: device and inode of the file that was read before, or empty; $7: half seconds to wait for more; $8: bytes at most.
# Prints 'data FILE SIZE OFFSET' and a line of base64, or 'same FILE SIZE OFFSET', 'missing', 'denied', 'irregular'.
uid=$1 gid=$2
shift 2
# Lines are counted in so many of the last bytes.
window=16777216
reader=$(
    cat <<'END'
file=$1 directory=$2 offset=$3 before=$4 waits=$5 most=$6 window=$7
# slurmd starts a job in /tmp where its directory is not there.
case $file in
"$directory"/*) cd -- "$directory" 2>/dev/null || file=/tmp/${file#"$directory"/} ;;
esac
cd /

# Standard input is the file.
look() {
    found=$(stat -L -c '%d:%i %s' /proc/self/fd/0) || return
    now=${found% *} size=${found#* }
    case $offset in
    -*)
        count=$((size < window ? size : window))
        last=$(dd bs=65536 iflag=skip_bytes,count_bytes if=/proc/self/fd/0 skip=$((size - count)) count="$count" \
            2>/dev/null | tail -n "${offset#-}" | wc -c)
        offset=$((size - last))
        ;;
    *) if [ "$size" -lt "$offset" ] || { [ -n "$before" ] && [ "$now" != "$before" ]; }; then offset=0; fi ;;
    esac
    before=$now
    [ "$size" -gt "$offset" ] || return
    echo "data $now $size $offset"
    dd bs=65536 iflag=skip_bytes,count_bytes if=/proc/self/fd/0 skip="$offset" count="$most" 2>/dev/null | base64 -w 0
    echo
    exit
}

while :; do
    state=missing
    if [ -f "$file" ]; then
        state=denied
        { look && state=same || state=same; } 2>/dev/null <"$file"
    elif [ -e "$file" ]; then
        state=irregular
    fi
    [ "$waits" -gt 0 ] || break
    waits=$((waits - 1))
    sleep 0.5
done
case $state in same) echo "same $now $size $offset" ;; *) echo "$state" ;; esac
END
)
set -- env -i PATH=/usr/local/bin:/usr/bin:/bin LC_ALL=C sh -c "$reader" sh "$@" "$window"
# In a pod without root all jobs have the user that burstd has there.
if [ "$(id -u)" -eq 0 ]; then
    set -- setpriv --reuid "$uid" --regid "$gid" --init-groups --no-new-privs "$@"
fi
exec "$@"
