"""When to burst: where the wait that a job is spared is worth more than its time in the cloud.

Use it where the cloud is dear and users want to wait little on the whole, not each of them never: of the jobs that
cannot start now it bursts the short and small ones, which cost little, and leaves on premises what would start there
soon, and what is so long or large that its wait is cheaper than its machines. The mean wait stays within a few minutes
of bursting everything; a few jobs wait much longer, so look at the 95th percentile and the longest wait as well
(``burstctl simulate``), and set ``patience_s``.

``value`` says how many GPU-hours in the cloud (hours of a machine, for those without GPUs) an hour of a job's waiting
is worth. A job bursts where

    value x (predicted wait on premises - boot - upload still to go)  >=  predicted GPU-hours in the cloud,

boot and the time for which the machine stands idle afterwards included. With ``price`` it is money on both sides: an
hour of waiting is worth so much, and the machine costs what its best offer costs. Where jobs share a machine, each is
weighed with its own part of it, and then all that are left with the whole machine. Jobs of many nodes are weighed as a
whole; of an array so many tasks burst as would start too late, counted from its end.

A machine is for the jobs that it is started for: else Slurm would give it to whoever is first in the queue, and that
is often one that had better wait. It ends with its jobs, so that ``idle`` has no say about it.

The wait is predicted from the queue and from how long like jobs ran (see ``burstctl explain``). A job that no node of
the site can run bursts. One of which nothing is known is taken to run for an hour. One whose wait nothing explains is
taken to wait as long again as it has waited so far, so that it bursts after a while. Predictions are wrong at times,
and may be so again and again: the wait to come is taken to be at least ``doubt`` times the wait so far, and a job that
has waited for ``patience_s`` bursts whatever it costs, unless it is about to start. One that Slurm itself is about to
start stays, however long it has waited.

    [policies.wait_aware]
    value = 30
    patience_s = 86400
    [policies.wait_aware.projects.urgent]
    value = 400
    [policies.wait_aware.partitions.batch]
    price = "0.80"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import floor, isinf, log10

from pydantic import BaseModel, ConfigDict, Field

from burstd.domain.claim import Cause
from burstd.domain.plugins.policy import PolicyPlugin, Remark, Target, Want, gang_units, without_jobs
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.outlook import Outlook, Outlooks
from burstd.domain.slurm.shape import gpus_of
from burstd.domain.snapshot import SlurmView, Snapshot

HOUR_S = 3600.0


class WaitValueSettings(BaseModel):
    """What waiting is worth to a project or in a partition; what is left out is as for all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float | None = Field(default=None, ge=0)
    price: Decimal | None = Field(default=None, ge=0)
    patience_s: float | None = Field(default=None, ge=0)


