"""One HTML page of a comparison. Its style and plots are in it: it loads and runs nothing."""

from __future__ import annotations

from markupsafe import Markup

from burstd.plots.svg import STYLE
from burstd.simulate.buy_or_rent.columns import alternative_columns
from burstd.simulate.buy_or_rent.plots import plots_of
from burstd.simulate.buy_or_rent.report import BuyOrRentReport, hour_text
from burstd.simulate.report.page import content_hash, page_template, read_resource
from burstd.simulate.report.wording import day_and_time

_STYLE = ".picture svg { display: block; width: 100%; height: auto; min-width: 34rem; max-width: 60rem; }\n"


def render_page(report: BuyOrRentReport) -> str:
    """The whole document."""
    style = read_resource("simulate/report/page.css") + _STYLE
    return page_template("simulate/buy_or_rent/page.html.j2").render(
        report=report,
        facts=facts(report),
        columns=alternative_columns(report),
        plots=[Markup(plot) for plot in plots_of(report).values()],  # noqa: S704  # it escapes what is not its own
        policy=f"default-src 'none'; style-src {content_hash(style)} {content_hash(STYLE)}",
        style=Markup(style),  # noqa: S704  # files of this package
    )


def facts(report: BuyOrRentReport) -> list[tuple[str, str]]:
    """What was compared, for a terminal and for the page."""
    window, currency = report.window, report.currency
    jobs = max(one.jobs for one in report.alternatives)
    return [
        ("Trace", report.trace),
        ("Window", f"{day_and_time(window.start)} to {day_and_time(window.end)} UTC ({report.days}), {jobs:,} jobs"),
        ("Site", report.site),
        ("Cloud", f"{report.cloud}; {report.chain}"),
        *(
            (
                way.name.capitalize(),
                f"{hour_text(way.owned)} {currency} for each hour of a {report.unit[:-1]}"
                + (f", and {hour_text(way.marginal)} more when it is used" if way.marginal else ""),
            )
            for way in report.ways
        ),
        ("Seed", str(report.seed)),
    ]
