"""Two heads whose leader is killed, and what is counted afterwards: shared by tests and benchmarks."""

from __future__ import annotations

import random
import shlex
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
from sqlalchemy.engine import make_url

from burstd.db import StoreReader, replay_claims
from burstd.runtime.clock import SteadyClock
from providers.sandbox.boxes.boot.description import BindMount
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.e2e.sites import QUICK, restarts, wait_all_gone, wait_done
from tests.e2e.test_kill import WORK
from tests.lab import programs
from tests.lab.site import Site

HEADS = ("head1", "head2")
LEADS, WAITS = 200, 421
"""What heads answer to ``/v1/status``."""
MOMENT_S = 1.5
"""Until a leader is killed, at most, once the other head waits."""
FAULTS = (
    SandboxFault(FaultKind.LOSE_ANSWER, ("launch", "terminate"), count=3, seconds=0.3),
    SandboxFault(FaultKind.DELAY, ("launch", "terminate"), seconds=0.4),
)
"""Slow answers, some of them lost: many kills fall between a cloud's deed and burstd's note of it."""


class Heads(Protocol):
    """Two heads of one cluster, named as in HEADS."""

    def status_of(self, host: str) -> int:
        """LEADS, WAITS, or 0: it does not answer."""
        ...

    def start_head(self, host: str) -> None:
        """Starts the daemon of a head, and does not wait for it."""
        ...

    def kill_head(self, host: str) -> None:
        """Ends it by SIGKILL, and waits until it is gone."""
        ...

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Returns when the condition holds. Raises AssertionError."""
        ...


def head_status(socket: Path) -> int:
    """What the head of this control socket answers; 0: nothing."""
    try:
        with head_client(socket) as client:
            return client.get("/v1/status", timeout=30.0).status_code
    except (httpx.HTTPError, OSError):
        return 0


def head_client(socket: Path) -> httpx.Client:
    """Speaks to a head as root."""
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(socket), verify=False), base_url="http://burstd")


def kill_leaders(
    heads: Heads, kills: int, chance: random.Random, submit: Callable[[], object], *, both: float = 0.0
) -> list[float]:
    """Kills the leader at random moments, so often; the seconds after which the other head led, each time.

    ``submit`` is called before each. ``both``: the chance that the other head is killed as well, soon after, wherever
    it is in taking over; that comes on top, and is not timed. The first of HEADS leads, and in the end one does.
    """
    took: list[float] = []
    leader, other = HEADS
    while len(took) < kills:
        submit()
        heads.wait(lambda: heads.status_of(other) == WAITS, 60, "the other head waits")  # noqa: B023 - called at once
        # The moment is the point: it is drawn, not waited for.
        time.sleep(chance.uniform(0.0, MOMENT_S))
        heads.kill_head(leader)
        begun = time.monotonic()
        if chance.random() < both:
            time.sleep(chance.uniform(0.0, 2 * MOMENT_S))
            heads.kill_head(other)
            heads.start_head(other)
            heads.start_head(leader)
            heads.wait(lambda: LEADS in map(heads.status_of, HEADS), 60, "one of the heads leads")
            leader, other = sorted(HEADS, key=lambda host: heads.status_of(host) != LEADS)
        else:
            heads.wait(lambda: heads.status_of(other) == LEADS, 30, "the other head leads")  # noqa: B023 - called at once
            took.append(time.monotonic() - begun)
            heads.start_head(leader)
            leader, other = other, leader
    return took


@dataclass(frozen=True, slots=True)
class Account:
    """What came of kills, once all jobs have ended and no machine is wanted any more."""

    took: Sequence[float]
    """Seconds until the other head led."""
    jobs: int
    machines: int
    faults: Mapping[str, Collection[str]]
    """By what must not be, whatever was found of it."""


def account(
    took: Sequence[float],
    database: str,
    made: Mapping[str, Sequence[str]],
    alive: Collection[str],
    restarted: Mapping[str, int],
) -> Account:
    """``made``: all machines ever, by claim; ``alive``: those that still run; ``restarted``: how often, by job."""
    with StoreReader.open(database, SteadyClock()) as reader:
        claims = {claim.id: claim for claim in reader.find_claims(limit=100_000)}
        events = reader.events(limit=10**7)
    logged = replay_claims(events)
    unknown = {machine for claim, machines in made.items() if claim not in claims for machine in machines}
    swept = {event.subject for event in events if event.subject.startswith("orphan:")}
    faults = {
        "claims with two machines": [claim for claim, machines in made.items() if len(machines) > 1],
        "machines left over, or without a claim": sorted({*alive, *unknown, *swept}),
        "jobs started again": [job for job, times in restarted.items() if times],
        "claims lost": [
            one for one in claims.keys() | logged.keys()
            if claims.get(one) != logged.get(one) or claims[one].state.value != "gone"
        ],
    }  # fmt: skip
    return Account(took, len(restarted), sum(map(len, made.values())), faults)


class TwoHeads(Site):
    """Two daemons on the host of slurmctld, each with a host name and folders of its own."""

    def __init__(self, database: str, **more: Any) -> None:
        folder = str(make_url(database).query["host"])
        settings = QUICK.replace("keep_alive_s = 2", "keep_alive_s = 0.3")
        binds = (BindMount(Path(folder), folder, read_only=False),)
        # slurmctld knows all jobs until they are counted.
        conf = "MinJobAge=7200\n"
        super().__init__(binds=binds, settings=settings, cloud="boot_seconds = 0.3", extra_conf=conf, **more)
        self.database = database
        self._heads: dict[str, subprocess.Popen[bytes]] = {}

    def start_burstd(self, timeout_s: float = 90.0) -> None:
        """Starts both; the first leads."""
        self.cluster.head.run(["mkdir", "-p", "-m", "700", "/var/lib/shared"])
        # slurmctld runs on one head, whichever leads.
        self.write("/etc/burstd/power.conf", "socket=/var/lib/head2/runtime/power.sock\n")
        for host, now in zip(HEADS, (LEADS, WAITS), strict=True):
            folders = "".join(f'{k}_dir = "/var/lib/{host}/{k}"\n' for k in ("state", "runtime", "spool"))
            self.cluster.head.run(["mkdir", "-p", *(f"/var/lib/{host}/{k}" for k in ("state", "runtime", "spool"))])
            more = f'{folders}database = "{self.database}"\nstandby = true\nshared_dir = "/var/lib/shared"\n'
            self.write(f"/var/lib/{host}/burstd.toml", self.burstd_toml().replace("[daemon]\n", f"[daemon]\n{more}"))
            self.start_head(host)
            self.wait(lambda: self.status_of(host) == now, timeout_s, f"{host} answers {now}")  # noqa: B023 - called at once

    def start_head(self, host: str) -> None:
        """See Heads."""
        words = shlex.join([f"{programs.PREFIX}/bin/burstd", "--config", f"/var/lib/{host}/burstd.toml"])
        script = f"hostname {host}; echo $$ >/var/lib/{host}/pid; exec {words} >>/var/lib/{host}/log 2>&1"
        self._heads[host] = self.cluster.head.popen(["unshare", "--uts", "sh", "-c", script])

    def kill_head(self, host: str) -> None:
        """See Heads."""
        self.cluster.head.run(["sh", "-c", f"kill -KILL $(cat /var/lib/{host}/pid)"], check=False)
        self._heads.pop(host).wait(30)

    def down(self) -> None:
        """Ends the daemons, then all else."""
        for host in list(self._heads):
            self.kill_head(host)
        super().down()

    def _socket(self, host: str) -> Path:
        return self.cluster.head.path(f"/var/lib/{host}/runtime/control.sock")

    def status_of(self, host: str) -> int:
        """See Heads."""
        return head_status(self._socket(host))

    def api(self, path: str, **params: str | float) -> Any:
        """What the leader answers to root. It may have changed before it answers."""
        answers: list[httpx.Response] = []

        def is_answered() -> bool:
            leader = next((host for host in HEADS if self.status_of(host) == LEADS), "")
            if leader:
                with head_client(self._socket(leader)) as client:
                    answers.append(client.get(path, params=params, timeout=30.0))
            return bool(leader) and answers[-1].status_code != httpx.codes.SERVICE_UNAVAILABLE

        self.wait(is_answered, 30, "the answer of a head that leads")
        answers[-1].raise_for_status()
        return answers[-1].json()

    def daemon_log(self) -> str:
        """What both have said so far."""
        return self.cluster.sh(f"tail -n 40 {' '.join(f'/var/lib/{host}/log' for host in HEADS)}", check=False)

    def kill_leaders(self, kills: int, chance: random.Random) -> Account:
        """Kills the leader so often while jobs come, and waits until they have ended, each in its first run."""
        for fault in FAULTS:
            self.cloud.inject_fault(fault)
        jobs: list[str] = []
        took = kill_leaders(
            self, kills, chance,
            lambda: jobs.append(self.submit(chance.choice(WORK), f"sleep {chance.choice((0, 1, 3))}")),
        )  # fmt: skip
        wait_done(self, jobs, 120)
        inventory = wait_all_gone(self)
        return account(took, self.database, inventory.by_claim, inventory.alive, restarts(self, jobs))
