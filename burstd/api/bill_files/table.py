"""The bill as CSV, which spreadsheets open."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from burstd.api.answers.plan import BillView

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class _Line:
    """What csv writes to."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text = text


def csv_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a CSV file. A spreadsheet runs no name as a formula: a quote goes before it, as OWASP advises."""
    line = _Line()
    writer = csv.writer(line, lineterminator="\n")
    for row in rows:
        writer.writerow([f"'{cell}" if cell.startswith(_FORMULA) and not _is_amount(cell) else cell for cell in row])
        yield line.text


def _is_amount(cell: str) -> bool:
    return cell.removeprefix("-").replace(".", "", 1).isdecimal() and not cell.startswith("+")


def bill_rows(bill: BillView) -> Iterator[Sequence[str]]:
    """A head, then a row for each line and kind of use: ``volume`` of volumes, ``site`` of nodes of the site.

    Days are UTC, the last one included; amounts are to a millionth, ``machine_s`` in seconds.
    """
    yield ("since", "until", bill.group, "kind", "cause", "cost", "currency", "machine_s", "corrects")
    since, until = f"{bill.since:%Y-%m-%d}", f"{bill.until - timedelta(milliseconds=1):%Y-%m-%d}"
    for line in bill.lines:
        if line.volumes:
            of = [("volume", "", line.cost, line.machine_s, "")]
        else:
            of = [(part.kind, part.cause, part.cost, part.machine_s, part.corrects) for part in line.parts]
        for kind, cause, cost, machine_s, corrects in of:
            key = f"({line.others} others)" if line.others else line.key
            yield (since, until, key, kind, cause, f"{cost.amount:f}", cost.currency, f"{machine_s:.3f}", corrects)
    for own in bill.site_lines:
        key = f"({own.others} others)" if own.others else own.key
        yield (since, until, key, "site", "", f"{own.cost.amount:f}", own.cost.currency, f"{own.node_s:.3f}", "")
