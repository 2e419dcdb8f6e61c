"""Mounts that a job has left in a directory, which cannot be removed while they stand."""

# ruff: noqa: PTH100, PTH118, PTH123

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

_ROUNDS = 10
"""One mount may lie on another."""
_COMPONENT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def unmount_tree(path: str) -> bool:
    """Lazily unmounts what is mounted at ``path`` and below it; returns whether nothing is any more. Needs root."""
    for _ in range(_ROUNDS):
        if not (points := mount_points(path)):
            return True
        # The outermost first: what lies in it goes with it, and its file system, which may be dead, is not asked.
        for point in sorted(points, key=len):
            with suppress(OSError):
                _unmount(path, point[len(_real(path)) :])
    return not mount_points(path)


def mount_points(path: str) -> list[str]:
    """Where something is mounted, at ``path`` or below it. By the kernel's list: file systems may not answer."""
    real = _real(path)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        points = [_unescaped(line.split(" ")[4]) for line in lines]
    return [point for point in points if point == real or point.startswith(f"{real}/")]


def _real(path: str) -> str:
    """As the kernel has it. The last component itself is not asked."""
    above, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(above), name)


def _unmount(path: str, below: str) -> None:
    """Unmounts what is at ``below``, beginning with a slash or empty, in ``path``. Raises OSError.

    Goes there without following links: a process that the user has left may put them in the way at any moment.
    """
    at = os.open(_real(path), _COMPONENT)
    try:
        for name in below.split("/")[1:]:
            deeper = os.open(name, _COMPONENT, dir_fd=at)
            os.close(at)
            at = deeper
        # What is no mount's root, because somebody has moved it, is refused.
        argv = ["umount", "-c", "-l", f"/proc/self/fd/{at}"]
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, pass_fds=[at])
    finally:
        os.close(at)


def _unescaped(point: str) -> str:
    for char in "\t\n \\":
        point = point.replace(f"\\{ord(char):03o}", char)
    return point
