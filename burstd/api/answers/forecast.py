"""The end of the month: ``burstctl bill forecast``."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, Money, Time


class MonthForecastView(AnswerView):
    """What machines and volumes will have cost at the end of the month, in one currency."""

    total: Money
    """``spent``, ``committed`` and ``expected``."""
    spent: Money
    committed: Money
    """By machines that run, until the time limits of their jobs, and by volumes."""
    expected: Money | None
    """Beyond that, from the means of weekdays; None: there is too little history."""
    low: Money | None
    high: Money | None
    """The range of ``total``, from the tenth to the 90th percentile of past errors; None: too few past windows."""
    held: int
    tried: int
    """In ``held`` of ``tried`` past windows the cost was within the range that was known before them."""
    days: int
    """Of history."""
    days_needed: int
    capped: bool
    """It would be more than the budget of the month."""


class ForecastView(AnswerView):
    """One for each currency; nothing is decided by it."""

    now: Time
    until: Time
    """The end of the month (UTC)."""
    forecasts: list[MonthForecastView]
