"""A record in which two users shared one machine and a third had a node of the site, for bills by hand.

A machine of 8 CPUs for 3.60 EUR an hour, 0.001 EUR a second, is started for job 17 of ada; a tenth of the price is for
its address. It boots for 2 minutes. Job 17 has 4 CPUs for 30 minutes, job 18 of USER 2 CPUs for 10 minutes of these. It
is kept for 20 minutes, and ends in one. Midnight (UTC) comes 30 minutes after its launch.

Job 19 of bob begins with the launch, on a node of the site: 4 of 16 CPUs for two hours, at 2.60 EUR an hour of all 16.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from burstd.db import Store, StoreReader
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import WHOLE, ClaimRun, Payer
from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Offer
from burstd.domain.slurm.shape import Shape

from .world import CLUSTER, USER, FixedClock

LAUNCH = datetime(2026, 9, 20, 23, 30, tzinfo=UTC).timestamp()
ADA, OTHER = Payer("17", "ada", "atlas", "burst"), Payer("18", USER, "=belle", "burst")
BOB = Payer("19", "bob", "cleo", "onprem")
BY_HAND = {
    ("ada", "boot", ""): Decimal("0.12"),
    ("ada", "work", ""): Decimal("0.90"),
    (USER, "work", ""): Decimal("0.15"),
    ("", "idle", "fragment"): Decimal("0.75"),
    ("", "idle", "keep_alive"): Decimal("1.20"),
    ("", "end", ""): Decimal("0.06"),
}
"""By user, kind and cause. Jobs 17 and 18 had 900 and 150 of 1800 seconds of the machine."""
SITE_BY_HAND = {"bob": (Decimal("1.30"), Decimal("0.5"))}
"""On nodes of the site: cost, and hours of nodes."""
TOTAL = sum(BY_HAND.values())


@contextmanager
def shared_node_record() -> Iterator[StoreReader]:
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        path, clock = Path(folder) / "burstd.db", FixedClock(LAUNCH)
        offer = Offer("aws", "eu-north-1", "eu-north-1a", "m8", False, Shape(8, 16384), Decimal("3.60"),
                      address_price=Decimal("0.36"))  # fmt: skip
        claim = Claim(
            "c1", CLUSTER, "cpu", "cpu1", offer, Cause.DEMAND, S.PLANNED, LAUNCH, LAUNCH, jobs=("17",), users=("ada",),
            accounts=("atlas",),
        )  # fmt: skip
        with Store.open(path, clock) as store:
            store.make_claims([claim])
            store.transition_claim("c1", S.PLANNED, S.LAUNCHING, "asked", billed_from=LAUNCH)
            store.transition_claim("c1", S.LAUNCHING, S.BOOTING, "it boots", instance_id="i-0af1")
            store.transition_claim("c1", S.BOOTING, S.VALIDATING, "it answers")
            clock.time += 120
            store.transition_claim("c1", S.VALIDATING, S.READY, "registered")
            store.transition_claim("c1", S.READY, S.IN_SERVICE, "open")
            began = clock.time
            store.save_runs([
                ClaimRun("c1", ADA, began, WHOLE // 2, began + 1800),
                ClaimRun("c1", OTHER, began + 600, WHOLE // 4, began + 1200),
            ])  # fmt: skip
            price = Decimal("2.60") / 4
            run = SiteRun("gpu", BOB, int(LAUNCH), LAUNCH, WHOLE // 4, price, "EUR", LAUNCH + 2 * 3600)
            store.save_site_runs((), [run])
            clock.time += 1800 + 1200
            store.transition_claim("c1", S.IN_SERVICE, S.DRAINING, "idle")
            store.transition_claim("c1", S.DRAINING, S.TERMINATING, "drained")
            clock.time += 60
            store.transition_claim("c1", S.TERMINATING, S.GONE, "gone")
        with StoreReader.open(path, FixedClock()) as reader:
            yield reader
