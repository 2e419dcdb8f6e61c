"""The end of the month: ``burstctl bill forecast``."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal

from fastapi import APIRouter

from burstd.api.answers.base import Money, money_view
from burstd.api.answers.forecast import ForecastView, MonthForecastView
from burstd.api.backend import Backend
from burstd.api.dependencies import AdminDep, BackendDep
from burstd.domain.billing.closing import days_of
from burstd.domain.billing.commitments import Commitments
from burstd.domain.billing.costs import month_of
from burstd.domain.billing.forecast import (
    MAX_DAYS,
    MIN_DAYS,
    MonthForecast,
    committed_days,
    month_forecast,
    volumes_to_come,
)
from burstd.domain.billing.use import DAY_S
from burstd.domain.snapshot import Snapshot
from burstd.domain.volume import Volume

router = APIRouter(prefix="/v1")


@router.get("/bill/forecast")
def get_forecast(_: AdminDep, backend: BackendDep) -> ForecastView:
    """What machines and volumes will have cost at the end of this month (UTC), with the range that the past gives.

    For administrators.
    """
    return forecast_view(backend)


def forecast_view(backend: Backend) -> ForecastView:
    """The forecast of all machines and volumes."""
    now, latest = backend.now(), backend.latest_loop()
    running = {} if latest is None else _running(latest[0])
    limits = {} if latest is None else {
        budget.currency: budget.limit
        for budget in latest[1].target.budgets
        if (budget.kind, budget.period, budget.fault) == ("", "month", "")
    }  # fmt: skip
    costs = backend.reader.daily_costs(now - MAX_DAYS * DAY_S)
    by_currency: dict[str, list[Volume]] = defaultdict(list)
    for volume in backend.reader.volumes():
        by_currency[volume.currency].append(volume)
    spent = backend.reader.volume_costs(days_of(month_of(now)).start * DAY_S)
    found = {
        currency: (spent.get(currency, 0), volumes_to_come(by_currency[currency], now))
        for currency in (*spent, *by_currency)
    }
    volumes = {currency: amounts for currency, amounts in found.items() if any(amounts)}
    return ForecastView(
        now=now,
        until=days_of(month_of(now)).stop * DAY_S,
        forecasts=[
            _view(month_forecast(
                currency, costs.get(currency, {}), committed_days(running.get(currency, ()), now), now,
                limits.get(currency), volumes.get(currency, (0, 0)),
            ))
            for currency in sorted({*costs, *running, *volumes})
        ],
    )  # fmt: skip


def _running(snapshot: Snapshot) -> dict[str, list[tuple[Decimal, float]]]:
    """By currency, prices of machines that are there, and for how long their jobs may need them."""
    commitments = Commitments(snapshot, overhead_s=0.0)
    found: dict[str, list[tuple[Decimal, float]]] = defaultdict(list)
    for claim in (*snapshot.claims, *snapshot.storage_claims, *snapshot.quarantined_claims):
        found[claim.offer.currency].append((claim.offer.price, commitments.remaining_s(claim)))
    return found


def _view(forecast: MonthForecast) -> MonthForecastView:
    def money(amount: Decimal | None) -> Money | None:
        return None if amount is None else money_view(amount, forecast.currency)

    return MonthForecastView.from_fields(
        forecast,
        **{name: money(getattr(forecast, name)) for name in ("total", "spent", "committed", "expected", "low", "high")},
        days_needed=MIN_DAYS,
    )
