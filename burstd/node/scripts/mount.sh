# Shows a user's trees of the head at their own paths, by the SFTP that standard input and output carry, or ends that.
# $1: mount; $2: uid; further arguments: trees, "ro /opt/software", "rw /home/ada". Says "mounted" on standard error
#     once they stand, and lasts as long as they do. On failure its last line there begins with "refused: ", or, where
#     another attempt makes sense, with "again: ".
# $1: unmount; $2: uid. Also where nothing is mounted.
# Where the stream breaks the trees stay, and answer "Transport endpoint is not connected": jobs must not write to the
# directories underneath. The user's next mount, or an unmount, removes them; another's mount only where the user has no
# process on the node.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 022
state=/run/burstd/mounts
options=passive,allow_other,default_permissions,auto_cache,nosuid,nodev,fsname=burstd
refuse() { echo "refused: $*" >&2; exit 1; }
again() { echo "again: $*" >&2; exit 75; }

# $state/UID.paths: what was done, a line each: "made DIRECTORY", "bind PATH". $state/UID.pid: the process that serves.
serves() {
    { read -r pid <"$state/$1.pid"; } 2>/dev/null && grep -q -a -F -e "$state" "/proc/$pid/cmdline" 2>/dev/null
}
has_processes() {
    cat /proc/[0-9]*/status 2>/dev/null |
        awk -v uid="$1" '/^Uid:/ && ($2 == uid || $3 == uid || $4 == uid || $5 == uid) { found = 1 } END { exit !found }'
}
# Whether others than root can put something else in a path's place; $parent is the directory where they can.
replaceable() {
    parent=$1
    while [ -n "$parent" ]; do
        parent=${parent%/*}
        facts=$(stat -c '0%a %u' -- "${parent:-/}" 2>/dev/null) || continue
        [ "${facts#* }" = 0 ] && [ $((${facts% *} & 022)) -eq 0 ] || return 0
    done
    return 1
}
# Plainly first: a lazy unmount hides what is still open. After 3 s all that is under way gets an error.
release() {
    tries=15
    until release_plainly "$1"; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ]; then
            umount -c -f "$state/$1" 2>/dev/null
            each_bind "$1" umount -c -l
            umount -c -l "$state/$1" 2>/dev/null
            break
        fi
        sleep 0.2
    done
    if [ -f "$state/$1.paths" ]; then
        tac "$state/$1.paths" | while read -r what path; do
            [ "$what" != made ] || rmdir "$path" 2>/dev/null
        done
    fi
    rmdir "$state/$1" 2>/dev/null
    rm -f "$state/$1.paths" "$state/$1.pid"
}
release_plainly() {
    each_bind "$1" umount -c
    ! mounted "$state/$1" || umount -c "$state/$1" 2>/dev/null
    each_bind "$1" false && ! mounted "$state/$1"
}
# Runs a command with each path that is still mounted; fails where one is afterwards.
each_bind() {
    name=$1
    shift
    [ -f "$state/$name.paths" ] || return 0
    left=0
    while read -r what path; do
        if [ "$what" = bind ] && mounted "$path"; then
            "$@" "$path" 2>/dev/null
            mounted "$path" && left=1
        fi
    done <"$state/$name.paths"
    return "$left"
}
# Whether something is mounted at a path. Asks the kernel's list: the file system itself may not answer.
mounted() { awk -v path="$(escaped "$1")" '$5 == path { found = 1 } END { exit !found }' /proc/self/mountinfo; }
escaped() { printf '%s' "$1" | sed 's/\\/\\134/g; s/ /\\040/g' | sed 's/\\/\\\\/g'; }

[ "$(id -u)" = 0 ] || refuse "burstd is not root on the node: trees cannot be mounted. Give its login sudo"
action=$1
uid=$2
shift 2
if [ "$action" = unmount ]; then
    if serves "$uid"; then
        kill "$pid"
        tries=50
        while [ -d "/proc/$pid" ] && [ "$tries" -gt 0 ]; do sleep 0.1; tries=$((tries - 1)); done
    fi
    release "$uid"
    exit 0
fi

command -v sshfs >/dev/null || refuse "the node has no sshfs: install it in the image (Debian: sshfs, RHEL: fuse-sshfs)"
[ -c /dev/fuse ] || modprobe fuse 2>/dev/null
[ -c /dev/fuse ] || refuse "the node has no /dev/fuse: load the kernel module fuse in the image"
install -d -m 0755 /run/burstd && install -d -m 0700 "$state" || refuse "the node cannot make $state"
# Our own, for burstd starts another only where the last has ended. Others' whose stream is gone and whom no job misses;
# nobody's trees are every job's.
for file in "$state"/*.paths; do
    [ -f "$file" ] || continue
    other=${file##*/}
    other=${other%.paths}
    if serves "$other"; then
        [ "$other" != "$uid" ] || kill "$pid"
    elif [ "$other" = "$uid" ] || { [ "$other" != 65534 ] && ! has_processes "$other"; }; then
        release "$other"
    fi
done
if serves "$uid"; then again "the trees of uid $uid are still mounted on the node"; fi

login=${SUDO_USER:-root}
home=$(getent passwd "$login" | cut -d: -f6)
for tree; do
    path=${tree#* }
    [ "$(realpath -m -- "$path")" = "$path" ] || refuse "$path: a symbolic link leads elsewhere on the node: remove it from the image"
    ! replaceable "$path" || refuse "$path: users can replace it on the node, because ${parent:-/} is not root's alone: give ${parent:-/} to root with mode 755 in the image"
    case "$home/" in "$path"/*) refuse "$path: the home of $login, as whom burstd logs in, lies there: name another tree" ;; esac
    case "$path/" in "$home"/*) refuse "$path: it lies in the home of $login, as whom burstd logs in: name another tree" ;; esac
    [ ! -e "$path" ] || [ -d "$path" ] || refuse "$path: it is no directory on the node"
    if mounted "$path"; then
        ! grep -s -q -x -F -e "bind $path" "$state"/*.paths || again "$path: another user's is mounted there on the node"
        refuse "$path: something is mounted there on the node already: leave it out of the trees, or out of the image"
    fi
done

echo "$$" >"$state/$uid.pid"
: >"$state/$uid.paths"
mkdir "$state/$uid" || refuse "the node cannot make $state/$uid"
# A user's links may lead anywhere, as on the head; later releases have an option for that.
! sshfs -h </dev/null 2>&1 | grep -q no_contain_symlinks || options=$options,no_contain_symlinks
exec 3<&0 4>&1 </dev/null >/dev/null
sshfs -f -o "$options" ":/" "$state/$uid" <&3 >&4 3<&- 4>&- &
sshfs=$!
exec 3<&- 4>&-
trap 'release "$uid"; kill "$sshfs" 2>/dev/null; exit 0' TERM INT HUP
undo() {
    message=$1
    release "$uid"
    kill "$sshfs" 2>/dev/null
    refuse "$message"
}
until mounted "$state/$uid"; do
    kill -0 "$sshfs" 2>/dev/null || { release "$uid"; again "sshfs has ended on the node before its trees were there"; }
    sleep 0.02
done
for tree; do
    path=${tree#* }
    missing=$path
    directories=
    while [ ! -d "$missing" ]; do
        directories="made $missing
$directories"
        missing=${missing%/*}
        missing=${missing:-/}
    done
    printf '%s' "$directories" >>"$state/$uid.paths"
    mkdir -p -- "$path" || undo "$path: the node cannot make this directory"
    echo "bind $path" >>"$state/$uid.paths"
    mount -n --bind "$state/$uid$path" "$path" || undo "$path: the node cannot mount it"
    case $tree in "ro "*) mount -n -o remount,bind,ro,nosuid,nodev "$path" || undo "$path: the node cannot mount it read-only" ;; esac
done
echo mounted >&2
exec 2>/dev/null
wait "$sshfs"
rm -f "$state/$uid.pid"
