"""Every route of the control interface, by callers of all kinds: nothing of another's job comes out.

Of jobs that are not the caller's the interface is stricter than squeue: not even their ids come out, only numbers of
them. Everything of OTHER's bears the word SECRET here, wherever burstd keeps words: names, paths, reasons, alarms.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.api.app import make_app
from burstd.api.auth import Rights
from burstd.api.backend import HeldRoute, KeptNode
from burstd.db import Reader, Store
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import PolicyFailed, Remark
from burstd.domain.plugins.provider import Route
from burstd.domain.slurm.job import JobState
from burstd.domain.staging import Directives, StageIn, StageOut, Staging
from burstd.domain.staging import StageState as T
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from burstd.staging.movement.progress import Reading
from tests.api.client import Client
from tests.api.office import FakeOffice, serving
from tests.api.stages import FakeStage
from tests.api.world import MINE, NOW, OTHER, SLURM, SNAPSHOT, FixedClock, claim, job

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")

SECRET = "hush"
WHOLE, SHARED, WAITS, LEFT = "71002", "71003", "71006", "71009"
"""OTHER's jobs: alone on a machine, on one with MINE's, waiting with held data, and one that has left the queue."""
OWN = "71001"
GROUP = "games"
"""A group of Debian's own, made the administrators'."""
THIRD = "bin"
CLAIMS = (
    claim("gpu1", S.OPEN, 600, jobs=(OWN,), users=(MINE,), opened=NOW - 600, reason=f"for job {OWN}"),
    claim("gpu2", S.OPEN, 300, jobs=(WHOLE,), users=(OTHER,), opened=NOW - 300, reason=f"{SECRET} of job {WHOLE}",
          reserved=Decimal("77.77"), accounts=(SECRET,)),
    claim("gpu3", S.BOOTING, 9, jobs=(SHARED, OWN), users=(OTHER, MINE), gang=SHARED, reason=f"{SECRET}, job {SHARED}"),
)  # fmt: skip
JOBS = (
    job(OWN, MINE, JobState.RUNNING, node_list=("gpu1",), name="own"),
    job(WHOLE, OTHER, JobState.RUNNING, node_list=("gpu2",), name=SECRET, account=SECRET),
    job(SHARED, OTHER, nodes=2, cpus=16, name=SECRET),
    job(WAITS, OTHER, name=SECRET, comment=SECRET),
)
WORLD = replace(SNAPSHOT, claims=CLAIMS, slurm=replace(SLURM, jobs=JOBS), breakers=(), held_slots=frozenset())
_DECIDED = decide(WORLD, (), Tuning())
_SAID = Remark("data_locality", f"job:{WAITS}", "wait", f"/data/{SECRET} is not there")
_BUDGET = BudgetLine("user", OTHER, "month", "USD", Decimal(3), Decimal(1), Decimal(1), SECRET)
PLAN = Plan((), replace(
    _DECIDED.target, remarks=(*_DECIDED.target.remarks, _SAID), budgets=(_BUDGET, replace(_BUDGET, kind="project")),
    failed=(PolicyFailed("nights", f"KeyError: '{SECRET}'"),),
), (*_DECIDED.remarks, _SAID))  # fmt: skip
ALARM = f"the data of job {WAITS} ({OTHER}) is held: /data/{SECRET} cannot be read"
ANSWERS = {
    "/v1/status": ["/v1/status"],
    "/v1/nodes": ["/v1/nodes", "/v1/nodes?all=true"],
    "/v1/nodes/{name}": [f"/v1/nodes/{n}" for n in ("gpu1", "gpu2", "gpu3", "c-gpu2", "c-gpu3")],
    "/v1/jobs": ["/v1/jobs", f"/v1/jobs?user={OTHER}", f"/v1/jobs?user={MINE}"],
    "/v1/jobs/{job_id}": [f"/v1/jobs/{j}" for j in (OWN, WHOLE, SHARED, WAITS, LEFT)],
    "/v1/jobs/{job_id}/explanation": [f"/v1/jobs/{j}/explanation" for j in (OWN, WHOLE, SHARED, WAITS, LEFT)],
    "/v1/events": [
        "/v1/events", *(f"/v1/events?job={j}" for j in (OWN, WHOLE, SHARED, WAITS, LEFT)),
        *(f"/v1/events?node={n}" for n in ("gpu1", "gpu2", "gpu3")), "/v1/events?claim=c-gpu2",
        "/v1/events?claim=c-gpu3",
    ],
    "/v1/bill": [f"/v1/bill?group={g}" for g in ("user", "account", "job", "pool", "provider", "claim")],
    "/v1/stage": ["/v1/stage", "/v1/stage?all=true", f"/v1/stage?user={OTHER}", f"/v1/stage?all=true&user={OTHER}"],
    "/v1/stage/usage": ["/v1/stage/usage"],
    "/v1/stage/{job_id}": [f"/v1/stage/{j}" for j in (WHOLE, WAITS, LEFT)],
    "/v1/providers": ["/v1/providers"],
    "/v1/providers/{name}/offers": ["/v1/providers/sandbox/offers?all=true"],
    "/v1/routes": ["/v1/routes"],
    "/v1/policies": ["/v1/policies"],
}  # fmt: skip
"""Every route that reads, and what of it is asked for."""
BODIES: dict[str, object] = {
    "/v1/stage/evict": {"kind": "user", "name": OTHER},
    "/v1/jobs/{job_id}/routes": {"port": 8888},
    "/v1/pools/{pool}/pin": {"nodes": 1, "kind": "floor"},
    "/v1/nodes/hold": {"nodes": ["gpu2"], "reason": "x"},
    "/v1/nodes/release": {"nodes": ["gpu2"]},
    "/v1/hold": {"reason": "x"},
}


class _Stage(FakeStage):
    def progress(self) -> dict[str, tuple[Reading, ...]]:
        return {WAITS: (Reading(SECRET, "in", 1, 2, 1, 0, 1.0, None, 0.1),)}

    def kept(self) -> tuple[KeptNode, ...]:
        return (KeptNode("gpu2", WHOLE, OTHER, NOW + 7200, SECRET),)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A record in which all this has happened."""
    path, clock = tmp_path_factory.mktemp("record") / "burstd.db", FixedClock(NOW - 9000)
    asked = Directives((StageIn(f"/data/{SECRET}", SECRET),), (StageOut(f"*.{SECRET}", f"/home/{SECRET}"),))
    with Store.open(path, clock) as store:
        store.make_claims([replace(c, state=S.PLANNED, opened=None, billed_until=None) for c in CLAIMS])
        for c in CLAIMS:
            store.move(c.id, S.PLANNED, S.LAUNCHING, c.reason)
            store.move(c.id, S.LAUNCHING, S.BOOTING, c.reason, billed_from=clock.time)
        for number in (WHOLE, WAITS, LEFT):
            store.make_staging(Staging(number, OTHER, 1, 1, asked, T.WAITING, clock.time, clock.time, "site", SECRET,
                                       f"/home/{SECRET}", reason=SECRET))  # fmt: skip
            store.move_staging(number, T.WAITING, T.SENDING, SECRET)
            store.move_staging(
                number, T.SENDING, T.HELD, SECRET, error=f"/data/{SECRET} cannot be read", resume="sending"
            )
        users = {f"job:{j.id}": j.user for j in JOBS} | {f"job:{LEFT}": OTHER}
        store.record_remarks([*PLAN.remarks, replace(_SAID, subject=f"job:{LEFT}")], lambda s: users.get(s, ""))
        clock.time = NOW
    with Reader.open(path, FixedClock()) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(reader: Reader) -> Iterator[tuple[FakeOffice, Path]]:
    with serving(reader, GROUP) as (office, path):
        office.last, office.stage, office.alarms = (WORLD, PLAN), _Stage(), (ALARM,)
        office.routes.open_ones = [HeldRoute("sandbox", Route(WHOLE, 8888, "i-gpu2", f"https://{SECRET}.example"))]
        yield office, path


