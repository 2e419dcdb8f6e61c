"""Which of Debian's releases, and so which Slurm, a test runs on."""

from __future__ import annotations

import os


def releases(first: str, *others: str) -> list[str]:
    """The first, and with BURSTD_ALL_RELEASES the others too: the files take turns in which they begin with."""
    return [first, *others] if os.environ.get("BURSTD_ALL_RELEASES") else [first]
