"""The figures of one snapshot and its plan that the history of the site keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction

from burstd.domain.billing.use import ClaimRun, IdleMode, Payer, charges_per_hour, payers_made_for
from burstd.domain.claim import USABLE, Claim, ClaimState, billed_now
from burstd.domain.plan import Plan
from burstd.domain.project import Project
from burstd.domain.site_history import (
    MICROS,
    MONEY_PER_HOUR,
    SPENT,
    STARTED,
    WAIT_MAX_S,
    WAIT_S,
    Figures,
    Part,
    wait_measure,
)
from burstd.domain.slurm.job import PENDING_STATES, RUNNING_STATES, Job
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape, gpus_of, shards_of_gpus
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.explain.project_text import project_of_job
from burstd.planner.snapshot_view import claim_phase

_SITE = "site"
_Request = tuple[tuple[Gres, ...], tuple[Gres, ...], int]
_AccountCost = tuple[str, str, int]
"""Account, currency and millionths of it an hour."""


class _Figures:
    """Adds up what belongs to the same subject and measure."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(int))

    def add(self, subject: str, measure: str, amount: float) -> None:
        if amount:
            self._sums[subject][measure] += amount

    def raise_to(self, subject: str, measure: str, amount: float) -> None:
        self._sums[subject][measure] = max(self._sums[subject][measure], amount)

    def rounded(self) -> Figures:
        """GPUs are parts where jobs share them: to a thousandth."""
        return {
            subject: {m: value if isinstance(value, int) else round(value, 3) for m, value in measures.items()}
            for subject, measures in self._sums.items()
        }


def site_figures(
    snapshot: Snapshot,
    plan: Plan,
    started: Iterable[Job],
    running: Iterable[ClaimRun] = (),
    idle: IdleMode = IdleMode.APART,
) -> Mapping[Part, Figures]:
    """The figures of each part; without those of Slurm where it could not be read.

    ``started``: jobs that have started since the figures before. ``running``: of jobs on machines of clouds.
    """
    found = {Part.MACHINES: _machines(snapshot, plan)}
    if isinstance(snapshot.slurm, SlurmView):
        money = _charges_per_hour(snapshot, snapshot.slurm, running, idle)
        found |= _jobs(snapshot, snapshot.slurm, plan, started, money)
    return found


def _machines(snapshot: Snapshot, plan: Plan) -> Figures:
    found, claims = _Figures(), (*snapshot.claims, *snapshot.storage_claims, *snapshot.quarantined_claims)
    for claim in claims:
        for subject in _machine_subjects(claim):
            found.add(subject, f"machines_{claim_phase(claim, snapshot)}", 1)
    for claim in billed_now(claims, snapshot.still_billed()):
        for subject in _machine_subjects(claim):
            found.add(subject, f"{MONEY_PER_HOUR}.{claim.offer.currency}", _micros(claim.offer.price))
    for claim in snapshot.claims:
        found.add(f"pool/{claim.pool}", "wanted", int(claim.state in USABLE))
    for want in plan.target.wants:
        found.add(f"pool/{want.pool}", "wanted", want.nodes)
    for release in plan.target.releases:
        found.add(f"pool/{release.pool}", "wanted", -1)
    spent: defaultdict[str, Decimal] = defaultdict(Decimal)
    for booked in snapshot.spent:
        if not booked.kind:
            spent[booked.currency] += booked.amount
    for claim in claims:
        spent[claim.offer.currency] += claim.cost(snapshot.now)
    for currency, amount in spent.items():
        found.add(_SITE, f"{SPENT}.{currency}", _micros(amount))
    return found.rounded()


def _machine_subjects(claim: Claim) -> tuple[str, str, str]:
    return _SITE, f"pool/{claim.pool}", f"provider/{claim.offer.provider}"


def _micros(amount: Decimal) -> int:
    return round(amount * MICROS)


