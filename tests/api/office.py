"""A daemon made of values: the last loop is given, the record is a real one, commands are written down."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from burstd.api.backend import (
    CHECK_TIMEOUT_S,
    COMMAND_TIMEOUT_S,
    CheckUnderWay,
    Facts,
    HeldRoute,
    PolicyState,
    PolicyStates,
    Records,
    StageOffice,
)
from burstd.api.server import ControlServer
from burstd.db import Reader, Store
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.command import Command, CommandResult, PlanNow, TryPolicies
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark, Target, dropped
from burstd.domain.plugins.provider import Finding, Route
from burstd.domain.snapshot import Snapshot
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from burstd.runtime.sockets import listen

from .stages import stage_data
from .world import CLAIMS, CLUSTER, JOBS, MINE, NOW, OTHER, SNAPSHOT, FixedClock, claim

PLAN = decide(SNAPSHOT, (), Tuning())
_TARGET = PLAN.target
_NIGHT = dropped(_TARGET.wants[0], "nights", "it is night")
CAUTIOUS = Plan((), Target((), (), _NIGHT), _NIGHT)
"""What other policies would have: nothing of what the first one wants."""
GONE = claim("gpu7", S.GONE, 5000, jobs=("90",), users=(MINE,), billed_until=NOW - 5000)
LIFE = (S.PLANNED, S.LAUNCHING, S.BOOTING, S.PROVING, S.READY, S.OPEN, S.CLOSING, S.TERMINATING, S.GONE)


def carried_out(command: Command) -> CommandResult:
    return CommandResult(f"Carried out {type(command).__name__}.")


class FakeChecks:
    """Of the clouds, ``sky`` looks at itself; it finds the images that it was given. ``busy``: it is looking."""

    def __init__(self) -> None:
        self.busy = False
        self.found: tuple[Finding, ...] = (
            Finding("credentials", True, "user burstd of account 7"),
            Finding("quota", False, "room for no machine", "ask for more"),
            Finding("terminate", None, "no machine to try it on"),
        )

    def able(self) -> Mapping[str, bool]:
        return {"sandbox": False, "sky": True}

    def run(self, name: str, images: Sequence[str], timeout_s: float = CHECK_TIMEOUT_S) -> Sequence[Finding]:
        assert (name, timeout_s) == ("sky", CHECK_TIMEOUT_S)
        if self.busy:
            raise CheckUnderWay("a check of provider sky is under way")
        return (*self.found, *(Finding(f"image {image}", True, "is there") for image in images))


class FakeRoutes:
    """Of the clouds, ``sandbox`` has routes unless ``none``; ``refuses``: what it says instead of opening one."""

    def __init__(self) -> None:
        self.none = False
        self.refuses: Exception | None = None
        self.open_ones: list[HeldRoute] = []

    def able(self, provider: str) -> bool:
        return provider == "sandbox" and not self.none

    def open(self, claim: Claim, job_id: str, port: int) -> HeldRoute:
        if self.refuses is not None:
            raise self.refuses
        url = f"https://job{job_id}-{port}.apps.example"
        made = HeldRoute(claim.offer.provider, Route(job_id, port, claim.instance_id, url))
        if made not in self.open_ones:
            self.open_ones.append(made)
        return made

    def held(self) -> Sequence[HeldRoute]:
        return self.open_ones

    def end(self, held: Sequence[HeldRoute]) -> None:
        self.open_ones = [one for one in self.open_ones if one not in held]


class FakePolicies:
    """One in the chain that works, one that fails, one that is not in it."""

    def states(self) -> PolicyStates:
        nights = "/etc/burstd/policies/nights.py"
        return PolicyStates(
            "/etc/burstd/policies", 5.0,
            (
                PolicyState("idle", "burstd 0.1.0", 1, False, {"keep_alive_s": 300.0}, 0.0021),
                PolicyState("nights", nights, 2, True, {"from_h": 22, "token": "abc"}, 0.4, True, NOW - 12,
                            f"{nights}:12: NameError: name 'foo' is not defined"),
                PolicyState("limits", "burstd 0.1.0"),
            ),
            ("/etc/burstd/policies/days.py:3: SyntaxError: invalid syntax",), (nights,),
            ("/usr/lib/x.py has changed since burstd started, and idle goes on as it was",),
        )  # fmt: skip


@dataclass
class FakeOffice:
    """``answer`` says what comes of a command; ``asked`` is every command so far."""

    reader: Records
    last: tuple[Snapshot, Plan] | None = (SNAPSHOT, PLAN)
    stage: StageOffice | None = None
    alarms: tuple[str, ...] = ()
    asked: list[Command] = field(default_factory=list)
    answer: Callable[[Command], CommandResult] = carried_out
    checks: FakeChecks = field(default_factory=FakeChecks)
    routes: FakeRoutes = field(default_factory=FakeRoutes)
    policies: FakePolicies = field(default_factory=FakePolicies)

    def reset(self) -> None:
        """As new; one server serves many tests."""
        self.last, self.alarms, self.asked, self.answer = (SNAPSHOT, PLAN), (), [], carried_out
        self.stage, self.checks, self.routes = None, FakeChecks(), FakeRoutes()

    def now(self) -> float:
        return NOW

    def facts(self) -> Facts:
        return Facts("0.1.0", CLUSTER, NOW - 3700, "22.05.8", self.alarms, {"sandbox": 2}, "/etc/burstd/burstd.toml",
                     {"idle": 0.0021})  # fmt: skip

    def latest(self) -> tuple[Snapshot, Plan] | None:
        return self.last

    def command(self, command: Command, timeout_s: float = COMMAND_TIMEOUT_S) -> CommandResult:
        assert timeout_s > 0
        self.asked.append(command)
        if isinstance(command, PlanNow):
            return CommandResult("", planned=(SNAPSHOT, PLAN))
        if isinstance(command, TryPolicies) and self.answer is carried_out:
            return CommandResult("", compared=(SNAPSHOT, PLAN, CAUTIOUS))
        return self.answer(command)


@contextmanager
def record_of_the_world() -> Iterator[Reader]:
    """A record in which the world's claims have lived so far, open for reading."""
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        path, clock = Path(folder) / "burstd.db", FixedClock(NOW - 10_000)
        with Store.open(path, clock) as store:
            for made in (GONE, *CLAIMS):
                _live(store, clock, made)
            stage_data(store, clock)
            clock.time = NOW - 1
            store.hold(["gpu8"], "user:root", "fan is loud")
            left = Remark("placement", "job:88", "impossible", "no pool has four h100")
            users = {f"job:{job.id}": job.user for job in JOBS} | {"job:88": MINE}
            store.record_remarks([*PLAN.remarks, left], lambda subject: users.get(subject, ""))
            store.record_remarks([replace(left, subject="job:89", reason="of old")])
            store.record_remarks([replace(left, subject="job:89")], lambda _: OTHER)
            store.record_remarks([replace(left, subject="job:89", reason="five")], lambda _: MINE)
        with Reader.open(path, FixedClock()) as reader:
            yield reader


@contextmanager
def serving(record: Reader, admin_group: str = "") -> Iterator[tuple[FakeOffice, Path]]:
    """A daemon and its control socket, in a folder that every user can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        Path(folder).chmod(0o755)
        path, office = Path(folder) / "control.sock", FakeOffice(record)
        server = ControlServer(office, admin_group, listen(path, {}))
        server.start()
        try:
            yield office, path
        finally:
            server.stop()


def _live(store: Store, clock: FixedClock, claim: Claim) -> None:
    clock.time = claim.created
    store.make_claims([replace(claim, state=S.PLANNED, since=claim.created, opened=None, billed_until=None)])
    path = LIFE[: LIFE.index(claim.state) + 1]
    for old, new in pairwise(path):
        clock.time = claim.since if new is claim.state else claim.created + 1
        if new is S.GONE:
            store.move(claim.id, old, new, claim.reason, billed_until=claim.billed_until)
        else:
            store.move(claim.id, old, new, claim.reason)
