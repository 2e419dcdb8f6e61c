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
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest

from burstd.api.app import create_api_app
from burstd.api.auth import Authorizer
from burstd.db import Store, StoreReader
from burstd.db.repositories.bill import BillGrouping
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.claim import ClaimState as S
from burstd.domain.job_use import JobUse, NodeUse
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import PolicyFailed, Remark
from burstd.domain.plugins.provider import Route
from burstd.domain.project import Project, ProjectsView
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.job_history import EndedJob
from burstd.domain.staging import Directives, StageIn, StageOut, Staging
from burstd.domain.staging import StageState as T
from burstd.domain.volume import Volume, VolumeState
from burstd.planner.decide import decide
from burstd.planner.site_history import site_figures
from burstd.planner.timeouts import Tuning
from burstd.reconciler.pollers.ingress import ProviderRoute
from burstd.staging.controller.service import RetainedNode
from burstd.staging.controller.tasks import MeterReading
from tests.api.client import ApiTestClient
from tests.api.fake_backend import FakeBackend, serving_api
from tests.api.stages import FakeStaging
from tests.api.world import NOW, OTHER_USER, SLURM, SNAPSHOT, USER, FixedClock, claim, job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user"),
]

SECRET = "hush"
WHOLE, SHARED, WAITS, LEFT = "71002", "71003", "71006", "71009"
"""OTHER's jobs: alone on a machine, on one with MINE's, waiting with held data, and one that has left the queue."""
OWN = "71001"
GROUP = "games"
"""A group of Debian's own, made the administrators'."""
THIRD = "bin"
CLAIMS = (
    claim("gpu1", S.IN_SERVICE, 600, jobs=(OWN,), users=(USER,), in_service_from=NOW - 600, reason=f"for job {OWN}"),
    claim(
        "gpu2",
        S.IN_SERVICE,
        300,
        jobs=(WHOLE,),
        users=(OTHER_USER,),
        in_service_from=NOW - 300,
        reason=f"{SECRET} of job {WHOLE}",
        reserved=Decimal("77.77"),
        accounts=(SECRET,),
    ),
    claim(
        "gpu3",
        S.BOOTING,
        9,
        jobs=(SHARED, OWN),
        users=(OTHER_USER, USER),
        gang=SHARED,
        reason=f"{SECRET}, job {SHARED}",
    ),
)
JOBS = (
    job(OWN, USER, JobState.RUNNING, node_list=("gpu1",), name="own"),
    job(WHOLE, OTHER_USER, JobState.RUNNING, node_list=("gpu2",), name=SECRET, account=SECRET),
    job(SHARED, OTHER_USER, nodes=2, cpus=16, name=SECRET, partitions=("burst", "q-a")),
    job(WAITS, OTHER_USER, name=SECRET, comment=SECRET),
)
PROJECTS = ProjectsView({"a": Project("a", "phys", Fraction(4), partitions=("burst",))})
WORLD = replace(
    SNAPSHOT, claims=CLAIMS, slurm=replace(SLURM, jobs=JOBS), breakers=(), drained_slots=frozenset(), projects=PROJECTS
)  # fmt: skip
_DECIDED = decide(WORLD, (), Tuning())
_SAID = Remark("data_locality", f"job:{WAITS}", "wait", f"/data/{SECRET} is not there")
_BUDGET = BudgetLine("user", OTHER_USER, "month", "USD", Decimal(3), Decimal(1), Decimal(1), SECRET)
PLAN = Plan((), replace(
    _DECIDED.target, remarks=(*_DECIDED.target.remarks, _SAID), budgets=(_BUDGET, replace(_BUDGET, kind="project")),
    failed_policies=(PolicyFailed("nights", f"KeyError: '{SECRET}'"),),
), (*_DECIDED.remarks, _SAID))  # fmt: skip
ALARM = f"the data of job {WAITS} ({OTHER_USER}) is held: /data/{SECRET} cannot be read"
ANSWERS = {
    "/v1/status": ["/v1/status"],
    "/v1/nodes": ["/v1/nodes", "/v1/nodes?all=true", "/v1/nodes?search=gpu&sort=state&limit=3&offset=1"],
    "/v1/nodes/{name}": [f"/v1/nodes/{n}" for n in ("gpu1", "gpu2", "gpu3", "c-gpu2", "c-gpu3")],
    "/v1/nodes/{name}/logs": ["/v1/nodes/gpu1/logs", "/v1/nodes/gpu2/logs"],
    "/v1/jobs": [
        "/v1/jobs",
        f"/v1/jobs?user={OTHER_USER}",
        f"/v1/jobs?user={USER}",
        "/v1/jobs?sort=user&limit=3",
        f"/v1/jobs?search={OTHER_USER}",
    ],
    "/v1/jobs/{job_id}": [f"/v1/jobs/{j}" for j in (OWN, WHOLE, SHARED, WAITS, LEFT)],
    "/v1/jobs/{job_id}/explanation": [f"/v1/jobs/{j}/explanation" for j in (OWN, WHOLE, SHARED, WAITS, LEFT)],
    "/v1/jobs/{job_id}/use": [f"/v1/jobs/{WHOLE}/use", f"/v1/jobs/{LEFT}/use?series=true"],
    "/v1/jobs/{job_id}/use/plot": [f"/v1/jobs/{LEFT}/use/plot"],
    "/v1/events": [
        "/v1/events",
        *(f"/v1/events?job={j}" for j in (OWN, WHOLE, SHARED, WAITS, LEFT)),
        *(f"/v1/events?node={n}" for n in ("gpu1", "gpu2", "gpu3")),
        "/v1/events?claim=c-gpu2",
        "/v1/events?claim=c-gpu3",
    ],
    "/v1/bill": [f"/v1/bill?group={g}" for g in (*get_args(BillGrouping),)],
    "/v1/bill/forecast": ["/v1/bill/forecast"],
    "/v1/compare": ["/v1/compare", f"/v1/compare?job={LEFT}"],
    "/v1/bill/charges": ["/v1/bill/charges", "/v1/bill/charges?limit=1"],
    "/v1/bill/sheet": ["/v1/bill/sheet"],
    "/v1/bill/site-charges": ["/v1/bill/site-charges"],
    "/v1/bill/months/{month}": ["/v1/bill/months/2026-08"],
    "/v1/bill/months/{month}/charges": ["/v1/bill/months/2026-08/charges?day=2026-08-01"],
    "/v1/history": ["/v1/history", "/v1/history?series=*", "/v1/history?series=account/*&series=project/*"],
    "/v1/projects": ["/v1/projects"],
    "/v1/projects/{name}": ["/v1/projects/a"],
    "/v1/stage": [
        "/v1/stage",
        "/v1/stage?all=true",
        f"/v1/stage?user={OTHER_USER}",
        f"/v1/stage?all=true&user={OTHER_USER}",
    ],
    "/v1/stage/usage": ["/v1/stage/usage"],
    "/v1/stage/{job_id}": [f"/v1/stage/{j}" for j in (WHOLE, WAITS, LEFT)],
    "/v1/volumes": ["/v1/volumes", f"/v1/volumes?user={OTHER_USER}"],
    "/v1/volumes/{name}": [f"/v1/volumes/corpus?user={OTHER_USER}"],
    "/v1/node-faults": ["/v1/node-faults"],
    "/v1/providers": ["/v1/providers"],
    "/v1/providers/{name}/offers": ["/v1/providers/sandbox/offers?all=true"],
    "/v1/routes": ["/v1/routes"],
    "/v1/policies": ["/v1/policies"],
    "/v1/reference": ["/v1/reference"],
}
"""Every route that reads, and what of it is asked for."""
QUESTIONS = {"/v1/quote"}
"""Their body is what is asked: they act on nothing."""
BODIES: dict[str, object] = {
    "/v1/stage/evict": {"kind": "user", "name": OTHER_USER},
    "/v1/jobs/{job_id}/routes": {"port": 8888},
    "/v1/pools/{pool}/pin": {"nodes": 1, "kind": "floor"},
    "/v1/nodes/hold": {"nodes": ["gpu2"], "reason": "x"},
    "/v1/nodes/release": {"nodes": ["gpu2"]},
    "/v1/hold": {"reason": "x"},
    "/v1/providers/{name}/forget": {"zone": "north", "instance_type": "g4"},
    "post /v1/projects/{name}": {"values": {"quota": 2}},
    "put /v1/projects/{name}": {"values": {"quota": 2}},
    "delete /v1/projects/{name}": {},
}


