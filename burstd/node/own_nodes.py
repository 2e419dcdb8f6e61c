"""The watch over nodes of the site's own: one script, which an administrator copies to them."""

from __future__ import annotations

from importlib.resources import files

from burstd.domain.health import HealthRules, verdict_table

_END = "END_OF_PART"
_HEAD = """\
#!/bin/sh
# Watches over this node for Slurm: drains it when its GPUs, disks or mounts have a fault, and takes that back when a
# disk has room, or a mount is there, again. Made by "burstctl node watch-script"; burstd-node-watch.service runs it.
# $1: the node's name in Slurm; left out: its short host name.
set -eu
umask 077
folder=${RUNTIME_DIRECTORY:-/run/burstd-node-watch}/watch
name=${1:-$(uname -n)}
rm -rf "$folder"
mkdir -p "$folder"
"""


def own_watch_script(rules: HealthRules) -> str:
    """The script, for ``sh``."""
    scripts = files("burstd.node").joinpath("scripts")

    def text(name: str) -> str:
        return scripts.joinpath(name).read_text(encoding="utf-8")

    parts = {
        "watch.sh": text("watch.sh"),
        "kernel_log.sh": text("kernel_log.sh"),
        "conditions.sh": text("gpu_states.sh") + text("conditions.sh"),
        "verdicts": f"{verdict_table(rules)}\n",
    }
    made = "".join(f"cat >\"$folder/{name}\" <<'{_END}'\n{part}{_END}\n" for name, part in parts.items())
    return f'{_HEAD}{made}exec /bin/sh "$folder/watch.sh" "${{name%%.*}}" "$folder" own\n'
