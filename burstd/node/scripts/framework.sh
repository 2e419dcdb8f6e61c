# Shows whether a framework works for an ordinary user: its check runs as nobody, in a login shell with the modules
# loaded, or in the image. Ends with the check's exit status; prints the end of what it said.
# $1: name; $2: checksum of what the framework is; $3: seconds that it may take; $4: gpu, or empty; $5: image, or empty;
# $6: check; further arguments: modules. Where it works, facts.sh finds name and checksum later.
# What the check prints goes into a file, of bounded size: a process that it leaves behind may keep its output open.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 022
name=$1 checksum=$2 limit=$3
shift 3
folder=$(mktemp -d /tmp/burstd-framework.XXXXXX) || exit 3
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/home" || exit 3
chmod 0711 "$folder"
user=$(id -un)
if [ "$(id -u)" = 0 ]; then
    user=nobody
    group=$(id -g nobody) && chown nobody "$folder/home" || exit 3
fi
become() {
    if [ "$user" = nobody ]; then exec setpriv --reuid=nobody "--regid=$group" --init-groups "$@"; else exec "$@"; fi
}
# shellcheck disable=SC2016 # The login shell expands it.
job='gpu=$1 image=$2 check=$3
shift 3
if [ -n "$image" ]; then
    [ -r "$image" ] || { echo "users cannot read an image $image"; exit 3; }
    runtime=$(command -v apptainer || command -v singularity) || { echo "there is no apptainer"; exit 3; }
    exec "$runtime" exec ${gpu:+--nv} "$image" sh -c "$check"
fi
command -v module >/dev/null || { echo "there is no command module in a login shell"; exit 3; }
for module; do module load "$module" || { echo "module load $module fails"; exit 3; }; done
eval "$check"'
(
    ulimit -f 131072
    cd "$folder/home" || exit 3
    become env -i "HOME=$folder/home" "USER=$user" "LOGNAME=$user" SHELL=/bin/bash LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin \
        timeout -k 1 "$limit" bash -lc "$job" bash "$@" </dev/null >"$folder/said" 2>&1
)
status=$?
if [ "$status" = 0 ]; then
    if [ "$user" = nobody ]; then
        mkdir -p /run/burstd && echo "$name $checksum" >>/run/burstd/frameworks
    fi
    exit
fi
tail -c 4096 "$folder/said"
[ "$status" != 124 ] && [ "$status" != 137 ] || echo "no answer within $limit s"
exit "$status"
