from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from burstd.db import (
    ChangeRefused,
    IllegalTransition,
    SlotTaken,
    StaleState,
    Store,
    StoreError,
    UnknownClaim,
    replay_claims,
)
from burstd.domain.claim import TRANSITIONS, Claim, ClaimState

from .samples import START, ManualClock, planned, request_for

S = ClaimState

PATHS: dict[ClaimState, tuple[ClaimState, ...]] = {
    S.PLANNED: (),
    S.LAUNCHING: (S.LAUNCHING,),
    S.BOOTING: (S.LAUNCHING, S.BOOTING),
    S.VALIDATING: (S.LAUNCHING, S.BOOTING, S.VALIDATING),
    S.READY: (S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY),
    S.IN_SERVICE: (S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE),
    S.DRAINING: (S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.DRAINING),
    S.FAILED: (S.LAUNCHING, S.FAILED),
    S.LOST: (S.LAUNCHING, S.LOST),
    S.TERMINATING: (S.LAUNCHING, S.TERMINATING),
    S.GONE: (S.GONE,),
}


def advance_claim(store: Store, claim: Claim, to: ClaimState) -> Claim:
    store.make_claims([claim])
    for new in PATHS[to]:
        claim = store.transition_claim(claim.id, claim.state, new, f"to {new}")
    return claim


def rows_are_replayed(store: Store) -> bool:
    return replay_claims(store.events(limit=10**6)) == {c.id: c for c in store.find_claims(limit=10**6)}


def test_every_move_is_allowed_or_refused_as_the_table_says(store: Store) -> None:
    for old in S:
        claim = advance_claim(store, planned(f"c-{old}", f"n-{old}"), old)
        for new in sorted(set(S) - TRANSITIONS[old]):
            with pytest.raises(IllegalTransition, match=f"cannot go from {old} to {new}"):
                store.transition_claim(claim.id, old, new, "no")
        assert store.claim(claim.id) == claim
    assert {c.state for c in store.claims()} == set(S) - {S.GONE}
    assert rows_are_replayed(store)


def test_a_move_from_a_state_that_is_over_is_stale(store: Store) -> None:
    claim = advance_claim(store, planned(), S.BOOTING)
    with pytest.raises(StaleState, match="is booting, not launching"):
        store.transition_claim(claim.id, S.LAUNCHING, S.BOOTING, "seen late")
    with pytest.raises(UnknownClaim):
        store.transition_claim("nobody", S.LAUNCHING, S.BOOTING, "seen")
    assert store.claim(claim.id) == claim


def test_one_live_claim_a_slot(store: Store) -> None:
    store.make_claims([planned("c1", "n1"), planned("c2", "n2")])
    with pytest.raises(SlotTaken, match=r"Slot n2 has the live claim c2 \(planned\)"):
        store.make_claims([planned("c3", "n3"), planned("c4", "n2")])
    with pytest.raises(SlotTaken):
        store.make_claims([planned("c3", "n3"), planned("c4", "n3")])
    assert [c.id for c in store.claims()] == ["c1", "c2"]
    store.transition_claim("c2", S.PLANNED, S.GONE, "not needed")
    store.make_claims([planned("c4", "n2")])
    with pytest.raises(IllegalTransition, match="c2 was used before"):
        store.make_claims([planned("c2", "n9")])
    assert {c.id for c in store.claims()} == {"c1", "c4"}
    assert rows_are_replayed(store)


def test_the_request_is_on_record_before_the_cloud_is_asked(store: Store, clock: ManualClock) -> None:
    claim = planned()
    store.make_claims([claim])
    assert store.launch_request("c1") is None
    clock.time += 1
    (launching,) = store.record_launch_requests([request_for(claim)], "first in line")
    assert (launching.state, launching.attempts, launching.launch_called) == (S.LAUNCHING, 1, START + 1)
    assert store.launch_request("c1") == request_for(claim)
    clock.time += 60
    (again,) = store.record_launch_requests([request_for(claim)], "no answer")
    assert (again.attempts, again.launch_called, again.since) == (2, START + 61, START + 1)
    with pytest.raises(IllegalTransition, match="word for word"):
        store.record_launch_requests([request_for(claim, "#cloud-config\nother: 1\n")])
    store.transition_claim("c1", S.LAUNCHING, S.BOOTING, "answered", instance_id="i-1", billed_from=clock.now())
    with pytest.raises(StaleState):
        store.record_launch_requests([request_for(claim)])
    other = planned("c2", "n2")
    store.make_claims([other])
    with pytest.raises(UnknownClaim):
        store.record_launch_requests([request_for(other), request_for(planned("c3", "n3"))])
    assert store.claim("c2").state is S.PLANNED
    assert store.launch_request("c2") is None
    assert rows_are_replayed(store)


def test_touch_keeps_the_state_and_writes_only_differences(store: Store, clock: ManualClock) -> None:
    claim = advance_claim(store, planned(), S.BOOTING)
    clock.time += 5
    assert store.update_claim("c1", address="10.0.0.9") == replace(claim, address="10.0.0.9")
    before = store.events(newest=True, limit=1)
    store.update_claim("c1", address="10.0.0.9")
    assert store.events(newest=True, limit=1) == before
    assert before[0].data == {"set": {"address": "10.0.0.9"}}
    assert rows_are_replayed(store)