class _Stage(FakeStaging):
    def transfer_progress(self) -> dict[str, tuple[MeterReading, ...]]:
        return {WAITS: (MeterReading(SECRET, "in", 1, 2, 1, 0, 1.0, None, 0.1),)}

    def retained_nodes(self) -> tuple[RetainedNode, ...]:
        return (RetainedNode("gpu2", WHOLE, OTHER_USER, NOW + 7200, SECRET),)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreReader]:
    """A record in which all this has happened."""
    path, clock = tmp_path_factory.mktemp("record") / "burstd.db", FixedClock(NOW - 9000)
    asked = Directives((StageIn(f"/data/{SECRET}", SECRET),), (StageOut(f"*.{SECRET}", f"/home/{SECRET}"),))
    with Store.open(path, clock) as store:
        store.make_claims([replace(c, state=S.PLANNED, in_service_from=None, billed_until=None) for c in CLAIMS])
        for c in CLAIMS:
            store.transition_claim(c.id, S.PLANNED, S.LAUNCHING, c.reason)
            store.transition_claim(c.id, S.LAUNCHING, S.BOOTING, c.reason, billed_from=clock.time)
        for number in (WHOLE, WAITS, LEFT):
            store.make_staging(
                Staging(
                    number,
                    OTHER_USER,
                    1,
                    1,
                    asked,
                    T.WAITING,
                    clock.time,
                    clock.time,
                    "site",
                    SECRET,
                    f"/home/{SECRET}",
                    reason=SECRET,
                )
            )
            store.transition_staging(number, T.WAITING, T.UPLOADING, SECRET)
            store.transition_staging(
                number, T.UPLOADING, T.HELD, SECRET, error=f"/data/{SECRET} cannot be read", resume="sending"
            )
        volume = Volume(
            "v-1", "corpus", OTHER_USER, 1, 1, "site", 1, VolumeState.PLANNED, clock.time, clock.time, SECRET
        )
        store.make_volume(volume)
        store.record_ended_jobs(
            [EndedJob(LEFT, OTHER_USER, SECRET, SECRET, (), 1, 1, 0, 0.0, NOW - 99, NOW - 80, NOW - 60, burst=True)]
        )
        store.save_job_uses(
            [
                JobUse(
                    job,
                    job,
                    0,
                    OTHER_USER,
                    SECRET,
                    "burst",
                    (NodeUse(SECRET, 8, 9, NOW - 99, NOW, 1.0, 0.1, 1.0, 7, 7),),
                    1,
                    NOW - 99,
                )
                for job in (WHOLE, LEFT)
            ]
        )
        users = {f"job:{j.id}": j.user for j in JOBS} | {f"job:{LEFT}": OTHER_USER}
        store.record_remarks([*PLAN.remarks, replace(_SAID, subject=f"job:{LEFT}")], lambda s: users.get(s, ""))
        clock.time = NOW - 60
        store.record_site_figures(clock.time, site_figures(WORLD, PLAN, ()), thin=True)
        clock.time = NOW
    with StoreReader.open(path, FixedClock()) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(reader: StoreReader) -> Iterator[tuple[FakeBackend, Path]]:
    with serving_api(reader, GROUP) as (backend, path):
        backend.loop, backend.stage, backend.alarms = (WORLD, PLAN), _Stage(), (ALARM,)
        backend.validator.logs = {"gpu1": SECRET, "gpu2": SECRET}
        backend.routes.routes = [ProviderRoute("sandbox", Route(WHOLE, 8888, "i-gpu2", f"https://{SECRET}.example"))]
        yield backend, path