def paths(office: FakeOffice) -> dict[str, set[str]]:
    """Every route of the interface, with its methods."""
    return {path: set(methods) for path, methods in make_app(office, Rights(GROUP)).openapi()["paths"].items()}


def answers(path: Path, user: str, group: str = "") -> dict[str, tuple[int, str]]:
    """What one caller is told at every route that reads: status and text, by address."""
    found = {}
    account = pwd.getpwnam(user)
    gid = grp.getgrnam(group).gr_gid if group else account.pw_gid
    for urls in ANSWERS.values():
        for url in urls:
            with Client(path, account.pw_uid, gid) as client:
                status, said = client.ask("GET", url)
            found[url] = status, json.dumps(said)
    return found


def test_every_route_is_asked(served: tuple[FakeOffice, Path]) -> None:
    assert {path for path, methods in paths(served[0]).items() if "get" in methods} == ANSWERS.keys()


@pytest.mark.parametrize("user", [MINE, THIRD])
def test_another_user_learns_nothing_of_a_job(served: tuple[FakeOffice, Path], user: str) -> None:
    numbers = re.compile(rf"\b({WHOLE}|{SHARED}|{WAITS}|{LEFT})\b|77\.77")
    for url, (status, text) in answers(served[1], user).items():
        assert status in (200, 403, 404), (url, text)
        assert SECRET not in text, (url, text)
        echoed = any(number in url for number in (WHOLE, SHARED, WAITS, LEFT))
        assert (status != 200) if echoed else numbers.search(text) is None, (url, text)


