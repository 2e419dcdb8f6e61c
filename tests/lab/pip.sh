# shellcheck shell=sh
# Sourced: install_packages VENV ARGUMENT... installs into a virtual environment as `pip install ARGUMENT...` does.
# uv is pip's match but for its speed: it compiles nothing, and most modules are never imported. It does not read pip's
# configuration, which may be what leads to the packages: then pip does it.
install_packages() {
  into=$1
  shift
  { "$into/bin/python" -m pip install -q --disable-pip-version-check uv==0.13.9 &&
    UV_CACHE_DIR=$into/.uv "$into/bin/uv" pip install -q -p "$into/bin/python" "$@"; } ||
    "$into/bin/python" -m pip install -q --disable-pip-version-check "$@" || return
  rm -rf "$into/.uv"
}
