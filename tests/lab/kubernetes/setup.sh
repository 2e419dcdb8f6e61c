#!/bin/sh
# Prints the folder with Kubernetes' programs.
set -eu
cache=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/burstd}
printf '%s\n' "$cache/kubernetes-1.20.2-dev"
