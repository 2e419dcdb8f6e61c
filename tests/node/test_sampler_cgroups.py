"""The sampler on the cgroups of this machine's own kernel, v1 or v2: a load that notes what it takes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.test_sampler import sampler

pytestmark = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
NUMBER = 4000000009
"""Of no job that runs on this machine."""
GROUPS = Path("/sys/fs/cgroup")
# Half a second of processor time and 200 MiB, in the cgroup of a job below a process that is called slurmstepd; it says
# what it has taken when it has, and waits.
LOAD = """
import time
held = bytearray(200 << 20)
held[::4096] = b"x" * len(held[::4096])
while time.process_time() < 0.5:
    pass
print(time.process_time(), flush=True)
input()
"""
STEP = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(15, b"slurmstepd", 0, 0, 0)
for folder in sys.argv[3:]:
    open(folder + "/cgroup.procs", "w").write("0")
sys.exit(subprocess.run([sys.argv[1], "-c", sys.argv[2]]).returncode)
"""


def _hierarchies() -> dict[str, list[Path]]:
    """By version the tops of the kernel's hierarchies; beside v1's controllers v2 counts processor time alone."""
    v1 = [GROUPS / name for name in ("cpuacct", "memory") if os.access(GROUPS / name / "cgroup.procs", os.W_OK)]
    v2 = [top for top in (GROUPS, GROUPS / "unified") if os.access(top / "cgroup.subtree_control", os.W_OK)]
    return {"v1": v1, "v2": v2}


@pytest.fixture(params=["v1", "v2"])
def groups(request: pytest.FixtureRequest) -> Iterator[list[Path]]:
    tops = _hierarchies()[request.param]
    if not tops:
        pytest.skip(f"there are no cgroups {request.param} that can be written")
    made = [top / f"burstd-test-{os.getpid()}" / f"job_{NUMBER}" for top in tops]
    try:
        for folder in made:
            folder.parent.mkdir()
            controllers = folder.parent / "cgroup.controllers"
            if controllers.exists() and "memory" in controllers.read_text().split():
                (folder.parent / "cgroup.subtree_control").write_text("+memory")
            folder.mkdir()
        yield made
    finally:
        for folder in made:
            for one in (folder, folder.parent):
                with contextlib.suppress(FileNotFoundError):
                    one.rmdir()


def test_a_known_load_in_a_cgroup(groups: list[Path], tmp_path: Path) -> None:
    python = os.path.realpath(sys.executable)
    words = [f"slurmstepd: [{NUMBER}.batch]", "-c", STEP, python, LOAD, *map(str, groups)]
    with subprocess.Popen(words, executable=python, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as step:
        assert step.stdin is not None
        assert step.stdout is not None
        own = float(step.stdout.readline())
        node = sampler.Node()
        node.cgroup = groups[0].parents[1] if (groups[0] / "cgroup.events").exists() else GROUPS
        made = sampler.Sampler(tmp_path, 10.0, 2.0, node, sampler.NvidiaSmi())
        made.sample(time.clock_gettime(time.CLOCK_BOOTTIME))
        found = made._jobs[NUMBER].plain()
        step.stdin.write("\n")
    assert found["cpu"][2] == "cgroup"
    assert found["cpu"][0] == pytest.approx(own, rel=0.03)
    assert found["memory_peak_mib"] == pytest.approx(205, abs=10), "200 MiB and two interpreters"