def _jobs(
    snapshot: Snapshot, slurm: SlurmView, plan: Plan, started: Iterable[Job], money: Iterable[_AccountCost]
) -> dict[Part, Figures]:
    site, projects = _Figures(), _Figures()
    owners = {p.account: f"project/{name}" for name, p in snapshot.projects.projects.items() if p.account}
    owner_of = _JobOwner(snapshot.projects.projects)
    shards = max(shards_of_gpus(node.gres for node in slurm.nodes.values()), default=0)
    known: dict[_Request, float] = {}
    for job in slurm.jobs:
        if job.state in PENDING_STATES:
            state, tasks, nodes = "pending", job.tasks, max(1, job.nodes)
        elif job.state in RUNNING_STATES:
            state, tasks, nodes = "running", 1, len(job.node_list) or 1
        else:
            continue
        request = (job.gres_per_node, job.gres_per_job, nodes)
        gpus = known.get(request)
        if gpus is None:
            gpus = known[request] = _number(gpus_of(request[0], shards) * nodes + gpus_of(request[1], shards))
        site.add(_SITE, f"jobs_{state}", tasks)
        site.add(_SITE, f"gpus_{state}", gpus * tasks)
        if owner := owner_of(job):
            projects.add(owner, f"jobs_{state}", tasks)
            projects.add(owner, f"gpus_{state}", gpus * tasks)
    _add_waits(site, projects, owner_of, snapshot, started)
    _add_gpus(site, snapshot, slurm)
    for name, share in plan.target.shares.items():
        projects.add(f"project/{name}", "share", _number(share.share))
    for account, currency, micros in money:
        projects.add(owners.get(account) or f"account/{account}", f"{MONEY_PER_HOUR}.{currency}", micros)
    return {Part.SITE: site.rounded(), Part.PROJECTS: projects.rounded()}


class _JobOwner:
    """Whose figures a job is in: its project's, as ``burstctl project list`` counts them, else its account's."""

    def __init__(self, projects: Mapping[str, Project]) -> None:
        self._projects = projects
        self._known: dict[tuple[tuple[str, ...], str], str] = {}

    def __call__(self, job: Job) -> str:
        key = (job.partitions, job.account)
        known = self._known.get(key)
        if known is None:
            project = project_of_job(job, self._projects)
            account = f"account/{job.account}" if job.account else ""
            known = self._known[key] = f"project/{project.name}" if project is not None else account
        return known


def _charges_per_hour(
    snapshot: Snapshot, slurm: SlurmView, running: Iterable[ClaimRun], idle: IdleMode
) -> Iterator[_AccountCost]:
    """What accounts are charged for machines that stay as they are: as in the bill."""
    claims = [*billed_now((*snapshot.claims, *snapshot.quarantined_claims), snapshot.still_billed())]
    jobs = {job for claim in claims for job in claim.jobs}
    owners = {job.id: Payer(job.id, job.user, job.account) for job in slurm.jobs if job.id in jobs}
    runs: defaultdict[str, list[ClaimRun]] = defaultdict(list)
    for run in running:
        runs[run.claim_id].append(run)
    for claim in claims:
        for charge in charges_per_hour(claim, runs[claim.id], payers_made_for(claim, owners), idle):
            if charge.payer.account:
                yield charge.payer.account, claim.offer.currency, charge.amount


def _add_waits(
    site: _Figures, projects: _Figures, owner_of: _JobOwner, snapshot: Snapshot, started: Iterable[Job]
) -> None:
    pools = {slot: f"pool/{pool.name}" for pool in snapshot.pools.values() for slot in pool.slots}
    for job in started:
        wait = round(max(0.0, job.start - max(job.submitted, job.eligible)))
        pool = next((pools[name] for name in job.node_list if name in pools), "")
        for figures, subject in ((site, _SITE), (site, pool), (projects, owner_of(job))):
            if subject:
                figures.add(subject, STARTED, 1)
                figures.add(subject, WAIT_S, wait)
                figures.raise_to(subject, WAIT_MAX_S, wait)
                figures.add(subject, wait_measure(wait), 1)


def _add_gpus(site: _Figures, snapshot: Snapshot, slurm: SlurmView) -> None:
    in_service = {claim.slot for claim in snapshot.claims if claim.state is ClaimState.IN_SERVICE}
    for name, node in slurm.nodes.items():
        if not node.gres or not node.up:
            continue
        total = Shape(0, 0, node.gres).gpus()
        used = min(total, _used_gpus(node))
        site.add(_SITE, "gpus_used", used)
        if not node.drained:
            site.add(_SITE, "gpus_free", total - used)
            if name in in_service and not node.busy:
                site.add(_SITE, "gpus_idle", total - used)


def _used_gpus(node: Node) -> float:
    if node.shared_gpus:
        return _number(sum((Fraction(gpu.shards - gpu.free, gpu.shards) for gpu in node.shared_gpus), Fraction(0)))
    return _number(gpus_of(node.gres_used, 0))


def _number(gpus: Fraction) -> float:
    return int(gpus) if gpus.denominator == 1 else float(gpus)
