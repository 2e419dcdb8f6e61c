"""kill -9 of the leading head at random moments: the other takes over; no machine twice, none lost, no job harmed."""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.engine import make_url

from burstd.db import StoreReader
from burstd.runtime.clock import SteadyClock
from providers.sandbox.boxes.boot.description import BindMount
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.db.conftest import postgresql_server
from tests.e2e.sites import QUICK, restarts, wait_all_gone, wait_done
from tests.e2e.test_kill import WORK
from tests.lab import programs
from tests.lab.site import Site

__all__ = ["postgresql_server"]

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

KILLS = int(os.environ.get("BURSTD_TEST_TAKEOVERS", "3"))
HEADS = ("head1", "head2")


class TwoHeads(Site):
    """Two daemons on the host of slurmctld, each with a host name and folders of its own."""

    def __init__(self, database: str, **more: Any) -> None:
        folder = str(make_url(database).query["host"])
        super().__init__(binds=(BindMount(Path(folder), folder, read_only=False),), **more)
        self.database = database
        self._heads: dict[str, subprocess.Popen[bytes]] = {}

    def start_burstd(self, timeout_s: float = 90.0) -> None:
        """Starts both; the first leads."""
        self.cluster.head.run(["mkdir", "-p", "-m", "700", "/var/lib/shared"])
        # slurmctld runs on one head, whichever leads.
        self.write("/etc/burstd/power.conf", "socket=/var/lib/head2/runtime/power.sock\n")
        for host in HEADS:
            folders = "".join(f'{k}_dir = "/var/lib/{host}/{k}"\n' for k in ("state", "runtime", "spool"))
            self.cluster.head.run(["mkdir", "-p", *(f"/var/lib/{host}/{k}" for k in ("state", "runtime", "spool"))])
            more = f'{folders}database = "{self.database}"\nstandby = true\nshared_dir = "/var/lib/shared"\n'
            self.write(f"/var/lib/{host}/burstd.toml", self.burstd_toml().replace("[daemon]\n", f"[daemon]\n{more}"))
            self.start_head(host)
            self.wait(lambda: self.status_of(host) in (200, 421), timeout_s, f"{host} answers")  # noqa: B023 - called at once

    def start_head(self, host: str) -> None:
        """Starts the daemon of a head, and does not wait for it."""
        words = shlex.join([f"{programs.PREFIX}/bin/burstd", "--config", f"/var/lib/{host}/burstd.toml"])
        script = f"hostname {host}; echo $$ >/var/lib/{host}/pid; exec {words} >>/var/lib/{host}/log 2>&1"
        self._heads[host] = self.cluster.head.popen(["unshare", "--uts", "sh", "-c", script])

    def kill_head(self, host: str, signal: str = "KILL") -> None:
        """Ends the daemon of a head, and waits until it is gone."""
        self.cluster.head.run(["sh", "-c", f"kill -{signal} $(cat /var/lib/{host}/pid)"], check=False)
        self._heads.pop(host).wait(30)

    def down(self) -> None:
        """Ends the daemons, then all else."""
        for host in list(self._heads):
            self.kill_head(host)
        super().down()

    def _client(self, host: str) -> httpx.Client:
        socket = self.cluster.head.path(f"/var/lib/{host}/runtime/control.sock")
        return httpx.Client(transport=httpx.HTTPTransport(uds=str(socket), verify=False), base_url="http://burstd")

    def status_of(self, host: str) -> int:
        """What it answers: 200 where it leads, 421 where it waits, 0: nothing."""
        try:
            with self._client(host) as client:
                return client.get("/v1/status", timeout=30.0).status_code
        except (httpx.HTTPError, OSError):
            return 0

    def leader(self) -> str:
        """Who leads, or last led."""
        return next((host for host in HEADS if self.status_of(host) == 200), HEADS[0])

    def api(self, path: str, **params: str | float) -> Any:
        """What the leader answers to root."""
        with self._client(self.leader()) as client:
            answer = client.get(path, params=params, timeout=30.0)
        answer.raise_for_status()
        return answer.json()

    def daemon_log(self) -> str:
        """What both have said so far."""
        return self.cluster.sh(f"tail -n 40 {' '.join(f'/var/lib/{host}/log' for host in HEADS)}", check=False)


@pytest.fixture(scope="module")
def site(postgresql_server: str) -> Iterator[TwoHeads]:
    settings = QUICK.replace("keep_alive_s = 2", "keep_alive_s = 0.3")
    with TwoHeads(postgresql_server, settings=settings, cloud="boot_seconds = 0.3") as up:
        yield up


def test_a_head_that_is_killed_is_followed_by_the_other(site: TwoHeads, figure: Callable[[str], None]) -> None:
    seed = int(os.environ.get("BURSTD_TEST_SEED", random.randrange(10**6)))  # noqa: S311 - nothing secret
    figure(f"takeovers: seed {seed} (BURSTD_TEST_SEED={seed} plays it again)")
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    site.cloud.inject_fault(SandboxFault(FaultKind.LOSE_ANSWER, ("launch", "terminate"), count=3, seconds=0.3))
    site.cloud.inject_fault(SandboxFault(FaultKind.DELAY, ("launch", "terminate"), seconds=0.4))
    jobs: list[str] = []
    took: list[float] = []
    leader, other = HEADS
    for _ in range(KILLS):
        jobs.append(site.submit(chance.choice(WORK), f"sleep {chance.choice((0, 1, 3))}"))
        site.wait(lambda: site.status_of(other) == 421, 60, "the other head waits")  # noqa: B023 - called at once
        # The moment is the point of the test: it is drawn, not waited for.
        time.sleep(chance.uniform(0.0, 1.5))
        site.kill_head(leader)
        begun = time.monotonic()
        site.wait(lambda: site.status_of(other) == 200, 30, "the other head leads")  # noqa: B023 - called at once
        took.append(time.monotonic() - begun)
        site.start_head(leader)
        leader, other = other, leader
    wait_done(site, jobs, 120)
    assert restarts(site, jobs) == dict.fromkeys(jobs, 0)
    account = wait_all_gone(site)
    with StoreReader.open(site.database, SteadyClock()) as reader:
        claims = {claim.id: claim for claim in reader.find_claims(limit=10_000)}
        events = reader.events(limit=10**6)
    assert set(account.by_claim) <= set(claims), "machines that no claim knows"
    assert {claim.state.value for claim in claims.values()} == {"gone"}
    assert not [event for event in events if event.subject.startswith("orphan:")], "nothing had to be swept up"
    machines = sum(map(len, account.by_claim.values()))
    longest = max(took)
    figure(f"takeovers: {KILLS} of kill -9, {len(jobs)} jobs, {machines} machines, the longest {longest:.1f} s")
