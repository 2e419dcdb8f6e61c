"""The lab's cluster leaves nothing behind, however its maker went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from providers.sandbox.boxes.lab import Lab
from tests.slurm.rig import PROJECT

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

_MAKER = """\
import signal, sys, time
from pathlib import Path
from tests.lab.cluster import Cluster
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell starts what is in the background with it ignored.
with Cluster(state=Path(sys.argv[1])) as cluster:
    print(cluster.sh("sinfo -h -o %P"), flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_nothing_stays_of_a_cluster_whose_maker_is_killed(how: signal.Signals, tmp_path: Path) -> None:
    state = tmp_path / "cluster"
    state.mkdir()
    maker = subprocess.Popen(
        [sys.executable, "-c", _MAKER, str(state)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert maker.stdout is not None
    assert maker.stdout.readline().strip() == "onprem*"
    lab = Lab.open(state)
    assert lab is not None
    processes = [box.process for box in lab.boxes()]
    namespaces = [path for path in Path("/run/netns").iterdir() if f"burstd-{lab.network.name}." in path.name]
    assert len(processes) == 3
    assert len(namespaces) == 4
    maker.send_signal(how)
    maker.wait(30)
    maker.stdout.close()
    deadline = time.monotonic() + 30
    while state.exists() or any(path.exists() for path in namespaces):
        assert time.monotonic() < deadline, [p for p in (state, *namespaces) if p.exists()]
        time.sleep(0.05)
    assert not [p for p in processes if p is not None and p.alive]
