"""What ``burstctl history`` shows."""

from __future__ import annotations

from decimal import Decimal

from burstd.api.answers.base import AnswerView, Time


class SeriesView(AnswerView):
    """One figure over time; one value for each of ``HistoryView.times``, null where nothing is known."""

    name: str
    """``SUBJECT/MEASURE``: ``site/jobs_pending``, ``pool/gpu/machines_busy``, ``project/a/wait_median_s``."""
    subject: str
    """``site``, ``pool/NAME``, ``provider/NAME``, ``project/NAME`` or ``account/NAME``."""
    measure: str
    values: list[float | None]
    """Means. Of ``started`` the number of jobs, of ``wait_s`` the mean wait of these, of ``wait_median_s`` and
    ``wait_p90_s`` what half and nine tenths of them had waited at most."""
    peaks: list[float | None]
    """The largest single values; empty: the measure has none."""


class MoneySeriesView(AnswerView):
    """The same for money: ``money_per_hour.CURRENCY``, a mean, and ``spent.CURRENCY``, what was spent in each step."""

    name: str
    subject: str
    measure: str
    currency: str
    values: list[Decimal | None]
    peaks: list[Decimal | None]


class HistoryView(AnswerView):
    """``burstctl history``: steps of equal length, each beginning at one of ``times``."""

    now: Time
    since: Time
    until: Time
    step_s: int
    times: list[Time]
    series: list[SeriesView]
    money: list[MoneySeriesView]
