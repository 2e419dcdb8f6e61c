"""``[mounts]``: trees of the site that jobs find on cloud nodes under the same paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from burstd.domain.mounts import PLACEHOLDERS, MountedTree, MountRule, check_trees
from burstd.settings.fields import RESTART, AbsolutePath, Name, Seconds, Section


def _sample(path: str) -> str:
    """The path of one user, as good as any."""
    return path.replace("{home}", "/home/user", 1).replace("{user}", "user", 1)


def _tree_path(path: str) -> str:
    if "{home}" in path[1:]:
        raise ValueError("{home} is an absolute path: it must stand at the beginning")
    if "{" in _sample(path) or "}" in _sample(path):
        raise ValueError(f"may hold {' or '.join(PLACEHOLDERS)} once, and no other braces")
    check_trees([MountedTree(_sample(path))])
    return path


class MountTreeSettings(Section):
    """``[mounts.trees.NAME]``: one tree."""

    path: Annotated[str, AfterValidator(_tree_path)]
    kind: Literal["sshfs", "cvmfs"] = "sshfs"
    """``cvmfs``: the image has it, and burstd only reads a directory of each repository."""
    read_only: bool = False
    public: bool = False
    pools: tuple[str, ...] = ()
    repositories: tuple[Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9.-]+$")], ...] = ()
    """Of CVMFS: names of directories in ``path`` that a machine must be able to read."""

    @field_validator("pools")
    @classmethod
    def _some_pool(cls, pools: tuple[str, ...]) -> tuple[str, ...]:
        """Of what is written there: the default means all."""
        if not pools:
            raise ValueError("names no pool: name some, or leave it out for all pools")
        return pools

    @model_validator(mode="after")
    def _public_is_read_only(self) -> Self:
        if self.public and not self.read_only:
            raise ValueError("a public tree is served as nobody, who must not write: add read_only = true")
        if self.public and any(placeholder in self.path for placeholder in PLACEHOLDERS):
            raise ValueError("a public tree has the same path for everybody: leave {user} and {home} out")
        if (self.kind == "cvmfs") != bool(self.repositories):
            raise ValueError('repositories go with kind = "cvmfs", which needs one at least')
        return self


class MountSettings(Section):
    """``[mounts]``. Without trees, nothing is mounted."""

    line_timeout_s: Seconds = 300.0
    """A line between head and node that is cut for longer ends the mounts."""
    sftp_server: AbsolutePath | None = None
    worker_socket: AbsolutePath | None = Field(default=None, json_schema_extra=RESTART)
    trees: dict[Name, MountTreeSettings] = Field(default_factory=dict)

    @field_validator("trees")
    @classmethod
    def _trees_apart(cls, trees: Mapping[str, MountTreeSettings]) -> Mapping[str, MountTreeSettings]:
        if trees:
            check_trees([MountedTree(_sample(tree.path)) for tree in trees.values()])
        return trees

    def rules(self) -> tuple[MountRule, ...]:
        """As the rest of burstd has them."""
        return tuple(
            MountRule(name, tree.path, tree.read_only, tree.public, tree.pools)
            for name, tree in self.trees.items()
            if tree.kind == "sshfs"
        )

    def sentinels(self, pool: str) -> tuple[str, ...]:
        """Directories that a machine of this pool must be able to read."""
        return tuple(
            f"{tree.path}/{repository}"
            for tree in self.trees.values()
            if not tree.pools or pool in tree.pools
            for repository in tree.repositories
        )
