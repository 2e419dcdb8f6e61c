"""The text of a TOML file: in which line each key stands, so that a fault can be shown there."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

KeyPath = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SCALAR = re.compile(r"[^,\]}\n#]+")
_STRINGS = tuple(
    re.compile(p, re.DOTALL)
    for p in (r'"""(?:\\.|[^\\])*?"{3,5}(?!")', r"'''.*?'{3,5}(?!')", r'"(?:\\.|[^"\\\n])*"', r"'[^'\n]*'")
)


@dataclass(frozen=True, slots=True)
class TomlSource:
    """Name of the file, and the line (from 1) of every key, table and array element in it."""

    name: str = "burstd.toml"
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the innermost table around it that is in the file; None: of none."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


def dotted_key(path: KeyPath) -> str:
    """``pools.gpu.offers[0].provider``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE.fullmatch(part) else f'"{part}"')
    return text


def key_lines(text: str) -> dict[KeyPath, int]:
    """Lines of keys in a text that tomllib has accepted: it is not checked again."""
    lines: dict[KeyPath, int] = {}
    for path, line in _Scan(text.replace("\r\n", "\n")).document():
        for length in range(1, len(path) + 1):  # a table may be there through its sub-tables only
            lines.setdefault(path[:length], line)
    return lines


class _Scan:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [m.start() for m in re.finditer("\n", text)]
        self._arrays: dict[KeyPath, int] = {}

    def document(self) -> Iterator[tuple[KeyPath, int]]:
        table: KeyPath = ()
        while True:
            self._blank()
            if self._at >= len(self._text):
                return
            line = self._line()
            if self._take("[["):
                table = self._inside(self._key())
                self._arrays[table] = self._arrays.get(table, -1) + 1
                table = (*table, self._arrays[table])
                self._take("]]")
                yield table, line
            elif self._take("["):
                table = self._inside(self._key())
                self._take("]")
                yield table, line
            else:
                yield from self._pair(table)

    def _pair(self, table: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        line = self._line()
        path = (*table, *self._key())
        yield path, line
        self._blank()
        self._take("=")
        self._blank()
        yield from self._value(path)

    def _value(self, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        if self._take("["):
            index = 0
            while not self._ended("]"):
                yield (*path, index), self._line()
                yield from self._value((*path, index))
                index += 1
        elif self._take("{"):
            while not self._ended("}"):
                yield from self._pair(path)
        elif self._string() is None:
            self._match(_SCALAR)

    def _ended(self, mark: str) -> bool:
        self._blank()
        if self._take(","):
            self._blank()
        return self._take(mark)

    def _key(self) -> KeyPath:
        parts: list[str] = []
        while True:
            self._blank()
            parts.append(self._match(_BARE) or str(tomllib.loads(f"k = {self._string()}")["k"]))
            self._blank()
            if not self._take("."):
                return tuple(parts)

    def _inside(self, key: KeyPath) -> KeyPath:
        """A header's key with the number of the current element after each array of tables in it."""
        path: KeyPath = ()
        for i, part in enumerate(key):
            path = (*path, part)
            if path in self._arrays and i + 1 < len(key):
                path = (*path, self._arrays[path])
        return path

    def _string(self) -> str | None:
        return next((found for pattern in _STRINGS if (found := self._match(pattern)) is not None), None)

    def _blank(self) -> None:
        self._match(_BLANK)

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def _take(self, mark: str) -> bool:
        if self._text.startswith(mark, self._at):
            self._at += len(mark)
            return True
        return False

    def _line(self) -> int:
        return bisect_right(self._ends, self._at - 1) + 1
