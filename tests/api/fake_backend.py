"""A daemon made of values: the last loop is given, the record is a real one, commands are written down."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

from burstd.api.answers.notify import WayTestView
from burstd.api.answers.policies import PoliciesView, PolicyView
from burstd.api.app import create_api_app
from burstd.api.auth import Authorizer
from burstd.api.backend import COMMAND_TIMEOUT_S, Backend, DaemonInfo
from burstd.api.server import ApiServer
from burstd.db import Store, StoreReader
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import Payer
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Pool
from burstd.domain.command import Command, CommandResult, PlanNow, TryPolicies
from burstd.domain.errors import NodeNotReady, SchedulerRefused
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark, Target, remarks_on_dropped_want
from burstd.domain.plugins.provider import Finding, Route
from burstd.domain.project import Project, ProjectOverride, SetupStep
from burstd.domain.snapshot import Snapshot
from burstd.node.expected import CheckFailure
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from burstd.reconciler.pollers.ingress import JobIngress, ProviderRoute
from burstd.reconciler.pollers.projects import ProjectSync
from burstd.reconciler.pollers.provider_checks import PROVIDER_CHECK_TIMEOUT_S, CheckInProgress, ProviderChecks
from burstd.runtime.sockets import listen
from burstd.slurm.projects import SlurmProjects
from burstd.web.app import install_pages

from .stages import write_stagings
from .world import CLAIMS, CLUSTER, JOBS, NOW, OTHER_USER, SNAPSHOT, USER, FixedClock, claim

PLAN = decide(SNAPSHOT, (), Tuning())
_TARGET = PLAN.target
_NIGHT = remarks_on_dropped_want(_TARGET.wants[0], "nights", "it is night")
STRICTER_PLAN = Plan((), Target((), (), _NIGHT), _NIGHT)
"""What other policies would have: nothing of what the first one wants."""
GONE = claim("gpu7", S.GONE, 5000, jobs=("90",), users=(USER,), billed_until=NOW - 5000)
STATE_ORDER = (
    S.PLANNED,
    S.LAUNCHING,
    S.BOOTING,
    S.VALIDATING,
    S.READY,
    S.IN_SERVICE,
    S.DRAINING,
    S.TERMINATING,
    S.GONE,
)


OVERRIDES = (
    ProjectOverride("a", {"quota": "4"}, False, SetupStep.NONE, "user:root", NOW - 60),
    ProjectOverride("e", {"account": "team-e"}, True, SetupStep.SET_UP, "user:root", NOW - 50),
)
"""Of the projects of the record: one of burstd.toml that was changed, and one that burstctl is making."""


def accept_command(command: Command) -> CommandResult:
    return CommandResult(f"Carried out {type(command).__name__}.")


class FakeProviderChecks(ProviderChecks):
    """Of the clouds, ``sky`` looks at itself; it finds the images that it was given. ``busy``: it is looking."""

    def __init__(self) -> None:
        self.busy = False
        self.findings: tuple[Finding, ...] = (
            Finding("credentials", True, "user burstd of account 7"),
            Finding("quota", False, "room for no machine", "ask for more"),
            Finding("terminate", None, "no machine to try it on"),
        )

    def self_check_support(self) -> Mapping[str, bool]:
        return {"sandbox": False, "sky": True}

    def run_check(
        self, name: str, images: Sequence[str], timeout_s: float = PROVIDER_CHECK_TIMEOUT_S
    ) -> tuple[Finding, ...]:
        assert (name, timeout_s) == ("sky", PROVIDER_CHECK_TIMEOUT_S)
        if self.busy:
            raise CheckInProgress("a check of provider sky is under way")
        return (*self.findings, *(Finding(f"image {image}", True, "is there") for image in images))


class FakeValidator(SlurmNodeValidator):
    """``found``: how nodes differ, or why they cannot be entered; those not in it differ in nothing."""

    def __init__(self) -> None:
        site = ValidatorConfig(
            Path("/none"), Path("/none"), Path("/none"), "", sentinels=("/cvmfs/one/versions",), modules=("GCC",)
        )
        super().__init__(site, slurm_version=lambda: (22, 5, 8), wall=lambda: NOW)
        self.found: dict[str, list[CheckFailure] | NodeNotReady] = {}
        self.logs: dict[str, str] = {}
        """Of each machine, as its console and slurmd have it; others cannot be entered."""

    def differences(self, claim: Claim, pool: Pool) -> list[CheckFailure]:
        assert claim.pool == pool.name
        found = self.found.get(claim.slot, [])
        if isinstance(found, NodeNotReady):
            raise found
        return found

    def console(self, claim: Claim) -> str:
        if claim.slot not in self.logs:
            raise NodeNotReady(f"{claim.slot} does not answer")
        return self.logs[claim.slot]

    slurmd_log = console


class FakeSlurmProjects(SlurmProjects):
    """``refuses``: what Slurm says instead of taking a project."""

    def __init__(self) -> None:
        self.refuses = ""

    def plan_setup(self, project: Project) -> tuple[str, ...]:
        if self.refuses:
            raise SchedulerRefused(self.refuses)
        return (f"sacctmgr -i add qos {project.quota_partition}", f"scontrol create PartitionName=q-{project.name}")

    def plan_removal(self, project: Project) -> tuple[str, ...]:
        return (f"scontrol delete PartitionName={project.quota_partition}",)


class FakeProjectSync(ProjectSync):
    """``failures``: why Slurm's side of a project is not set up."""

    slurm: FakeSlurmProjects

    def __init__(self) -> None:
        self.slurm = FakeSlurmProjects()
        self.failures: dict[str, str] = {}

    def errors(self) -> Mapping[str, str]:
        return self.failures


