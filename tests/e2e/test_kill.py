"""kill -9 of the real burstd at random moments: no machine twice, none lost, no job harmed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.e2e.sites import QUICK, record, restarts, site_up, wait_all_gone, wait_done
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

KILLS = 17
SUBMIT_UNTIL = 13
WORK = (
    "-p burst -c2 --mem=200 -t5",
    "-p burst --gres=gpu:v100:2 --mem=100 --array=1-2 -t5",
    "-p burst -N2 --exclusive --gres=gpu:4 -t5",
    "-p burst --gres=gpu:v100:3 --mem=100 -t5",
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    # Nodes go at once, so that machines come and go all the time.
    with site_up(settings=QUICK.replace("keep_alive_s = 2", "keep_alive_s = 0.3")) as up:
        yield up


def test_killed_at_random_moments(site: Site, figure: Callable[[str], None]) -> None:
    seed = int(os.environ.get("BURSTD_TEST_SEED", random.randrange(10**6)))  # noqa: S311 - nothing secret
    figure(f"kills: seed {seed} (BURSTD_TEST_SEED={seed} plays it again)")
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    # Slow answers, some of them lost: many kills fall between a cloud's deed and burstd's note of it.
    site.cloud.inject_fault(SandboxFault(FaultKind.LOSE_ANSWER, ("launch", "terminate"), count=3, seconds=0.3))
    site.cloud.inject_fault(SandboxFault(FaultKind.DELAY, ("launch", "terminate"), seconds=0.4))
    jobs: list[str] = []
    for kill in range(KILLS):
        if kill < SUBMIT_UNTIL:
            jobs.append(site.submit(chance.choice(WORK), f"sleep {chance.choice((0, 1, 3))}"))
        if chance.random() < 0.75:
            site.wait(site.api_answers, 20, "burstd answers")
        # The moment is the point of the test: it is drawn, not waited for.
        time.sleep(chance.uniform(0.0, 1.5))
        assert site.burstd_runs(), f"burstd ended by itself: {site.daemon_log()[-3000:]}"
        site.kill_burstd("KILL")
        site.spawn_burstd()
    site.wait(site.api_answers, 30, "burstd answers")
    wait_done(site, jobs, 120)
    assert restarts(site, jobs) == dict.fromkeys(jobs, 0)
    account = wait_all_gone(site)
    kept = record(site)
    assert "" not in account.by_claim
    lost = set(account.by_claim) - set(kept.claims)
    assert not lost, f"machines that no claim knows: {lost}"
    assert {c.state.value for c in kept.claims.values()} == {"gone"}
    starts = [e for e in kept.events if e.subject == "daemon" and e.new == "started"]
    machines = sum(map(len, account.by_claim.values()))
    figure(f"kills: {KILLS} kills, {len(starts)} whole starts, {len(jobs)} jobs, {machines} machines")
    assert len(starts) > KILLS / 2, "most starts came far enough to work"
    assert not [e for e in kept.events if e.subject.startswith("orphan:")], "nothing had to be swept up"
