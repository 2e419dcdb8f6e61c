"""burstctl bill reconcile"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from burstd.api.answers.text import parse_month, plural
from burstd.cli.commands.bill_files import charge_pages
from burstd.cli.output import ConsoleOutput
from burstd.cli.plain_text import print_json
from burstd.cli.provider_exports import ExportError, ProviderExport, read_export
from burstd.cli.session import ApiClient, ExitCode, provider_names, with_client
from burstd.domain.billing.reconcile import Difference, OwnUse, Reconciliation, reconcile
from burstd.domain.billing.use import Kind

if TYPE_CHECKING:
    from burstd.api.answers.charges import ChargesView

_SHOWN = 50


@with_client
def reconcile_bill(
    burstd: ApiClient,
    file: Annotated[Path, typer.Argument(help="FOCUS or CUR as CSV, or os-simple-tenant-usage as JSON; also .gz.")],
    month: Annotated[str, typer.Option(metavar="MONTH", help="This month (UTC): 2026-10; default: the last one.")] = "",
    provider: Annotated[
        str, typer.Option(metavar="NAME", help="Whose export it is.", autocompletion=provider_names)
    ] = "",
    tolerance: Annotated[
        float, typer.Option(min=0, max=100, help="What may differ, in percent of what burstd charged for a machine.")
    ] = 1.0,
    all_ours: Annotated[
        bool, typer.Option("--all-ours", help="Resources of others in it are a difference too, with or without tag.")
    ] = False,
) -> None:
    """Compare a month of the bill with a provider's export, machine by machine. For administrators.

    Exit 1: they differ.
    """
    month = month or f"{datetime.now(UTC).replace(day=1) - timedelta(days=1):%Y-%m}"
    try:
        since, until = parse_month(month)
    except ValueError as error:
        burstd.fail(ExitCode.USAGE, f"--month: {error}.")
    if not burstd.get_json("/status")["you"]["admin"]:
        burstd.fail(ExitCode.FORBIDDEN, "This is for administrators: the export has the machines of all.")
    bill = burstd.get_json("/bill", {"since": since, "until": until, "group": "provider"})
    names = sorted({line["key"] for line in bill["lines"]})
    if provider and provider not in names:
        others = f", but of {', '.join(names)}" if names else ""
        burstd.fail(ExitCode.NOT_FOUND, f"burstd charged nothing of {provider} in {month}{others}.")
    if len(names) > 1 and not provider:
        burstd.fail(ExitCode.USAGE, f"Say whose export it is with --provider: {', '.join(names)}.")
    chosen = provider or "".join(names)
    try:
        export = read_export(file, since, until, datetime.fromisoformat(bill["now"]).timestamp())
    except ExportError as error:
        burstd.fail(ExitCode.USAGE, str(error))
    own = _own_uses(burstd, month, since, until, chosen, closed=bool(bill["months"][0]["closed"]))
    found = reconcile(own, export.uses, Decimal(str(tolerance)) / 100)
    if burstd.json:
        print_json(_answer(month, chosen, export, found))
    else:
        _print(ConsoleOutput(), f"{month}, {chosen or 'no machine'}", export, found)
    if not found.agrees(all_ours=all_ours):
        raise typer.Exit(ExitCode.NEGATIVE)


def _own_uses(
    burstd: ApiClient, month: str, since: float, until: float, provider: str, *, closed: bool
) -> dict[str, OwnUse]:
    """By the provider's id of the resource, with later corrections of the month."""
    found: dict[str, OwnUse] = {}

    def add(page: ChargesView, corrects: tuple[str, ...]) -> None:
        things = {thing.id: thing for thing in page.things}
        for charge in page.charges:
            thing = things[charge.of]
            if thing.provider != provider or charge.corrects not in corrects:
                continue
            key, seconds = thing.resource_id or thing.id, Decimal(f"{charge.machine_s:.3f}")
            old = found.get(key) or OwnUse(thing.name, charge.currency, Decimal(0), Decimal(0), not thing.volume)
            if charge.kind == Kind.TRAFFIC:
                found[key] = replace(old, traffic=old.traffic + charge.cost)
                continue
            of_price = thing.address_price / thing.price.amount if thing.price and thing.address_price else Decimal(0)
            found[key] = replace(
                old,
                cost=old.cost + charge.cost,
                seconds=old.seconds + seconds,
                addresses=old.addresses + charge.cost * of_price,
            )

    for page in charge_pages(burstd, {"since": since, "until": until}):
        add(page, ("",))
    if closed:
        for page in charge_pages(burstd, {"since": until}):
            add(page, (month,))
    return found