class FakeIngress(JobIngress):
    """Of the clouds, ``sandbox`` has routes unless ``none``; ``refuses``: what it says instead of opening one."""

    def __init__(self) -> None:
        self.unsupported = False
        self.refuses: Exception | None = None
        self.routes: list[ProviderRoute] = []

    def supports_routes(self, provider: str) -> bool:
        return provider == "sandbox" and not self.unsupported

    def open_route(self, claim: Claim, job_id: str, port: int) -> ProviderRoute:
        if self.refuses is not None:
            raise self.refuses
        url = f"https://job{job_id}-{port}.apps.example"
        made = ProviderRoute(claim.offer.provider, Route(job_id, port, claim.instance_id, url))
        if made not in self.routes:
            self.routes.append(made)
        return made

    def list_routes(self) -> Sequence[ProviderRoute]:
        return self.routes

    def close_routes(self, routes: Sequence[ProviderRoute]) -> None:
        self.routes = [one for one in self.routes if one not in routes]


def policies_view(now: float) -> PoliciesView:
    """One in the chain that works, one that fails, one that is not in it."""
    nights = "/etc/burstd/policies/nights.py"
    return PoliciesView(
        now=now,
        folder="/etc/burstd/policies",
        timeout_s=5.0,
        policies=[
            PolicyView(name="idle", origin="burstd 0.1.0", place=1, settings={"keep_alive_s": 300.0}, took_s=0.0021),
            PolicyView(
                name="nights", origin=nights, place=2, hard=True, settings={"from_h": 22, "token": "***"}, took_s=0.4,
                failing=True, failed_at=NOW - 12, error=f"{nights}:12: NameError: name 'foo' is not defined",
            ),
            PolicyView(name="limits", origin="burstd 0.1.0"),
        ],
        warnings=["/etc/burstd/policies/days.py:3: SyntaxError: invalid syntax"],
        unread=[nights],
        restart=["/usr/lib/x.py has changed since burstd started, and idle goes on as it was"],
    )  # fmt: skip


