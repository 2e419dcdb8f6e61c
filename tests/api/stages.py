"""The data of the world's jobs: one on its way, one held, one of another user, one that is over."""

from __future__ import annotations

from dataclasses import dataclass

from burstd.api.backend import KeptNode, StageUse, StoreUse
from burstd.db import Store
from burstd.domain.staging import Directives, StageIn, StageOut, Staging, Tree, When
from burstd.domain.staging import StageState as T
from burstd.settings import Quota
from burstd.staging.movement.progress import Reading

from .world import MINE, NOW, OTHER, FixedClock

GIB = 1 << 30
ASKED = Directives(
    (StageIn("/data/im\udce9 x", "images", dataset="imagenet@2021"), StageIn("~/run.py", "run.py")),
    (StageOut("*.csv", "results", When.SUCCESS),),
    10 * GIB,
)
TREE = Tree("in", "ab" * 32, (), 1000, 3 * GIB)


@dataclass
class FakeStage:
    """Staging made of values."""

    error: str = ""

    def progress(self) -> dict[str, tuple[Reading, ...]]:
        moving = Reading("in", "in", 2 * GIB, 8 * GIB, GIB, GIB, 100 * 1024.0**2, 61.4, 20.0)
        other = Reading("place gpu3", "place", 0, 0, 0, 0, 0.0, None, 0.1)
        return {"104": (moving,), "103": (other,)}

    def use(self) -> StageUse:
        store = StoreUse("site", "s3", NOW - 5, 700, 5 * GIB, None, 2, self.error)
        return StageUse(store, {MINE: 3 * GIB, OTHER: 2 * GIB}, {"proj": 5 * GIB}, Quota(user=4 * GIB))

    def kept(self) -> tuple[KeptNode, ...]:
        return (KeptNode("gpu1", "101", MINE, NOW + 7200, "the store is full"),)


def stage_data(store: Store, clock: FixedClock) -> None:
    """Writes it down."""

    def make(job: str, user: str) -> None:
        now = clock.time
        store.make_staging(
            Staging(job, user, 65534, 65534, ASKED, T.WAITING, now, now, "site", "proj", "/home/x", reason="asked for")
        )

    clock.time = NOW - 5000
    make("90", MINE)
    store.move_staging("90", T.WAITING, T.CLEARED, "cancelled")
    clock.time = NOW - 500
    make("101", MINE)
    store.move_staging("101", T.WAITING, T.SENDING, "its turn", bytes_in=3 * GIB, estimated_ready=NOW - 300)
    clock.time = NOW - 310
    store.move_staging("101", T.SENDING, T.STAGED, "sent", trees={"images": TREE}, bytes_sent=GIB)
    store.move_staging("101", T.STAGED, T.PLACING, "Slurm gave it nodes", nodes=("gpu1",))
    store.move_staging("101", T.PLACING, T.PLACED, "its data is there")
    clock.time = NOW - 100
    store.move_staging("101", T.PLACED, T.COLLECTING, "the job has ended", job_state="FAILED", exit_code="1:0")
    store.touch_staging("101", outputs={"gpu1/0": TREE}, bytes_out=3 * GIB)
    store.move_staging("101", T.COLLECTING, T.HELD, "gave up", error="the store is full", resume="collecting")
    clock.time = NOW - 60
    make("103", OTHER)
    make("104", MINE)
    store.move_staging("104", T.WAITING, T.SENDING, "its turn", estimated_ready=NOW + 61)
