"""A hand that the daemon starts has limits of its own; those of systemd are in its unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from burstd.transfer.privsep.client import start_user_worker
from burstd.transfer.privsep.worker import MEMORY_BYTES
from tests.transfer.ground import USER, root_only

pytestmark = [pytest.mark.boxes, root_only]


def test_a_worker_has_so_much_memory_and_leaves_no_core() -> None:
    with start_user_worker(USER, USER) as worker:
        assert worker._child is not None
        limits = {
            line[:25].strip(): line[25:].split()[:2]
            for line in Path(f"/proc/{worker._child.pid}/limits").read_text().splitlines()
        }
    assert limits["Max address space"] == [str(MEMORY_BYTES)] * 2
    assert limits["Max core file size"] == ["0", "0"]
