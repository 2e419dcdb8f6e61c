"""What the sandbox cloud holds: instances with a volume and a port each, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Generic, TypeVar


class SandboxInstanceState(StrEnum):
    """State of an instance."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"
    ERROR = "error"


COUNTED_STATES = (
    SandboxInstanceState.PENDING,
    SandboxInstanceState.RUNNING,
    SandboxInstanceState.STOPPING,
    SandboxInstanceState.ERROR,
)
"""States that count against the quota and hold an address."""


@dataclass(frozen=True, slots=True)
class SandboxLaunchRequest:
    """A request to launch. The same ``token`` with the same request means the same instance."""

    token: str
    name: str
    zone: str
    type: str
    image: str
    spot: bool = False
    user_data: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Announcement:
    """That an instance is taken back (``interruption``, at ``deadline``), or may be soon (``rebalance``)."""

    instance: str
    kind: str
    deadline: float | None

    @property
    def receipt(self) -> str:
        """What it is acknowledged by."""
        return f"{self.instance}/{self.kind}"


@dataclass(slots=True)
class SandboxMachine:
    """An instance. Times in seconds since 1970 by the cloud's clock; ``runs_at`` is when it will run, or began to."""

    id: str
    request: SandboxLaunchRequest
    address: str
    gpus: int
    price: Decimal
    created: float
    runs_at: float
    state: SandboxInstanceState = SandboxInstanceState.PENDING
    started: float | None = None
    ends_at: float | None = None
    ended: float | None = None
    error: str = ""
    hangs: bool = False
    fails: bool = False
    lies: bool = False
    """Set for one that dies at ``dies_at`` while the cloud says that it runs."""
    dies_at: float | None = None
    interrupted_at: float | None = None
    """Set for a spot instance that is to be taken back then."""
    hinted: bool = False
    """It was said that it may be taken back soon."""
    heard: tuple[str, ...] = ()
    """Receipts of its announcements that the client has acknowledged."""

    def announcements(self) -> list[Announcement]:
        """What was said of its end, while it lives."""
        if self.state not in (SandboxInstanceState.PENDING, SandboxInstanceState.RUNNING):
            return []
        said = [Announcement(self.id, "rebalance", None)] if self.hinted else []
        if self.interrupted_at is not None:
            said.append(Announcement(self.id, "interruption", self.interrupted_at))
        return said

    def seconds(self, now: float) -> float:
        """Seconds that it has run, and is billed for."""
        return 0.0 if self.started is None else max(0.0, (now if self.ended is None else self.ended) - self.started)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "price": str(self.price), "state": self.state.value}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SandboxMachine:
        """The inverse of ``to_json``."""
        values = dict(fields)
        values["request"] = SandboxLaunchRequest(**values["request"])
        values["price"] = Decimal(values["price"])
        values["state"] = SandboxInstanceState(values["state"])
        values["heard"] = tuple(values.get("heard", ()))
        return cls(**values)


@dataclass(slots=True)
class AttachedResource:
    """A volume or a port of an instance; ``attached_to`` is empty when it outlived it."""

    id: str
    kind: str
    tags: Mapping[str, str]
    created: float
    attached_to: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BillRow:
    """What one instance costs: seconds that it ran and the price for an hour that it was launched at.

    Times in seconds since 1970: of the launch, and from when to when it ran; None: not so far.
    """

    instance: str
    name: str
    zone: str
    type: str
    spot: bool
    tags: Mapping[str, str]
    created: float
    started: float | None
    ended: float | None
    seconds: float
    price: Decimal

    @property
    def cost(self) -> Decimal:
        """In the cloud's currency, not rounded."""
        return self.price * Decimal(repr(self.seconds)) / 3600


T = TypeVar("T", SandboxMachine, AttachedResource)
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class ResourcePage(Generic[P]):
    """A part of a list, and the marker of the next, empty at the end."""

    items: tuple[P, ...]
    next: str = ""
