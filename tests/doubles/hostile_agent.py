"""An agent whose node's root is an attacker: it takes requests as burstd's agent does, and answers with lies.

``LIES`` is the catalogue: what a node can send in each message, by name. A lie makes the answer to one request to
collect; what it puts into the store bears right digests, as everything an attacker's agent puts there can.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from burstd.domain.plugins.shell import CompletedCommand, PortConnection, RemoteTerminal, TerminalSize
from burstd.transfer.content_store.manifest import object_key
from tests.transfer.memory import MemoryStager

ManifestRow = dict[str, Any]
"""An entry as a manifest has it: p(ath) t(ype) m(ode) n(anoseconds) s(ize) c(ontent) h(ard link) l(ink) d(igest)."""
HUGE = 1 << 70
DEEP = "[" * 200_000


class Forger:
    """Puts objects and manifests under a prefix, where the node may put what it likes."""

    def __init__(self, store: MemoryStager, request: Mapping[str, Any]) -> None:
        self.store = store
        self.request = request
        self.prefix: str = request["prefix"]

    def put(self, body: bytes) -> str:
        """An object; its key."""
        key = hashlib.sha256(body).hexdigest()
        self.store.put(object_key(self.prefix, key), body)
        return key

    def file(self, path: str, body: bytes = b"evil", **more: Any) -> ManifestRow:
        """An entry of a file."""
        key = self.put(body)
        return {"p": path, "t": "f", "m": 0o644, "n": 5, "s": len(body), "c": [[key, 0, len(body)]], **more}

    def text(self, manifest: bytes, **more: Any) -> ManifestRow:
        """A tree whose manifest is any text."""
        return self.deflated(zlib.compress(manifest, 9), **more)

    def deflated(self, body: bytes, **more: Any) -> ManifestRow:
        """A tree whose manifest's object is any bytes."""
        return {
            "digest": hashlib.sha256(body).hexdigest(), "manifest": [[self.put(body), 0, len(body)]], "entries": 100,
            "size": 1 << 30, "single": False, **more,
        }  # fmt: skip

    def tree(self, *rows: ManifestRow, **more: Any) -> ManifestRow:
        """A tree of these entries, with a root before them."""
        root = [] if more.get("single") else [directory("")]
        lines = [json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in (*root, *rows)]
        return self.text(b"".join(lines), **more)

    def empty(self) -> ManifestRow:
        """A tree that was not found."""
        return self.deflated(zlib.compress(b""), entries=0, size=0)

    def done(self, tree: ManifestRow | None = None, **more: Any) -> ManifestRow:
        """The answer of an agent: its first line matched ``tree``."""
        trees = [tree or self.empty(), *(self.empty() for _ in self.request["patterns"])][
            : len(self.request["patterns"])
        ]
        return {
            "trees": trees, "files": [None for _ in self.request["files"]], "missing": None, "sent": 0, "seconds": 0.1,
            "warnings": [], **more,
        }  # fmt: skip


def directory(path: str, mode: int = 0o755) -> ManifestRow:
    """An entry of a directory."""
    return {"p": path, "t": "d", "m": mode, "n": 5}


def link(path: str, target: str) -> ManifestRow:
    """An entry of a symbolic link."""
    return {"p": path, "t": "l", "m": 0o777, "n": 5, "l": target}


Lie = Callable[[Forger], Iterable[bytes | ManifestRow]]
"""The lines that an agent says, as bytes or JSON; a row without ``done`` or ``error`` goes on."""


def _tree(make: Callable[[Forger], Sequence[ManifestRow]], **more: Any) -> Lie:
    return lambda f: [{"done": f.done(f.tree(*make(f), **more))}]


def _rows(*rows: ManifestRow, **more: Any) -> Lie:
    return lambda f: [{"done": f.done(f.tree(*rows, **more))}]


def _lines(*lines: bytes | ManifestRow) -> Lie:
    return lambda _f: lines


def _text(manifest: bytes, **more: Any) -> Lie:
    return lambda f: [{"done": f.done(f.text(manifest, **more))}]


def _answer_with(**more: Any) -> Lie:
    """A number or a list of the answer itself."""
    return lambda f: [{"done": f.done(f.tree(f.file("x")), **more)}]


def _tree_with(**more: Any) -> Lie:
    """... of a tree in it."""
    return lambda f: [{"done": f.done({**f.tree(f.file("x")), **more})}]


