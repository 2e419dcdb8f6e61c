"""Reads traces of any format that is known here, compressed with gzip or not."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import IO

from burstd.simulate.traces import philly, sacct, swf
from burstd.simulate.traces.trace_job import Trace, TraceError, TraceJob, TraceLines

__all__ = ["AUTO", "FORMATS", "Trace", "TraceError", "TraceJob", "read_trace"]

AUTO = "auto"
_READERS: Mapping[str, Callable[[TraceLines], Trace]] = MappingProxyType(
    {swf.FORMAT: swf.read, sacct.FORMAT: sacct.read, philly.FORMAT: philly.read}
)
FORMATS = (AUTO, *_READERS)
_GZIP = b"\x1f\x8b"
_LOOKED_AT = 200
"""Lines from the beginning that tell the format: headers of SWF are long."""


def read_trace(path: Path, format: str = AUTO) -> Trace:  # noqa: A002 - as the option is called
    """The jobs of a trace. Raises TraceError, which names the file, the line and what was expected."""
    if format not in FORMATS:
        raise TraceError(f"there is no format {format!r} of traces; there are {', '.join(FORMATS)}")
    try:
        with _opened(path) as stream:
            text = _text(stream, path)
            head = list(islice(text, _LOOKED_AT))
            reader = _READERS[_format_of(head, path) if format == AUTO else format]
            return reader(TraceLines(path, chain(head, text)))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from None


def _opened(path: Path) -> IO[bytes]:
    """Also of pipes: the file is read once, from its beginning to its end."""
    raw = path.open("rb")
    if raw.peek(2)[:2] == _GZIP:
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))
    return raw


def _text(stream: IO[bytes], path: Path) -> Iterator[str]:
    try:
        yield from io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path} is damaged: {error}; was it copied whole?") from None


def _format_of(head: list[str], path: Path) -> str:
    first = next((line.strip() for line in head if line.strip()), "")
    if philly.is_header(first):
        return philly.FORMAT
    if sacct.is_header(first):
        return sacct.FORMAT
    if first.startswith(";") or swf.is_row(first):
        return swf.FORMAT
    raise TraceError(
        f"{path}:1: no trace of a format that is known: expected the output of sacct -P with its header line, "
        f"SWF (18 numbers a line), or CSV that begins with timestamp,duration,num_gpus; found {first[:60]!r}"
    )
