"""burstd's line in a job's comment: what it waits for, which node is coming for it, or where it runs.

It is written into Slurm, so it says nothing that changes with every look: times are of the clock, what is left of a
boot is in minutes. Every user of the cluster may read it there, and the accounting may keep it: of what a cloud, a
store or a policy answered when it failed it says the kind only (``capacity``, ``auth``), never the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from math import ceil

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import Snapshot, Unavailable
from burstd.planner.explain.project_text import (
    exceeds_quota,
    job_text,
    leaving_text,
    project_of_job,
    project_text,
    runs_over_quota,
    waiting_remark,
)
from burstd.planner.offers.candidates import shards_price
from burstd.planner.staging.input_deadlines import boot_durations
from burstd.planner.staging.transfer_schedule import boot_estimate
from burstd.planner.unshown_paths import WARNING

MAX_COMMENT_LENGTH = 240
_SHOWN = 3
# A reason may quote what a user has written: no more digits than a calendar has days for.
_SPAN = re.compile(r"\bin ([0-9]{1,6}) (d|h|min|s)(?: ([0-9]{1,6}) (h|min|s))?\b")
_SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
_BEING_STARTED = "being started"
_CLAIM_PROGRESS = {ClaimState.BOOTING: "booting", ClaimState.VALIDATING: "being validated", ClaimState.READY: "ready"}
_PROGRESS_ORDER = (_BEING_STARTED, "booting", "being validated", "ready")
_STARTED = frozenset({JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED})


@dataclass(frozen=True, slots=True)
class JobComment:
    """What a job's comment shall say. ``kind``: a change of it is news; within one kind the words may wait."""

    kind: str
    """``waits``, ``never``, ``coming``, ``soon``, ``on``, ``leaves``, ``idle``."""
    text: str
    """Empty: nothing of burstd's."""


_NO_COMMENT = JobComment("on", "")
IDLE_PREFIX = "idle GPUs: "
_PREFIXES = (
    "waits: ",
    "cannot start: ",
    "never starts as it is: ",
    "node ",
    "nodes ",
    "starts soon: ",
    "project ",
    "requeued ",
    IDLE_PREFIX,
)
"""Beginnings of comments that are out of date once the job has started; the third is that of the version before."""


