from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from alembic import command
from hypothesis import given
from hypothesis import strategies as st

from burstd.db import (
    ChangeRefused,
    IllegalTransition,
    StagingExists,
    StaleState,
    Store,
    UnknownStaging,
    replay_claims,
    replay_stagings,
)
from burstd.db.database import database_url, open_engine
from burstd.db.migrate import alembic_config
from burstd.domain.staging import (
    STAGE_TRANSITIONS,
    Access,
    Checkpoint,
    CheckpointLine,
    Directives,
    ObjectRange,
    OutputCondition,
    StageIn,
    StageOut,
    StageState,
    Staging,
    Tree,
)

from .opening import open_store
from .samples import START, ManualClock, counts, moments, planned, words

S = StageState
TREE = Tree("in", "ab" * 32, (ObjectRange("cd" * 32, 0, 7), ObjectRange("", 0, 1 << 40)), 3, 5 << 40, node_path="/data")
DIRECTIVES = Directives(
    (StageIn("/data/\udce9t\udce9 x", "x\n", Access.COPY, 3, "set@2"),),
    (StageOut("*.csv", "s3://bucket/out", OutputCondition.FAILURE, 4),),
    1 << 40,
    CheckpointLine("state/*", 10.5, 3, "B:USR1", 5.0, 7, "./save.sh"),
    2 << 30,
    workdir=True,
)
KEPT = Checkpoint(START, "state/7", {"0": replace(TREE, node_path="")}, 2, {"0": "ab"}, 5, 3, 0.25)


def waiting(job_id: str = "17", *, user: str = "ann", at: float = START) -> Staging:
    return Staging(
        job_id, user, 4_000_000_000, 1001, DIRECTIVES, S.WAITING, at, at, "s3", "proj", "/home/\udcff/w", reason="asked"
    )


def rows_are_replayed(store: Store) -> bool:
    stagings = store.stagings(live=False)
    return replay_stagings(store.events(limit=10**6)) == {s.job_id: s for s in stagings}


def transitions_to(to: StageState) -> list[StageState]:
    """The shortest way from WAITING."""
    paths = {S.WAITING: [S.WAITING]}
    while to not in paths:
        paths |= {
            new: [*steps, new]
            for old, steps in list(paths.items())
            for new in sorted(STAGE_TRANSITIONS[old])
            if new not in paths
        }
    return paths[to]


def advance_staging(store: Store, job_id: str, to: StageState) -> Staging:
    staging = store.make_staging(waiting(job_id))
    for new in transitions_to(to)[1:]:
        staging = store.transition_staging(job_id, staging.state, new, f"to {new}")
    return staging


@pytest.mark.parametrize("old", S)
def test_every_move_is_allowed_or_refused_as_the_table_says(old: StageState) -> None:
    with Store.open(":memory:", ManualClock()) as store:
        staging = advance_staging(store, "1", old)
        for new in sorted(set(S) - STAGE_TRANSITIONS[old]):
            with pytest.raises(IllegalTransition, match=f"cannot go from {old} to {new}"):
                store.transition_staging("1", old, new, "no")
        for wrong in sorted(set(S) - {old}):
            with pytest.raises(StaleState, match=f"is {old}, not {wrong}"):
                store.transition_staging("1", wrong, S.HELD, "no")
        assert store.staging("1") == staging
        for new in sorted(STAGE_TRANSITIONS[old]):
            job = f"1-{new}"
            advance_staging(store, job, old)
            assert store.transition_staging(job, old, new, "yes") == store.staging(job)
            assert (store.staging(job).state, store.staging(job).reason) == (new, "yes")
        assert rows_are_replayed(store)


