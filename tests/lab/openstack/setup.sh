#!/bin/sh
# Installs what the lab's OpenStack runs on: MariaDB and RabbitMQ through apt (as root; neither is started), and the
# services from requirements.txt in a virtual environment under the user's cache. Prints that environment's folder.
set -eu
PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")" && pwd)

say() { printf '%s\n' "burstd: $*" >&2; }
die() { say "$*"; exit 1; }
# shellcheck source=tests/lab/apt.sh
. "$here/../apt.sh"

python=${PYTHON:-python3}
cache=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/burstd}
mkdir -p "$cache" || die "the cache folder $cache cannot be made: set XDG_CACHE_HOME to a folder that can be written"

# Two starts at once make one environment.
exec 9>"$cache/openstack.lock"
flock 9

missing=
command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null || missing="$missing mariadb-server"
[ -x /usr/sbin/rabbitmq-server ] || missing="$missing rabbitmq-server"
# shellcheck disable=SC2086
[ -z "$missing" ] || install_quietly "$cache/openstack-apt.log" $missing

key=$(cat "$here/requirements.txt" "$here/constraints.txt" "$0" | sha256sum | cut -c1-8)
venv=$cache/openstack-venv-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$key
if [ ! -e "$venv/.complete" ]; then
  say "making the virtual environment of OpenStack's services (once, about a minute)"
  rm -rf "$venv"
  "$python" -m venv "$venv" || die "a virtual environment could not be made in $venv"
  log=$cache/openstack-pip.log
  # shellcheck source=tests/lab/pip.sh
  . "$here/../pip.sh"
  install_packages "$venv" -r "$here/requirements.txt" -c "$here/constraints.txt" >"$log" 2>&1 ||
    { tail -5 "$log" >&2; die "OpenStack's services could not be installed (see $log)"; }
  touch "$venv/.complete"
fi
printf '%s\n' "$venv"
