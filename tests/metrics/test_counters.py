"""What has happened, as counters: from the record, from one snapshot to the next, from calls."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.db import Store
from burstd.db.repositories.journal import REMARK_KEY
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.errors import CloudUnavailable, InsufficientCapacity
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark
from burstd.domain.plugins.provider import LaunchOutcome, NoticeSource, ShellProvider
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import EndedClaim, Snapshot
from burstd.domain.staging import StageState
from burstd.metrics.counters import Counters
from burstd.metrics.provider_calls import count_calls
from burstd.planner.lifecycle.orphans import NO_CLAIM
from burstd.planner.lifecycle.spot_notices import INTERRUPTED, TAKEN_BACK
from tests.api.world import CLAIMS, NOW, SLURM, SNAPSHOT
from tests.db.samples import ManualClock, planned
from tests.db.test_stagings import waiting


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.open(str(tmp_path / "burstd.db"), clock) as opened:
        yield opened


def values(counters: Counters, name: str) -> dict[tuple[str, ...], float]:
    """The series of a family that are not 0, by the values of their labels."""
    found = {}
    for family in counters.registry.collect():
        for sample in family.samples:
            if sample.name == name and sample.value:
                found[tuple(sample.labels.values())] = sample.value
    return found


def walk(
    store: Store,
    clock: ManualClock,
    claim: str,
    *states: S,
    last: dict[str, object] | None = None,
    reason: str = "because",
) -> None:
    """Brings a claim through states, ten seconds in each."""
    for number, state in enumerate(states, 1):
        clock.time += 10
        fields = (last or {}) if number == len(states) else {}
        store.transition_claim(claim, store.claim(claim).state, state, reason, **fields)  # type: ignore[arg-type]


def test_a_launch_and_its_phases(store: Store, clock: ManualClock) -> None:
    counters = Counters()
    counters.read_record(store.reader())
    store.make_claims([planned()])
    walk(store, clock, "c1", S.LAUNCHING, S.BOOTING, S.VALIDATING, S.BOOTING, S.VALIDATING)
    counters.read_record(store.reader())
    walk(store, clock, "c1", S.READY, S.IN_SERVICE, S.DRAINING, S.READY, S.IN_SERVICE, S.VALIDATING, S.READY)
    counters.read_record(store.reader())
    expected = {("gpu", "asked"): 10, ("gpu", "running"): 30, ("gpu", "proved"): 60, ("gpu", "open"): 70}
    assert values(counters, "burstd_launch_seconds_sum") == expected
    assert set(values(counters, "burstd_launch_seconds_count").values()) == {1.0}, "each once, whatever comes later"
    walk(store, clock, "c1", S.DRAINING, S.TERMINATING, S.GONE)
    counters.read_record(store.reader())
    assert not values(counters, "burstd_launch_failures_total")
    assert not counters._phases_seen


def test_what_was_before_it_began_does_not_count(store: Store, clock: ManualClock) -> None:
    store.make_claims([planned()])
    walk(store, clock, "c1", S.LAUNCHING, S.FAILED, last={"error": "capacity"})
    counters = Counters()
    counters.read_record(store.reader())
    counters.read_record(store.reader())
    assert not values(counters, "burstd_launch_failures_total")


@pytest.mark.parametrize(
    ("spot", "way", "error", "failures", "interruptions"),
    [
        (False, (S.LAUNCHING, S.FAILED), "capacity", {"capacity": 1}, 0),
        (False, (S.LAUNCHING, S.BOOTING, S.FAILED), "boot_timeout", {"boot_timeout": 1}, 0),
        (False, (S.GONE,), "user_data", {"user_data": 1}, 0),
        (False, (S.GONE,), "", {}, 0),
        (False, (S.LAUNCHING, S.BOOTING, S.TERMINATING), "unwanted", {}, 0),
        (True, (S.LAUNCHING, S.BOOTING, S.LOST), "lost", {}, 1),
        (True, (S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.LOST), "lost", {}, 1),
        (True, (S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.DRAINING, S.TERMINATING), "interrupted",
         {}, 1),
        (False, (S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.LOST), "lost", {}, 0),
    ],
)  # fmt: skip
def test_failures_and_interruptions(
    store: Store,
    clock: ManualClock,
    spot: bool,
    way: tuple[S, ...],
    error: str,
    failures: dict[str, int],
    interruptions: int,
) -> None:
    counters = Counters()
    counters.read_record(store.reader())
    claim = planned()
    store.make_claims([replace(claim, offer=replace(claim.offer, spot=spot))])
    walk(store, clock, "c1", *way, last={"error": error})
    if way[-1] not in (S.GONE, S.TERMINATING):
        walk(store, clock, "c1", S.TERMINATING)
    counters.read_record(store.reader())
    counters.read_record(store.reader())
    found = values(counters, "burstd_launch_failures_total")
    assert {labels[-1]: count for labels, count in found.items()} == failures
    assert sum(values(counters, "burstd_interruptions_total").values()) == interruptions


def test_a_machine_that_is_taken_back_counts_when_its_end_begins(store: Store, clock: ManualClock) -> None:
    counters = Counters()
    counters.read_record(store.reader())
    store.make_claims([replace(planned(), offer=replace(planned().offer, spot=True))])
    walk(store, clock, "c1", S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE)
    walk(store, clock, "c1", S.DRAINING, S.TERMINATING, reason=f"{TAKEN_BACK}: interruption")
    counters.read_record(store.reader())
    walk(store, clock, "c1", S.GONE, last={"error": INTERRUPTED})
    counters.read_record(store.reader())
    assert values(counters, "burstd_interruptions_total") == {("sandbox", "gpu4", "a"): 1.0}


def test_a_leak_counts_once_and_remarks_do_not(store: Store) -> None:
    counters = Counters()
    counters.read_record(store.reader())
    store.make_claims([planned()])
    for orphan, reason in (("i-1", NO_CLAIM), ("i-1", NO_CLAIM), ("vol-1", f"volume: {NO_CLAIM}")):
        store.log_event(f"orphan:{orphan}", new="removed", reason=reason)
    # What a machine of ours leaves behind is removed too.
    store.log_event("orphan:port-1", new="removed", reason="port: its machine is gone")
    store.record_remarks([Remark("idle", "claim:c1", "keep", "warm")], lambda _: "")
    store.record_remarks([Remark("idle", "claim:c1", "release", "idle")], lambda _: "")
    remarks = [event for event in store.reader().events(subject="claim:c1") if REMARK_KEY in event.data]
    assert len(remarks) == 2, "they are on record beside the claim's life"
    counters.read_record(store.reader())
    assert values(counters, "burstd_leaks_total") == {(): 2.0}


def test_more_events_than_a_page_are_all_counted(store: Store) -> None:
    counters = Counters()
    counters.read_record(store.reader())
    with store.batch():
        for number in range(2_100):
            store.log_event(f"orphan:{number}", new="removed", reason=NO_CLAIM)
            store.log_event(f"job:{number}", new="wait", reason="of no interest")
    counters.read_record(store.reader())
    assert values(counters, "burstd_leaks_total") == {(): 2_100.0}


def test_bytes_of_jobs_data(store: Store) -> None:
    counters = Counters()
    counters.read_record(store.reader())
    store.make_staging(waiting())
    key = waiting().job_id
    # What was collected so far is on record before all is at home.
    for old, new, fields in (
        (StageState.WAITING, StageState.UPLOADING, {}),
        (StageState.UPLOADING, StageState.STAGED, {"bytes_in": 900, "bytes_sent": 500}),
        (StageState.STAGED, StageState.FETCHING, {}),
        (StageState.FETCHING, StageState.FETCHED, {}),
        (StageState.FETCHED, StageState.COLLECTING, {}),
        (StageState.COLLECTING, StageState.DELIVERING, {"bytes_out": 70}),
        (StageState.DELIVERING, StageState.DELIVERED, {"bytes_out": 70}),
    ):
        store.transition_staging(key, old, new, "", **fields)  # type: ignore[arg-type]
    counters.read_record(store.reader())
    assert values(counters, "burstd_staging_bytes_total") == {("in",): 500.0, ("out",): 70.0}


def test_mistakes_of_users(store: Store) -> None:
    counters = Counters()
    counters.read_record(store.reader())
    counters.add_mistake("directive")
    for job_id, attempts in (("1", 0), ("2", 3)):
        store.make_staging(replace(waiting(), job_id=job_id))
        store.transition_staging(
            job_id, StageState.WAITING, StageState.HELD, "gone", error="gone", resume="waiting", attempts=attempts
        )
    counters.read_record(store.reader())
    assert values(counters, "burstd_user_mistakes_total") == {("directive",): 1.0, ("data",): 1.0}


def test_jobs_that_fail_or_are_impossible_count_once() -> None:
    counters = Counters()
    burst = next(iter(SNAPSHOT.pools.values())).partitions
    failed = replace(SLURM.jobs[0], id="77", state=JobState.FAILED, partitions=burst, end=NOW - 1)
    never = Plan(remarks=(Remark("placement", "job:5", "impossible", "too large"),))
    waits = Plan(remarks=(*never.remarks, Remark("limits", "job:5", "wait", "a limit")))
    for plan, ended in ((waits, ()), (never, (failed,)), (never, (failed,)), (waits, ())):
        counters.add_mistakes(replace(SNAPSHOT, slurm=replace(SLURM, ended=ended)), plan)
    assert values(counters, "burstd_user_mistakes_total") == {("impossible",): 1.0, ("failed",): 1.0}


def at(seconds: float, *claims: Claim, ended: Sequence[Claim] = ()) -> Snapshot:
    return replace(
        SNAPSHOT, now=NOW + seconds, claims=claims, ended_claims=tuple(EndedClaim(NOW, claim) for claim in ended)
    )


def test_costs_grow_with_time_and_never_fall() -> None:
    counters = Counters()
    old, new = CLAIMS[0], replace(CLAIMS[5], id="new", billed_from=NOW)
    counters.add_snapshot(at(0, old))
    assert not values(counters, "burstd_spent_total"), "what it had cost before this process is in no counter"
    counters.add_snapshot(at(3600, old, new))
    spent = {("gpu", "EUR"): 3.06, ("cpu", "EUR"): 0.20}
    assert values(counters, "burstd_spent_total") == pytest.approx(spent)
    # It ended half an hour ago, and another began and ended between two looks.
    gone = replace(new, state=S.GONE, billed_until=NOW + 5400)
    short = replace(new, id="short", state=S.GONE, billed_from=NOW + 3600, billed_until=NOW + 7200)
    counters.add_snapshot(at(7200, old, ended=(gone, short)))
    counters.add_snapshot(at(7200, old, ended=(gone, short)))
    assert values(counters, "burstd_spent_total") == pytest.approx({("gpu", "EUR"): 6.12, ("cpu", "EUR"): 0.50})
    # Handed over to another pool: what it cost so far is another claim's, which is gone.
    past = replace(old, id="past", state=S.GONE, billed_until=NOW + 7200)
    handed = replace(old, pool="cpu", billed_from=NOW + 7200)
    counters.add_snapshot(at(7200, handed, ended=(gone, short, past)))
    assert values(counters, "burstd_spent_total") == pytest.approx({("gpu", "EUR"): 6.12, ("cpu", "EUR"): 0.50})
    counters.add_snapshot(at(10800, handed, ended=(gone, short, past)))
    assert values(counters, "burstd_spent_total") == pytest.approx({("gpu", "EUR"): 6.12, ("cpu", "EUR"): 3.56})


def test_idle_nodes_cost_from_when_they_are_idle() -> None:
    counters = Counters()
    busy, idle = CLAIMS[0], CLAIMS[1]
    counters.add_snapshot(at(0, busy, idle))
    counters.add_snapshot(at(3600, busy, idle))
    assert values(counters, "burstd_idle_cost_total") == pytest.approx({("gpu", "EUR"): 3.06})
    fresh = replace(idle, in_service_from=NOW + 7000)
    counters.add_snapshot(at(7200, busy, fresh))
    expected = 3.06 * (1 + 200 / 3600)
    assert values(counters, "burstd_idle_cost_total") == pytest.approx({("gpu", "EUR"): expected})


def test_a_node_that_finds_a_fault_counts_once() -> None:
    counters = Counters()
    reason = "burstd: unhealthy, Xid 79 on GPU 0000:3b:00.0 at 2026-11-24T10:00:00Z, jobs are requeued"

    def seen(*bad: str) -> Snapshot:
        nodes = dict(SLURM.nodes)
        for name in bad:
            nodes[name] = replace(nodes[name], reason=reason, flags=nodes[name].flags | {"DRAIN"})
        return replace(SNAPSHOT, slurm=replace(SLURM, nodes=nodes))

    for bad in ((), ("gpu1",), ("gpu1",), ("gpu1", "gpu2"), ()):
        counters.add_snapshot(seen(*bad))
    assert values(counters, "burstd_unhealthy_total") == {("sandbox", "g4", "Xid 79"): 2.0}


def test_slurms_commands_by_what_they_do() -> None:
    counters = Counters()

    def run(argv: Sequence[str], _environment: object, timeout_s: float) -> subprocess.CompletedProcess[str]:
        if argv[0] == "sacctmgr":
            raise subprocess.TimeoutExpired("sacctmgr", timeout_s)
        return subprocess.CompletedProcess(list(argv), 0, "", "")

    timed = counters.timed(run)
    for argv in (["squeue", "--all"], ["/opt/slurm/bin/scontrol", "--oneliner", "show", "node"],
                 ["scontrol", "update", "JobId=17"]):  # fmt: skip
        timed(argv, {}, 1.0)
    with pytest.raises(subprocess.TimeoutExpired):
        timed(["sacctmgr", "-n", "show", "assoc"], {}, 1.0)
    expected = {("squeue",): 1, ("scontrol show",): 1, ("scontrol update",): 1, ("sacctmgr show",): 1}
    assert values(counters, "burstd_slurm_rpc_seconds_count") == expected


class Cloud:
    """Answers as it is told to."""

    full = False

    def instances(self) -> Iterator[Instance]:
        yield Instance("i-1", "c", InstanceState.RUNNING, "c1")
        if self.full:
            raise CloudUnavailable("the second page is not to be had")

    def launch(self, _requests: object) -> Sequence[LaunchOutcome]:
        return [
            LaunchOutcome("c1", Instance("i-1", "c", InstanceState.RUNNING, "c1")),
            LaunchOutcome("c2", InsufficientCapacity("full")),
            LaunchOutcome("c3", InsufficientCapacity("full")),
        ]

    def terminate(self, _ids: object) -> None:
        raise KeyError("a fault of the provider's own")

    def shell(self, _instance: str, _timeout_s: float) -> None: ...


def test_calls_to_a_cloud_by_their_outcome() -> None:
    counters, cloud = Counters(), Cloud()
    count_calls("sky", cloud, counters.add_request)  # type: ignore[arg-type]
    assert [i.id for i in cloud.instances()] == ["i-1"]
    cloud.full = True
    with pytest.raises(CloudUnavailable):
        list(cloud.instances())
    cloud.launch(())
    with pytest.raises(KeyError):
        cloud.terminate(())
    assert values(counters, "burstd_provider_requests_total") == {
        ("sky", "instances", "ok"): 1, ("sky", "instances", "unavailable"): 1, ("sky", "launch", "ok"): 1,
        ("sky", "launch", "capacity"): 2, ("sky", "terminate", "error"): 1,
    }  # fmt: skip
    assert isinstance(cloud, ShellProvider)
    assert not isinstance(cloud, NoticeSource), "a provider has no interface more than before"


def test_money_is_counted_to_the_last_millionth() -> None:
    counters = Counters()
    claim = replace(CLAIMS[0], offer=replace(CLAIMS[0].offer, price=Decimal("0.000036")), billed_from=NOW)
    counters.add_snapshot(at(0))
    for second in range(1, 101):
        counters.add_snapshot(at(second, claim))
    assert values(counters, "burstd_spent_total") == pytest.approx({("gpu", "EUR"): 0.000001})
