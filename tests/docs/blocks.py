"""The shell commands of a document: the fenced blocks that say ``sh``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\S*)[ \t]*(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of commands. ``user``: who runs it; ``section``: the heading it stands under."""

    section: str
    user: str
    text: str
    line: int


def shell_blocks(document: Path) -> list[Block]:
    """The blocks ```` ```sh ```` (run by root) and ```` ```sh ada ```` (run by that user), in order."""
    text = document.read_text(encoding="utf-8")
    # A line that begins with '#' in a block is a comment of the shell, not a heading.
    outside = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    found = []
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        above = "\n".join(outside.splitlines()[:line])
        headings = _HEADING.findall(above)
        if fence[1] == "sh":
            found.append(Block(headings[-1] if headings else "", fence[2] or "root", fence[3], line))
    return found
