"""What somebody is told by mail, by a program or by a webhook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class NotificationKind(StrEnum):
    """What it is about."""

    ALARM = "alarm"
    BUDGET = "budget"
    JOB = "job"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Notification:
    """One message. It may come twice, with the same id, where burstd was killed while it was sent."""

    id: str
    """Names what it tells of, so that nothing is told twice: ``budget/project/a/month/2026-11/80``."""
    kind: NotificationKind
    event: str
    """``begin``, ``end``; ``80``, ``95``, ``spent``; a word of ``[notify] jobs``; ``test``."""
    time: float
    """When that was, in burstd's seconds since 1970."""
    title: str
    """A few words of burstd's own: nothing of it comes from users."""
    text: str
    """One line, which may hold anything that users and clouds wrote."""
    user: str = ""
    """Whom it is for; empty: administrators."""
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that is still to be sent by one way."""

    notification: Notification
    way: str
    """``program``, ``mail`` or ``webhook:NAME``."""
    tries: int = 0
    due: float = 0.0
    """Not to be tried earlier, in burstd's time."""


class DeliveryState(StrEnum):
    """What became of it."""

    WAITING = "waiting"
    SENT = "sent"
    GIVEN_UP = "given up"