def test_a_whole_life_is_on_record_and_comes_back_as_it_was(store: Store, clock: ManualClock) -> None:
    assert store.make_staging(waiting()) == store.staging("17") == waiting()
    clock.time += 10
    store.transition_staging(
        "17", S.WAITING, S.UPLOADING, "its turn", bytes_in=5 << 40, estimated_ready=clock.time + 60
    )
    clock.time += 50
    staged = store.transition_staging(
        "17", S.UPLOADING, S.STAGED, "sent", trees={"x\n": TREE, "\udce9": TREE}, bytes_sent=3
    )
    assert (staged.staged, staged.since, staged.bytes_in) == (clock.time, clock.time, 5 << 40)
    store.transition_staging("17", S.STAGED, S.FETCHING, "allocated", nodes=("gpu001", "gpu002"))
    store.transition_staging("17", S.FETCHING, S.FETCHED, "placed")
    assert store.update_staging("17", "taken", checkpoints=(KEPT,)).checkpoints == store.staging("17").checkpoints
    said = len(store.events())
    assert store.update_staging("17", nodes=("gpu001", "gpu002")) == store.staging("17")
    assert len(store.events()) == said, "what does not differ is no event"
    store.update_staging("17", "node lost", nodes=("gpu001",), job_state="FAILED", exit_code="1:0")
    store.transition_staging(
        "17", S.FETCHED, S.COLLECTING, "ended", outputs={"gpu001": replace(TREE, prefix="out/17/gpu001")}
    )
    held = store.transition_staging(
        "17", S.COLLECTING, S.HELD, "gave up", error="node is\0gone \udce9", resume="collecting", attempts=8
    )
    assert held.error == "node is\N{REPLACEMENT CHARACTER}gone ?"
    again = store.transition_staging("17", S.HELD, S.COLLECTING, "retry", cause="user:root")
    assert (again.error, again.resume, again.attempts) == ("", "", 0)
    assert again.outputs == {"gpu001": replace(TREE, prefix="out/17/gpu001")}
    assert store.staging("17") == store.find_staging("17") == again
    assert again.work_dir == "/home/\udcff/w"
    assert rows_are_replayed(store)
    assert replay_claims(store.events()) == {}


def test_a_requeued_job_starts_over_with_what_is_in_the_store(store: Store) -> None:
    advance_staging(store, "17", S.FETCHED)
    store.update_staging("17", trees={"x": TREE}, job_state="NODE_FAIL", exit_code="0:9", bytes_out=5, nodes=("a",))
    again = store.transition_staging("17", S.FETCHED, S.WAITING, "requeued", nodes=())
    assert (again.staged, again.job_state, again.exit_code, again.bytes_out, again.nodes) == (0.0, "", "", 0, ())
    assert again.trees == {"x": TREE}
    assert rows_are_replayed(store)


def test_a_number_comes_again_only_after_the_end(store: Store, clock: ManualClock) -> None:
    with pytest.raises(IllegalTransition, match="begins as staged"):
        store.make_staging(replace(waiting(), state=S.STAGED))
    store.make_staging(waiting())
    with pytest.raises(StagingExists, match="Job 17 has data on record already, which is waiting"):
        store.make_staging(waiting(user="bob"))
    store.transition_staging("17", S.WAITING, S.CLEARED, "cancelled")
    clock.time += 1e6
    store.make_staging(waiting(user="bob", at=clock.time))
    assert [s.user for s in store.stagings(live=False)] == ["bob"]
    assert rows_are_replayed(store)
    assert store.find_staging("18") is None
    with pytest.raises(UnknownStaging, match="Job '18' has no data on record"):
        store.update_staging("18", attempts=1)


def test_the_data_of_a_task_is_found_by_its_name(store: Store) -> None:
    for number, task in (("24", "23_1"), ("25", "23_2"), ("23", "23_3"), ("9", "")):
        store.make_staging(replace(waiting(number), array_task=task))
    found = store.find_staging_of_task("23_2")
    assert found is not None
    assert (found.job_id, found.name) == ("25", "23_2")
    assert (store.find_staging_of_task("23_7"), store.find_staging_of_task("")) == (None, None)
    subjects = {job: {e.subject for e in store.events(job=job)} for job in ("23_1", "23", "9")}
    assert subjects["23_1"] >= {"stage:24"}
    assert "stage:25" not in subjects["23_1"]
    assert subjects["23"] == {"stage:23", "stage:24", "stage:25"}
    assert subjects["9"] == {"stage:9"}
    assert rows_are_replayed(store)


