"""Trees of the site that nodes show at their own paths: which, to whom, and what became of them."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

PUBLIC_USER = "nobody"
"""As whom public trees are served."""
PLACEHOLDERS = ("{user}", "{home}")
"""What a rule's path may have in it: the user's name, and the home directory that the head's account database gives."""
NOBODY_UID = 65534
"""Whoever has no account: the user of trees that everybody may read."""
SYSTEM_DIRECTORIES = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys",
    "/tmp",  # noqa: S108 - nothing is put there
    "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/sbin", "/var/lib", "/var/run", "/var/spool",
)  # fmt: skip
"""Directories that a node has of its own; nothing is mounted over them, nor within them."""
NO_WORKDIR_DIRECTORIES = (*SYSTEM_DIRECTORIES, "/opt", "/usr", "/var")
"""In these no working directory is made: what the node runs and logs lies there. A site's tree may be shown there."""


@dataclass(frozen=True, slots=True)
class MountedTree:
    """A directory of the head that a node shows at the same path."""

    path: str
    """Absolute, in its shortest form, as on the head."""
    read_only: bool = False
    optional: bool = False
    """Left out where the head has no such directory."""


def check_trees(trees: Sequence[MountedTree]) -> None:
    """Raises ValueError, with a sentence, where these trees cannot be shown together on a node."""
    if not trees:
        raise ValueError("no tree is named: name one with its path")
    for tree in trees:
        if not tree.path.startswith("/") or os.path.normpath(tree.path) != tree.path or tree.path.startswith("//"):
            raise ValueError(f"the tree {tree.path!r} needs an absolute path without '.', '..' and spare slashes")
        if not tree.path.isprintable():
            raise ValueError(f"the tree {tree.path!r} has characters in its path that cannot be printed")
        for directory in SYSTEM_DIRECTORIES:
            if contains(directory, tree.path) or contains(tree.path, directory):
                text = f"the tree {tree.path} would hide or change {directory} of the node: name another path"
                raise ValueError(text)
    for one, other in combinations(sorted(tree.path for tree in trees), 2):
        if contains(one, other):
            raise ValueError(f"the trees {one} and {other} lie within each other: name the outer one only")


def contains(directory: str, path: str) -> bool:
    """Whether a path is a directory or lies within it. Both are absolute, in their shortest form."""
    return directory in (path, "/") or path.startswith(f"{directory}/")


@dataclass(frozen=True, slots=True)
class MountRule:
    """``[mounts.trees.NAME]``: a tree that is shown on the nodes of some pools."""

    name: str
    path: str
    """Absolute, perhaps with one of PLACEHOLDERS."""
    read_only: bool = False
    public: bool = False
    """Served as PUBLIC_USER, once for all users of a node; else with each user's rights."""
    pools: tuple[str, ...] = ()
    """Empty: all."""

    @property
    def per_user(self) -> bool:
        """Whether each user has a path of his own."""
        return any(placeholder in self.path for placeholder in PLACEHOLDERS)

    @property
    def exclusive_user(self) -> bool:
        """Whether a node can show it with the rights of one user at a time only."""
        return not self.public and not self.per_user

    def is_shown_in(self, pool: str) -> bool:
        """Whether the nodes of this pool show it."""
        return not self.pools or pool in self.pools

    def tree_of(self, user: str, home: str) -> MountedTree:
        """The tree for one user. ``home``: the user's home directory."""
        path = self.path.replace("{user}", user).replace("{home}", home)
        return MountedTree(path, self.read_only, optional=self.per_user)


def user_trees(rules: Iterable[MountRule], pool: str, user: str, home: str) -> tuple[MountedTree, ...]:
    """What a node of the pool shows to a user with his own rights."""
    return tuple(rule.tree_of(user, home) for rule in rules if rule.is_shown_in(pool) and not rule.public)


def public_trees(rules: Iterable[MountRule], pool: str) -> tuple[MountedTree, ...]:
    """What a node of the pool shows to everybody."""
    return tuple(MountedTree(r.path, read_only=True) for r in rules if r.is_shown_in(pool) and r.public)


@dataclass(frozen=True, slots=True)
class SilentLine:
    """A line from the head to a node on which nothing is acknowledged: reads and writes of jobs wait. burstd's time."""

    since: float
    given_up_by: float
    """If it stays silent, its mounts end by then."""


@dataclass(frozen=True, slots=True)
class MountsView:
    """How the mounts on nodes stand, for a decision."""

    lost: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Claim id -> users whose mounts ended by themselves; PUBLIC_USER: those of all."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Job id -> why its last start failed: its trees could not be mounted."""
    rules: tuple[MountRule, ...] = ()
    """In force."""
    homes: Mapping[str, str] = field(default_factory=dict)
    """Home directories of users, where a rule's path has ``{home}``, as far as they are known."""
    refused_times: Mapping[str, int] = field(default_factory=dict)
    """Job id -> how often in a row its start was refused for that, since it was last released."""
    silent: Mapping[str, SilentLine] = field(default_factory=dict)
    """Claim id -> its line, where that is silent."""
    unstarted: Mapping[str, int] = field(default_factory=dict)
    """Job id -> restarts before, of runs that Slurm shows and that never began: slurmctld ended during their prolog."""
