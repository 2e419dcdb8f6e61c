# Limits a job to its shards' part of each GPU's memory. slurmd runs this as Prolog, as root, before a job begins here:
# where it fails the job does not begin, and slurmd drains the node. slurmstepd runs it as TaskProlog, as the job's user.
# gpu_memory_limit.sh has put before it: limit (mps or dmem), per_gpu (shards of a GPU), memory_mib (of the smallest GPU).
# shellcheck disable=SC2154
set -u
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
umask 022
cgroup=/sys/fs/cgroup
# Of jobs that MPS limits: what their tasks have in their environment.
environments=/run/burstd/gpu-memory
environment=$environments/${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}
fail() { echo "the GPU memory of job $SLURM_JOB_ID cannot be limited: $*" >&2; exit 1; }

if [ "${SLURM_SCRIPT_CONTEXT:-}" = prolog_task ]; then
    [ ! -e "$environment" ] || exec cat "$environment"
    exit 0
fi
rm -f "$environment"

# The environment of a Prolog has the GPUs of a job and not its shards. slurmctld may just be starting again.
tries=5
until said=$(timeout 20 scontrol -d show job "$SLURM_JOB_ID" 2>&1); do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || fail "$said"
    sleep 2
done
# The shards on each group of nodes, the fewest first. Users choose a job's name, and so can add rows, not take any away.
counts=$(echo "$said" | awk '/^ *Nodes=/ {
        count = 0
        for (i = 2; i <= NF; i++) if ($i ~ /^GRES=/ && match($i, /shard:(\(null\):)?[0-9]+/)) {
            count = substr($i, RSTART, RLENGTH); sub(/.*:/, "", count)
        }
        print count, substr($1, 7)
    }' | sort -n -u | while read -r count nodes; do
        ! scontrol show hostnames "$nodes" | grep -q -x -F -e "$SLURMD_NODENAME" || echo "$count"
    done)
[ -n "$counts" ] || fail "scontrol does not say what it has on $SLURMD_NODENAME"
shards=$(echo "$counts" | grep -v -x 0 | head -n 1)
[ -n "$shards" ] || exit 0
[ "$shards" -le "$per_gpu" ] || shards=$per_gpu

if [ "$limit" = mps ]; then
    echo get_server_list | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1 || fail "the MPS control daemon does not answer"
    # A job with shards sees one GPU, which is the first one to it.
    mkdir -p "$environments"
    {
        echo "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=$((memory_mib * shards / per_gpu))M"
        echo "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 * shards / per_gpu))"
    } >"$environment" || fail "$environment cannot be written"
    exit 0
fi

scope=$(find "$cgroup" -maxdepth 4 -type d -name '*slurmstepd.scope' | head -n 1)
[ -n "$scope" ] || fail "no slurmstepd.scope in $cgroup: Slurm needs its plugin cgroup/v2"
# A controller works where each folder above hands it down.
path=$scope
while [ "$path" != "$cgroup" ]; do
    path=${path%/*}
    folders="$path ${folders:-$scope}"
done
for folder in $folders; do
    grep -q -w dmem "$folder/cgroup.subtree_control" || echo +dmem >"$folder/cgroup.subtree_control" ||
        fail "$folder does not take the controller dmem"
done
# Lines of 'REGION BYTES', in one write: whole MiB, so that no page is rounded.
limits=$(while read -r region size; do
    mib=$((size / 1048576))
    mib=$((mib * shards / per_gpu))
    echo "$region $((mib * 1048576))"
done <"$cgroup/dmem.capacity")
[ -n "$limits" ] || fail "$cgroup/dmem.capacity names no GPU"
# slurmstepd takes a folder that is there. Since 26.05 its name is the job's SLUID, unless CgroupJobIdPaths is set.
for name in "job_$SLURM_JOB_ID" "${SLURM_JOB_SLUID:-}"; do
    [ -n "$name" ] || continue
    mkdir -p "$scope/$name"
    echo "$limits" >"$scope/$name/dmem.max" || fail "the kernel does not take the limits"
    echo "$limits" | while read -r line; do grep -q -x -F -e "$line" "$scope/$name/dmem.max" || exit 1; done ||
        fail "the kernel has other limits than $limits"
done
# What slurmstepd has not taken, and so is empty.
find "$scope" -mindepth 1 -maxdepth 1 -type d \( -name 'job_*' -o -name 's?????????????' \) -mmin +60 \
    -exec rmdir {} + 2>/dev/null || :
