# Cuts each GPU into parts (MIG), unless that is done. Nothing may run on the GPUs. May be repeated, and cut off.
# $1: the profiles of the parts of each GPU, with commas between: 1g.10gb,1g.10gb,3g.40gb.
set -eu
LC_ALL=C
PATH=/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin
export LC_ALL PATH
fail() { echo "$*" >&2; exit 1; }
in_order() { tr ' ,' '\n\n' | sed '/^$/d' | sort | tr '\n' ' '; }
parts() {
    nvidia-smi -L | awk -v gpu="$1" '/^GPU/ { mine = $2 == gpu ":" } mine && $1 == "MIG" { print $2 }' | in_order
}
mode() { nvidia-smi -i "$1" --query-gpu=mig.mode.current --format=csv,noheader; }

wanted=$(echo "$1" | in_order)
command -v nvidia-smi >/dev/null || fail "no nvidia-smi: install NVIDIA's driver in the image"
gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader) || fail "nvidia-smi does not answer: $gpus"
for gpu in $gpus; do
    case $(mode "$gpu") in
    Enabled) ;;
    Disabled)
        said=$(nvidia-smi -i "$gpu" -mig 1 2>&1) || fail "GPU $gpu: $(echo "$said" | tail -n 1)"
        # Some drivers enable it with the next reset only.
        [ "$(mode "$gpu")" = Enabled ] || nvidia-smi -i "$gpu" --gpu-reset >/dev/null 2>&1 || :
        [ "$(mode "$gpu")" = Enabled ] || fail "GPU $gpu: MIG is enabled after a reboot only: enable it in the image"
        ;;
    *) fail "GPU $gpu has no MIG" ;;
    esac
    there=$(parts "$gpu")
    [ "$there" != "$wanted" ] || continue
    if [ -n "$there" ]; then
        said=$(nvidia-smi mig -i "$gpu" -dci 2>&1 && nvidia-smi mig -i "$gpu" -dgi 2>&1) ||
            fail "GPU $gpu: $(echo "$said" | tail -n 1)"
    fi
    said=$(nvidia-smi mig -i "$gpu" -cgi "$1" -C 2>&1) || fail "GPU $gpu: $(echo "$said" | tail -n 1)"
done