def test_pages_of_history_and_its_end(store: Store, clock: ManualClock) -> None:
    for i in range(10):
        store.make_staging(waiting(str(i), user="ann" if i % 2 else "bob", at=START + i // 4))
    for job in ("1", "2", "3"):
        store.transition_staging(job, S.WAITING, S.CLEARED, "cancelled")
    assert {s.job_id for s in store.stagings()} == set("0456789")
    found: list[str] = []
    last: tuple[float, str] | None = None
    while page := store.find_stagings(before=last, limit=3):
        found += [s.job_id for s in page]
        last = (page[-1].created, page[-1].job_id)
    assert found == ["9", "8", "7", "6", "5", "4", "3", "2", "1", "0"]
    assert [s.job_id for s in store.find_stagings(user="bob", states=[S.CLEARED])] == ["2"]
    with store.reader() as reader:
        assert reader.staging("2").state is S.CLEARED
    clock.time += 100
    store.transition_staging("9", S.WAITING, S.CLEARED, "cancelled")
    store.purge(clock.time - 1)
    assert {s.job_id for s in store.stagings(live=False)} == set("0456789")
    assert {e.subject for e in store.events(subject="stage:")} == {f"stage:{i}" for i in "0456789"}
    assert rows_are_replayed(store)


trees = st.dictionaries(
    st.text(max_size=6),
    st.builds(
        Tree,
        words,
        words,
        st.lists(st.builds(ObjectRange, words, counts, counts), max_size=2).map(tuple),
        counts,
        counts,
    ),
    max_size=2,
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "trees": trees,
        "outputs": trees,
        "nodes": st.lists(words, max_size=3).map(tuple),
        "work_dir": st.binary(max_size=6).map(lambda b: b.decode("utf-8", "surrogateescape")),
        "error": words,
        "staged": moments,
        "bytes_sent": st.integers(0, 2**60),
        "resume": st.sampled_from(["", *S]),
    },
)
steps = st.one_of(
    st.tuples(st.just("make"), st.integers(0, 3), words),
    st.tuples(st.just("move"), st.integers(0, 3), st.integers(0, 9), words, changes),
    st.tuples(st.just("touch"), st.integers(0, 3), changes),
    st.tuples(st.just("purge")),
)


@given(st.lists(steps, max_size=30), st.lists(st.floats(0.001, 1e5), min_size=30, max_size=30))
def test_the_rows_follow_from_the_log(script: list[tuple], lapses: list[float]) -> None:  # type: ignore[type-arg]
    clock = ManualClock()
    with Store.open(":memory:", clock) as store:
        for step, lapse in zip(script, lapses, strict=False):
            clock.time += lapse
            with suppress(ChangeRefused):
                play(store, clock, step)
            assert rows_are_replayed(store)


def play(store: Store, clock: ManualClock, step: tuple) -> None:  # type: ignore[type-arg]
    match step:
        case ("make", which, word):
            store.make_staging(waiting(str(which), user=word, at=clock.time))
        case ("purge",):
            store.purge(clock.time - 1e5)
        case ("move", which, where, reason, fields):
            old = store.staging(str(which)).state
            if allowed := sorted(STAGE_TRANSITIONS[old]):
                moved = store.transition_staging(str(which), old, allowed[where % len(allowed)], reason, **fields)
                assert moved == store.staging(str(which))
        case ("touch", which, fields):
            assert store.update_staging(str(which), **fields) == store.staging(str(which))


def test_a_log_with_a_hole_is_refused() -> None:
    with Store.open(":memory:", ManualClock()) as store:
        advance_staging(store, "17", S.FETCHED)
        first, *_, last = store.events()
    with pytest.raises(ValueError, match="takes the data of job 17 out of fetching"):
        replay_stagings([first, last])


def test_a_database_of_the_first_schema_is_brought_up_to_date(place: str) -> None:
    engine = open_engine(database_url(place), writer=True)
    with engine.begin() as connection:
        first = alembic_config()
        first.attributes["connection"] = connection
        command.upgrade(first, "0001")
    engine.dispose()
    with open_store(place, ManualClock()) as store:
        store.make_claims([planned()])
        store.make_staging(waiting())
        assert store.stagings() == (waiting(),)