def _print(out: ConsoleOutput, title: str, export: ProviderExport, found: Reconciliation) -> None:
    sums = f"burstd {_sums(found.here)}, the provider {_sums(found.there)} for the same ({export.format})"
    out.line((title, "bold"), f": {sums}; both agree on {plural(found.agreed, 'resource')}")
    for sort, sum_text in _apart(export, found):
        out.line(f"apart: {sort} {sum_text}")
    if export.outside:
        out.note(f"{plural(export.outside, 'row')} of other months left out", "dim")
    if not found.differences:
        return
    out.blank()
    out.table(
        ("RESOURCE", "NAME", "DIFFERENCE", "AMOUNT>", "BURSTD>", "PROVIDER>", "*"),
        [
            (one.resource, one.name, one.kind.value, f"{one.amount:+.6f} {one.currency}".strip(), one.here, one.there,
             one.why)
            for one in found.differences[:_SHOWN]
        ],
    )  # fmt: skip
    if rest := found.differences[_SHOWN:]:
        sums_of_rest: dict[str, Decimal] = {}
        for one in rest:
            sums_of_rest[one.currency] = sums_of_rest.get(one.currency, Decimal(0)) + abs(one.amount)
        out.note(f"and {len(rest)} more differences, {_sums(sums_of_rest)} (--json has all)", "dim")
    others = sum(one.kind is Difference.NOT_OURS for one in found.differences)
    if others:
        out.note(f"{plural(others, 'resource')} of others: no difference unless --all-ours is said", "dim")


def _apart(export: ProviderExport, found: Reconciliation) -> list[tuple[str, str]]:
    some = [(sort, _sums({currency: amount})) for (sort, currency), amount in sorted(export.apart.items())]
    if found.disks:
        some.append(("disks of machines", _sums(found.disks)))
    both = {"traffic and the like of machines": found.traffic, "addresses of machines": found.addresses}
    for sort, sums in both.items():
        if sums:
            here, there = ({currency: pair[n] for currency, pair in sums.items()} for n in (0, 1))
            some.append((sort, f"{_sums(there)}, burstd {_sums(here)}"))
    return some


def _sums(amounts: Mapping[str, Decimal]) -> str:
    return " + ".join(f"{amount:.2f} {currency}".strip() for currency, amount in sorted(amounts.items())) or "0"


def _answer(month: str, provider: str, export: ProviderExport, found: Reconciliation) -> dict[str, Any]:
    """For programs; amounts as text."""
    return {
        "month": month,
        "provider": provider,
        "format": export.format,
        "here": {currency: str(amount) for currency, amount in found.here.items()},
        "there": {currency: f"{amount:.6f}" for currency, amount in found.there.items()},
        "traffic": _both(found.traffic),
        "disks": {currency: f"{amount:.6f}" for currency, amount in found.disks.items()},
        "addresses": _both(found.addresses),
        "apart": [
            {"sort": sort, "amount": f"{amount:.6f}", "currency": currency}
            for (sort, currency), amount in sorted(export.apart.items())
        ],
        "rows_of_other_months": export.outside,
        "agreed": found.agreed,
        "differences": [
            {"resource": one.resource, "name": one.name, "kind": one.kind.value, "amount": f"{one.amount:.6f}",
             "currency": one.currency, "here": one.here, "there": one.there, "why": one.why}
            for one in found.differences
        ],
    }  # fmt: skip


def _both(sums: Mapping[str, tuple[Decimal, Decimal]]) -> dict[str, dict[str, str]]:
    return {currency: {"here": f"{here:.6f}", "there": f"{there:.6f}"} for currency, (here, there) in sums.items()}
