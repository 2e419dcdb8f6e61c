"""What Slurm's commands print: values, units, GRES, and lines of ``Key=Value``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from sys import intern
from types import MappingProxyType

from burstd.domain.slurm.shape import SHARD, Gres, SharedGpu, split_shards
from burstd.slurm.hostlist import HostlistError, expand

_NONE = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE", "Unknown", "*"})
_KEY = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_/:]*)=")
_NUMBER = re.compile(r"[0-9]+")
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)[cn]?", re.IGNORECASE | re.ASCII)
_COUNT = re.compile(r"([0-9]+)([KMGTP]?)", re.IGNORECASE | re.ASCII)
_TIMES = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}
_DURATION = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)")
MAX_COUNT = 10**15
"""The largest count or size that is taken from Slurm: users write these, and a larger one stands for this."""
MAX_DURATION_S = 100 * 366 * 86400.0
_LATEST = 7_258_118_400.0
"""The year 2200, in seconds since 1970."""
_SHARDS_OF_GPU = re.compile(r"([0-9]{1,9}|-)/([0-9]{1,9})")
_INDEXES = re.compile(r"\(IDX:([0-9][0-9,-]{0,999})\)")
_PARENTHESES = re.compile(r"\([^)]*\)")
_OUTSIDE_PARENTHESES = re.compile(r",(?![^()]*\))")
# Ten thousand jobs ask for a handful of different things.
_cached = lru_cache(maxsize=4096)


def text_or_empty(text: str) -> str:
    """The text, or ``""`` for Slurm's many ways to say that there is none."""
    text = text.strip()
    return "" if text in _NONE else text


@_cached
def parse_count(text: str) -> int:
    """A whole number, 0 where there is none. ``2-4`` (a range of nodes) is its lower end."""
    match = _NUMBER.match(text.strip())
    return _parse_digits(match[0]) if match else 0


def format_exit_code(text: str) -> str:
    """``3:0``, also of the wait status (``768``) that Slurm 22.05 shows. What a signal ended has no exit status."""
    if not text.isdecimal():
        return text
    status = parse_count(text)
    signal = status & 0x7F
    return f"{0 if signal else status >> 8 & 0xFF}:{signal}"


def _parse_digits(digits: str) -> int:
    """No more than MOST. Python itself refuses to read more than 4,300 digits."""
    digits = digits.lstrip("0") or "0"
    return min(int(digits), MAX_COUNT) if len(digits) <= 16 else MAX_COUNT


@_cached
def parse_mebibytes(text: str) -> int:
    """``100M``, ``1.5G``, ``2000``: MiB, rounded up; 0 where there is none."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return 0
    exact = min(float(match[1]) * _UNITS[match[2].upper() or "M"], float(MAX_COUNT))
    return int(exact) + (exact > int(exact))


@_cached
def parse_duration(text: str) -> float:
    """``1-02:03:04``, ``05:00``: seconds, 100 years at most; 0 for UNLIMITED, NOT_SET and none."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return 0.0
    days, hours, minutes, secs = (_parse_digits(g or "0") for g in match.groups())
    return min(float(((days * 24 + hours) * 60 + minutes) * 60 + secs), MAX_DURATION_S)


def parse_timestamp(text: str, translate: Callable[[float], float]) -> float:
    """A time as SLURM_TIME_FORMAT=%s prints it, in burstd's time, before 2200; 0 where there is none."""
    text = text.strip()
    found = _parse_digits(text) if _NUMBER.fullmatch(text) else 0
    return translate(min(float(found), _LATEST)) if found else 0.0


@lru_cache(maxsize=512)
def expand_hosts(text: str) -> tuple[str, ...]:
    """The names of a host list; a text that is none stands for itself."""
    found = text_or_empty(text)
    try:
        # Thousands of jobs may each exclude thousands of the same nodes.
        return tuple(map(intern, expand(found)))
    except HostlistError:
        return (found,)


@_cached
def parse_node_gres(text: str) -> tuple[Gres, ...]:
    """``gpu:v100:4(S:0-1),shard:8``, also GresUsed (``gpu:v100:2(IDX:0,2)``); those counted 0 are left out."""
    found = []
    for part in _OUTSIDE_PARENTHESES.split(text_or_empty(text)):
        parsed = _gres(_PARENTHESES.sub("", part))
        if parsed is not None and parsed.count:
            found.append(parsed)
    return tuple(found)


