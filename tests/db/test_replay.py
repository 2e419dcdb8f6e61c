from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burstd.db import ChangeRefused, LoggedEvent, Store, replay_claims
from burstd.domain.claim import TRANSITIONS, Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import Remark
from tests.examples import examples

from .samples import START, ManualClock, moments, offers, planned, request_for, words

S = ClaimState
slots = st.sampled_from(["n1", "n2", "n3"])
changes = st.fixed_dictionaries(
    {},
    optional={
        "address": words,
        "instance_id": words,
        "error": words,
        "billed_from": st.none() | moments,
        "billed_until": st.none() | moments,
        "jobs": st.lists(words, max_size=3).map(tuple),
        "users": st.lists(words, max_size=3).map(tuple),
    },
)
steps = st.one_of(
    st.tuples(st.just("make"), slots, offers, words),
    st.tuples(st.just("move"), st.integers(0, 9), st.integers(0, 9), words, changes),
    st.tuples(st.just("touch"), st.integers(0, 9), changes),
    # The request is burstd's own: no NUL is in it.
    st.tuples(st.just("request"), st.integers(0, 9), words.filter(lambda word: "\0" not in word)),
    st.tuples(st.just("remark"), st.integers(0, 9), words),
    st.tuples(st.just("purge")),
)


@settings(max_examples=examples(80))
@given(st.lists(steps, max_size=30), st.lists(st.floats(0.001, 1e5), min_size=30, max_size=30))
def test_the_rows_follow_from_the_log(script: list[tuple], lapses: list[float]) -> None:  # type: ignore[type-arg]
    clock = ManualClock()
    with Store.open(":memory:", clock) as store:
        for step, lapse in zip(script, lapses, strict=False):
            clock.time += lapse
            with suppress(ChangeRefused):
                play(store, clock, step)
            rows = {c.id: c for c in store.find_claims(limit=1000)}
            assert replay_claims(store.events(limit=10**6)) == rows
            live = [c.slot for c in store.claims()]
            assert len(live) == len(set(live))


def play(store: Store, clock: ManualClock, step: tuple) -> None:  # type: ignore[type-arg]
    claims = store.find_claims(limit=1000)
    match step:
        case ("make", slot, offer, word):
            store.make_claims([planned(f"c{clock.time!r}", slot, offer=offer, jobs=(word,), at=clock.time)])
        case ("purge",):
            store.purge(clock.time - 1e5)
        case _ if not claims:
            return
        case ("move", which, where, reason, fields):
            claim = claims[which % len(claims)]
            allowed = sorted(TRANSITIONS[claim.state])
            if allowed:
                moved = store.transition_claim(claim.id, claim.state, allowed[where % len(allowed)], reason, **fields)
                assert moved == store.claim(claim.id)
        case ("touch", which, fields):
            claim = claims[which % len(claims)]
            assert store.update_claim(claim.id, **fields) == store.claim(claim.id)
        case ("remark", which, word):
            store.record_remarks([Remark("idle", f"claim:{claims[which % len(claims)].id}", "keep", word)])
        case ("request", which, word):
            claim = claims[which % len(claims)]
            store.record_launch_requests([request_for(claim, word)], word)
            assert store.launch_request(claim.id) == request_for(claim, word)


@given(offers, st.lists(words, max_size=3).map(tuple), st.sampled_from(Cause), words)
def test_what_comes_back_equals_what_went_in(offer: Offer, jobs: tuple[str, ...], cause: Cause, reason: str) -> None:
    claim = Claim(
        "c", "site", "gpu", "n1", offer, cause, S.PLANNED, START, START, reason, jobs=jobs, users=jobs, gang="g"
    )
    plain = [w for w in (reason, *jobs) if "\0" in w]
    with Store.open(":memory:", ManualClock()) as store:
        store.make_claims([claim])
        assert plain or store.claim("c") == claim


def test_a_log_with_a_hole_is_refused() -> None:
    clock = ManualClock()
    with Store.open(":memory:", clock) as store:
        store.make_claims([planned()])
        store.transition_claim("c1", S.PLANNED, S.LAUNCHING, "asked")
        store.transition_claim("c1", S.LAUNCHING, S.BOOTING, "answered")
        first, _, last = store.events()
    for log in ([last], [first, last]):
        with pytest.raises(ValueError, match="takes claim c1 out of launching"):
            replay_claims(log)


def test_events_of_other_subjects_are_passed_over() -> None:
    assert replay_claims([LoggedEvent(1, START, "daemon", "", "started", "", "systemd")]) == {}
