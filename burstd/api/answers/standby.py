"""What the standby of two heads answers."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView


class StandbyView(AnswerView):
    """A head that waits to take over."""

    host: str
    version: str
    cluster: str
    leader: str
    """The host that leads, and since when, in words; empty: none does."""
    alarms: list[str]
    """What would be in the way of a takeover."""
