"""The bill beside the sandbox cloud's own meter, which counts a machine from when it runs until it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.billing.costs import MICRO
from tests.lab.site import Site

CLOCKS_S = 0.05
"""So far may burstd's steady clock and the cloud's be apart."""
NOTICED_S = 60.0
"""Within this time burstd knows of a machine's end."""


@dataclass(frozen=True, slots=True)
class MeteredBill:
    """What all machines have cost that are gone: ``billed`` is the sum of the others, to a millionth a machine."""

    machines: int
    billed: Decimal
    metered: Decimal
    """By the cloud."""
    boot: Decimal
    """From the launch until a machine ran, or for ever if it never did: the cloud takes nothing for it, burstd does."""
    end: Decimal
    """From the end of a machine until burstd knew of it."""


def metered_bill(site: Site) -> MeteredBill:
    """Each machine by both. Raises AssertionError where they differ by anything else."""
    rows = {row.tags["burstd-claim"]: row for row in site.cloud.bill().rows}
    bill = site.api("/v1/bill", group="claim")
    lines = {line["key"]: line for line in bill["lines"]}
    assert lines.keys() == rows.keys(), "each machine is on both"
    metered = boot = end = Decimal(0)
    for claim, row in rows.items():
        assert row.ended is not None, f"{row.name} is up"
        seconds = lines[claim]["machine_s"]
        booted_s = (row.ended if row.started is None else row.started) - row.created
        noticed_s = seconds - booted_s - row.seconds
        assert -CLOCKS_S < noticed_s < NOTICED_S, (
            f"{row.name}: {seconds} s, by the cloud {booted_s} and {row.seconds} s"
        )
        billed, metered_of_it = Decimal(lines[claim]["cost"]["amount"]), row.cost
        boot_of_it, end_of_it = (row.price * Decimal(part) / 3600 for part in (booted_s, noticed_s))
        assert abs(billed - metered_of_it - boot_of_it - end_of_it) <= MICRO, f"{row.name}: {billed}, {row}"
        metered, boot, end = metered + metered_of_it, boot + boot_of_it, end + end_of_it
    (total,) = bill["total"]
    billed = Decimal(total["amount"])
    assert abs(billed - metered - boot - end) <= len(rows) * MICRO
    return MeteredBill(len(rows), billed, metered, boot, end)
