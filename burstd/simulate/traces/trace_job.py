"""What the readers of traces share: a job of a trace, the trace, lines that cannot be read, and times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

MAX_VALUE = 1e11
"""The largest number that a trace may have: seconds since 1970 of the year 5138, or 95 PiB in MiB."""
SHOWN_CHARACTERS = 60
"""Letters of a value that a message shows."""
_LONGEST = 300
"""Letters of one complaint."""


class TraceError(Exception):
    """The trace cannot be read. The message names file and line, and what was expected there."""


class UnreadableLine(ValueError):
    """One line cannot be read; the message says what was expected of it."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job that once ran. 0 or empty: the trace does not say. Raises BadLine for times and sizes beyond MOST."""

    id: str
    submitted: float
    """When it could have started, had there been room: seconds since 1970."""
    run_s: float
    """How long it ran; more than 0."""
    nodes: int = 0
    cpus: int = 0
    """Over all its nodes, as are GPUs and memory."""
    gpus: int = 0
    memory_mib: int = 0
    time_limit_s: float = 0.0
    user: str = ""
    account: str = ""
    partition: str = ""
    name: str = ""
    gpu_type: str = ""
    constraint: str = ""

    def __post_init__(self) -> None:
        times = (self.submitted, self.run_s, self.time_limit_s)
        if not all(0 <= value <= MAX_VALUE for value in (*times, self.nodes, self.cpus, self.gpus, self.memory_mib)):
            raise UnreadableLine(
                f"expected times and sizes from 0 to {MAX_VALUE:g}, found others in job {self.id[:SHOWN_CHARACTERS]!r}"
            )


@dataclass(frozen=True, slots=True)
class Trace:
    """What a reader found."""

    jobs: tuple[TraceJob, ...]
    """By time of submission; ids are unique."""
    format: str
    notes: tuple[str, ...] = ()
    """What was left out or taken for granted, for people: each a sentence without a full stop."""
    nodes: int = 0
    """Of the machine that the trace is of, where it says so; else 0."""
    cpus: int = 0


@dataclass(slots=True)
class TraceLines:
    """The lines of one file, and what was seen in them. Few that cannot be read are left out, many are an error."""

    path: Path
    lines: Iterable[str]
    line_number: int = 0
    """Number of the line that was read last, from 1."""
    _bad: list[str] = field(default_factory=list)
    _counted: dict[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        """The lines that are not blank, without line ends."""
        for line in self.lines:
            self.line_number += 1
            if text := line.strip("\r\n"):
                yield text

    def reject_line(self, expected: str) -> None:
        """The line read last is of no use."""
        self._bad.append(f"{self.path}:{self.line_number}: {expected[:_LONGEST]}")

    def count_note(self, what: str) -> None:
        """One more row of which ``what`` is to be told: ``{} jobs that never ran, left out``."""
        self._counted[what] = self._counted.get(what, 0) + 1

    def error(self, expected: str) -> TraceError:
        """For a fault of the line read last that no later line can mend."""
        return TraceError(f"{self.path}:{self.line_number}: {expected}")

    def build_trace(self, name: str, jobs: Iterable[TraceJob], notes: Iterable[str] = (), **machine: int) -> Trace:
        """The whole. Raises TraceError where there is no job, or more than 5 lines and 1 % of all cannot be read."""
        found = tuple(sorted(jobs, key=lambda job: job.submitted))
        if len(self._bad) > max(5, self.line_number // 100):
            raise TraceError(f"{self._bad[0]} ({len(self._bad)} of {self.line_number} lines cannot be read)")
        if not found:
            reasons = "; ".join([*self._bad[:1], *self._counted_notes()])
            raise TraceError(f"{self.path}: no job in it that ran{': ' if reasons else ''}{reasons}")
        if self._bad:
            told = f"{len(self._bad)} lines cannot be read and are left out, the first: {self._bad[0]}"
            notes = [told, *notes]
        return Trace(found, name, (*notes, *self._counted_notes()), **machine)

    def _counted_notes(self) -> list[str]:
        return [what.format(count) for what, count in self._counted.items()]


def parse_trace_time(text: str) -> float:
    """Seconds since 1970 of ``2026-11-21 20:58:28`` or ISO 8601; what names no time zone is UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