class FakeBackend(Backend):
    """``answer`` says what comes of a command; ``commands`` is every command so far."""

    checks: FakeProviderChecks
    routes: FakeIngress
    validator: FakeValidator
    project_sync: FakeProjectSync

    def __init__(self, reader: StoreReader) -> None:
        super().__init__(
            reader=reader, clock=FixedClock(), daemon_info=self._info, latest_loop=lambda: self.loop,
            wake=lambda: None, wake_to_answer=lambda: None, checks=FakeProviderChecks(), routes=FakeIngress(),
            policies_view=policies_view, validator=FakeValidator(),
            projects_in_force=lambda: self.loop[0].projects.projects if self.loop else {},
            project_sync=FakeProjectSync(), test_notifications=self._test_notifications,
            collect_s=lambda: self.collect_every_s,
        )  # fmt: skip
        self.reset()

    def reset(self) -> None:
        """As new; one server serves many tests."""
        self.loop: tuple[Snapshot, Plan] | None = (SNAPSHOT, PLAN)
        self.alarms: tuple[str, ...] = ()
        self.collect_every_s: float | None = 180.0
        self.commands: list[Command] = []
        self.answer: Callable[[Command], CommandResult] = accept_command
        self.between_decisions.set()
        self.stage, self.checks, self.routes = None, FakeProviderChecks(), FakeIngress()
        self.validator = FakeValidator()
        self.project_sync = FakeProjectSync()

    def _test_notifications(self, by: str) -> list[WayTestView]:
        return [WayTestView(way="mail", error="", took_s=0.1), WayTestView(way="program", error=f"by {by}", took_s=2)]

    def _info(self) -> DaemonInfo:
        return DaemonInfo(
            "0.1.0", CLUSTER, NOW - 3700, self.alarms, {"sandbox": 2}, "/etc/burstd/burstd.toml", {"idle": 0.0021}
        )

    def command(self, command: Command, timeout_s: float = COMMAND_TIMEOUT_S) -> CommandResult:
        assert timeout_s > 0
        self.commands.append(command)
        if isinstance(command, PlanNow):
            return CommandResult("", dry_run=(SNAPSHOT, PLAN))
        if isinstance(command, TryPolicies) and self.answer is accept_command:
            return CommandResult("", policy_comparison=(SNAPSHOT, PLAN, STRICTER_PLAN))
        return self.answer(command)


@contextmanager
def sample_database() -> Iterator[StoreReader]:
    """A record in which the world's claims have lived so far, open for reading."""
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        path, clock = Path(folder) / "burstd.db", FixedClock(NOW - 10_000)
        with Store.open(path, clock) as store:
            for made in (GONE, *CLAIMS):
                _write_claim(store, clock, made)
            write_stagings(store, clock)
            store.save_site_runs((), [_site_run("90", USER), _site_run("91", OTHER_USER)])
            clock.time = NOW - 1
            store.drain_slots(["gpu8"], "user:root", "fan is loud")
            for override in OVERRIDES:
                store.save_project_override(override, "", "changed", "quota 3 -> 4", override.by)
            left = Remark("placement", "job:88", "impossible", "no pool has four h100")
            users = {f"job:{job.id}": job.user for job in JOBS} | {"job:88": USER}
            kept = Remark("staging", "job:88", "keep", "gpu3 holds output of job 88; kept until tomorrow")
            store.record_remarks([*PLAN.remarks, left], lambda subject: users.get(subject, ""))
            store.record_remarks([left, kept], lambda subject: users.get(subject, ""))
            store.record_remarks([replace(left, subject="job:89", reason="of old")])
            store.record_remarks([replace(left, subject="job:89")], lambda _: OTHER_USER)
            store.record_remarks([replace(left, subject="job:89", reason="five")], lambda _: USER)
            store.log_event("job:103", new="interrupted", reason="gpu3: the line is broken", cause="mounts")
            store.log_event("job:700", new="launch failed", reason="its launch on gpu1 failed: x", cause="launch")
        with StoreReader.open(path, FixedClock()) as reader:
            yield reader


@contextmanager
def serving_api(record: StoreReader, admin_group: str = "") -> Iterator[tuple[FakeBackend, Path]]:
    """A daemon and its control socket, in a folder that every user can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        Path(folder).chmod(0o755)
        path, backend = Path(folder) / "control.sock", FakeBackend(record)
        server = ApiServer(create_api_app(backend, Authorizer(admin_group), install_pages), listen(path, {}))
        server.start()
        try:
            yield backend, path
        finally:
            server.stop()


def _site_run(job: str, user: str) -> SiteRun:
    """An hour on half a node of the site at 2 an hour."""
    payer, price = Payer(job, user, "belle", "onprem"), Decimal(1)
    return SiteRun("old", payer, int(NOW) - 9000, NOW - 9000, 500_000, price, "EUR", NOW - 9000 + 3600)


def _write_claim(store: Store, clock: FixedClock, claim: Claim) -> None:
    clock.time = claim.created
    store.make_claims([replace(claim, state=S.PLANNED, since=claim.created, in_service_from=None, billed_until=None)])
    path = STATE_ORDER[: STATE_ORDER.index(claim.state) + 1]
    for old, new in pairwise(path):
        clock.time = claim.since if new is claim.state else claim.created + 1
        if new is S.GONE:
            store.transition_claim(claim.id, old, new, claim.reason, billed_until=claim.billed_until)
        else:
            store.transition_claim(claim.id, old, new, claim.reason)
