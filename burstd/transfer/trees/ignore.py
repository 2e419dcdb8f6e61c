"""What of a working directory stays where it is: the rules of its ignore file, as regular expressions.

The head makes them from the lines (burstd.staging.movement.ignore_file); they are evaluated only by processes with the
user's rights, on the head and on nodes: a user writes the patterns, and one can take very long.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

IgnoreRow = Sequence[object]
"""``[ignored, regex]``: whether a path in which the regex is found is ignored, or (``!``) is not."""
MAX_RULES = 1000
MAX_REGEX_CHARS = 4096
_DIRECTORY_MARK = "ps_d"
"""The group in pathspec's expressions that has matched where a directory above the path did."""


class IgnoreRules:
    """In the order of the lines. Paths are relative to the directory, as os.fsdecode makes them."""

    def __init__(self, rows: Sequence[IgnoreRow], always: Collection[str] = ()) -> None:
        """``always``: files that are never ignored. Raises ValueError, TypeError, re.error: no rows of the head's."""
        if len(rows) > MAX_RULES:
            raise ValueError(f"more than {MAX_RULES} patterns")
        self._last_first = [(bool(ignored), re.compile(_checked(regex))) for ignored, regex in reversed(rows)]
        self._always = frozenset(always)
        self._above_always = frozenset(
            "/".join(parts[:n]) for path in always for parts in [path.split("/")] for n in range(1, len(parts))
        )

    def ignores(self, path: str, *, directory: bool) -> bool:
        """As git decides: the last line that names it counts. Nothing in an ignored directory is looked at."""
        return self._ignores_directory(path) if directory else self._ignores_file(path)

    def _ignores_directory(self, path: str) -> bool:
        if path in self._above_always:
            return False
        name = f"{path}/"
        return next((ignored for ignored, regex in self._last_first if regex.search(name)), False)

    def _ignores_file(self, path: str) -> bool:
        """A line that names the file comes before one that names a directory above it, as in pathspec."""
        if path in self._always:
            return False
        above: bool | None = None
        for ignored, regex in self._last_first:
            if (found := regex.search(path)) is not None:
                if not found.groupdict().get(_DIRECTORY_MARK):
                    return ignored
                above = ignored if above is None else above
        return bool(above)


def _checked(regex: object) -> str:
    if not isinstance(regex, str) or len(regex) > MAX_REGEX_CHARS:
        raise ValueError("no pattern of burstd's")
    return regex
