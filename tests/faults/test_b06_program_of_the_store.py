"""The store's program goes while burstd's connection lives: it is put there again before nodes start it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.testing.store_world import CLUSTER
from burstd.transfer.protocol.ssh_objects import SshObjectTransport
from tests.contract.stores import SshWorld
from tests.lab.ssh_store import DATA, SshStore

pytestmark = pytest.mark.boxes

PROGRAMS = f"{DATA}/.programs"


@pytest.fixture(scope="module")
def node() -> Iterator[SshStore]:
    if os.geteuid() != 0:
        pytest.skip("boxes need root")
    with SshStore() as made:
        yield made


@pytest.mark.parametrize(
    "loss", [f"rm -r {PROGRAMS}", f"for f in {PROGRAMS}/*; do truncate -s 100 $f; done"], ids=["gone", "cut short"]
)
def test_the_program_goes_while_the_connection_lives(node: SshStore, tmp_path: Path, loss: str) -> None:
    with node.reach():
        stager = SshWorld(node, tmp_path).stager(CLUSTER)
        try:
            stager.put("in/ab/x", b"x")
            stager.node_access()
            node.box.run(["sh", "-c", loss])
            stager.put("in/ab/y", b"y")  # the connection lives
            deadline = time.monotonic() + 20
            whole = f"cd {PROGRAMS} && for f in *.pyz; do python3 -I $f 2>&1 | grep -q usage: || exit 1; done"
            reach = stager.node_access()
            while node.box.run(["sh", "-c", whole], check=False).returncode:
                assert time.monotonic() < deadline, "nobody has put the program there again"
                time.sleep(0.5)
                reach = stager.node_access()
            transport = SshObjectTransport(reach.facts)
            try:
                assert transport.get("in/ab/y") == b"y"
            finally:
                transport.close()
        finally:
            stager.close()
