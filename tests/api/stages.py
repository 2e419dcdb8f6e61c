"""The data of the world's jobs: one on its way, one held, one of another user, one that is over."""

from __future__ import annotations

from burstd.db import Store
from burstd.domain.staging import Directives, OutputCondition, StageIn, StageOut, Staging, Tree
from burstd.domain.staging import StageState as T
from burstd.settings import QuotaSettings
from burstd.staging.controller.service import RetainedNode, StagingService, StagingUsage, StoreUsage
from burstd.staging.controller.tasks import MeterReading

from .world import NOW, OTHER_USER, USER, FixedClock

GIB = 1 << 30
DIRECTIVES = Directives(
    (StageIn("/data/im\udce9 x", "images", dataset="imagenet@2021"), StageIn("~/run.py", "run.py")),
    (StageOut("*.csv", "results", OutputCondition.SUCCESS),),
    10 * GIB,
)
TREE = Tree("in", "ab" * 32, (), 1000, 3 * GIB)


class FakeStaging(StagingService):
    """Staging made of values."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.volumes = None

    def transfer_progress(self) -> dict[str, tuple[MeterReading, ...]]:
        moving = MeterReading("in", "in", 2 * GIB, 8 * GIB, GIB, GIB, 100 * 1024.0**2, 61.4, 20.0)
        other = MeterReading("place gpu3", "place", 0, 0, 0, 0, 0.0, None, 0.1)
        return {"104": (moving,), "103": (other,)}

    def usage(self) -> StagingUsage:
        store = StoreUsage("site", "s3", NOW - 5, 700, 5 * GIB, None, 2, self.error)
        return StagingUsage(store, {USER: 3 * GIB, OTHER_USER: 2 * GIB}, {"proj": 5 * GIB}, QuotaSettings(user=4 * GIB))

    def retained_nodes(self) -> tuple[RetainedNode, ...]:
        return (RetainedNode("gpu1", "101", USER, NOW + 7200, "the store is full"),)


def write_stagings(store: Store, clock: FixedClock) -> None:
    """Writes it down."""

    def make(job: str, user: str) -> None:
        now = clock.time
        store.make_staging(
            Staging(
                job, user, 65534, 65534, DIRECTIVES, T.WAITING, now, now, "site", "proj", "/home/x", reason="asked for"
            )
        )

    clock.time = NOW - 5000
    make("90", USER)
    store.transition_staging("90", T.WAITING, T.CLEARED, "cancelled")
    clock.time = NOW - 500
    make("101", USER)
    store.transition_staging("101", T.WAITING, T.UPLOADING, "its turn", bytes_in=3 * GIB, estimated_ready=NOW - 300)
    clock.time = NOW - 310
    store.transition_staging("101", T.UPLOADING, T.STAGED, "sent", trees={"images": TREE}, bytes_sent=GIB)
    store.transition_staging("101", T.STAGED, T.FETCHING, "Slurm gave it nodes", nodes=("gpu1",))
    store.transition_staging("101", T.FETCHING, T.FETCHED, "its data is there")
    clock.time = NOW - 100
    store.transition_staging("101", T.FETCHED, T.COLLECTING, "the job has ended", job_state="FAILED", exit_code="1:0")
    store.update_staging("101", outputs={"gpu1/0": TREE}, bytes_out=3 * GIB)
    store.transition_staging("101", T.COLLECTING, T.HELD, "gave up", error="the store is full", resume="collecting")
    clock.time = NOW - 60
    make("103", OTHER_USER)
    make("104", USER)
    store.transition_staging("104", T.WAITING, T.UPLOADING, "its turn", estimated_ready=NOW + 61)
