"""What ``burstctl notify test`` shows."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, Time


class WayTestView(AnswerView):
    """What came of a test message by one way."""

    way: str
    """``program``, ``mail`` or ``webhook:NAME``."""
    error: str
    """Why it could not be sent; empty: it was."""
    took_s: float


class NotifyTestView(AnswerView):
    """``burstctl notify test``. Empty: the settings have no way."""

    now: Time
    ways: list[WayTestView]
