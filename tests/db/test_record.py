from __future__ import annotations

import re
from pathlib import Path

import pytest

import burstd.db
from burstd.db import DrainedSlot, RecordedRemark, Store, UnknownClaim, replay_claims
from burstd.db.repositories.remarks import SUBJECTS_AT_ONCE
from burstd.domain.claim import ClaimState
from burstd.domain.plugins.policy import Remark
from burstd.domain.snapshot import CircuitBreaker, Pin

from .opening import open_store
from .samples import START, ManualClock, planned, request_for

S = ClaimState


def pin(kind: str, nodes: int, until: float | None = None, pool: str = "gpu") -> Pin:
    return Pin(pool, nodes, kind, until, "user:root", START)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([pin("exact", 2), pin("exact", 3)], [pin("exact", 3)]),
        ([pin("floor", 1), pin("ceiling", 4)], [pin("ceiling", 4), pin("floor", 1)]),
        ([pin("floor", 1), pin("ceiling", 4), pin("exact", 2)], [pin("exact", 2)]),
        ([pin("exact", 2), pin("floor", 1)], [pin("floor", 1)]),
        ([pin("exact", 2), pin("exact", 5, pool="cpu")], [pin("exact", 5, pool="cpu"), pin("exact", 2)]),
    ],
)
def test_pins_replace_those_that_they_contradict(store: Store, given: list[Pin], kept: list[Pin]) -> None:
    for each in given:
        store.set_scale_override(each)
    assert list(store.scale_overrides()) == kept


@pytest.mark.slow
def test_a_pin_ends_by_itself(store: Store, clock: ManualClock) -> None:
    store.set_scale_override(pin("exact", 2, until=START + 60))
    store.set_scale_override(pin("exact", 1, pool="cpu"))
    assert store.expire_scale_overrides() == ()
    clock.time += 60
    assert [p.pool for p in store.scale_overrides()] == ["cpu"]
    assert store.expire_scale_overrides() == (pin("exact", 2, until=START + 60),)
    assert store.remove_scale_overrides("cpu", "user:root") == 1
    assert store.remove_scale_overrides("cpu", "user:root") == 0
    assert [(e.subject, e.new, e.reason, e.cause) for e in store.events(subject="pool:")] == [
        ("pool:gpu", "pinned", "exact 2", "user:root"),
        ("pool:cpu", "pinned", "exact 1", "user:root"),
        ("pool:gpu", "", "exact 2 is over", "timer"),
        ("pool:cpu", "", "taken back", "user:root"),
    ]


def test_slots_are_held_and_released(store: Store) -> None:
    assert store.drain_slots(["n2", "n1"], "user:root", "fan is loud") == ("n1", "n2")
    assert store.drain_slots(["n1"], "user:eve", "mine") == ()
    assert store.drained_slots()[0] == DrainedSlot("n1", "user:root", "fan is loud", START)
    assert [h.slot for h in store.undrain_slots(["n1", "n7"], "user:root")] == ["n1"]
    assert [h.slot for h in store.drained_slots()] == ["n2"]


def test_breakers_are_kept_by_key_and_cause(store: Store) -> None:
    store.save_breaker(CircuitBreaker("p/z/t/spot", "capacity", 1, START + 60))
    store.save_breaker(CircuitBreaker("p/z/t/spot", "capacity", 2, START + 120, "none left"))
    store.save_breaker(CircuitBreaker("p/*/*/*", "auth", 1, START + 60))
    assert store.breakers() == (
        CircuitBreaker("p/*/*/*", "auth", 1, START + 60),
        CircuitBreaker("p/z/t/spot", "capacity", 2, START + 120, "none left"),
    )
    assert store.clear_breakers("user:root", "p/z/t/spot") == 1
    assert store.clear_breakers("user:root") == 1
    assert store.breakers() == ()


def test_words_about_the_cluster(store: Store) -> None:
    assert store.metadata("paused") == ""
    store.set_metadata("paused", "maintenance", "user:root")
    store.set_metadata("paused", "maintenance", "user:root")
    assert store.metadata("paused") == "maintenance"
    store.set_metadata("paused", "", "user:root")
    assert store.metadata("paused") == ""
    assert [(e.old, e.new) for e in store.events(subject="meta:paused")] == [("", "maintenance"), ("maintenance", "")]


def waiting_remark(job: str, reason: str, verdict: str = "wait", by: str = "demand") -> Remark:
    return Remark(by, f"job:{job}", verdict, reason)


def test_remarks_are_kept_where_they_change(place: str, clock: ManualClock) -> None:
    with open_store(place, clock) as store:
        first = [
            waiting_remark("1", "no room"),
            waiting_remark("1", "sandbox is full", by="placement"),
            waiting_remark("2", "no room"),
        ]
        assert store.record_remarks(first) == 3
        clock.time += 15
        assert store.record_remarks(first) == 0
        assert store.record_remarks([waiting_remark("1", "boots for it", "boot"), first[1]]) == 1
    # A restart knows what was said before.
    with open_store(place, clock) as store:
        clock.time += 15
        assert store.record_remarks([waiting_remark("1", "boots for it", "boot"), first[1], first[2]]) == 0
        assert store.remarks("job:1") == (
            RecordedRemark(waiting_remark("1", "boots for it", "boot"), START + 15),
            RecordedRemark(first[1], START),
        )
        assert store.remarks("job:2") == (RecordedRemark(first[2], START),)
        assert [(e.old, e.new, e.cause) for e in store.events(job="1")] == [
            ("", "wait", "demand"),
            ("", "wait", "placement"),
            ("wait", "boot", "demand"),
        ]


