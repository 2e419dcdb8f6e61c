"""Pending jobs onto nodes: in priority order, first fit, onto what is there, then what is coming, then new slots.

Jobs that ask for the same form an equivalence class, and what was once found full is not
looked at again, so that the time grows with jobs plus equivalence classes times bins, not with jobs times nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from operator import attrgetter

from burstd.domain.claim import Cause
from burstd.domain.plugins.policy import NodeRelease, Remark, Target, Want
from burstd.domain.slurm.job import users_and_accounts
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.changes import SequenceChanges, sequence_changes
from burstd.planner.demand.demand import Demand, PendingJob, tasks_among
from burstd.planner.demand.request import ResourceRequest
from burstd.planner.demand.requeued_jobs import interruptions_over_limit, on_demand_first, on_demand_reason
from burstd.planner.offers.offers import evaluate_offers
from burstd.planner.placement.bins import Bin, BinKind, read_capacity
from burstd.planner.placement.equivalence_class import EquivalenceClass, EquivalenceClasses
from burstd.planner.placement.first_fit import Packer, PlacementOutcome, cheapest_pool
from burstd.planner.placement.gangs import assign_gang
from burstd.planner.placement.inputs import PlacementInputs, placement_inputs, usable_by_pool
from burstd.planner.placement.verdicts import VerdictWriter


class PlacementCache:
    """The last placement, where there was one."""

    def __init__(self) -> None:
        self.last: Placement | None = None

    def free_slots(self) -> Mapping[str, Sequence[str]]:
        """By pool, the slots on which there was nothing before it."""
        return self.last.free_slots if self.last is not None else {}


def placement_target(
    snapshot: Snapshot, demand: Demand, spot_interruptions: int = 0, cache: PlacementCache | None = None
) -> Target:
    """What is wanted for the jobs that count, what is idle, and a remark for each job of a burst partition.

    ``spot_interruptions`` is Tuning's. ``cache`` saves work where little has changed since its last placement; the
    answer is the same without it.
    """
    if not isinstance(snapshot.slurm, SlurmView):
        offers = usable_by_pool({name: evaluate_offers(snapshot, pool) for name, pool in snapshot.pools.items()})
        why = f"cannot read Slurm: {snapshot.slurm.error}"
        return Target(offers=offers, remarks=(Remark("placement", "slurm", "wait", why),))
    last = cache.last if cache is not None else None
    previous = last.inputs if last is not None else None
    inputs = placement_inputs(snapshot, snapshot.slurm, spot_interruptions, demand.exclusive_partitions, previous)
    changes = sequence_changes(last.pending_jobs, demand.pending_jobs) if last is not None else None
    if last is not None and inputs.equivalent_to(last.inputs):
        last.inputs = inputs
        if changes is not None and last.supports_increment(changes, len(demand.pending_jobs)):
            return last.incremental_target(demand, changes)
    placement = Placement(snapshot, snapshot.slurm, inputs)
    if cache is not None:
        cache.last = placement
    return placement.full_target(demand, (last, changes) if last is not None and changes is not None else None)


_Former = tuple["Placement", SequenceChanges[PendingJob]]
"""The placement before, and what has changed in the queue since."""
_SHARED = "nodes of a job that shares it"
_MAX_CHANGES = 1000
"""So many changes are not looked at one by one."""


class Placement:
    """One run over the queue, and what can be told of the next from it."""

    def __init__(self, snapshot: Snapshot, slurm: SlurmView, inputs: PlacementInputs) -> None:
        self.inputs = inputs
        self.pending_jobs: tuple[PendingJob, ...] = ()
        self.placed_anew = 0
        """How many of them were looked at; the others stayed left out, as they were before."""
        self.left_out_from = 0
        """From here on all of them are left out, each for its class alone."""
        self._snapshot = snapshot
        self._slurm = slurm
        self._offers = usable_by_pool(inputs.evaluations)
        # Without interruptions nobody's machines need be counted.
        self._spot_interruptions = inputs.spot_interruptions if snapshot.interruptions else 0
        self._classes = EquivalenceClasses(snapshot, slurm, self._offers)
        self.free_slots: Mapping[str, Sequence[str]] = {}
        self._assigned: dict[str, tuple[str, ...]] = {}
        self._last_remarks: list[Remark] | None = None
        self._queue_position = 0
        self._wants: tuple[Want, ...] = ()
        self._releases: tuple[NodeRelease, ...] = ()

    def full_target(self, demand: Demand, former: _Former | None) -> Target:
        """Places every pending job but those at the end that the previous placement left out, and this one would."""
        self.pending_jobs = demand.pending_jobs
        self._counts = _tasks_by_request(demand.pending_jobs) if former is None else former[0].counts_after(former[1])
        for request, times in self._counts.items():
            self._classes.class_of(request).remaining = times
        inputs = self.inputs
        self._capacity = read_capacity(
            self._snapshot, self._slurm, self._waiting_gangs(demand), inputs.dedicated, inputs.node_users
        )
        self.free_slots = self._capacity.free_slots
        users_matter = bool(inputs.exclusive_partitions)
        self._packer = Packer(inputs.stuck_jobs, self._capacity, self._waiting(demand), users_matter=users_matter)
        self._verdicts = VerdictWriter(self._snapshot, self.inputs.evaluations, self._classes, self._packer)
        on_new_node = self._assign_queue(former)
        for pending, found in on_new_node if self._spot_interruptions else ():
            # Which offer comes first for a new node hangs on all the jobs that share it.
            interruptions = self._interruptions(job.id for job in found.jobs)
            if interruptions:
                whose = "its nodes" if self._interruptions(job.id for job in pending.jobs) else _SHARED
                _set_remark(pending, self._verdicts.verdict_on_new_node(found, interruptions, whose))
        self._sum_up()
        return self._target(demand)

    def supports_increment(self, changes: SequenceChanges[PendingJob], length: int) -> bool:
        """True where the changes leave everything else in its place: what is gone had none, what has come gets none.

        What has come at the end of the queue may get one.
        """
        if len(changes) > _MAX_CHANGES:
            return False
        classes, tracked_jobs = self._classes.by_request, self._packer.tracked_jobs
        count_changes: Counter[ResourceRequest] = Counter()
        for at, pending in changes.removed:
            if (
                not pending.single_task
                or pending.takes_capacity
                or pending.job.id in tracked_jobs
                or classes[pending.request].exhausted_at == at
            ):
                return False
            count_changes[pending.request] -= 1
        last = length
        for at, pending in reversed(changes.added):
            if not pending.single_task or pending.job.id in tracked_jobs or pending.job.id in self._claim_consumers:
                return False
            job_class = classes.get(pending.request)
            left_out = job_class is not None and job_class.exhausted and at > _shifted(job_class.exhausted_at, changes)
            if not left_out and (at != last - 1 or self._spot_interruptions):
                return False
            if at == last - 1:
                last = at
            count_changes[pending.request] += 1
        return all(
            _same_pool_choices(classes[request], more) for request, more in count_changes.items() if request in classes
        )

    def incremental_target(self, demand: Demand, changes: SequenceChanges[PendingJob]) -> Target:
        """The target after such changes."""
        if not len(changes):
            return self._target(demand)
        self.pending_jobs, self._counts = demand.pending_jobs, self.counts_after(changes)
        self._last_remarks = None
        for job_class in self._classes.by_request.values():
            if job_class.exhausted:
                job_class.exhausted_at = _shifted(job_class.exhausted_at, changes)
        for _, pending in changes.removed:
            self._classes.by_request[pending.request].shift -= 1
        unfilled: set[EquivalenceClass] = set()
        for _, pending in changes.added:
            job_class = self._classes.class_of(pending.request)
            job_class.shift += 1
            if not job_class.exhausted:
                job_class.remaining += 1
                unfilled.add(job_class)
        left_out_from = _shifted(self.left_out_from, changes)
        if changes.added:
            self._assigned = dict(self._assigned)
            self._assign_all([ask for _, ask in changes.added])
        for at, pending in reversed(changes.added):
            job_class = self._classes.class_of(pending.request)
            if job_class in unfilled and not pending.takes_capacity:
                job_class.exhausted_at = at
        if any(ask.takes_capacity for _, ask in changes.added):
            # Only what has come at the end does.
            left_out_from = len(self.pending_jobs)
            self._sum_up()
        self.placed_anew, self.left_out_from = len(changes.added), left_out_from
        return self._target(demand)

    def _sum_up(self) -> None:
        self._wants = self._all_wants()
        self._releases = tuple(
            NodeRelease(claim.id, claim.pool, f"{claim.slot} is idle, and no pending job needs it")
            for claim, found in self._capacity.idle_claims
            if found is None or not found.used
        )

    def _target(self, demand: Demand) -> Target:
        if self._last_remarks is None:
            self._last_remarks = _remarks(demand)
        return Target(
            wants=self._wants,
            releases=self._releases,
            remarks=(*self._demand_remarks(demand), *self._last_remarks),
            offers=self._offers,
            placements=self._assigned,
            wake_at=demand.wake_at,
        )

    def _demand_remarks(self, demand: Demand) -> Sequence[Remark]:
        """Of jobs whose request Slurm refuses, those say what they lack that no pool can run."""
        if not demand.refused:
            return demand.remarks
        lacking = {
            f"job:{pending.job.id}": self._verdicts.impossible_reason(self._classes.class_of(pending.request))
            for pending in demand.refused
        }
        return [
            Remark("placement", one.subject, "impossible", why) if (why := lacking.get(one.subject, "")) else one
            for one in demand.remarks
        ]

    @cached_property
    def _claim_consumers(self) -> frozenset[str]:
        """All jobs and gangs that claims are for, or that nodes are bound to."""
        claims = self.inputs.claims
        return (
            frozenset(consumer for claim in claims for consumer in (*claim.jobs, claim.gang)) | self.inputs.bound.keys()
        )

    def counts_after(self, changes: SequenceChanges[PendingJob]) -> Counter[ResourceRequest]:
        """How many tasks each request has after such changes."""
        added, removed = ([pending for _, pending in some] for some in (changes.added, changes.removed))
        return self._counts + _tasks_by_request(added) - _tasks_by_request(removed)

    def _assign_queue(self, former: _Former | None) -> list[tuple[PendingJob, Bin]]:
        """Places the queue, until all the rest of it stays left out; returns what ``_assign_all`` does."""
        queue = self.pending_jobs
        at, step = len(queue), len(self._classes.by_request) + 1
        if former is not None:
            previous, changes = former
            begin = max(previous.left_out_from, *(n + 1 for n, _ in changes.removed[-1:]), 0)
            at = max(at - (len(previous.pending_jobs) - begin), *(n + 1 for n, _ in changes.added[-1:]), 0)
        on_new_node = self._assign_all(queue[:at])
        while at < len(queue) and former is not None and not self._leaves_out_rest_of(former[0]):
            on_new_node += self._assign_all(queue[at : at + step])
            at += step
        self.placed_anew, self._queue_position = min(at, len(queue)), len(queue)
        return on_new_node

    def _leaves_out_rest_of(self, previous: Placement) -> bool:
        """True where jobs that were left out before have no room now either, and the same is said of them."""
        classes = self._classes.by_request
        for request, before in previous._classes.by_request.items():
            now = classes.get(request)
            if not before.exhausted or now is None or not now.remaining:
                continue
            if not now.exhausted or now.rejection != before.rejection:
                return False
        return self._packer.tracked_jobs <= previous._packer.tracked_jobs

    def _assign_all(self, pending_jobs: Sequence[PendingJob]) -> list[tuple[PendingJob, Bin]]:
        """Places pending jobs, in their order, and says so; returns those that get one new node, and the node."""
        packer, verdicts = self._packer, self._verdicts
        classes, tracked_jobs, assigned = self._classes.by_request, packer.tracked_jobs, self._assigned
        on_new_node: list[tuple[PendingJob, Bin]] = []
        for queue_position, pending in enumerate(pending_jobs, self._queue_position):
            job_class = classes[pending.request]
            if (
                not pending.single_task
                or (job_class.is_gang and not job_class.exhausted)
                or (tracked_jobs and pending.job.id in tracked_jobs)
            ):
                pending.takes_capacity = True
                self.left_out_from = queue_position + 1
                self._assign(packer, verdicts, pending, queue_position, on_new_node)
                continue
            found = None if job_class.exhausted else packer.assign_one(pending.job, job_class, queue_position)
            if found is None:
                if not job_class.exhausted:
                    job_class.exhausted, job_class.exhausted_at = True, queue_position
                pending.takes_capacity = False
                verdict = job_class.rejection or verdicts.rejection(job_class)
            else:
                pending.takes_capacity = True
                self.left_out_from = queue_position + 1
                verdict = found.verdict or verdicts.verdict_on_bin(found)
                if found.kind is not BinKind.NEW:
                    assigned[pending.job.id] = (found.name,)
                elif pending.burst:
                    on_new_node.append((pending, found))
            if pending.burst:
                remark = pending.last_remark
                # What is said again is the same remark.
                if remark is None or remark.reason != verdict[1] or remark.verdict != verdict[0]:
                    pending.last_remark = Remark("placement", "job:" + pending.job.id, verdict[0], verdict[1])
        self._queue_position += len(pending_jobs)
        return on_new_node

    def _assign(
        self,
        packer: Packer,
        verdicts: VerdictWriter,
        pending: PendingJob,
        queue_position: int,
        on_new_node: list[tuple[PendingJob, Bin]],
    ) -> None:
        job_classes = [self._classes.class_of(request) for _, request in pending.components]
        if not pending.other_components and not job_classes[0].is_gang:
            outcome = packer.assign_tasks(pending.job, job_classes[0], pending.tasks, queue_position)
            if outcome.existing:
                self._assigned[pending.job.id] = tuple(b.name for b in outcome.existing)
        else:
            outcome = self._assign_gangs(packer, pending, job_classes, queue_position)
        if pending.burst:
            _set_remark(pending, verdicts.verdict_for(pending, job_classes, outcome))
            if pending.tasks == 1 and not outcome.tasks_left and not outcome.existing and len(outcome.new) == 1:
                on_new_node.append((pending, outcome.new[0]))

    def _waiting(self, demand: Demand) -> AbstractSet[str]:
        """The jobs that count, where claims were made for any."""
        if not any(claim.jobs for claim in self._snapshot.claims):
            return frozenset()
        return {
            job.id
            for pending in demand.pending_jobs
            for job in (pending.jobs if pending.other_components else (pending.job,))
        }

    def _waiting_gangs(self, demand: Demand) -> frozenset[str]:
        """The gangs of claims whose job still waits and counts, and the jobs that nodes are bound to."""
        consumers = {claim.gang for claim in self._snapshot.claims if claim.gang} | set(self._snapshot.bound)
        if not consumers:
            return frozenset()
        waiting: set[str] = set()
        for pending in demand.pending_jobs:
            job = pending.job
            waiting.add(job.id)
            if job.het_job_id:
                waiting.update((pending.gang_id(), *(job.id for job in pending.jobs)))
            if job.array_tasks:
                prefix = job.array_job_id or job.id
                named = [
                    consumer.removeprefix(prefix + "_") for consumer in consumers if consumer.startswith(prefix + "_")
                ]
                waiting.update(f"{prefix}_{task}" for task in tasks_among(job.array_tasks, named))
        return frozenset(consumers & waiting)

    def _assign_gangs(
        self, packer: Packer, pending: PendingJob, job_classes: list[EquivalenceClass], queue_position: int
    ) -> PlacementOutcome:
        """Each task of an array of multi-node jobs is a gang of its own."""
        outcome = PlacementOutcome(tasks_left=pending.tasks)
        members = [(job, pattern) for (job, _), pattern in zip(pending.components, job_classes, strict=True)]
        for job_class in job_classes:
            job_class.remaining -= pending.tasks
        job = pending.job
        tracked_tasks = tasks_among(job.array_tasks, packer.tracked_tasks.get(job.array_job_id or job.id, ()))
        exhausted = False

        def task_order() -> Iterator[str]:
            # All tasks are alike but those of which more is known: once one finds no room, no other does.
            tracked = dict.fromkeys(tracked_tasks)
            for task in pending.task_ids():
                if exhausted or (not pending.other_components and job_classes[0].exhausted):
                    break
                tracked.pop(task, None)
                yield task
            yield from tracked

        for task in task_order():
            if not outcome.tasks_left:
                break
            gang = pending.gang_id(task)
            if not pending.other_components and job_classes[0].exhausted and gang not in packer.reserved:
                continue
            gang_outcome = assign_gang(packer, gang, members)
            outcome.stuck_on = outcome.stuck_on or gang_outcome.stuck_on
            outcome.given_up = outcome.given_up or gang_outcome.given_up
            if gang_outcome.tasks_left:
                if not pending.other_components and not gang_outcome.stuck_on and not gang_outcome.given_up:
                    job_classes[0].exhausted, job_classes[0].exhausted_at = True, queue_position
                outcome.lacking_member = gang_outcome.lacking_member
                exhausted = exhausted or bool(pending.other_components) or task not in tracked_tasks
                continue
            for found in gang_outcome.new:
                found.queue_position = queue_position
            outcome.tasks_left -= 1
            outcome.existing += gang_outcome.existing
            outcome.new += gang_outcome.new
            outcome.tasks_on_existing += gang_outcome.tasks_on_existing
            outcome.tasks_on_new += gang_outcome.tasks_on_new
            if gang_outcome.existing:
                self._assigned[gang] = tuple(b.name for b in gang_outcome.existing)
        return outcome

    def _all_wants(self) -> tuple[Want, ...]:
        """One for each new node of single jobs, one for each pool of a gang, in the order of their first jobs."""
        units = [("", [found]) for found in self._packer.in_flight.bins if found.kind is BinKind.NEW]
        for gang, bins in self._packer.gang_bins:
            alike: dict[tuple[str, str], list[Bin]] = {}
            for found in bins:
                alike.setdefault((found.pool, found.jobs[0].id), []).append(found)
            units += [(gang, some) for some in alike.values()]
        units.sort(key=lambda unit: unit[1][0].queue_position)
        return tuple(self._want(bins, gang) for gang, bins in units)

    def _interruptions(self, jobs: Iterable[str]) -> int:
        return interruptions_over_limit(self._snapshot, jobs, self._spot_interruptions)

    def _want(self, bins: list[Bin], gang: str) -> Want:
        first = bins[0]
        jobs = tuple(dict.fromkeys([job.id for job in first.jobs]))
        users, accounts = users_and_accounts(first.jobs)
        interruptions, ordered = self._interruptions(jobs) if self._spot_interruptions else 0, self._offers[first.pool]
        why = ""
        if interruptions:
            ordered = on_demand_first(ordered)
            why = on_demand_reason(ordered, interruptions, _SHARED if len(jobs) > 1 else "its nodes")
        shown = ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")
        return Want(
            pool=first.pool,
            nodes=len(bins),
            cause=Cause.DEMAND,
            reason=f"{'jobs' if len(jobs) > 1 else 'job'} {shown}{why}",
            offers=ordered,
            jobs=jobs,
            users=users,
            gang=gang,
            slots=tuple([b.name for b in bins]),
            accounts=accounts,
        )


def _tasks_by_request(pending_jobs: Sequence[PendingJob]) -> Counter[ResourceRequest]:
    """How many tasks each request has."""
    counts = Counter(map(attrgetter("request"), pending_jobs))
    for pending in pending_jobs:
        if pending.tasks > 1 or pending.other_components:
            counts[pending.request] += pending.tasks - 1
            for _, request in pending.other_components:
                counts[request] += pending.tasks
    return counts


def _shifted(at: int, changes: SequenceChanges[PendingJob]) -> int:
    """Where in the new queue what stood there in the old one stands."""
    at -= sum(gone < at for gone, _ in changes.removed)
    for come, _ in changes.added:
        if come > at:
            break
        at += 1
    return at


def _same_pool_choices(job_class: EquivalenceClass, more: int) -> bool:
    """True where the pools for it would be the same if there were so many more of it."""
    more += job_class.shift
    return all(
        cheapest_pool(eligible_pools, left + more) is chosen for left, eligible_pools, chosen in job_class.pool_choices
    )


def _set_remark(pending: PendingJob, verdict_and_reason: tuple[str, str]) -> None:
    """Leaves the remark with the ask; the one that it has where it says the same."""
    known, (verdict, reason) = pending.last_remark, verdict_and_reason
    if known is None or known.reason != reason or known.verdict != verdict:
        pending.last_remark = Remark("placement", f"job:{pending.job.id}", verdict, reason)


def _remarks(demand: Demand) -> list[Remark]:
    """What was said, of each component of a het job as well."""
    # Those that are none of our business have none.
    remarks = list(filter(None, map(attrgetter("last_remark"), demand.pending_jobs)))
    if not demand.has_het_jobs:
        return remarks
    every: list[Remark] = []
    for pending in demand.pending_jobs:
        if pending.burst and pending.last_remark is not None:
            every += [
                pending.last_remark,
                *(replace(pending.last_remark, subject=f"job:{job.id}") for job, _ in pending.other_components),
            ]
    return every
