"""Folders with users' data that nodes see as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator


def _absolute(path: PurePosixPath) -> PurePosixPath:
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{path} must be an absolute path without ..")
    return path


AbsolutePath = Annotated[PurePosixPath, AfterValidator(_absolute)]


class SharedRoots:
    """Paths of the head, or of people, and the nodes' paths for them."""

    def __init__(self, pairs: Mapping[PurePosixPath, PurePosixPath]) -> None:
        # The innermost root decides.
        self._pairs = sorted(pairs.items(), key=lambda pair: len(pair[0].parts), reverse=True)

    def node_path(self, path: str) -> str | None:
        """Returns the path by which nodes see this one, by its text alone: nodes resolve users' links."""
        asked = PurePosixPath(path)
        if not asked.is_absolute() or ".." in asked.parts:
            return None
        for here, there in self._pairs:
            if asked.is_relative_to(here):
                return str(there / asked.relative_to(here))
        return None