class JobComments:
    """Makes the lines of one snapshot and its plan."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self._snapshot = snapshot
        self._last_remarks = {r.subject: r for r in plan.remarks}
        self._warnings = {r.subject: r.reason for r in plan.remarks if r.verdict == WARNING}
        self._assigned = plan.target.placements
        self._shares = plan.target.shares
        self._claims = {claim.slot: claim for claim in snapshot.claims}
        self._coming: dict[str, dict[str, str]] = {}
        for want in plan.target.wants:
            for job in want.jobs:
                self._coming.setdefault(job, {}).update(dict.fromkeys(want.slots, want.pool))
        self._boots: Mapping[str, Sequence[float]] | None = None
        self._error_texts = tuple(f": {error}" for error in _provider_errors(snapshot, plan) if error)

    def last_remark(self, job: Job) -> Remark | None:
        """The plan's last word on a job."""
        return self._last_remarks.get(f"job:{job.id}")

    def comment_for(self, job: Job, current: str) -> JobComment | None:
        """Its line; None: what stands there stays. ``current`` is burstd's line so far."""
        if job.state is not JobState.PENDING:
            return self._started(job, current)
        remark = self.last_remark(job)
        if remark is None:
            text = self.project_text(job)
            project = project_of_job(job, self._snapshot.projects.projects)
            if project is not None and exceeds_quota(job, project, self._snapshot.projects.shards.get(project.name, 0)):
                return self._comment("never", f"cannot start: {text}")
            return self._comment("waits", f"waits: {text}") if text else None
        comment = self._waiting(job, remark)
        if warning := self._warnings.get(f"job:{job.id}", ""):
            return self._comment(comment.kind, f"{comment.text}; {warning}")
        return comment

    def is_leaving(self, job: Job) -> bool:
        """Whether a running job is about to be requeued for others."""
        return bool(self._snapshot.leaves_at(job))

    def idle_warning(self, job: Job) -> str:
        """The warning of a running job that does not use its GPUs; empty: there is none."""
        return self._warnings.get(f"job:{job.id}", "") if job.state is JobState.RUNNING else ""

    def project_text(self, job: Job) -> str:
        """How its project stands, where that is news for the job: it waits, or may be requeued."""
        projects = self._snapshot.projects.projects
        project = project_of_job(job, projects)
        if project is None or not (job.state is JobState.PENDING or runs_over_quota(job, project)):
            return ""
        text = project_text(project, projects, self._shares)
        shards = self._snapshot.projects.shards.get(project.name, 0)
        if job.state is not JobState.PENDING:
            return text
        share = self._shares.get(project.name)
        cause = waiting_remark(job, project, share, self._snapshot).reason
        # That it waits for nodes or for GPUs of its project says what follows.
        named = "" if cause.startswith("waiting for ") or exceeds_quota(job, project, shards) else cause
        return "; ".join(filter(None, (named, job_text(job, project, share, shards), text)))

    def _waiting(self, job: Job, remark: Remark) -> JobComment:
        if remark.verdict in ("boot", "covered"):
            return self._served(job, remark)
        if remark.verdict == "impossible":
            return self._comment("never", f"cannot start: {remark.reason}")
        return self._comment("waits", f"waits: {remark.reason}")

    def _comment(self, kind: str, text: str) -> JobComment:
        for error in self._error_texts:
            text = text.replace(error, "")
        if "in " in text:
            text = _SPAN.sub(self._clock, text)
        text = " ".join(text.split())
        return JobComment(
            kind, text if len(text) <= MAX_COMMENT_LENGTH else text[: MAX_COMMENT_LENGTH - 3].rstrip() + "..."
        )

    def _clock(self, span: re.Match[str]) -> str:
        """The time of the clock of ``in 57 s``, ``in 2 min 20 s``."""
        seconds = int(span[1]) * _SECONDS[span[2]] + (int(span[3]) * _SECONDS[span[4]] if span[3] else 0)
        at = ceil((self._snapshot.now + seconds) / 60) * 60
        same = seconds < 20 * 3600
        return datetime.fromtimestamp(at, UTC).strftime("at %H:%M UTC" if same else "on %F at %H:%M UTC")

    def _started(self, job: Job, current: str) -> JobComment | None:
        leaving = leaving_text(job, self._snapshot)
        project = leaving or self.project_text(job)
        idle = self.idle_warning(job)
        old = (*_PREFIXES, "on ") if project or idle else _PREFIXES
        if job.state not in _STARTED or not (current.startswith(old) or not current):
            return None
        if leaving:
            return self._comment("leaves", leaving)
        if idle:
            return self._comment("idle", f"{IDLE_PREFIX}{idle}")
        claims = [self._claims[name] for name in job.node_list if name in self._claims]
        if not claims:
            return self._comment("on", project) if project else _NO_COMMENT if current else None
        clouds = ", ".join(dict.fromkeys(claim.offer.provider for claim in claims))
        sums: dict[str, Decimal] = {}
        shards = ""
        for claim in claims:
            pool = self._snapshot.pools.get(claim.pool)
            price = shards_price(claim.offer.price, job, pool.shape) if pool is not None else None
            shards = " for its shards" if price is not None else shards
            sums[claim.offer.currency] = sums.get(claim.offer.currency, Decimal(0)) + (
                claim.offer.price if price is None else price
            )
        cost = " + ".join(f"{price_text(amount)} {currency}/h" for currency, amount in sums.items())
        return JobComment("on", f"on {_names(job.node_list)} ({clouds}, {cost}{shards})")

    def _served(self, job: Job, remark: Remark) -> JobComment:
        new = self._coming.get(job.id, {})
        names = [*self._assigned.get(job.id, ()), *self._assigned.get(job.het_job_id, ())] if not new else list(new)
        claims = {name: self._claims.get(name) for name in names}
        late = [n for n, c in claims.items() if n in new or (c is not None and c.state is not ClaimState.IN_SERVICE)]
        if not late or job.tasks > 1:
            return self._comment("soon", f"starts soon: {remark.reason}")
        doing = min((_claim_progress(claims[name]) for name in late), key=_PROGRESS_ORDER.index)
        left = max(self._left(claims[name], new.get(name, "")) for name in late)
        about = f", about {ceil(left / 60)} min" if left > 0 else ""
        are = "are" if len(late) > 1 else "is"
        return JobComment("coming", f"node{'s' if len(late) > 1 else ''} {_names(late)} {are} {doing}{about}")

    def _left(self, claim: Claim | None, pool: str) -> float:
        """How long until a node is ready that is coming, in seconds; 0 or less: it is late."""
        if self._boots is None:
            self._boots = boot_durations(self._snapshot)
        takes = boot_estimate(self._boots.get(claim.pool if claim is not None else pool, ()))
        return takes - (self._snapshot.now - claim.created if claim is not None else 0.0)


def _provider_errors(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What others answered when they failed, the longest first as one may be a part of another."""
    found = {breaker.error for breaker in snapshot.breakers}
    found |= {failed.error for failed in plan.target.failed_policies}
    found |= {view.error for view in snapshot.data.values()}
    for cloud in snapshot.clouds.values():
        found |= {part.error for part in (cloud.offers, cloud.instances) if isinstance(part, Unavailable)}
    return sorted(found, key=lambda error: (-len(error), error))


def scontrol_job_id(job: Job) -> str:
    """As scontrol takes it: the number of an array alone would mean its running tasks as well."""
    return f"{job.id}_[{job.array_tasks}]" if job.array_tasks else job.id


def price_text(price: Decimal) -> str:
    """``0.42``, ``12.00``, ``0.0061``."""
    return f"{price:.2f}" if price >= Decimal("0.1") or not price else f"{price.normalize():f}"


def _claim_progress(claim: Claim | None) -> str:
    return _CLAIM_PROGRESS.get(claim.state, _BEING_STARTED) if claim is not None else _BEING_STARTED


def _names(names: Iterable[str]) -> str:
    found = sorted(set(names), key=lambda name: (len(name), name))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
