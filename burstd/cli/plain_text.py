"""Text and JSON without rich, which takes long to load."""

from __future__ import annotations

import json
import sys


def safe_text(text: str) -> str:
    """Without control characters: names of jobs come from anybody, and a terminal obeys what it is sent."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def print_json(answer: object) -> None:
    """The answer as the daemon gave it."""
    sys.stdout.write(json_text(answer, indent=2) + "\n")


def print_json_line(answer: object) -> None:
    """One line, at once, for what is followed."""
    sys.stdout.write(json_text(answer) + "\n")
    sys.stdout.flush()


def json_text(answer: object, indent: int | None = None) -> str:
    """What a terminal would obey is escaped: JSON asks for that only below U+0020."""
    text = json.dumps(answer, indent=indent, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
