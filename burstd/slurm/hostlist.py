"""Slurm's host lists (``gpu[01-03,7]x[1-2],head``) and task lists of job arrays (``1-10:2,15%3``)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import product

MAX_HOSTS = 65_536
"""More names than this in one list are taken for a mistake: Slurm itself stops at 65,533 nodes."""

MAX_TASK = 4_000_000
"""The last task that an array can have: Slurm's largest MaxArraySize is one more."""

_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")
_TRAILING_NUMBER = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)
_TASKS = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")
_LIMIT = re.compile(r"[0-9]{1,10}")
_SHOWN = 60
"""Letters of a wrong list that an error shows."""
_LETTERS = 64 * 1024 * 1024
"""Of all names of one list together."""


class HostlistError(ValueError):
    """The text is no host list, or no list of array tasks."""


def expand(text: str) -> list[str]:
    """Every name of a host list, in Slurm's order, duplicates kept. ``""`` and ``(null)`` give none."""
    if text in ("", "(null)", "None assigned"):
        return []
    names: list[str] = []
    for part in _split(text):
        names.extend(_expand_one(part))
        if len(names) > MAX_HOSTS:
            raise HostlistError(f"a host list of more than {MAX_HOSTS} names: {text[:_SHOWN]}")
    return names


def compress(names: Collection[str]) -> str:
    """The shortest host list that every version of Slurm reads: each name once, sorted, ranges on the last number.

    A name whose number is not at its end stands alone, since Slurm reads no text after a bracket.
    """
    plain: list[str] = []
    numbered: dict[str, list[tuple[int, int]]] = {}
    for name in set(names):
        match = _TRAILING_NUMBER.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            number = match[2]
            padded = len(number) if number[0] == "0" and len(number) > 1 else 0
            numbered.setdefault(match[1], []).append((int(number), padded))
    parts = plain
    for prefix, numbers in numbered.items():
        ranges = _ranges(numbers)
        only = ranges[0]
        parts.append(prefix + only if len(ranges) == 1 and "-" not in only else f"{prefix}[{','.join(ranges)}]")
    return ",".join(sorted(parts))


def _ranges(numbers: list[tuple[int, int]]) -> list[str]:
    """Runs of numbers as ``lo-hi``; each number comes with its width if it is padded, else 0."""
    found: list[list[str]] = []
    left = {(n, w): str(n).zfill(w) for n, w in numbers}
    # Padded runs first: 08, 09 take the plain 10 along, since [08-10] means just that.
    for number, width in sorted(left, key=lambda nw: (-nw[1], nw[0])):
        if (number, width) not in left:
            continue
        first = last = left.pop((number, width))
        size = len(first)
        following = number + 1
        while True:
            text = str(following).zfill(size)
            key = (following, size if text[0] == "0" and size > 1 else 0)
            if left.get(key) != text:
                break
            last = left.pop(key)
            following += 1
        found.append([first] if first == last else [first, last])
    return ["-".join(run) for run in sorted(found, key=lambda run: (int(run[0]), len(run[0])))]


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are not in brackets."""
    depth = start = 0
    for index, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        if depth not in (0, 1):
            raise HostlistError(f"brackets do not match in the host list {text[:_SHOWN]!r}")
        if letter == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    if depth:
        raise HostlistError(f"brackets do not match in the host list {text[:_SHOWN]!r}")
    yield text[start:]


def _expand_one(part: str) -> list[str]:
    part = part.strip()
    if not part:
        return []
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    ranges = [_numbers(piece) for piece in pieces[1::2]]
    size = 1
    for some in ranges:
        size *= sum(len(numbers) for numbers, _ in some)
        if size > MAX_HOSTS:
            raise HostlistError(f"a host list of more than {MAX_HOSTS} names: {part[:_SHOWN]}")
    if size * len(part) > _LETTERS:
        raise HostlistError(f"a host list of too long names: {part[:_SHOWN]}")
    choices: list[list[str]] = [[piece] for piece in pieces]
    choices[1::2] = [[str(n).zfill(width) for numbers, width in some for n in numbers] for some in ranges]
    return ["".join(combination) for combination in product(*choices)]


def _numbers(inside: str) -> list[tuple[range, int]]:
    """The numbers between two brackets, each range with its width."""
    found = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None or int(match[1]) > int(match[2] or match[1]):
            raise HostlistError(f"{piece[:_SHOWN]!r} is no range of a host list")
        found.append((range(int(match[1]), int(match[2] or match[1]) + 1), len(match[1])))
    return found


def task_ranges(text: str) -> list[range]:
    """The task ids of an array expression, as ranges; the ``%`` throttle and brackets are dropped."""
    body = text.strip().strip("[]").partition("%")[0]
    found = []
    for piece in filter(None, body.split(",")):
        match = _TASKS.fullmatch(piece.strip())
        if match is None:
            raise HostlistError(f"{piece[:_SHOWN]!r} is no list of array tasks")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not low <= high <= MAX_TASK or step < 1:
            raise HostlistError(f"{piece[:_SHOWN]!r} is no list of array tasks")
        found.append(range(low, high + 1, step))
    return found


def task_count(text: str) -> int:
    """How many tasks an array expression names, without listing them."""
    return sum(len(r) for r in task_ranges(text))


def task_ids(text: str) -> Iterator[int]:
    """Each task id of an array expression in turn."""
    for ids in task_ranges(text):
        yield from ids


def task_limit(text: str) -> int:
    """The ``%`` throttle of an array expression: how many tasks may run at once; 0: none."""
    limit = text.strip().strip("[]").partition("%")[2]
    return int(limit) if _LIMIT.fullmatch(limit) else 0
