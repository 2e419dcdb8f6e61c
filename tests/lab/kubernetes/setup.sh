#!/bin/sh
# Installs what the lab's Kubernetes runs on through apt (as root; nothing is started), and builds Kubernetes itself, in
# the user's cache. Prints the folder that has its programs in bin.
set -eu
PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")" && pwd)
version=1.20.2

say() { printf '%s\n' "burstd: $*" >&2; }
die() { say "$*"; exit 1; }
# shellcheck source=tests/lab/apt.sh
. "$here/../apt.sh"

cache=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/burstd}
mkdir -p "$cache" || die "the cache folder $cache cannot be made: set XDG_CACHE_HOME to a folder that can be written"

place=$cache/kubernetes-$version-$(sha256sum <"$here/build.sh" | cut -c1-8)
missing=
command -v etcd >/dev/null || missing="$missing etcd-server"

# Two starts at once make one set of programs.
if [ -n "$missing" ] || [ ! -d "$place" ]; then
  exec 9>"$cache/kubernetes.lock"
  flock 9
fi
# shellcheck disable=SC2086
[ -z "$missing" ] || install_quietly "$cache/kubernetes-apt.log" $missing
if [ ! -d "$place" ]; then
  unfinished=$place.unfinished
  rm -rf "$cache"/kubernetes-*.unfinished
  mkdir "$unfinished"
  [ "$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')" -gt 2500 ] ||
    die "Kubernetes needs 2500 MB in $cache while it is built: free some or set XDG_CACHE_HOME"
  grep -q '^VERSION_CODENAME=bookworm$' /etc/os-release ||
    die "Kubernetes is built from Debian 12's source: run these tests on Debian 12, or leave out those marked clouds"
  needs=
  for package in golang-1.19-go debian-archive-keyring; do
    dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q 'ok installed$' || needs="$needs $package"
  done
  # shellcheck disable=SC2086
  [ -z "$needs" ] || install_quietly "$cache/kubernetes-apt.log" $needs
  say "building Kubernetes $version (once, some minutes)"
  log=$cache/kubernetes-build.log
  nice -n 10 bash "$here/build.sh" "$version" "$unfinished" >"$log" 2>&1 ||
    { tail -5 "$log" >&2; rm -rf "$unfinished"; die "Kubernetes could not be built (see $log)"; }
  mv "$unfinished" "$place"
  # Those of older recipes, so that changes of the lab do not fill the cache.
  find "$cache" -maxdepth 1 -name "kubernetes-[0-9]*" -type d -mtime +7 -exec rm -rf {} +
fi
touch "$place"
printf '%s\n' "$place"