class WaitAwareSettings(BaseModel):
    """``[policies.wait_aware]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float = Field(default=60.0, ge=0)
    """GPU-hours (or hours of a machine without GPUs) that one hour of waiting of one job is worth.

    The default keeps the mean wait near that of bursting whatever cannot start now; a tenth of it saves still more.
    """
    price: Decimal | None = Field(default=None, ge=0)
    """What it is worth in money, in the currency of [rates], else of the offers; then ``value`` does not count."""
    patience_s: float = Field(default=172800.0, ge=0)
    """Seconds after which a job waits no longer, whatever it costs."""
    doubt: float = Field(default=1.0, ge=0)
    """The wait to come is taken to be at least such a share of the wait so far: the prediction may be wrong."""
    idle_s: float = Field(default=300.0, ge=0)
    """Seconds for which a machine stands idle in all for each job, beside its boot; see keep_alive_s of ``idle``."""
    dedicated_nodes: bool = True
    """Machines are for the jobs that they are started for; else Slurm gives them to whoever is first in the queue."""
    projects: dict[str, WaitValueSettings] = {}
    partitions: dict[str, WaitValueSettings] = {}


@dataclass(frozen=True, slots=True)
class _JobWaitValue:
    an_hour: float
    """Of waiting: GPU-hours, machine-hours, or money."""
    money: bool
    patience_s: float


@dataclass(frozen=True, slots=True)
class _JobShare:
    """What a job takes of the machines that are wanted for it."""

    job: Job
    worth: _JobWaitValue
    machines: float
    """Share of a machine of its own; machines of a job of many nodes."""
    gpus: int
    """Of one machine."""
    price: float
    """Of one machine for an hour."""
    currency: str

    def cost(self, seconds: float, machines: float | None = None) -> float:
        """Of its part, or of so many machines, for so long: in the unit of its worth."""
        hours = (self.machines if machines is None else machines) * seconds / HOUR_S
        return hours * (self.price if self.worth.money else self.gpus or 1)

    def format_cost(self, cost: float) -> str:
        """For a person."""
        unit = self.currency if self.worth.money else "GPU-hours" if self.gpus else "machine-hours"
        return f"{_round(cost)} {unit}"


@dataclass(frozen=True, slots=True)
class WaitAwarePolicy:
    """The policy."""

    settings: WaitAwareSettings
    name: str = "wait_aware"

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Takes away wants for jobs whose waiting is worth less than their machines."""
        if not isinstance(snapshot.slurm, SlurmView) or not isinstance(snapshot.outlook, Outlooks):
            return target
        parts = self._parts(snapshot, snapshot.slurm, target)
        if not parts:
            return target
        weighing = _Weighing(self.settings, snapshot.now, parts)
        weighing.outlook = snapshot.outlook.assuming(weighing.bursts)
        target = without_jobs(target, self.name, snapshot, weighing.refusal)
        return self._dedicate_machines(target, weighing) if self.settings.dedicated_nodes else target

    def _dedicate_machines(self, target: Target, weighing: _Weighing) -> Target:
        """Machines for the jobs that leave, and not for those before them in the queue that had better wait."""
        wants: list[Want] = []
        reasons: dict[str, str] = {}
        for want in target.wants:
            if want.dedicated or not any(job in weighing.parts for job in want.jobs) or want.cause is not Cause.DEMAND:
                wants.append(want)
                continue
            wants.append(replace(want, dedicated=True))
            reasons.update((job, reason) for job in want.jobs if (reason := weighing.burst_reason(job)))
        remarks = (Remark(self.name, f"job:{job}", "boot", reason) for job, reason in reasons.items())
        return replace(target, wants=tuple(wants), remarks=(*target.remarks, *remarks)) if reasons else target

    def _parts(self, snapshot: Snapshot, slurm: SlurmView, target: Target) -> dict[str, _JobShare]:
        asked = {job for want in target.wants if want.cause is Cause.DEMAND for job in want.jobs}
        rows = {job.id: job for job in slurm.jobs if job.id in asked} if asked else {}
        parts: dict[str, _JobShare] = {}
        for unit in gang_units(target.wants):
            for want in unit:
                for job in (rows[id_] for id_ in want.jobs if id_ in rows and want.offers):
                    parts.setdefault(job.id, self._part(snapshot, job, want, unit))
        return parts

    def _part(self, snapshot: Snapshot, job: Job, want: Want, unit: Sequence[Want]) -> _JobShare:
        offer, gpus = want.offers[0], want.offers[0].shape.gpus()
        if want.gang:
            machines = float(sum(other.nodes for other in unit))
        else:
            # Such a want is for jobs of one node each.
            asked = gpus_of((*job.gres_per_node, *job.gres_per_job), snapshot.pools[want.pool].shape.shards_per_gpu())
            machines = min(1.0, float(asked) / gpus if gpus else job.cpus / max(1, offer.shape.cpus))
            machines = 1.0 if job.exclusive or not machines else machines
        currency, price = snapshot.rates.price(offer)
        return _JobShare(job, self._worth(job), machines, gpus, float(price), currency)

    def _worth(self, job: Job) -> _JobWaitValue:
        """Of a project before a partition before all."""
        said = [self.settings.projects.get(job.account), *map(self.settings.partitions.get, job.partitions)]
        own = [worth for worth in said if worth is not None]
        patience_s = next((w.patience_s for w in own if w.patience_s is not None), self.settings.patience_s)
        for worth in own:
            if worth.price is not None:
                return _JobWaitValue(float(worth.price), True, patience_s)
            if worth.value is not None:
                return _JobWaitValue(worth.value, False, patience_s)
        price = self.settings.price
        return _JobWaitValue(self.settings.value if price is None else float(price), price is not None, patience_s)


