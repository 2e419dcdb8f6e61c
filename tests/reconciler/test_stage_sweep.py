"""What leaves the store, and above all what does not."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from typing import cast

import pytest

from burstd.db import Store
from burstd.domain.staging import Directives, ObjectRange, StageIn, StageState, Staging, Tree
from burstd.planner.staging.transfer_schedule import StorageUse
from burstd.staging.movement.garbage_collection import (
    ORPHAN_GRACE_S,
    GarbageCollectionRules,
    GarbageCollector,
    UsageCounts,
    count_usage,
    needed_digests,
)
from burstd.staging.movement.quota_room import QuotaRoom
from burstd.transfer.content_store.index import ContentIndex, FileIdentity
from burstd.transfer.content_store.manifest import object_key
from tests.crash.workers import QueuedWorkers
from tests.transfer.memory import MemoryStager
from tests.virtual.clock import VirtualClock

S = StageState
STORE = "memory"
UID = 4242
BEHIND_S = 500.0
"""How far burstd's time is behind the system's: that was set meanwhile."""
DAY_S = 86400.0


def key(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def tree(word: str) -> Tree:
    return Tree("in", key(word), (ObjectRange(key(word), 0, 4),), 1, 4)


class CollectorBench:
    """A store of which ``keep_bytes`` may be kept, with an index that knows what is in it."""

    def __init__(self, keep_bytes: int | None) -> None:
        self.index = ContentIndex(None)
        self.stager = MemoryStager(STORE)
        self.sweep = GarbageCollector(STORE, self.stager, self.index, GarbageCollectionRules(30 * DAY_S, keep_bytes))

    def sent(self, word: str, uid: int = UID) -> None:
        """A transfer has brought a tree of one object."""
        self.stager.put(object_key("in", key(word)), b"data")
        self.index.record_put(STORE, "in", {key(word): 4})
        self.index.add_tree(STORE, tree(word), [key(word)], uid=uid)

    def run(self, *live: Staging, ahead: float = BEHIND_S, later: float = 0.0) -> int:
        return self.sweep.sweep(live, time.time() + later, ahead).evicted

    def there(self) -> set[str]:
        return {word for word in "abcd" if object_key("in", key(word)) in self.stager.stored}


def job(state: StageState, words: str = "", uid: int = UID, since_s: float = 3600.0) -> Staging:
    """A job whose data came into this state so long ago."""
    began = time.time() - BEHIND_S - since_s
    directives = Directives(tuple(StageIn(word, word) for word in "abcd"))
    row = Staging("7", "ada", uid, uid, directives, state, began, began, store=STORE)
    return replace(row, trees={word: tree(word) for word in words})


def test_input_of_a_job_that_is_being_sent_stays_in_a_full_store() -> None:
    ground = CollectorBench(keep_bytes=0)
    ground.sent("a")
    ground.sent("b", uid=1)
    # Its second input is on its way, and no record names the first.
    assert ground.run(job(S.UPLOADING)) == 1
    assert ground.there() == {"a"}
    assert ground.run(job(S.STAGED, "a")) == 0, "nor when the record does"
    assert ground.run(job(S.WAITING)) == 1, "broken off: it is sent again"


def test_a_tree_that_is_sent_while_a_sweep_begins_stays() -> None:
    ground = CollectorBench(keep_bytes=0)
    ground.sent("a")
    # The jobs were read while this one waited; it is staged by now.
    began = time.time() - 5
    assert ground.sweep.sweep([job(S.WAITING, since_s=60)], began, BEHIND_S).evicted == 0


def test_a_tree_that_is_used_again_is_not_removed_by_whoever_decided_before() -> None:
    ground = CollectorBench(keep_bytes=None)
    ground.sent("a")
    ground.sent("a", uid=1)
    ground.sent("b")
    known = ground.index.trees()
    assert needed_digests(known, [job(S.STAGED, "b")], time.time() + 1, BEHIND_S) == {key("b")}
    ground.sent("a")
    assert ground.sweep.evict(known) == 1
    assert ground.there() == {"a"}
    assert [t.uid for t in ground.index.trees()] == [UID]


@pytest.mark.parametrize(("state", "stays"), [(S.FETCHED, True), (S.DELIVERING, False)])
def test_lifetime_counts_from_the_last_job(state: StageState, stays: bool) -> None:
    ground = CollectorBench(keep_bytes=None)
    ground.sent("a")
    used = ground.index.trees()[0].last_used
    evicted = ground.run(job(state, "a"), later=31 * DAY_S)
    assert evicted == 0 or not stays
    assert [t.last_used > used for t in ground.index.trees()] == ([True] if stays else [])


def test_what_nobody_knows_stays_only_while_a_job_may_need_it() -> None:
    ground = CollectorBench(keep_bytes=None)
    ground.stager.put(object_key("in", key("a")), b"data")
    assert ground.sweep.sweep([job(S.STAGED, "a")], time.time() + 2 * ORPHAN_GRACE_S).orphans == 0, "the index was lost"
    assert ground.sweep.sweep([job(S.DELIVERED, "a")], time.time() + 2 * ORPHAN_GRACE_S).orphans == 1


def test_checkpoints_stay_until_slurm_says_that_their_job_is_over() -> None:
    """A requeued job has no data on record while it waits for its next start."""
    ground = CollectorBench(keep_bytes=None)
    for number in "789":
        ground.stager.put(f"checkpoint/{number}/ab/{key(number)}", b"data")
    asked: list[str] = []

    def is_over(job_id: str) -> bool:
        asked.append(job_id)
        return job_id == "9"

    live, later = [replace(job(S.FETCHED), job_id="7")], time.time() + 2 * ORPHAN_GRACE_S
    assert ground.sweep.sweep(live, time.time(), 0.0, is_over).orphans == 0, "one may be on its way to the record"
    assert ground.sweep.sweep(live, later, 0.0, is_over).orphans == 1
    assert {name.split("/")[1] for name in ground.stager.stored} == {"7", "8"}
    assert sorted(asked) == ["8", "9"], "the record knows the other"


def test_files_that_no_job_uses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = CollectorBench(keep_bytes=None)
    files = [FileIdentity(5, n, 100, n, n) for n in (1, 2)]
    ground.index.record_contents(UID, [(f, b"content") for f in files])
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60 * DAY_S)
    assert ground.index.known_contents(UID, files[:1]) == {(5, 1): b"content"}
    monkeypatch.setattr(time, "time", lambda: real() + 100 * DAY_S)
    ground.run()
    assert set(ground.index.known_contents(UID, files)) == {(5, 1)}, "the one that was asked for lately"


def test_what_users_take_up_is_counted_anew_when_trees_change() -> None:
    ground = CollectorBench(keep_bytes=0)
    ground.sent("a")
    counted = count_usage(ground.index)
    assert (counted.uids, counted.users, counted.accounts) == ({UID: 4}, {str(UID): 4}, {"": 4})
    assert counted.changes == ground.index.changes
    assert ground.run(later=1) == 1
    assert counted.changes != ground.index.changes
    assert count_usage(ground.index).uids == {}


def test_a_full_store_loses_half_of_what_nobody_needs_and_then_the_rest_and_then_says_so() -> None:
    ground = CollectorBench(keep_bytes=None)
    for word in "abcd":
        ground.sent(word)
    ground.stager.put(object_key("in", key("f")), b"left")
    ground.index.record_put(STORE, "in", {key("f"): 4})
    waiting = [job(S.STAGED, "b"), replace(job(S.UPLOADING, uid=1, since_s=0.0), job_id="8")]

    def make_room() -> int:
        return ground.sweep.free_space(waiting, time.time(), BEHIND_S)

    assert make_room() == 3, "of 12 bytes of trees at least 6, and what is of no tree"
    assert object_key("in", key("f")) not in ground.stager.stored
    assert ground.there() == {"b", "d"}, "unused for longest"
    ground.stager.put(object_key("in", key("e")), b"half")
    ground.index.record_put(STORE, "in", {key("e"): 4})
    assert make_room() == 1
    assert make_room() == 0, "a job needs what is left"
    assert ground.there() == {"b"}
    assert object_key("in", key("e")) in ground.stager.stored, "what a broken transfer has brought is not sent again"


class _Record:
    """The jobs whose data is on record."""

    def __init__(self, *live: Staging) -> None:
        self.stagings = lambda: live


def test_what_a_user_has_beyond_his_jobs_leaves_his_quota() -> None:
    ground, clock, counts = CollectorBench(keep_bytes=None), VirtualClock(time.time() + 1), list[UsageCounts]()
    for word, uid in (("a", UID), ("b", UID), ("a", 1), ("c", 1)):
        ground.sent(word, uid)
    workers = QueuedWorkers(clock, {})
    uses = StorageUse("ada", 8, 10), StorageUse("", 0, None)
    record = cast("Store", _Record(job(S.STAGED, "b"), replace(job(S.STAGED, "c", uid=1), job_id="8")))
    room = QuotaRoom(record, clock, workers, ground.index, ground.sweep, lambda *_: uses, counts.append)
    usage = room.usage(job(S.WAITING), ())
    assert usage is not None
    assert [t.tree for t in usage.trees] == [tree("a"), tree("b")]
    assert (usage.needed, usage.settled) == ({key("b"): ("7",), key("c"): ()}, True)
    room.evict(UID, usage.trees[:1])
    leaving = room.usage(job(S.WAITING), ())
    assert leaving is not None
    assert not leaving.settled, "until it is counted again, nobody is held"
    assert workers.run_one()
    workers.run_callbacks()
    assert counts[-1].uids == {UID: 4, 1: 8}
    assert ground.there() == {"a", "b", "c"}, "another user has it as well"
    after = room.usage(job(S.WAITING), ())
    assert after is not None
    assert ([t.tree for t in after.trees], after.settled) == ([tree("b")], True)
