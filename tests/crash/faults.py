"""Where a process can die, and a disk that is full: proxies around what the reconciler calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from burstd.db import StoreFull
from burstd.domain.errors import SchedulerUnavailable
from tests.virtual.clock import VirtualClock

T = TypeVar("T")

WRITES = frozenset(
    {
        "make_claims",
        "transition_claim",
        "hand_over_claim",
        "update_claim",
        "record_launch_requests",
        "log_event",
        "set_metadata",
        "set_scale_override",
        "save_project_override",
        "remove_scale_overrides",
        "expire_scale_overrides",
        "drain_slots",
        "undrain_slots",
        "save_breaker",
        "clear_breakers",
        "record_remarks",
        "make_staging",
        "transition_staging",
        "deliver_staging",
        "update_staging",
        "purge",
    }
)
SLURM_CHANGES = frozenset(
    {
        "set_gate",
        "bind",
        "unbind",
        "power_up",
        "power_down",
        "set_address",
        "set_extra",
        "drain",
        "resume",
        "down",
        "set_comment",
        "requeue_jobs",
        "cancel_running",
        "limit_time",
        "warn_jobs",
        "requeue_ended",
        "start_now",
        "update_jobs",
        "hold",
    }
)
SLURM_READS = frozenset({"jobs", "nodes", "reservations"})


class Crash(BaseException):
    """The process dies here. No code of burstd may catch it."""


@dataclass(slots=True)
class CrashPoints:
    """Goes off at the n-th place that is passed after it was armed: before or after an outside call or a commit."""

    left: int | None = None
    passed: list[str] = field(default_factory=list)
    """Places since it was armed."""
    changes: int = 0
    """Calls that may have changed what outlives the process, but for commits."""
    _outlives: Callable[[], object] | None = None
    _states: list[object] = field(default_factory=list)

    def arm(self, places: int) -> None:
        """Raises Crash at the ``places``-th place from now; 1: the next."""
        self.left, self.passed, self._outlives = places, [], None

    def record(self, outlives: Callable[[], object]) -> None:
        """Goes off nowhere, and notes what outlives the process at each place, for ``distinct_places``."""
        self.arm(1_000_000)
        self._outlives, self._states = outlives, []

    def distinct_places(self, *words: str) -> list[int]:
        """The first place for each state that a crash would leave, of those recorded, or of those with such a word.

        Whoever dies before a read leaves what he leaves after it.
        """
        found: dict[object, int] = {}
        for number, (place, state) in enumerate(zip(self.passed, self._states, strict=True), 1):
            if not words or any(word in place for word in words):
                found.setdefault(state, number)
        return list(found.values())

    def disarm(self) -> None:
        """It does not go off any more."""
        self.left = None

    def pass_by(self, place: str) -> None:
        """One place."""
        if self.left is not None:
            self.passed.append(place)
            if self._outlives is not None:
                self._states.append((self.changes, self._outlives()))
            self.left -= 1
            if self.left <= 0:
                self.left = None
                raise Crash(place)


class _Proxy:
    def __init__(self, target: object, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        self._target = target
        self._wrap = wrap
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self._made:
            found = getattr(self._target, name)
            if not callable(found):
                return found
            self._made[name] = self._wrap(name, found)
        return self._made[name]


class _PreparingProxy(_Proxy):
    """An optional ability is looked for on the class."""

    def prepare(self, requests: Any) -> Any:
        return self.__getattr__("prepare")(requests)


@dataclass(slots=True)
class Disk:
    """``writes_left`` None: there is space; else so many more changes fit."""

    writes_left: int | None = None
    was_full: bool = False
    """Something could not be written down."""

    def write(self) -> None:
        """One change. Raises StoreFull."""
        if self.writes_left is not None:
            if self.writes_left <= 0:
                self.was_full = True
                raise StoreFull("No space is left for the database; free some on its disk.")
            self.writes_left -= 1


def crashing_store(store: T, bomb: CrashPoints, disk: Disk) -> T:
    """A crash before or after every commit, and a disk that may be full."""
    batches = 0

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        if name == "batch":

            @contextmanager
            def batch() -> Iterator[None]:
                nonlocal batches
                bomb.pass_by("before a batch is committed")
                batches += 1
                try:
                    with call():
                        yield
                finally:
                    batches -= 1
                bomb.pass_by("after a batch was committed")

            return batch
        if name not in WRITES:
            return call

        def write(*args: Any, **kwargs: Any) -> Any:
            bomb.pass_by(f"before {name} {args[:3]}")
            disk.write()
            result = call(*args, **kwargs)
            # A batch that a crash cuts off must be undone: that is another matter than a batch without it.
            bomb.changes += bool(batches)
            bomb.pass_by(f"after {name} {args[:3]}")
            return result

        return write

    return cast("T", _Proxy(store, wrap))


def store_with_claims(store: T, find: Callable[..., Any]) -> T:
    """A store whose history of claims is another's."""
    return cast("T", _Proxy(store, lambda name, call: find if name == "find_claims" else call))


@dataclass(slots=True)
class SlurmLine:
    """The line to slurmctld."""

    clock: VirtualClock
    lost_answers: int = 0
    """So many answers to changes are lost though they were made."""
    call_s: float = 0.0
    """How long each call takes, half of it before slurmctld does it: jobs start and end between two calls."""

    def half_a_call(self) -> None:
        """Time passes."""
        if self.call_s:
            self.clock.advance(self.call_s / 2)


def crashing_slurm(slurm: T, bomb: CrashPoints, line: SlurmLine) -> T:
    """A crash before or after every call, and answers that are lost."""

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        if name not in SLURM_CHANGES and name not in SLURM_READS:
            return call

        def ask(*args: Any, **kwargs: Any) -> Any:
            bomb.pass_by(f"before {name} {args}")
            line.half_a_call()
            result = call(*args, **kwargs)
            bomb.changes += name in SLURM_CHANGES
            line.half_a_call()
            bomb.pass_by(f"after {name} {args}")
            if name in SLURM_CHANGES and line.lost_answers:
                line.lost_answers -= 1
                raise SchedulerUnavailable("slurm_load: Zero Bytes were transmitted or received")
            return result

        return ask

    return cast("T", _Proxy(slurm, wrap))


def crashing_calls(target: T, bomb: CrashPoints, label: str, names: frozenset[str], made: list[str]) -> T:
    """A crash before or after each of these calls; what a call yields is all taken first. ``made`` gets each call."""

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        if name not in names:
            return call

        def ask(*args: Any, **kwargs: Any) -> Any:
            bomb.pass_by(f"before {label}.{name}")
            made.append(f"{label}.{name}")
            bomb.changes += 1
            result = call(*args, **kwargs)
            if isinstance(result, Iterator):
                result = iter(list(result))
            bomb.pass_by(f"after {label}.{name}")
            return result

        return ask

    return cast("T", (_PreparingProxy if hasattr(target, "prepare") else _Proxy)(target, wrap))
