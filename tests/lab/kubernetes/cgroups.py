"""Removes a node's control groups when its box is gone, however it went: ``cgroups.py RECORD NAME``.

RECORD is where the box's first process is recorded. Nothing else would: they are the machine's, and stay without
processes. It needs the standard library only.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path

_TREE = Path("/sys/fs/cgroup")
_PATIENCE_S = 20.0


def wait_end(record: Path) -> None:
    """Returns when the recorded process has ended."""
    try:
        handle = os.pidfd_open(json.loads(record.read_text(encoding="ascii"))["pid"])
    except (FileNotFoundError, ProcessLookupError):
        return
    select.select([handle], [], [])
    os.close(handle)


def remove(name: str) -> bool:
    """Removes the groups of this name and all in them; False where some still have processes."""
    for top in _TREE.glob(f"*/{name}"):
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
    return True


def main() -> None:
    """See above."""
    wait_end(Path(sys.argv[1]))
    deadline = time.monotonic() + _PATIENCE_S
    while not remove(sys.argv[2]):
        if time.monotonic() > deadline:
            sys.exit(f"the control groups {sys.argv[2]} still have processes")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