@_cached
def parse_shared_gpus(used: str, gres: tuple[Gres, ...]) -> tuple[SharedGpu, ...]:
    """What GresUsed leaves of each GPU of a node with these GRES; empty where it has no shards.

    ``gpu:(null):1(IDX:1),shard:(null):3(3/4,0/4)`` tells the shards in use of each GPU; 26.05 writes ``-/4`` for one
    that is taken whole. 22.05 names GPUs instead (``shard:(null):1(IDX:0)``), and leaves one out as soon as one of its
    jobs has ended. Nor does it always name those that are taken whole (``gpu:1``).
    """
    gpus = list(split_shards(gres))
    if not gpus:
        return ()
    taken: set[int] = set()
    unnamed = 0
    for part in _OUTSIDE_PARENTHESES.split(text_or_empty(used)):
        parsed = _gres(_PARENTHESES.sub("", part))
        if parsed is not None and parsed.name == "gpu":
            indexes = _indexes(part)
            taken |= indexes
            unnamed += max(0, parsed.count - len(indexes))
        elif parsed is not None and parsed.name == SHARD:
            found = [(int(of if n == "-" else n), int(of)) for n, of in _SHARDS_OF_GPU.findall(part)]
            if len(found) == len(gpus):
                gpus = [replace(g, shards=of, free=of - n) for g, (n, of) in zip(gpus, found, strict=True)]
            else:
                gpus = [replace(gpu, exact=False) for gpu in gpus]
    for at, gpu in enumerate(gpus):
        if at in taken or (unnamed and gpu.free == gpu.shards):
            unnamed -= at not in taken
            gpus[at] = replace(gpu, free=0, whole=True)
    return tuple(gpus)


def _indexes(text: str) -> set[int]:
    """``(IDX:0,2-3)``."""
    match = _INDEXES.search(text)
    return {int(index) for index in expand(f"[{match[1]}]")} if match else set()


@_cached
def parse_job_gres(text: str) -> tuple[Gres, ...]:
    """``gres:gpu:v100:2`` (22.05), ``gres/gpu:v100:2,cpu=1`` (later), ``gres/gpu=1``; what is no GRES is left out."""
    found = []
    for part in text_or_empty(text).split(","):
        kind, _, rest = part.replace("=", ":").replace("/", ":", 1).partition(":")
        parsed = _gres(rest) if kind == "gres" else None
        if parsed is not None:
            found.append(parsed)
    return tuple(found)


def _gres(text: str) -> Gres | None:
    """``name``, ``name:count``, ``name:type``, ``name:type:count``; no count means one."""
    words = [w for w in text.strip().split(":") if w and w != "no_consume"]
    if not words:
        return None
    count = 1
    match = _COUNT.fullmatch(words[-1]) if len(words) > 1 else None
    if match is not None:
        count = min(_parse_digits(match[1]) * _TIMES.get(match[2].upper(), 1), MAX_COUNT)
        words.pop()
    return Gres(words[0], ":".join(words[1:]), count)


def multiply_gres(gres: Iterable[Gres], factor: int) -> tuple[Gres, ...]:
    """The same GRES, ``factor`` times."""
    return tuple(Gres(g.name, g.type, min(g.count * factor, MAX_COUNT)) for g in gres)


@_cached
def parse_tres(text: str) -> Mapping[str, str]:
    """``cpu=2,mem=300M,node=1``: by name."""
    return MappingProxyType(dict(part.split("=", 1) for part in text_or_empty(text).split(",") if "=" in part))


def parse_records(text: str, first_key: str) -> Iterator[dict[str, str]]:
    """The lines of ``scontrol -o show ...``, each beginning with ``first_key=``.

    A value goes on to the next ``Key=`` that was not there before, so that one with spaces, line ends or the like of
    ``State=`` in it (a reason) stays whole.
    """
    return map(parse_fields, split_records(text, first_key))


def split_records(text: str, first_key: str) -> list[str]:
    """The text of each record, see ``records``."""
    found = re.split(rf"^(?={first_key}=)", text, flags=re.MULTILINE)
    return [block for block in found if block.startswith(first_key + "=")]


def parse_fields(block: str) -> dict[str, str]:
    """The values of one record by their keys, see ``records``."""
    found: dict[str, re.Match[str]] = {}
    for match in _KEY.finditer(block):
        found.setdefault(match[1], match)
    ends = [*[match.start() for match in found.values()][1:], len(block)]
    return {key: block[match.end() : end].strip() for (key, match), end in zip(found.items(), ends, strict=True)}
