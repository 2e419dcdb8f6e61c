"""Faults to order: what is to go wrong, for which calls or instances, how often."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase


class FaultKind(StrEnum):
    """What goes wrong."""

    # A call is refused, before anything is done.
    CAPACITY = "capacity"
    QUOTA = "quota"
    BAD_IMAGE = "bad-image"
    RATE_LIMIT = "rate-limit"
    """``seconds``: after which to come again."""
    AUTH = "auth"
    ERROR = "error"
    """HTTP 500."""
    UNAVAILABLE = "unavailable"
    """HTTP 503."""
    # A call is carried out.
    LOSE_ANSWER = "lose-answer"
    """... and the line is cut after ``seconds``, without an answer."""
    DELAY = "delay"
    """... and the answer comes ``seconds`` later."""
    # An instance is launched.
    BOOT_HANG = "boot-hang"
    """... and runs, but never answers by ssh."""
    BOOT_FAIL = "boot-fail"
    """... and ends in the state error."""
    BOOT_SLOW = "boot-slow"
    """... and runs ``seconds`` later than usual."""
    LIE = "lie"
    """... and dies ``seconds`` after it came up, while every list says that it runs."""
    # An instance is terminated.
    LEAK_VOLUME = "leak-volume"
    LEAK_PORT = "leak-port"


REFUSAL_FAULTS = (
    FaultKind.CAPACITY,
    FaultKind.QUOTA,
    FaultKind.BAD_IMAGE,
    FaultKind.RATE_LIMIT,
    FaultKind.AUTH,
    FaultKind.ERROR,
    FaultKind.UNAVAILABLE,
)
ANSWER_FAULTS = (FaultKind.LOSE_ANSWER, FaultKind.DELAY)
CALLS = (
    "offers", "launch", "list", "get", "terminate", "console", "volumes", "ports", "remove", "quota", "supplies",
    "create-disk", "disks", "attach-disk", "detach-disk", "remove-disk",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallSubject:
    """What a call is about; empty where it does not apply."""

    zone: str = ""
    type: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class SandboxFault:
    """One order.

    Patterns as in the shell. ``calls`` (some of CALLS, or ``*``) counts for refusals and answers only. ``count`` None:
    for ever. A call on nothing in particular, such as a list, has an empty zone, type and name.
    """

    kind: FaultKind
    calls: tuple[str, ...] = ("launch",)
    zones: str = "*"
    types: str = "*"
    names: str = "*"
    count: int | None = None
    seconds: float = 0.0
    id: str = ""

    def matches(self, kinds: Iterable[FaultKind], call: str, subject: CallSubject) -> bool:
        """Whether this call or instance is meant."""
        return (
            self.kind in kinds
            and (self.kind not in (*REFUSAL_FAULTS, *ANSWER_FAULTS) or call in self.calls or "*" in self.calls)
            and fnmatchcase(subject.zone, self.zones)
            and fnmatchcase(subject.type, self.types)
            and fnmatchcase(subject.name, self.names)
        )


class FaultQueue:
    """The orders not yet carried out, oldest first."""

    def __init__(self, orders: Iterable[SandboxFault] = (), made: int = 0) -> None:
        self._orders = list(orders)
        self.made = made

    def add(self, fault: SandboxFault) -> SandboxFault:
        """Takes an order; returns it with its id."""
        self.made += 1
        taken = replace(fault, id=fault.id or f"f-{self.made}")
        self._orders = [f for f in self._orders if f.id != taken.id] + [taken]
        return taken

    def remove(self, fault_id: str | None = None) -> None:
        """Forgets one order, or all."""
        self._orders = [] if fault_id is None else [f for f in self._orders if f.id != fault_id]

    def pending(self) -> tuple[SandboxFault, ...]:
        """Those that are left."""
        return tuple(self._orders)

    def take_matching(self, kinds: Iterable[FaultKind], call: str, subject: CallSubject) -> SandboxFault | None:
        """The first order that is meant, counted down."""
        wanted = tuple(kinds)
        for index, fault in enumerate(self._orders):
            if not fault.matches(wanted, call, subject):
                continue
            if fault.count is not None:
                left = fault.count - 1
                self._orders[index : index + 1] = [replace(fault, count=left)] if left > 0 else []
            return fault
        return None
