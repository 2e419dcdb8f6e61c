"""What tries to take output home from a job's folder were about to move: a line of JSON for each name.

It lies in the job's folder and is its owner's, who may have written anything there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import IO

JOURNAL_NAME = ".burst-home"
MAX_BYTES = 64 << 20
MAX_NAMES = 500_000
_LINE = 32 << 10
"""Characters of a line: the longest path, each of its bytes escaped."""
JournalNames = dict[str, None]


def read(file: IO[str]) -> dict[int, tuple[bool, JournalNames]]:
    """Of each stage_out line: whether it names a single file, and names. Up to the first line that is none of ours.

    Takes no more memory than MOST_NAMES names, whatever the file is.
    """
    found: dict[int, tuple[bool, JournalNames]] = {}
    left = MAX_BYTES
    for _ in range(MAX_NAMES):
        line = file.readline(_LINE)
        left -= len(line)
        if not line.endswith("\n") or left < 0:
            break
        try:
            number, single, name = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            break
        if type(number) is not int or type(single) is not bool or not isinstance(name, str):
            break
        found.setdefault(number, (single, {}))[1][name] = None
    return found


def write(out: IO[str], lines: Mapping[int, tuple[bool, Iterable[str]]]) -> None:
    """The reverse of ``read``, of MOST_NAMES names at most. Raises OSError."""
    left = MAX_NAMES
    for number, (single, names) in lines.items():
        for name in names:
            if left == 0:
                return
            left -= 1
            out.write(json.dumps([number, single, name]) + "\n")