def _entry(**more: Any) -> Lie:
    """... of one entry of a manifest."""
    return _tree(lambda f: [{**f.file("x"), **more}])


def _piece(*piece: Any, size: int = 4) -> Lie:
    return _tree(
        lambda f: [{**f.file("x"), "s": size, "c": [[f.put(b"evil") if piece[0] is None else piece[0], *piece[1:]]]}]
    )


REFUSED: dict[str, Lie] = {
    # Names.
    "above": _tree(lambda f: [f.file("../x")]),
    "above later": _tree(lambda f: [directory("a"), f.file("a/../../x")]),
    "absolute": _tree(lambda f: [f.file("/etc/x")]),
    "dot": _tree(lambda f: [f.file(".")]),
    "two slashes": _tree(lambda f: [directory("a"), f.file("a//x")]),
    "slash at the end": _tree(lambda f: [f.file("x/")]),
    "no name": _tree(lambda f: [f.file("")]),
    "root twice": _rows(directory("")),
    "root no directory": _text(b'{"p":"","t":"l","m":511,"n":5,"l":"x"}\n'),
    "no root": _text(b'{"p":"x","t":"d","m":511,"n":5}\n'),
    "a line, then a path": _tree(lambda f: [f.file("x\n/etc/passwd")]),
    "NUL": _tree(lambda f: [f.file("a\0b")]),
    "NUL in a link": _rows(link("a", "a\0b")),
    "half a character": _tree(lambda f: [f.file("\ud800")]),
    "twice": _tree(lambda f: [f.file("x"), f.file("x")]),
    "directory twice": _rows(directory("x"), directory("x")),
    "later again": _tree(lambda f: [directory("a"), f.file("b"), f.file("a/x")]),
    "file, then in it": _tree(lambda f: [f.file("a"), f.file("a/b")]),
    "link, then in it": _tree(lambda f: [link("a", "."), f.file("a/b")]),
    "file over a directory": _tree(lambda f: [directory("a"), f.file("a")]),
    "link over a directory": _rows(directory("a"), link("a", "b")),
    "no directory": _tree(lambda f: [f.file("a/b")]),
    "one file: a path": _tree(lambda f: [f.file("a/b")], single=True),
    "one file: above": _tree(lambda f: [f.file("..")], single=True),
    "one file: two": _tree(lambda f: [f.file("a"), f.file("b")], single=True),
    "one file: directory": _rows(directory("a"), single=True),
    "one file: hard link": _tree(lambda f: [{**f.file("a"), "c": [], "s": 0, "h": "b"}], single=True),
    # Hard links.
    "hard link to what is there": _rows({"p": "x", "t": "f", "m": 0o600, "n": 0, "s": 0, "h": "kept"}),
    "hard link above": _rows({"p": "x", "t": "f", "m": 0o600, "n": 0, "s": 0, "h": "../secret"}),
    "hard link, absolute": _rows({"p": "x", "t": "f", "m": 0o600, "n": 0, "s": 0, "h": "/etc/passwd"}),
    "hard link of a link": _rows(link("a", "kept"), {"p": "b", "t": "f", "m": 384, "n": 0, "s": 0, "h": "a"}),
    "hard link with content": _tree(lambda f: [f.file("a"), {**f.file("b"), "h": "a"}]),
    # Kinds and types.
    "device": _entry(t="c"),
    "pipe": _entry(t="p"),
    "kind of no text": _entry(t=["f"]),
    "no kind": _text(b'{"p":"","m":511,"n":5}\n'),
    "no entry": _text(b"[]\n"),
    "deep": _text(DEEP.encode() + b"\n"),
    "number for a name": _entry(p=7),
    "directory with content": _tree(lambda f: [{**f.file("a"), "t": "d"}]),
    "link with content": _tree(lambda f: [{**f.file("a"), "t": "l", "l": "x"}]),
    "link without target": _rows(link("a", "")),
    "digest of no text": _entry(d=7),
    "digest of no digest": _entry(d="../" * 10),
    "another digest": _entry(d="ab" * 32, s=8, c=[]),
    # Numbers.
    "mode too large": _entry(m=HUGE),
    "mode below 0": _entry(m=-1),
    "mode true": _entry(m=True),
    "mode 0.5": _entry(m=0.5),
    "time too late": _entry(n=HUGE),
    "time too early": _entry(n=-HUGE),
    "time of no number": _text(b'{"p":"","t":"d","m":1,"n":NaN}\n'),
    "size too large": _entry(s=HUGE),
    "size below 0": _entry(s=-4),
    "size of 10,000 digits": _text(b'{"p":"","t":"d","m":1,"n":' + b"9" * 10_000 + b"}\n"),
    "size is not its pieces": _entry(s=5),
    "more than it told of": _tree(lambda f: [f.file("a"), f.file("b")], size=5),
    "more entries than it told of": _tree(lambda f: [f.file("a"), f.file("b")], entries=2),
    "hole too large": _rows({"p": "x", "t": "f", "m": 0o644, "n": 5, "s": 1 << 62, "c": [["", 0, 1 << 62]]}),
    "piece past the end": _piece(None, 0, 9, size=9),
    "piece from past the end": _piece(None, 40, 4),
    "piece from before": _piece(None, -4, 4),
    "piece of less than nothing": _tree(
        lambda f: [{**f.file("x"), "s": 0, "c": [[f.put(b"evil"), 0, 4], [f.put(b"evil"), 0, -4]]}]
    ),
    "piece larger than any": _piece(None, 0, 1 << 40, size=1 << 40),
    "piece of no key": _piece("../../in", 0, 4),
    "piece of text": _piece(None, "0", 4),
    "piece of two": _piece(None, 0),
    "piece of no object": _piece("ab" * 32, 0, 4),
    # Manifests.
    "a line without end": lambda f: [{"done": f.done(f.deflated(endless()))}],
    "a long name": _tree(lambda f: [f.file("x" * 100_000)]),
    "cut off": _text(b'{"p":"","t":"d","m":511,"n":5}'),
    "no manifest": lambda f: [{"done": f.done(f.deflated(b"no deflate"))}],
    "goes on": lambda f: [{"done": f.done(f.deflated(zlib.compress(b'{"p":"","t":"d","m":1,"n":5}\n') + b"more"))}],
    "empty lines": _text(b"\n" * 1_000_000),
    # The answer.
    "no lines": _answer_with(trees=[]),
    "more lines": lambda f: [{"done": f.done(trees=[f.tree(f.file("x"))] * 9)}],
    "lines of no list": _answer_with(trees={"0": 1}),
    "more files": lambda f: [{"done": f.done(files=[f.tree(f.file("x"))] * 9)}],
    "files by name": lambda f: [{"done": f.done(files={"/etc/passwd": f.tree(f.file("x"))})}],
    "sent too much": _answer_with(sent=HUGE),
    "sent below 0": _answer_with(sent=-1),
    "seconds for ever": lambda f: [json.dumps({"done": f.done(seconds=float("inf"))}).encode()],
    "seconds of no number": lambda f: [json.dumps({"done": f.done(seconds=float("nan"))}).encode()],
    "seconds below 0": _answer_with(seconds=-1.0),
    "warnings of numbers": _answer_with(warnings=[1]),
    "warnings of no list": _answer_with(warnings="x"),
    "tree too large": _tree_with(size=HUGE),
    "tree of 2^63": _tree_with(size=1 << 63),
    "tree below 0": _tree_with(size=-1),
    "entries too many": _tree_with(entries=HUGE),
    "entries true": _tree_with(entries=True),
    "digest with a path": _tree_with(digest="../../../etc/passwd"),
    "single of no kind": _tree_with(single="yes"),
    "manifest of no list": _tree_with(manifest="x"),
    "manifest of another place": _tree_with(manifest=[["../" * 21 + "x", 0, 4]]),
    "manifest from within": _tree_with(manifest=[["ab" * 32, 1, 4]]),
    "manifest too long": _tree_with(manifest=[["ab" * 32, 0, HUGE]]),
    "manifest of too many": _tree_with(manifest=[["ab" * 32, 0, 4]] * 5000),
    "manifest of two": _tree_with(manifest=[["ab" * 32, 0]]),
    # Lines.
    "no JSON": _lines(b"\xff\xfe"),
    "a list": _lines(b"[]"),
    "deep line": _lines(b'{"done":' + DEEP.encode()),
    "done is a list": _lines({"done": []}),
    "error is a list": _lines({"error": []}),
    "kind is long": _lines({"error": "x", "kind": "x" * 1000}),
    "keys are numbers": _lines({"error": "x", "kind": "damaged", "keys": [1]}),
    "progress too far": _lines({"progress": {"bytes": HUGE, "of": 1}}),
    "progress below 0": _lines({"progress": {"bytes": -1, "of": 1}}),
    "progress of text": _lines({"progress": {"bytes": "9" * 5000}}),
    "progress of a list": _lines({"progress": []}),
    "asks for another's": _lines({"sign": {"method": "GET", "keys": ["in/ab/" + "ab" * 32]}}),
    "asks for a list": _lines({"sign": []}),
    "asks for too much": lambda f: [{"present": [f"{f.prefix}/ab/" + "ab" * 32] * 100_000}],
    "says nothing": _lines(b""),
}
"""Each of these fails the transfer, and nothing is written at home but what came before it in its tree."""

