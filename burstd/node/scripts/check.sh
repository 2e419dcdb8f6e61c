# Runs a check of the site, which comes by standard input, and ends with its exit status; prints the start of what it said.
# $1: seconds that it may take. What it prints goes into a file, of bounded size: a daemon that it leaves behind may keep
# its output open.
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 077
folder=$(mktemp -d /run/burstd-check.XXXXXX) || exit 3
trap 'rm -rf "$folder"' EXIT
cat >"$folder/check" && chmod 0700 "$folder/check" || exit 3
(
    ulimit -f 20480
    exec timeout -k 1 "$1" "$folder/check" </dev/null >"$folder/said" 2>&1
)
status=$?
[ "$status" != 124 ] || echo "no answer within $1 s"
head -c 4096 "$folder/said"
exit "$status"
