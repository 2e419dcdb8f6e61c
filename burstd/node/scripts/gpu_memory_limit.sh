# Brings a node what limits each job to its shards' part of a GPU's memory: /etc/burstd/gpu-memory-limit, which slurmd
# runs as Prolog and slurmstepd as TaskProlog, under the names that slurm.conf has. May be repeated, and cut off.
# $1: mps or dmem. $2: shards of a GPU. Standard input: gpu_memory_prolog.sh.
set -eu
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 022
fail() { echo "$*" >&2; exit 1; }

memory=0
if [ "$1" = mps ]; then
    said=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>&1) || fail "nvidia-smi does not answer: $said"
    memory=$(echo "$said" | sort -n | head -n 1)
    case $memory in '' | *[!0-9]*) fail "nvidia-smi names no memory of a GPU: $said" ;; esac
fi
folder=/etc/burstd
install -d -m 0755 "$folder"
rm -f "$folder"/.gpu-memory-limit.*
new=$(mktemp "$folder/.gpu-memory-limit.XXXXXX")
{ printf '#!/bin/sh\nlimit=%s per_gpu=%s memory_mib=%s\n' "$1" "$2" "$memory"; cat; } >"$new"
chmod 0755 "$new"
mv -f "$new" "$folder/gpu-memory-limit"
ln -sfn gpu-memory-limit "$folder/true"
ln -sfn gpu-memory-limit "$folder/task-prolog"
