# A user's volume on this node. Every form may be repeated. Its last line on standard error begins with "refused: ", or,
# where another attempt makes sense, with "again: ".
# $1: format; $2: UUID; $3: UID:GID; further arguments: patterns of which one is the device. Makes a file system on a
#     device that is blank, which the caller knows to be so by its record too. One of this UUID is left alone.
# $1: mount; $2: UUID; $3: directory; further arguments as above. Never makes a file system.
# $1: unmount; $2: directory; further arguments as above. Done when no mount is left of the device, whose namespace ever.
# $1: check; further arguments as above. Whether no mount is there of the device.
# Where the machine came with the file system mounted, as a pod does, and cannot mount:
# $1: hand_over; $2: directory; $3: UID:GID. Before anybody has written to it.
# $1: write_back; $2: directory.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 022
refuse() { echo "refused: $*" >&2; exit 1; }
again() { echo "again: $*" >&2; exit 75; }
mounted() { awk -v path="$1" '$5 == path { found = 1 } END { exit !found }' /proc/self/mountinfo; }

# $device: the one that is there.
has_device() {
    device=
    for pattern in "$@"; do
        for path in $pattern; do
            [ ! -b "$path" ] || device=$path
        done
    done
    [ -n "$device" ]
}
find_device() { has_device "$@" || again "the volume's device is not there yet: $*"; }
# The kernel refuses this while the device is mounted anywhere, also where this process cannot see it.
check_free() {
    [ $# -gt 0 ] || again "the cloud has not listed the volume's device so far"
    ! has_device "$@" ||
        python3 -I -S -c 'import os, sys; os.open(sys.argv[1], os.O_RDONLY | os.O_EXCL)' "$device" 2>/dev/null ||
        again "$device is in use: a process has it mounted, perhaps in a namespace of its own"
}
# $type, $uuid: of what is on the device; both empty: nothing that anybody knows.
probe() {
    command -v blkid >/dev/null && command -v mkfs.ext4 >/dev/null ||
        refuse "the image lacks blkid or mkfs.ext4: have your administrator install e2fsprogs in the image"
    found=$(blkid -p -o export -- "$device" 2>/dev/null)
    case $? in
        0) ;;
        2) found= ;;
        *) refuse "blkid cannot tell what is on $device" ;;
    esac
    type=$(printf '%s\n' "$found" | sed -n 's/^TYPE=//p')
    uuid=$(printf '%s\n' "$found" | sed -n 's/^UUID=//p')
    [ -z "$found" ] || [ -n "$type" ] || type=unknown
}

case $1 in
format)
    wanted=$2 owner=$3
    shift 3
    find_device "$@"
    probe
    [ "$uuid" != "$wanted" ] || exit 0
    [ -z "$type" ] || refuse "$device has $type ${uuid:+with UUID $uuid }on it, and is left as it is"
    # What no program knows may still be something.
    [ "$(head -c 1048576 -- "$device" | tr -d '\000' | wc -c)" -eq 0 ] || refuse "$device is not blank, and is left as it is"
    mkfs.ext4 -q -U "$wanted" -L burstd -m 0 -E "root_owner=$owner,nodiscard" -- "$device" ||
        again "mkfs.ext4 failed on $device"
    sync -- "$device"
    ;;
mount)
    wanted=$2 directory=$3
    shift 3
    ! mounted "$directory" || exit 0
    find_device "$@"
    probe
    [ "$type" = ext4 ] && [ "$uuid" = "$wanted" ] ||
        refuse "$device has ${type:-nothing} ${uuid:+with UUID $uuid }on it, not this volume's file system"
    said=$(e2fsck -p -- "$device" 2>&1)
    result=$?
    [ $((result & 4)) -eq 0 ] || refuse "the file system on $device is damaged: an administrator runs e2fsck on it"
    # As where another try of this is still at it.
    [ $result -lt 4 ] || again "e2fsck cannot check $device: $(printf '%s\n' "$said" | head -n 1)"
    mkdir -p -- "$directory" || again "$directory cannot be made"
    mount -t ext4 -o nosuid,nodev -- "$device" "$directory" || again "$device cannot be mounted"
    # Before its owner has written anything: then nobody else gets in, unless the owner says so.
    [ "$(ls -A -- "$directory")" != lost+found ] || chmod 0700 -- "$directory"
    ;;
unmount)
    directory=$2
    shift 2
    if mounted "$directory"; then
        sync -f "$directory"
        umount -- "$directory" || again "$directory is in use: a process of the job has not ended"
    fi
    check_free "$@"
    rmdir -- "$directory" "${directory%/*}" 2>/dev/null
    exit 0
    ;;
check)
    shift
    check_free "$@"
    ;;
hand_over)
    directory=$2 owner=$3
    mounted "$directory" || refuse "$directory is not mounted: the machine was launched without it"
    if [ "$(id -u)" -ne 0 ]; then
        # Everything on this machine runs as one user.
        [ -w "$directory" ] || refuse "uid $(id -u) may not write to the volume: its storage class must support fsGroup"
        exit 0
    fi
    chown -- "$owner" "$directory" && chmod 0700 -- "$directory" ||
        refuse "the storage does not let root give the volume to $owner, as NFS with root_squash does not"
    ;;
write_back)
    ! mounted "$2" || sync -f -- "$2" || again "what was written to $2 cannot be written back"
    ;;
*) refuse "unknown form $1" ;;
esac