def paths(backend: FakeBackend) -> dict[str, set[str]]:
    """Every route of the interface, with its methods."""
    return {
        path: set(methods) for path, methods in create_api_app(backend, Authorizer(GROUP)).openapi()["paths"].items()
    }


def answers(path: Path, user: str, group: str = "") -> dict[str, tuple[int, str]]:
    """What one caller is told at every route that reads: status and text, by address."""
    found = {}
    account = pwd.getpwnam(user)
    gid = grp.getgrnam(group).gr_gid if group else account.pw_gid
    with ApiTestClient(path, account.pw_uid, gid) as client:
        for urls in ANSWERS.values():
            for url in urls:
                status, said = client.request("GET", url)
                found[url] = status, json.dumps(said)
    return found


def test_every_route_is_asked(served: tuple[FakeBackend, Path]) -> None:
    assert {path for path, methods in paths(served[0]).items() if "get" in methods} == ANSWERS.keys()


@pytest.mark.parametrize("user", [USER, THIRD])
def test_another_user_learns_nothing_of_a_job(served: tuple[FakeBackend, Path], user: str) -> None:
    numbers = re.compile(rf"\b({WHOLE}|{SHARED}|{WAITS}|{LEFT})\b|77\.77")
    for url, (status, text) in answers(served[1], user).items():
        assert status in (200, 403, 404), (url, text)
        assert SECRET not in text, (url, text)
        echoed = any(number in url for number in (WHOLE, SHARED, WAITS, LEFT))
        assert (status != 200) if echoed else numbers.search(text) is None, (url, text)


