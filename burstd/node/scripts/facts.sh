# Says what this machine is, as KEY=VALUE lines; a key may come several times. Reads only.
# $1: pattern of the GPUs' device files. Further arguments name what is looked for: user=NAME, module=NAME,
# locale=NAME, sentinel=PATH (a file, or a directory that has something in it), slurmctld=HOST:PORT,
# prolog=PATTERN (of programs), home=PATH (of directories);
# within=SECONDS: what may hang has so long.
# module=*: all modules.
set -u
lang=${LANG:-}
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
say() { printf '%s=%s\n' "$1" "$2"; }
mib() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print int($2 / 1024), int($4 / 1024) }'; }
devices=$1
shift
within=20
for word; do
    case $word in within=*) within=${word#within=} ;; esac
done

say clock "$(date +%s.%N)"
say uid "$(id -u)"
say hostname "$(uname -n)"
say kernel "$(uname -r)"
say arch "$(uname -m)"
say glibc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
[ -r /etc/os-release ] && say os "$(. /etc/os-release; echo "${ID:-} ${VERSION_ID:-${VERSION_CODENAME:-}}")"
say cpus "$(getconf _NPROCESSORS_ONLN)"
say memory_mib "$(awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo)"
say tmp_mib "$(set -- $(mib /tmp); echo "${1:-}")"
say free_mib "$(set -- $(mib /var); echo "${2:-}")"
for device in $devices; do
    [ -c "$device" ] && say gpu_device "$device"
done
[ -r /sys/module/nvidia/version ] && say driver "$(cat /sys/module/nvidia/version)"
if [ -r /sys/fs/cgroup/dmem.capacity ]; then
    while read -r region _; do say dmem "$region"; done </sys/fs/cgroup/dmem.capacity
fi
for file in /etc/default/locale /etc/locale.conf; do
    [ -r "$file" ] && lang=$(LANG=$lang; . "$file" >/dev/null; echo "$LANG")
done
say lang "$lang"
zone=$(readlink -f /etc/localtime)
case $zone in
*/zoneinfo/*) say timezone "${zone#*/zoneinfo/}" ;;
*) say timezone "$(cat /etc/timezone 2>/dev/null || date +%Z)" ;;
esac

# What slurmd has, jobs get at most. Where it does not run yet: what systemd will give it, else what this shell has.
limits() {
    awk '/^Max locked memory/ { print "limit=memlock", $(NF - 1) }
        /^Max open files/ { print "limit=nofile", $(NF - 1) }
        /^Max stack size/ { print "limit=stack", $(NF - 1) }
        /^Max processes/ { print "limit=nproc", $(NF - 1) }' "/proc/$1/limits"
}
if slurmd=$(pgrep -o -x slurmd 2>/dev/null) || ! [ -d /run/systemd/system ]; then
    limits "${slurmd:-self}"
else
    systemctl show slurmd -p LimitMEMLOCK -p LimitNOFILE -p LimitSTACK -p LimitNPROC 2>/dev/null |
        awk -F= '/^Limit/ { print "limit=" tolower(substr($1, 6)), $2 }'
    # In a container systemd may lack CAP_SYS_RESOURCE and raise none: the lower value holds.
    [ "$((0x$(awk '/^CapBnd:/ { print $2 }' /proc/1/status) >> 24 & 1))" = 1 ] || limits 1
fi
command -v slurmd >/dev/null && say slurmd "$(slurmd -V 2>&1)"
command -v munged >/dev/null && command -v unmunge >/dev/null && say munge "$(munged -V 2>&1)"
command -v sshfs >/dev/null && say sshfs 1
[ -c /dev/fuse ] && say fuse 1
[ -d /run/systemd/system ] && say systemd 1
[ -r /run/burstd/frameworks ] && sed 's/^/framework=/' /run/burstd/frameworks

# Those of the patterns that a program has.
prologs() {
    for word; do
        pattern=${word#prolog=}
        [ "$pattern" = "$word" ] && continue
        # shellcheck disable=SC2086 # The shell expands it, as slurmd does.
        for file in $pattern; do
            if [ -f "$file" ] && [ -x "$file" ]; then
                say prolog "$pattern"
                break
            fi
        done
    done
}

# Of one that an automounter has not mounted in time, that root may not see (NFS), or that the boot may still mount
# nothing is said.
home() {
    if timeout -k 1 "$within" test -d "$1"; then
        say home "ok $1"
        return
    fi
    case $(LC_ALL=C timeout -k 1 "$within" stat -L "$1" 2>&1 >/dev/null) in
    *": No such file or directory")
        timeout -k 1 "$within" systemctl is-system-running --wait >/dev/null
        if [ $? != 124 ]; then
            if timeout -k 1 "$within" test -d "$1"; then say home "ok $1"; else say home "- $1"; fi
        fi
        ;;
    esac
}

users() {
    for word; do
        name=${word#user=}
        [ "$name" = "$word" ] && continue
        say user "$name $(id -u "$name" || echo -) $(id -g "$name" || echo -) $(id -G "$name")"
    done
}

locales() {
    locale -a | tr -d - | awk -v all="$*" 'BEGIN { count = split(all, words, " ") }
        { there[tolower($0)] = 1 }
        END {
            for (i = 1; i <= count; i++) {
                if (!sub(/^locale=/, "", words[i])) continue
                plain = tolower(words[i]); gsub(/-/, "", plain)
                if (plain in there || plain == "c" || plain == "posix") print "locale=" words[i]
            }
        }'
}

# Of each name what is exactly that, or a version of it.
modules() {
    timeout -k 1 "$within" bash -lc 'command -v module >/dev/null || { echo module_command=none; exit 0; }
        for word; do
            case $word in "module=*") ;; module=*) echo "$word"; module -t avail "${word#module=}" 2>&1 ;; esac
        done' bash "$@" | awk '
        function tell() { if (name != "") print "module=" name list; fflush() }
        /^module_command=/ && name == "" { print; fflush(); next }
        /^module=/ { tell(); name = substr($0, 8); list = ""; next }
        { sub(/[(<].*/, ""); sub(/\/$/, "") }
        ($0 == name || index($0, name "/") == 1) && !seen[name, $0]++ { list = list " " $0 }
        END { tell() }'
}

