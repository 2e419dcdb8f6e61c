"""What becomes of jobs' data when the storage node that burstd launched is gone, or burstd starts anew beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest

from burstd.db import Store
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer, OfferRule, Pool
from burstd.domain.slurm.shape import Shape
from burstd.domain.staging import Directives, ObjectRange, StageIn, StageOut, StageState, Staging, Tree
from burstd.domain.storage_node import StorageNodeAddress, StorageNodeSpec
from burstd.planner.staging.transfer_schedule import TransferLimits
from burstd.staging.controller.controller import StageRules
from burstd.staging.controller.tasks import Transfers
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.storage_node.controller import StorageNodeController
from burstd.staging.storage_node.follower import StorageNodeFollower
from burstd.transfer.content_store.index import ContentIndex
from tests.crash.workers import QueuedWorkers
from tests.virtual.clock import VirtualClock

S = StageState
KEY = "ab" * 32
TREE = Tree("in", KEY, (ObjectRange(KEY, 0, 5),), 1, 5)
OFFER = Offer("sky", "r", "z", "small", spot=False, shape=Shape(1, 1), price=Decimal(1))
NODE_SPEC = StorageNodeSpec((OfferRule("sky"),), "/srv/burst", 1, "python3", 600.0)
POOLS = {"gpu": Pool("gpu", ("gpu1", "gpu2"), ("burst",), Shape(1, 1))}
STATE_ORDER = (S.UPLOADING, S.STAGED, S.FETCHING, S.FETCHED, S.COLLECTING, S.DELIVERING)


@dataclass
class FakeNodeStore:
    """See OnNode."""

    calls: list[str] = field(default_factory=list)
    node_spec: StorageNodeSpec | None = None

    def node_ready(self, place: StorageNodeAddress) -> None:
        self.calls.append(f"here {place.host}")

    def node_gone(self, why: str, *, empty: bool) -> None:
        self.calls.append(f"away {'empty' if empty else 'closed'}: {why}")


class StorageNodeBench:
    """The record, the index and the desk of one burstd; ``again`` is the next burstd over the same record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.index = ContentIndex(folder / "index.db")
        self.store = Store.open(folder / "burstd.db", self.clock)
        self.restart()

    def restart(self) -> None:
        self.store.close()
        self.store = Store.open(self.folder / "burstd.db", self.clock)
        self.node_store = FakeNodeStore()
        self.node = StorageNodeFollower(
            self.store, self.index, self.node_store, NODE_SPEC, "near", self.folder / "storage"
        )
        self.controller = StorageNodeController(
            store=self.store, workers=QueuedWorkers(self.clock, {}), clock=self.clock,
            transfers=cast("Transfers", None),  # nothing is moved here
            pools=lambda: POOLS, rules=StageRules(JobFolders("/jobs", b"key"), "near", TransferLimits()),
        )  # fmt: skip

    def follow(self, *claims: Claim) -> str:
        """The last word that the store was told."""
        self.node.follow_claims(claims, self.controller, self.clock.now())
        return self.node_store.calls[-1]

    def claim(self, slot: str, claim_id: str, state: ClaimState, cause: Cause = Cause.DEMAND) -> Claim:
        now = self.clock.now()
        return Claim(claim_id, "x", slot, slot, OFFER, cause, state, now, now, address="10.0.0.9")

    def storage(self, claim_id: str = "s1", state: ClaimState = ClaimState.IN_SERVICE) -> Claim:
        return self.claim("storage-near", claim_id, state, Cause.STORAGE)

    def row(self, state: StageState) -> Staging:
        """A job of two nodes whose data has come so far; from its output one node's is fetched."""
        directives = Directives((StageIn("data", "data"),), (StageOut(".", "home"),))
        now = self.clock.now()
        row = self.store.make_staging(Staging("7", "ada", 1, 1, directives, S.WAITING, now, now, store="near"))
        for new in STATE_ORDER:
            if row.state is state:
                break
            self.clock.advance(1)
            row = self.store.transition_staging("7", row.state, new, "on its way")
            if new is S.STAGED:
                row = self.store.update_staging("7", trees={"data": TREE}, nodes=("gpu1", "gpu2"))
            if new is S.COLLECTING:
                row = self.store.update_staging("7", outputs={"gpu1/0": TREE}, bytes_out=5)
        return row

    def index_tree(self) -> None:
        """The index knows a tree."""
        self.index.record_put("near", "in", {KEY: 5})
        self.index.add_tree("near", TREE, [KEY], uid=1)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[StorageNodeBench]:
    made = StorageNodeBench(tmp_path)
    yield made
    made.store.close()
    made.index.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "gpu1_lives", "after", "resume"),
    [
        (S.WAITING, True, S.WAITING, ""),
        (S.STAGED, True, S.WAITING, ""),
        (S.FETCHING, True, S.WAITING, ""),
        (S.FETCHED, True, S.FETCHED, ""),
        (S.COLLECTING, True, S.COLLECTING, ""),
        (S.COLLECTING, False, S.HELD, "collecting"),
        (S.DELIVERING, True, S.COLLECTING, ""),
        (S.DELIVERING, False, S.HELD, "collecting"),
    ],
)
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("gone", [ClaimState.LOST, ClaimState.TERMINATING, None])
def test_a_lost_node_takes_its_objects_along_and_no_record_says_otherwise(
    ground: StorageNodeBench, before: S, gpu1_lives: bool, after: S, resume: str, killed: bool, gone: ClaimState | None
) -> None:
    machines = [ground.claim("gpu2", "m2", ClaimState.IN_SERVICE)]
    machines += [ground.claim("gpu1", "m1", ClaimState.IN_SERVICE)] if gpu1_lives else []
    assert ground.follow(ground.storage(), *machines) == "here 10.0.0.9"
    ground.index_tree()
    ground.row(before)
    if killed:
        ground.restart()
    lost = [ground.storage(state=gone)] if gone else []
    assert ground.follow(*lost, *machines).startswith("away empty")
    row = ground.store.staging("7")
    assert (row.state, row.resume) == (after, resume)
    assert not row.outputs
    assert not row.trees
    assert bool(row.error) == (after is S.HELD)
    assert not ground.index.trees("near")
    assert not ground.index.present_objects("near", "in", [KEY])
    # A second look, and another machine, find nothing left to do.
    ground.follow(*lost, *machines)
    assert ground.store.staging("7") == row
    assert ground.follow(ground.storage("s2"), *machines) == "here 10.0.0.9"
    assert ground.store.staging("7") == row


