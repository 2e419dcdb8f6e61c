# For the lab's setup.sh scripts, which source it: packages without the daemons that they would start.
# shellcheck shell=sh

# install_quietly LOG PACKAGE...: fails with the end of LOG. Nothing is started, now or at the next boot.
install_quietly() {
  log=$1
  shift
  command -v apt-get >/dev/null || die "these Debian packages are missing and there is no apt-get: $*"
  [ "$(id -u)" = 0 ] || die "these Debian packages are missing, install them as root: $*"
  # One at a time: apt waits for no other's lists, and the file below is for all.
  exec 8>"${log%/*}/apt.lock"
  flock 8
  say "installing $*"
  policy=/usr/sbin/policy-rc.d
  mark="# burstd: the setup.sh of its lab was ended before it removed this file"
  ours=
  if [ ! -e "$policy" ] || grep -qxF "$mark" "$policy"; then
    ours=$policy
    trap 'rm -f "$ours"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
    chmod 755 "$policy"
  fi
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=900 install -y -qq \
      --no-install-recommends "$@"; } >"$log" 2>&1 ||
    { tail -5 "$log" >&2; die "apt-get could not install $* (see $log)"; }
  rm -f "$ours"
  trap - EXIT HUP INT TERM
  exec 8>&-
  command -v systemctl >/dev/null || return 0
  for package in "$@"; do
    for unit in "$package" "${package%-server}"; do systemctl disable --quiet "$unit" 2>/dev/null || true; done
  done
}
