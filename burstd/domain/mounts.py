"""Trees of the site that nodes show at their own paths."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

NOBODY_UID = 65534
"""Whoever has no account: the user of trees that everybody may read."""
_SYSTEM = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys",
    "/tmp",  # noqa: S108 - nothing is put there
    "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/sbin", "/var/lib", "/var/run", "/var/spool",
)  # fmt: skip
"""Directories that a node has of its own; nothing is mounted over them, nor within them."""


@dataclass(frozen=True, slots=True)
class MountedTree:
    """A directory of the head that a node shows at the same path."""

    path: str
    """Absolute, in its shortest form, as on the head."""
    read_only: bool


def check_trees(trees: Sequence[MountedTree]) -> None:
    """Raises ValueError, with a sentence, where these trees cannot be shown together on a node."""
    if not trees:
        raise ValueError("no tree is named: name one with its path")
    for tree in trees:
        if not tree.path.startswith("/") or os.path.normpath(tree.path) != tree.path or tree.path.startswith("//"):
            raise ValueError(f"the tree {tree.path!r} needs an absolute path without '.', '..' and spare slashes")
        if not tree.path.isprintable():
            raise ValueError(f"the tree {tree.path!r} has characters in its path that cannot be printed")
        for directory in _SYSTEM:
            if contains(directory, tree.path) or contains(tree.path, directory):
                text = f"the tree {tree.path} would hide or change {directory} of the node: name another path"
                raise ValueError(text)
    for one, other in combinations(sorted(tree.path for tree in trees), 2):
        if contains(one, other):
            raise ValueError(f"the trees {one} and {other} lie within each other: name the outer one only")


def contains(directory: str, path: str) -> bool:
    """Whether a path is a directory or lies within it. Both are absolute, in their shortest form."""
    return directory in (path, "/") or path.startswith(f"{directory}/")