@pytest.mark.parametrize(("user", "group"), [("root", ""), (THIRD, GROUP)])
def test_administrators_see_all_of_it(served: tuple[FakeBackend, Path], user: str, group: str) -> None:
    said = answers(served[1], user, group)
    # No month is closed.
    assert {status for url, (status, _) in said.items() if "/months/" not in url} == {200}
    assert ALARM in said["/v1/status"][1]
    telling = {url.partition("?")[0] for url, (_, text) in said.items() if SECRET in text}
    assert telling >= {f"/v1/jobs/{WHOLE}/use", f"/v1/jobs/{LEFT}/use", "/v1/compare"}
    assert telling >= {"/v1/status", "/v1/nodes", "/v1/jobs", f"/v1/jobs/{WAITS}/explanation", "/v1/events", "/v1/bill",
                       "/v1/stage", f"/v1/stage/{WAITS}", "/v1/routes", "/v1/history"}  # fmt: skip


def test_the_owner_sees_his_own(served: tuple[FakeBackend, Path]) -> None:
    said = answers(served[1], OTHER_USER)
    telling = {url for url, (_, text) in said.items() if SECRET in text}
    assert f"/v1/jobs/{LEFT}/use?series=true" in telling
    assert telling >= {"/v1/status", "/v1/nodes", "/v1/jobs", f"/v1/jobs/{LEFT}", f"/v1/events?job={WHOLE}",
                       "/v1/stage", f"/v1/stage/{WAITS}", "/v1/routes", "/v1/bill?group=user"}  # fmt: skip
    alarms = json.loads(said["/v1/status"][1])["alarms"]
    held = f"the data of job {WAITS} is held: /data/{SECRET} cannot be read"
    assert f"{held}; repair this and run 'burstctl stage retry {WAITS}'" in alarms
    assert ALARM not in alarms  # it names others as well


@pytest.mark.parametrize("user", [USER, THIRD])
def test_nobody_acts_on_what_is_anothers(served: tuple[FakeBackend, Path], user: str) -> None:
    backend, path = served
    held = list(backend.routes.routes)
    backend.commands.clear()
    acting = {route: methods for route, methods in paths(backend).items() if route not in QUESTIONS}
    with ApiTestClient(path, pwd.getpwnam(user).pw_uid) as client:
        for route, methods in acting.items():
            for method in sorted(methods - {"get"}):
                url = re.sub(r"\{(\w+)\}", lambda part: {"job_id": WHOLE, "pool": "gpu"}.get(part[1], "sandbox"), route)
                body = BODIES.get(route, BODIES.get(f"{method} {route}"))
                status, said = client.request(method.upper(), url, body)
                assert status in (403, 404), (method, url, status, said)
                assert SECRET not in json.dumps(said), (method, url, said)
    assert (backend.commands, backend.routes.routes) == ([], held)
