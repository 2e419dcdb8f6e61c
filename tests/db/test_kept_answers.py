"""What the writer keeps in memory is what the database holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from sqlalchemy import create_engine, event

from burstd.db import Store, StoreReader, UnknownClaim
from burstd.db.tables import METADATA
from burstd.domain.claim import ClaimState
from burstd.domain.plugins.policy import Remark
from burstd.domain.project import ProjectOverride, SetupStep
from burstd.domain.snapshot import CircuitBreaker, Pin
from burstd.domain.staging import Directives, StageState, Staging

from .samples import START, ManualClock, planned, request_for

PIN = Pin("gpu", 2, "exact", START + 60, "user:root", START)
DATA = Staging("17", "ann", 3001, 3001, Directives((), ()), StageState.WAITING, START, START, "s3", "proj", "/home/ann")
PROJECT = ProjectOverride("a", {"quota": "1/2", "account": "team-a"}, True, SetupStep.SET_UP, "user:root", START)
REMARK = Remark("demand", "job:17", "wait", "no room")


def answers(record: StoreReader) -> list[object]:
    return [
        record.claims(),
        record.stagings(),
        record.scale_overrides(),
        record.drained_slots(),
        record.breakers(),
        record.metadata("paused"),
        record.last_event_seq(),
        record.volumes(),
        record.project_overrides(),
        record.recent_launches(START),
        record.spending(),
    ]


def test_the_writer_answers_as_the_database_does_after_every_change(store: Store, clock: ManualClock) -> None:
    changes: list[Callable[[], object]] = [
        lambda: store.make_claims([planned("c1")]),
        lambda: store.update_claim("c1", address="10.0.0.1"),
        lambda: store.make_staging(DATA),
        lambda: store.transition_staging("17", StageState.WAITING, StageState.CLEARED, "cancelled"),
        lambda: store.set_scale_override(PIN),
        lambda: store.drain_slots(["n1"], "user:root", "fan is loud"),
        lambda: store.save_breaker(CircuitBreaker("sandbox/a", "quota", 1, START + 60, "no more")),
        lambda: store.set_metadata("paused", "works on the roof", logged=False),
        lambda: store.record_remarks([REMARK]),
        lambda: store.save_project_override(PROJECT, "", "created", "", "user:root"),
        lambda: store.save_project_override(replace(PROJECT, values={"quota": 2}), "", "changed", "", "user:root"),
        lambda: store.save_project_override(replace(PROJECT, values={}, pending=SetupStep.NONE), "", "", "", "burstd"),
    ]
    with store.reader() as reader:
        before = answers(store)
        for change in changes:
            with pytest.raises(UnknownClaim), store.batch():  # noqa: PT012
                change()
                assert answers(store) != before
                store.claim("nobody")
            assert answers(store) == before
            change()
            after = answers(store)
            assert after == answers(reader)
            assert after != before
            before = after
        clock.time = PIN.until or 0.0
        assert answers(store) == answers(reader) != before


def test_what_has_not_changed_is_not_read_again(store: Store) -> None:
    statements: list[str] = []
    event.listen(store._database.engine, "before_cursor_execute", lambda _c, _u, sql, *_: statements.append(sql))

    def loop() -> int:
        begun = len(statements)
        store.expire_scale_overrides()
        answers(store)
        store.record_remarks([REMARK])
        return len(statements) - begun

    assert loop() > len(answers(store))
    loop()
    assert loop() == 0


def test_a_new_connection_forgets_what_was_kept(store: Store, place: str) -> None:
    """On PostgreSQL another burstd may have written while there was none."""
    store.set_metadata("paused", "works on the roof", logged=False)
    assert store.metadata("paused") == "works on the roof"
    store._database.engine.dispose()
    other = create_engine(store._database.url)
    with other.begin() as connection:
        connection.execute(METADATA.update().values(value="works are over"))
    other.dispose()
    if place.startswith("postgresql"):
        store.check_lock()
    else:
        store.last_event_time()
    assert store.metadata("paused") == "works are over"


def test_past_machines_are_counted_as_they_are_on_record(store: Store, clock: ManualClock) -> None:
    S = ClaimState  # noqa: N806

    def machine(claim_id: str, *, error: str = "", opened: bool = False) -> None:
        claim = planned(claim_id, claim_id, at=clock.time)
        store.make_claims([claim])
        store.record_launch_requests([request_for(claim)])
        store.transition_claim(claim_id, S.LAUNCHING, S.BOOTING, "it exists")
        if not opened:
            store.transition_claim(claim_id, S.BOOTING, S.FAILED, "it is bad", error=error)
            store.transition_claim(claim_id, S.FAILED, S.TERMINATING, "it is bad")
        else:
            path = (S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.DRAINING, S.TERMINATING)
            for old, new in pairwise(path):
                store.transition_claim(claim_id, old, new, "as it should")
        store.transition_claim(claim_id, S.TERMINATING, S.GONE, "gone", error=error)

    def counted() -> dict[str, int]:
        return {outcome.quality.value: number for outcome, number in store.machine_outcomes().items()}

    assert counted() == {}
    machine("a", error="gpu_health")
    machine("b", opened=True)
    machine("c", opened=True, error="health")
    machine("d", error="capacity")
    assert counted() == {"bad": 2, "good": 1}
    with pytest.raises(UnknownClaim), store.batch():  # noqa: PT012
        machine("e", error="node_down")
        assert counted() == {"bad": 3, "good": 1}
        store.claim("nobody")
    assert counted() == {"bad": 2, "good": 1}
    store._forget()
    assert counted() == {"bad": 2, "good": 1}
    clock.time += 60
    store.forget_machines(["sandbox/here/a/gpu4"], "user:root")
    assert counted() == {}
    [event_] = store.events(subject="place:sandbox/here/a/gpu4")
    assert (event_.new, event_.cause) == ("forgotten", "user:root")
    clock.time += 60
    machine("f", error="gpu_clocks")
    assert counted() == {"bad": 1}