@pytest.mark.parametrize(("user", "group"), [("root", ""), (THIRD, GROUP)])
def test_administrators_see_all_of_it(served: tuple[FakeOffice, Path], user: str, group: str) -> None:
    said = answers(served[1], user, group)
    assert {status for status, _ in said.values()} == {200}
    assert ALARM in said["/v1/status"][1]
    telling = {url.partition("?")[0] for url, (_, text) in said.items() if SECRET in text}
    assert telling >= {"/v1/status", "/v1/nodes", "/v1/jobs", f"/v1/jobs/{WAITS}/explanation", "/v1/events", "/v1/bill",
                       "/v1/stage", f"/v1/stage/{WAITS}", "/v1/routes"}  # fmt: skip


def test_the_owner_sees_his_own(served: tuple[FakeOffice, Path]) -> None:
    said = answers(served[1], OTHER)
    telling = {url for url, (_, text) in said.items() if SECRET in text}
    assert telling >= {"/v1/status", "/v1/nodes", "/v1/jobs", f"/v1/jobs/{LEFT}", f"/v1/events?job={WHOLE}",
                       "/v1/stage", f"/v1/stage/{WAITS}", "/v1/routes", "/v1/bill?group=user"}  # fmt: skip
    alarms = json.loads(said["/v1/status"][1])["alarms"]
    held = f"the data of job {WAITS} is held: /data/{SECRET} cannot be read"
    assert f"{held}; once that is mended it goes on with 'burstctl stage retry {WAITS}'" in alarms
    assert ALARM not in alarms  # it names others as well


@pytest.mark.parametrize("user", [MINE, THIRD])
def test_nobody_acts_on_what_is_anothers(served: tuple[FakeOffice, Path], user: str) -> None:
    office, path = served
    held = list(office.routes.open_ones)
    office.asked.clear()
    for route, methods in paths(office).items():
        for method in sorted(methods - {"get"}):
            url = re.sub(r"\{(\w+)\}", lambda part: {"job_id": WHOLE, "pool": "gpu"}.get(part[1], "sandbox"), route)
            with Client(path, pwd.getpwnam(user).pw_uid) as client:
                status, said = client.ask(method.upper(), url, BODIES.get(route))
            assert status in (403, 404), (method, url, status, said)
            assert SECRET not in json.dumps(said), (method, url, said)
    assert (office.asked, office.routes.open_ones) == ([], held)