HARMLESS: dict[str, Lie] = {
    "setuid": _entry(m=0o4755),
    "setgid": _entry(m=0o2755),
    "sticky": _entry(m=0o1777),
    "setgid directory": _rows(directory("x", 0o6777)),
    "link out": _rows(link("x", "/etc")),
    "link above": _rows(link("x", "../.ssh")),
    "link above through a directory": _rows(directory("a"), link("a/x", "../../.ssh")),
    "link above through a link": _rows(link("a", "."), link("x", "a/../.ssh")),
    "long ago": _entry(n=-(10**18) * 9),
    "far ahead": _entry(n=1 << 63),
    "a name with a line in it": _tree(lambda f: [f.file("x\n.bashrc")]),
    "extended attributes": _entry(xattr={"security.capability": "AQAAAg=="}, uid=0, gid=0, owner="root"),
    "other files": lambda f: [
        {"done": f.done(files=[f.tree(f.file(".bashrc"), single=True)] * len(f.request["files"]))}
    ],
    "much missing": lambda f: [
        {
            "done": f.done(
                f.tree(f.file("x")),
                missing=f.text(
                    b"".join(
                        json.dumps(link(f"/{n}", "\x1b[2J\n" + "x" * 9000), separators=(",", ":")).encode() + b"\n"
                        for n in range(2000)
                    ),
                    entries=2000,
                ),
            )
        }
    ],
    "many warnings": _answer_with(warnings=["\x1b[2J\n" + "x" * 10_000] * 20_000),
}
"""Each of these comes home without what is a lie in it."""