@pytest.mark.slow
def test_remarks_of_a_long_queue_are_written_over_several_loops(clock: ManualClock) -> None:
    remarks = [waiting_remark(str(job), "waits") for job in range(SUBJECTS_AT_ONCE + 1)]
    with Store.open(":memory:", clock) as store:
        assert [store.record_remarks(remarks) for _ in range(3)] == [SUBJECTS_AT_ONCE, 1, 0]


def test_whose_job_it_was_is_known_when_it_has_long_left(store: Store) -> None:
    users = {"job:7": "ada", "job:70": "bob", "job:8+0": "eve"}
    store.record_remarks(
        [
            waiting_remark("7", "no room"),
            waiting_remark("70", "no room"),
            waiting_remark("8+0", "x"),
            waiting_remark("9", "y"),
        ],
        lambda subject: users.get(subject, ""),
    )
    store.log_event("job:7", new="interrupted")
    assert [store.job_owner(j) for j in ("7", "7_3", "70", "8", "8+1", "9", "1")] == [
        "ada",
        "ada",
        "bob",
        "eve",
        "",
        "",
        "",
    ]
    store.record_remarks([waiting_remark("7", "another's by now")], lambda _: "eve")
    assert store.job_owner("7") == "eve"


def test_remarks_that_only_count_do_not_fill_the_log(store: Store, clock: ManualClock) -> None:
    for second in range(0, 150, 15):
        store.record_remarks([waiting_remark("1", f"waits for {second} s")])
        clock.time += 15
    assert len(store.events(job="1")) == 1
    (noted,) = store.remarks("job:1")
    assert noted == RecordedRemark(waiting_remark("1", "waits for 120 s"), START)


def test_remarks_of_a_batch_that_failed_are_said_again(store: Store) -> None:
    with pytest.raises(UnknownClaim), store.batch():  # noqa: PT012
        store.record_remarks([waiting_remark("1", "no room")])
        store.claim("nobody")
    assert store.remarks("job:1") == ()
    assert store.record_remarks([waiting_remark("1", "no room")]) == 1


def test_jobs_that_were_held_with_the_last_reason(store: Store) -> None:
    for new, reason, cause in (
        ("held", "one", "mounts"),
        ("held", "two", "mounts"),
        ("held", "x", "y"),
        ("z", "", "mounts"),
    ):
        store.log_event("job:7", new=new, reason=reason, cause=cause)
    assert store.held_jobs("mounts") == {"7": "two"}


def test_events_by_subject_job_and_order(store: Store) -> None:
    store.log_event("daemon", new="started", data={"version": "1"})
    store.make_claims([planned("c1", "n1", jobs=("7_3",)), planned("c2", "n2", jobs=("70",))])
    store.record_remarks(
        [waiting_remark("7", "no room"), waiting_remark("7_3", "no room"), waiting_remark("70", "no room")]
    )

    def subjects(**query: str | int | bool) -> list[str]:
        return [e.subject for e in store.events(**query)]  # type: ignore[arg-type]

    assert subjects(job="7") == ["claim:c1", "job:7", "job:7_3"]
    assert subjects(job="7_9") == ["job:7"]
    assert subjects(subject="claim:") == ["claim:c1", "claim:c2"]
    assert subjects(subject="daemon") == ["daemon"]
    assert subjects(newest=True, limit=1) == ["job:70"]
    third = store.events()[2].seq
    assert subjects(after=third, limit=1) == ["job:7"]
    assert store.events(subject="daemon")[0].data == {"version": "1"}
    with pytest.raises(AssertionError, match="replay"):
        store.log_event("claim:c1", new="booting")


def test_a_purge_forgets_what_ended_and_nothing_that_lives(store: Store, clock: ManualClock) -> None:
    store.make_claims([planned("old", "n1"), planned("alive", "n2"), planned("young", "n3")])
    for claim_id in ("old", "alive", "young"):
        store.record_launch_requests([request_for(planned(claim_id), user_data=f"for {claim_id}")])
    for claim_id in ("old", "young"):
        clock.time += 100
        store.transition_claim(claim_id, S.LAUNCHING, S.TERMINATING, "not needed")
        store.transition_claim(claim_id, S.TERMINATING, S.GONE, "gone")
    store.record_remarks([waiting_remark("17", "no room")])
    assert store.purge(START + 150) == 1
    assert {c.id for c in store.find_claims()} == {"alive", "young"}
    assert store.launch_request("old") is None
    assert store.launch_request("alive") == request_for(planned("alive"), user_data="for alive")
    assert replay_claims(store.events(limit=1000)) == {c.id: c for c in store.find_claims()}
    assert len(store.remarks("job:17")) == 1
    newest = store.events(newest=True, limit=1)[0].seq
    assert store.purge(clock.time + 1) == 1
    store.log_event("daemon", new="goes on")
    assert store.remarks("job:17") == ()
    assert min(e.seq for e in store.events(subject="daemon")) > newest


def test_what_is_written_goes_through_one_door() -> None:
    """Database.batch, which finds the epoch of its head there first. Else: SQLite's schema, epochs, Slurm's calls."""
    doors = re.compile(r"\.begin\(|\.commit\(|AUTOCOMMIT")
    folder = Path(burstd.db.__file__).parent
    found = {
        str(path.relative_to(folder)): len(met)
        for path in folder.rglob("*.py")
        if "migrations" not in path.parts and (met := doors.findall(path.read_text(encoding="utf-8")))
    }
    assert found == {"database.py": 2, "leadership.py": 4, "relay.py": 1}