class _Weighing:
    """What was weighed in one evaluation."""

    def __init__(self, settings: WaitAwareSettings, now: float, parts: Mapping[str, _JobShare]) -> None:
        self.outlook: Mapping[str, Outlook] = {}
        self._idle_s = settings.idle_s
        self._doubt = settings.doubt
        self._now = now
        self.parts = parts
        self._bursting: Counter[str] = Counter()
        """How many tasks of each job leave for the cloud."""
        self._gone: set[str] = set()
        """Tasks of many nodes that leave, by their gang: it may have several wants."""
        self._unpaid_reasons: dict[int, str] = {}
        """By want, why the jobs that are left for its machine do not pay for it."""

    def bursts(self, job_id: str, outlook: Outlook) -> bool:
        """Whether this job, or this task of an array, had better burst."""
        part = self.parts.get(job_id)
        if part is None or self._stay_reason(part, outlook):
            return False
        self._bursting[job_id] += 1
        return True

    def refusal(self, want: Want, job: Job) -> str:
        """Why the job is left on premises, or this machine is not started for it; empty: it is."""
        part, outlook = self.parts.get(job.id), self.outlook.get(job.id)
        if want.cause is not Cause.DEMAND or part is None or outlook is None:
            return ""
        if want.gang in self._gone:
            return ""
        if self._bursting[job.id] <= 0:
            return self._stay_reason(part, outlook) or self._reason(part, outlook)
        if job.tasks > 1:
            # The machines that the placement wants for an array take its tasks one after the other.
            self._bursting[job.id] -= 1 if want.gang else max(1, int(1 / part.machines))
            self._gone |= {want.gang} - {""}
        return "" if want.gang else self._unpaid_reason(want)

    def burst_reason(self, job_id: str) -> str:
        """Why the job bursts; empty: it was not weighed."""
        part, outlook = self.parts.get(job_id), self.outlook.get(job_id)
        if part is None or outlook is None:
            return ""
        cost = part.cost(outlook.run_s + outlook.boot_s + self._idle_s)
        if isinf(outlook.local_start):
            return f"no node on premises can run it; a cloud node costs about {part.format_cost(cost)}"
        wait = _about(outlook.local_start - self._now)
        return (
            f"expected to start on premises in about {wait}; a cloud node of its own costs about"
            f" {part.format_cost(cost)}"
        )

    def _unpaid_reason(self, want: Want) -> str:
        """Why the jobs that leave do not pay for a machine that they fill in part; empty: they do."""
        known = self._unpaid_reasons.get(id(want))
        if known is None:
            known = self._unpaid_reasons[id(want)] = self._compute_unpaid_reason(want)
        return known

    def _compute_unpaid_reason(self, want: Want) -> str:
        both = [(p, o) for j in want.jobs if (p := self.parts.get(j)) and (o := self.outlook.get(j))]
        left = [(part, outlook) for part, outlook in both if part.job.tasks > 1 or self._bursting[part.job.id] > 0]
        if not left or any(part.job.tasks > 1 or not self._patient(part) for part, _ in left):
            return ""
        if any(isinf(outlook.local_start) for _, outlook in left):
            return ""
        seconds = max(o.run_s + o.boot_s for _, o in left) + self._idle_s
        # Each pays in the unit of its own worth.
        paid = sum(
            part.worth.an_hour * self._saved(part, outlook) / HOUR_S / (part.cost(seconds, 1.0) or 1e-9)
            for part, outlook in left
        )
        if paid >= 1:
            return ""
        first = left[0][0]
        return (
            f"a cloud node costs {first.format_cost(first.cost(seconds, 1.0))} and is used in part only;"
            " burstd starts it when more jobs can share it"
        )

    def _stay_reason(self, part: _JobShare, outlook: Outlook) -> str:
        """Why the job had better wait on premises; empty: it had not."""
        wait = outlook.local_start - self._now
        if isinf(wait):
            return ""
        if outlook.local_basis == "slurm" and wait <= outlook.ready_s:
            # Slurm keeps nodes for it: it is about to start, however long it has waited.
            return self._reason(part, outlook)
        saved = self._saved(part, outlook)
        if saved > 0 and not self._patient(part):
            return ""
        cost = part.cost(outlook.run_s + outlook.boot_s + self._idle_s)
        return "" if saved > 0 and part.worth.an_hour * saved / HOUR_S >= cost else self._reason(part, outlook)

    def _reason(self, part: _JobShare, outlook: Outlook) -> str:
        cost = part.cost(outlook.run_s + outlook.boot_s + self._idle_s)
        wait = outlook.local_start - self._now
        start = "at any moment" if wait < 30 else f"in about {_about(wait)}"
        return (
            f"expected to start on premises {start}; a cloud node takes about {_about(outlook.ready_s)}"
            f" and costs about {part.format_cost(cost)}"
        )

    def _waited(self, part: _JobShare) -> float:
        return max(0.0, self._now - max(part.job.submitted, part.job.eligible))

    def _patient(self, part: _JobShare) -> bool:
        return self._waited(part) < part.worth.patience_s

    def _saved(self, part: _JobShare, outlook: Outlook) -> float:
        """Seconds that it would start sooner in the cloud."""
        wait = outlook.local_start - self._now
        return max(wait, self._doubt * self._waited(part)) - outlook.ready_s


def _round(number: float) -> str:
    """To two digits, so that the sentence does not change with every look."""
    if number <= 0 or isinf(number):
        return "0" if number <= 0 else "unknown"
    rounded = round(number, 1 - floor(log10(number)))
    return f"{rounded:.1f}" if rounded < 10 else f"{rounded:.0f}"


def _about(seconds: float) -> str:
    """In steps that grow with it."""
    if isinf(seconds):
        return "an unknown time"
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * length:
            number = seconds / length
            return f"{5 * round(number / 5) if number >= 10 and unit == 'min' else round(number)} {unit}"
    return f"{max(10, 10 * round(seconds / 10))} s"


plugin = PolicyPlugin("wait_aware", WaitAwareSettings, WaitAwarePolicy)
