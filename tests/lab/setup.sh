#!/bin/sh
# Prepares this machine for `make check`, `make test` and `make demo`, and prints the virtual environment's folder.
# Installs nothing but the tools that make boxes (through apt, as root) and keeps all else under the user's cache.
set -eu
project=$(cd "$(dirname "$0")/../.." && pwd)
need=${1:-boxes}

say() { printf '%s\n' "burstd: $*" >&2; }
die() { say "$*"; exit 1; }

python=${PYTHON:-python3}
command -v "$python" >/dev/null || die "Python 3.11 or newer is missing: apt-get install python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "$python is $("$python" -V 2>&1), burstd needs Python 3.11 or newer (set PYTHON=...)"

home=$HOME
if [ -n "${SUDO_USER:-}" ]; then home=$(getent passwd "$SUDO_USER" | cut -d: -f6); fi
cache=${XDG_CACHE_HOME:-$home/.cache}/burstd
mkdir -p "$cache" || die "the cache folder $cache cannot be made: set XDG_CACHE_HOME to a folder that can be written"

missing=
"$python" -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
if [ "$need" = boxes ]; then
  [ "$(uname -s)" = Linux ] || die "boxes need Linux"
  [ "$(id -u)" = 0 ] || die "boxes are made of namespaces and mounts, which only root may make: run it again with sudo"
  command -v mmdebstrap >/dev/null || missing="$missing mmdebstrap"
  command -v ip >/dev/null || missing="$missing iproute2"
  command -v skopeo >/dev/null || missing="$missing skopeo"
  command -v cc >/dev/null || missing="$missing gcc libc6-dev"
  command -v setpriv >/dev/null || missing="$missing util-linux"
  command -v ssh-keygen >/dev/null || missing="$missing openssh-client"
  ls /usr/lib*/openssh/sftp-server >/dev/null 2>&1 || missing="$missing openssh-sftp-server"
  command -v chromium >/dev/null || missing="$missing chromium fonts-dejavu-core"
  command -v promtool >/dev/null || missing="$missing prometheus"
  command -v prometheus-alertmanager >/dev/null || missing="$missing prometheus-alertmanager"
  command -v shellcheck >/dev/null || missing="$missing shellcheck"
  command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
  [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing="$missing debian-archive-keyring"
fi
if [ -n "$missing" ]; then
  # shellcheck source=tests/lab/apt.sh
  . "$project/tests/lab/apt.sh"
  # shellcheck disable=SC2086
  install_quietly "$cache/apt.log" $missing
fi

# Two starts at once make one environment.
exec 9>"$cache/setup.lock"
flock 9

# Keyed by what goes into it: a changed requirement makes a new one, another checkout keeps its own.
key=$(cat "$project/pyproject.toml" "$project/config/constraints.txt" "$0" | sha256sum | cut -c1-8)
place=$(printf '%s' "$project" | sha256sum | cut -c1-4)
venv=$cache/venv-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$key-$place
if [ ! -e "$venv/.complete" ]; then
  say "making a virtual environment (once, about a minute)"
  rm -rf "$venv"
  "$python" -m venv "$venv" || die "a virtual environment could not be made in $venv"
  "$python" - "$project/pyproject.toml" >"$venv/requirements.txt" <<'PY'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)
wanted = project["build-system"]["requires"] + project["project"]["dependencies"] + project["dependency-groups"]["dev"]
print("\n".join(wanted))
PY
  # shellcheck source=tests/lab/pip.sh
  . "$project/tests/lab/pip.sh"
  install_packages "$venv" -r "$venv/requirements.txt" -c "$project/config/constraints.txt" >"$cache/pip.log" 2>&1 ||
    { tail -5 "$cache/pip.log" >&2; die "pip could not install what burstd needs (see $cache/pip.log)"; }
  # The checkout goes in as an editable install, so that its entry points are found.
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e "$project" \
    >"$cache/pip.log" 2>&1 || { tail -5 "$cache/pip.log" >&2; die "the checkout could not be installed (see $cache/pip.log)"; }
  touch "$venv/.complete"
fi
printf '%s\n' "$venv"