def endless(size: int = 100 << 20) -> bytes:
    """A thousandth of ``size``, which inflates to one line of so many bytes."""
    deflate = zlib.compressobj(1)
    block = b"x" * (1 << 20)
    return b"".join([*(deflate.compress(block) for _ in range(size >> 20)), deflate.flush()])


class HostileNode:
    """See burstd.domain.plugins.shell.Shell and Talk. ``lie`` is what its agent says; requests are kept."""

    def __init__(self, store: MemoryStager, lie: Lie) -> None:
        self._store = store
        self._lie = lie
        self._lines: list[bytes] = []
        self.requests: list[dict[str, Any]] = []

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002, ARG002
        """As if it had been done."""
        return CompletedCommand(0, "", "")

    def script(self, text: str, *args: str, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002, ARG002
        """As if it had been done."""
        return CompletedCommand(0, "", "")

    def start_process(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> Self:  # noqa: ARG002
        """Itself."""
        return self

    def open_terminal(self, argv: Sequence[str], size: TerminalSize, *, timeout_s: float = 30.0) -> RemoteTerminal:  # noqa: ARG002
        """There is none."""
        raise AssertionError("nobody asks a node of staging for a terminal")

    def dial(self, port: int, timeout_s: float = 30.0) -> PortConnection:  # noqa: ARG002
        """There is none."""
        raise AssertionError("nobody asks a node of staging for a port")

    def write_line(self, data: bytes) -> None:
        """The first is the request."""
        request = json.loads(data)
        if self.requests:
            return
        self.requests.append(request)
        self._lines = [
            line if isinstance(line, bytes) else json.dumps(line).encode()
            for line in self._lie(Forger(self._store, request))
        ]

    def read_line(self, quiet_s: float, cancelled: threading.Event) -> bytes | None:  # noqa: ARG002
        """The next lie; empty: it has hung up."""
        return self._lines.pop(0) if self._lines else b""

    def stderr_tail(self) -> str:
        """Nothing."""
        return ""

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return
