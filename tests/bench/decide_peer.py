"""aws-parallelcluster-node's loop on as many nodes: a real slurmctld in a box, an EC2 that answers at once (root).

What it decides from is the nodes alone: it never looks at the queue, as Slurm calls ResumeProgram for it. Its loop and
``decide()`` are not the same work; both are what stands between a change and the answer to it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.shape import Shape
from providers.sandbox.boxes.boot.description import BindMount
from providers.sandbox.boxes.images.rootfs import file_lock
from providers.sandbox.boxes.machine import default_cache, need_space, remove_tree
from tests.lab.cluster import Cluster

PACKAGE = "aws-parallelcluster-node==3.16.0"
ROUNDS = 5
_MIB = 300


def installed() -> Path:
    """The peer and what it needs, kept in the cache and made where it is missing."""
    folder = default_cache() / "tools" / PACKAGE.replace("==", "-")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_name(folder.name + ".lock"), lambda: None):
        if not folder.exists():
            need_space(folder.parent, _MIB)
            unfinished = folder.with_name(folder.name + ".unfinished")
            remove_tree(unfinished)
            words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", f"--target={unfinished}"]
            # pkg_resources, which it imports, is no part of later versions.
            subprocess.run([*words, PACKAGE, "setuptools<81"], check=True)
            unfinished.rename(folder)
    return folder


def run(slots: int) -> str:
    """A line: medians of some loops."""
    pool = Pool("burst", tuple(f"burst-dy-c5-{n}" for n in range(1, slots + 1)), ("burst",), Shape(4, 8000))
    here, there = Path(__file__).parent, "/opt/peer"
    binds = (BindMount(installed(), f"{there}/packages"), BindMount(here, f"{there}/bench"))
    with Cluster("bookworm", pools=[pool], onprem=1, head_binds=binds) as cluster:
        words = ["python3", f"{there}/bench/decide_peer_loop.py", str(slots), str(ROUNDS)]
        environment = {
            "PYTHONPATH": f"{there}/packages", "AWS_DEFAULT_REGION": "us-east-1", "SLURM_BINARIES_DIR": "/usr/bin",
        }  # fmt: skip
        told = json.loads(cluster.head.run(words, env=environment, timeout=600).stdout.splitlines()[-1])
    whole, used, slurm = (statistics.median(column) for column in zip(*told["loops"], strict=True))
    return (
        f"{PACKAGE}, a loop over {slots} nodes: {whole:.0f} ms, of which scontrol {slurm:.0f};"
        f" processor time of its own {used:.0f}; and {told['paused']:.0f} s of pause\n"
    )


if __name__ == "__main__":
    sys.stdout.write(run(int(sys.argv[1])))