def test_the_bill_ends_with_the_claim(store: Store, clock: ManualClock) -> None:
    advance_claim(store, planned(), S.LAUNCHING)
    store.transition_claim("c1", S.LAUNCHING, S.BOOTING, "runs", billed_from=START)
    clock.time += 100
    for old, new in ((S.BOOTING, S.VALIDATING), (S.VALIDATING, S.READY), (S.READY, S.IN_SERVICE)):
        opened = store.transition_claim("c1", old, new, "on")
    clock.time += 100
    for old, new in ((S.IN_SERVICE, S.DRAINING), (S.DRAINING, S.TERMINATING), (S.TERMINATING, S.GONE)):
        gone = store.transition_claim("c1", old, new, "off")
    assert (opened.in_service_from, opened.billed_until, gone.billed_until) == (START + 100, None, START + 200)
    assert rows_are_replayed(store)


def test_a_batch_is_kept_whole_or_not_at_all(store: Store) -> None:
    advance_claim(store, planned(), S.BOOTING)
    with pytest.raises(UnknownClaim), store.batch():  # noqa: PT012
        store.transition_claim("c1", S.BOOTING, S.VALIDATING, "answers")
        assert store.claim("c1").state is S.VALIDATING
        store.update_claim("nobody", address="10.0.0.1")
    assert store.claim("c1").state is S.BOOTING
    with store.batch():
        store.transition_claim("c1", S.BOOTING, S.VALIDATING, "answers")
        with pytest.raises(ChangeRefused):
            store.transition_claim("c1", S.BOOTING, S.VALIDATING, "twice")
    assert store.claim("c1").state is S.VALIDATING
    assert rows_are_replayed(store)


def test_a_batch_with_a_failure_that_was_caught_is_not_kept(store: Store) -> None:
    store.make_claims([planned()])
    with pytest.raises(StoreError, match="nothing of the batch was kept"), store.batch():  # noqa: PT012
        store.update_claim("c1", address="10.0.0.1")
        with pytest.raises(StoreError):
            store.update_claim("c1", attempts=None)  # type: ignore[arg-type]
    assert store.claim("c1") == planned()


def test_history_is_found_by_what_people_know(store: Store, clock: ManualClock) -> None:
    store.make_claims([planned("c1", "n1", jobs=("17",), users=("ann",))])
    clock.time += 10
    store.make_claims([planned("c2", "n2", jobs=("17_4", "170"), users=("ann", "bob"), pool="cpu", at=START + 10)])
    store.transition_claim("c1", S.PLANNED, S.GONE, "not needed")

    def ids(**query: str | float) -> list[str]:
        return [c.id for c in store.find_claims(**query)]  # type: ignore[arg-type]

    assert ids() == ["c2", "c1"]
    assert ids(job="17") == ["c2", "c1"]
    assert ids(job="17_4") == ["c2", "c1"]
    assert ids(job="17_5") == ["c1"]
    assert ids(job="170") == ["c2"]
    assert ids(job="1") == []
    assert ids(user="bob") == ["c2"]
    assert ids(pool="gpu") == ["c1"]
    assert ids(slot="n2") == ["c2"]
    assert ids(since=START + 11) == ["c2"]
    assert ids(until=START + 10) == ["c1"]
    assert [e.subject for e in store.events(job="170")] == ["claim:c2"]


def test_launches_of_the_last_hour(store: Store, clock: ManualClock) -> None:
    for i in range(3):
        claim = planned(f"c{i}", f"n{i}")
        store.make_claims([claim])
        store.record_launch_requests([request_for(claim)])
        clock.time += 1800
    assert [(x.at, x.provider, x.users) for x in store.recent_launches(START + 1800)] == [
        (START + 1800, "sandbox", ("ann",)),
        (START + 3600, "sandbox", ("ann",)),
    ]


@pytest.mark.slow
def test_only_the_opening_thread_writes_and_others_take_a_reader(store: Store) -> None:
    store.make_claims([planned()])
    seen: list[object] = []

    def elsewhere() -> None:
        with pytest.raises(AssertionError, match="used by the thread that opened it"):
            store.claims()
        with pytest.raises(AssertionError, match="used by the thread that opened it"):
            store.update_claim("c1", address="10.0.0.1")
        with store.reader() as reader:
            seen.extend(reader.claims())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [planned()]


@pytest.mark.slow
def test_a_thousand_claims_are_read_in_50_ms(store: Store) -> None:
    claims = [planned(f"c{i:04}", f"n{i}", jobs=(str(i),)) for i in range(1000)]
    store.make_claims(claims)
    assert store.claims() == tuple(claims)
    times = []
    for _ in range(5):
        begin = time.thread_time()  # not the wall: other work on the machine is not ours
        store.claims()
        times.append(time.thread_time() - begin)
    assert min(times) < 0.05