def test_what_a_sender_holds_is_known_until_it_lets_go_and_not_as_there(ground: StorageNodeBench) -> None:
    ground.follow(ground.storage())
    ground.index_tree()
    ground.index.pin_objects("near", "in", [KEY])
    ground.follow()
    assert not ground.index.present_objects("near", "in", [KEY])
    ground.index.add_contents("near", "in", {b"c": [ObjectRange(KEY, 0, 5)]})  # as a sender does that is not done
    ground.index.unpin_objects("near", "in", [KEY])
    ground.follow()
    assert not ground.index.forget_store("near"), "nothing is left"


def test_a_machine_that_came_later_to_the_slot_has_none_of_the_output(ground: StorageNodeBench) -> None:
    ground.follow(ground.storage())
    ground.row(S.DELIVERING)
    ground.clock.advance(100)
    ground.follow(ground.claim("gpu1", "m9", ClaimState.IN_SERVICE))
    assert ground.store.staging("7").state is S.HELD


def test_output_that_was_held_on_a_lost_node_is_told_to_be_gone(ground: StorageNodeBench) -> None:
    ground.follow(ground.storage())
    ground.row(S.DELIVERING)
    ground.store.transition_staging("7", S.DELIVERING, S.HELD, "no room", error="no room", resume="delivering")
    ground.follow()
    row = ground.store.staging("7")
    assert (row.state, row.resume, dict(row.outputs)) == (S.HELD, "collecting", {})
    assert "output of gpu1 was nowhere else" in row.error


@pytest.mark.parametrize("state", [S.STAGED, S.COLLECTING, S.DELIVERING])
def test_a_burstd_that_starts_anew_finds_its_node_and_what_is_on_it(ground: StorageNodeBench, state: S) -> None:
    ground.follow(ground.storage())
    ground.index_tree()
    row = ground.row(state)
    ground.restart()
    assert ground.controller.unavailable_reason
    assert ground.follow(ground.storage()) == "here 10.0.0.9"
    assert not ground.controller.unavailable_reason
    assert ground.store.staging("7") == row
    assert ground.index.trees("near")


def test_a_node_that_is_about_to_go_is_not_used_and_nothing_is_forgotten(ground: StorageNodeBench) -> None:
    ground.follow(ground.storage())
    ground.index_tree()
    assert ground.follow(ground.storage(state=ClaimState.DRAINING)).startswith("away closed")
    assert ground.controller.unavailable_reason
    assert ground.index.trees("near")
    assert ground.follow(ground.storage()) == "here 10.0.0.9"


@pytest.mark.parametrize("state", [ClaimState.PLANNED, ClaimState.BOOTING, ClaimState.VALIDATING])
def test_while_a_node_comes_up_transfers_wait_for_it(ground: StorageNodeBench, state: ClaimState) -> None:
    assert ground.follow(ground.storage(state=state)).startswith("away empty")
    assert OFFER.id in ground.controller.unavailable_reason
    row = replace(ground.row(S.WAITING), reason="")
    views = ground.node.delayed_views(ground.controller.data_views(), ground.clock.now())
    assert views[row.job_id].ready_at > ground.clock.now(), "no paid node is started long before its input is there"
