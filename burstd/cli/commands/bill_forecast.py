"""burstctl bill forecast"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burstd.api.answers.text import forecast_text, money_text, utc_date_text
from burstd.cli.output import ConsoleOutput
from burstd.cli.session import ApiClient, with_client

if TYPE_CHECKING:
    from burstd.api.answers.forecast import ForecastView


@with_client
def forecast_bill(burstd: ApiClient) -> None:
    """What machines and volumes will have cost by the end of the month (UTC), with a range. For administrators."""
    from burstd.api.answers.forecast import ForecastView

    burstd.show(ForecastView, burstd.get_json("/bill/forecast"), print_forecast)


def print_forecast(out: ConsoleOutput, answer: ForecastView) -> None:
    """A line for each currency, and its range."""
    if not answer.forecasts:
        out.line("Nothing was spent so far.")
    for one in answer.forecasts:
        out.line((money_text(one.total), "bold"), f" by {utc_date_text(answer.until)}")
        out.note(forecast_text(one))