# Names alone, without the trees that they are in. Where there is no module nothing is said.
module_tree() {
    names=$(timeout -k 1 "$within" bash -lc 'module -t avail 2>&1' |
        sed 's/[(<].*//; s/[[:space:]]*$//' | grep -E '^[A-Za-z0-9][^[:space:]:]*[^[:space:]:/]$' | head -n 50000 | sort -u)
    [ -n "$names" ] || return
    checksum=$(printf '%s\n' "$names" | sha256sum)
    say module_tree "${checksum%% *} $(printf '%s\n' "$names" | wc -l)"
    printf '%s\n' "$names" | head -n 2000 | awk '{ print "tree_module=" $0; fflush() }'
}

# Of the repository of CVMFS that a path is in; else nothing is said.
revision() {
    found=$(timeout -k 1 "$within" attr -qg revision "$1" ||
        timeout -k 1 "$within" getfattr --only-values -n user.revision "$1" ||
        timeout -k 1 "$within" python3 -Ic 'import os, sys; print(os.getxattr(sys.argv[1], "user.revision").decode())' "$1")
    [ -z "$found" ] || say revision "$found $1"
}

runtime() {
    [ "$1" = enroot ] && option=version || option=--version
    say runtime "$1 $(timeout -k 1 "$within" "$1" "$option" | head -n 1)"
    [ "$1" = docker ] || return
    # shellcheck disable=SC2016 # Docker expands it.
    case " $(timeout -k 1 "$within" docker info --format '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}')" in
    *" nvidia "*) say runtime docker-nvidia ;;
    esac
}

# From the kernel's list, which does not ask a server that may be gone: "mount=PATH TYPE SOURCE".
mounts() {
    awk '{ for (i = 7; i < NF && $i != "-"; i++); type = $(i + 1); source = $(i + 2) }
        type == "autofs" && $5 ~ /^\/proc\// { next }
        type ~ /^(autofs|nfs4?|cifs|smb3|lustre|gpfs|beegfs|ceph|wekafs|panfs|pvfs2|glusterfs|afs|9p|virtiofs)$/ ||
        type ~ /^fuse\.(sshfs|ceph|glusterfs|s3fs|juicefs|rclone|gcsfuse)/ { print "mount=" $5, type, source; fflush() }' /proc/self/mountinfo
}

sentinel() {
    if [ -d "$1" ]; then
        [ -n "$(timeout -k 1 "$within" ls -A "$1" | head -n 1)" ] && found=directory || found=-
    elif timeout -k 1 "$within" head -c 1 "$1" >/dev/null; then
        found=$(timeout -k 1 "$within" head -c 1048576 "$1" | sha256sum)
    else
        found=-
    fi
    say sentinel "${found%% *} $1"
    [ "$found" = - ] || revision "$1"
}

# Whether a port of slurmctld answers: "slurmctld=HOST:PORT ok", or else unknown, refused or silent.
slurmctld() {
    command -v getent >/dev/null && command -v bash >/dev/null || return
    host=${1%:*}
    if ! timeout -k 1 5 getent ahosts "$host" >/dev/null; then
        say slurmctld "$1 unknown"
        return
    fi
    # shellcheck disable=SC2016 # bash expands it.
    if timeout -k 1 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$host" "${1##*:}"; then
        say slurmctld "$1 ok"
    elif [ $? -ge 124 ]; then
        say slurmctld "$1 silent"
    else
        say slurmctld "$1 refused"
    fi
}

# A GPU that has fallen off the bus makes nvidia-smi fail, or hang. What it prints without end is cut off.
gpus() {
    timeout -k 1 "$within" nvidia-smi -L 2>&1 | head -c 65536 | while read -r line; do say gpu_name "$line"; done
    say nvidia_smi answered
}

mps() {
    if echo get_server_list | timeout -k 1 "$within" nvidia-cuda-mps-control >/dev/null; then say mps answers; else say mps silent; fi
}

# What may hang, as a mount whose server is gone does, runs aside. Nobody waits for a process that cannot be killed.
# Each prints whole lines at a time (fflush in awk): a line that a full buffer cuts would be mixed with those of others.
asides() {
    users "$@" &
    prologs "$@" &
    for word; do
        case $word in
        sentinel=*) sentinel "${word#sentinel=}" & ;;
        home=*) home "${word#home=}" & ;;
        slurmctld=*) slurmctld "${word#slurmctld=}" & ;;
        esac
    done
    case " $*" in *" locale="*) locales "$@" & ;; esac
    case " $*" in *" module="*) modules "$@" & ;; esac
    case " $* " in *" module=* "*) module_tree & ;; esac
    for name in apptainer singularity enroot podman docker; do
        if command -v "$name" >/dev/null; then runtime "$name" & fi
    done
    mounts &
    if command -v nvidia-cuda-mps-control >/dev/null; then mps & fi
    if command -v nvidia-smi >/dev/null; then
        say nvidia_smi asked
        gpus &
        gpu_states "$within" &
    fi
}
asides "$@" </dev/null 2>/dev/null | timeout "$((within + 3))" cat
say end 1
