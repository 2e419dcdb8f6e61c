from __future__ import annotations

import multiprocessing
import os
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from burstd.db import Store, replay_claims
from burstd.domain.claim import TRANSITIONS, Claim, ClaimState

from .samples import ManualClock, planned, request_for

pytestmark = pytest.mark.slow


S = ClaimState
CRASHES = 12


def work(place: str, say: Connection, seed: int) -> None:
    """Moves claims as fast as it can, and says each step once the store has confirmed it."""
    chance = random.Random(seed)  # noqa: S311 - no secret, a repeatable order
    clock = ManualClock()
    store = Store.open(place, clock)
    say.send(None)
    number = 0
    while True:
        clock.time += 1
        number += 1
        live = store.claims()
        free = sorted({f"n{i}" for i in range(6)} - {c.slot for c in live})
        with store.batch():
            if free and chance.random() < 0.5:
                claim = planned(f"c{seed}-{number}", free[0])
                store.make_claims([claim])
                store.record_launch_requests([request_for(claim)])
            for claim in live:
                if claim.state is S.GONE or chance.random() < 0.3:
                    continue
                new = chance.choice(sorted(TRANSITIONS[claim.state]))
                store.transition_claim(claim.id, claim.state, new, f"step {number}", billed_from=clock.now())
        say.send((max((e.seq for e in store.events(newest=True, limit=1)), default=0), store.claims()))


def test_killed_at_any_moment_the_rows_follow_from_the_log_and_nothing_confirmed_is_lost(tmp_path: Path) -> None:
    place = str(tmp_path / "burstd.db")
    fork = multiprocessing.get_context("fork")
    chance = random.Random(7)  # noqa: S311
    confirmed_steps = 0
    for crash in range(CRASHES):
        mine, its = fork.Pipe()
        child = fork.Process(target=work, args=(place, its, crash))
        child.start()
        its.close()
        assert mine.poll(30), "the child did not open the store"
        mine.recv()
        last: tuple[int, tuple[Claim, ...]] = (0, ())
        for _ in range(chance.randint(1, 25)):
            last = mine.recv()
            confirmed_steps += 1
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        while True:  # what it had confirmed before the signal arrived
            try:
                last = mine.recv()
            except (EOFError, OSError):
                break
        child.join(30)
        seq, live = last
        with Store.open(place, ManualClock()) as store:
            events = store.events(limit=10**6)
            claims = store.find_claims(limit=10**6)
            assert replay_claims(events) == {c.id: c for c in claims}
            then = replay_claims(e for e in events if e.seq <= seq)
            assert {c.id: c for c in live} == {i: c for i, c in then.items() if c.state is not S.GONE}
            assert all(store.launch_request(c.id) == request_for(c) for c in claims if c.attempts)
    assert confirmed_steps > CRASHES
