"""Folders of pytest's that other users may pass."""

from __future__ import annotations

import stat
from pathlib import Path


def let_others_in(folder: Path) -> None:
    """Opens the way to a test's folder through pytest's own, which are closed to others; reading stays as it is."""
    for one in (folder, *folder.parents):
        mode = stat.S_IMODE(one.stat().st_mode)
        if mode & stat.S_ISVTX:
            return  # /tmp, or its like: open to all.
        if not mode & stat.S_IXOTH:
            one.chmod(mode | stat.S_IXGRP | stat.S_IXOTH)
