"""Figures of jobs, fetched from the nodes while the jobs run and once more when they have ended.

A node with jobs is asked every few minutes for all its jobs, a machine that is new at once, so that its sampler runs.
A machine that is not to be measured any more is asked until it says that its sampler has ended.
All calls together keep to a rate. A job that has left the queue has its last figures fetched before its machine may
end, for a short time; a machine that is silent is not waited for, and its figures stay as they came last, marked as
cut. All is on record with each answer, and the nodes keep what they have until it has come home: a restart of burstd
loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

import structlog

from burstd.db import Store
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import BurstdError
from burstd.domain.job_use import GpuShare, JobUse, NodeUse
from burstd.domain.plugins.shell import Shell
from burstd.domain.slurm.job import RUNNING_STATES, Job, JobState
from burstd.domain.slurm.shape import SHARD
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.node.job_use import MAX_FORGET, NodeFigures, SamplerConfig, fetch_figures
from burstd.runtime.poller import RepeatedCall
from burstd.runtime.workers import Workers
from burstd.settings.sampler import SamplerSettings

log = structlog.get_logger(__name__)

QUEUE_NAME = "figures"
BURST_S = 15.0
"""Calls that the rate allows in so long may be begun at once: about the time from one loop to the next."""
START_TOLERANCE_S = 60.0
"""So much earlier than its run, by Slurm, a node's figures of a job may begin."""
END_TOLERANCE = 3.0
"""Figures whose last sample is so many intervals older than the job's end are cut."""
_ON_NODES = RUNNING_STATES - {JobState.STAGE_OUT}
_WITH_SLURMD = frozenset({S.READY, S.IN_SERVICE, S.DRAINING})
_FIRST_RETRY_S = 5.0
_MAX_FAILURES = 10
"""In a row, after which a node that left ``own_nodes`` is given up: about a quarter of an hour."""
_SHARED = frozenset({SHARD, "mps"})
_Run = tuple[str, int, int]
"""Id of the job, how often it had been requeued, and when Slurm started it."""


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """A node that may be asked: the machine of a claim, or one of the site's own."""

    id: str
    """The claim's; of a node of the site's own its name."""
    name: str
    offer: Offer | None
    """None: it is the site's own."""
    connect: Callable[[], Shell]
    """A way in, for any thread."""
    measured: bool = True
    """False: its sampler is to end."""


class Summaries(Protocol):
    """What writes a summary of a job that has ended into Slurm's accounting."""

    def write(self, use: JobUse) -> bool:
        """False: there is something else. Blocks. Raises SchedulerUnavailable, SchedulerRefused."""
        ...


@dataclass(slots=True)
class _JobRun:
    """A run of a job on nodes of burstd's."""

    use: JobUse
    """Without series."""
    cpus: int
    memory_mib: int
    """Of each node; 0: not known."""
    shared_gpus: bool
    claims: dict[str, str]
    """Node -> id of the claim that it is."""
    kept_as: dict[str, set[str]] = field(default_factory=dict)
    """What nodes call it that have sent its figures."""
    awaited: set[str] = field(default_factory=set)
    """Nodes that owe the last figures."""
    left: float = float("inf")
    """When the run was seen to have left the queue."""
    until: float = float("inf")
    """So long last figures are waited for."""
    completing_since: float | None = None
    """Since when Slurm had it as COMPLETING, as it was last in the queue: its end by Slurm's record."""


@dataclass(slots=True)
class _Machine:
    """A claim's, as far as its figures go."""

    call: RepeatedCall = field(default_factory=RepeatedCall)
    begun: float = float("-inf")
    """When it was last asked."""
    state: str = ""
    """Of its sampler, as it said last; empty: it never answered."""
    forget: set[str] = field(default_factory=set)
    """Numbers of jobs whose figures are on record for good."""


class JobUsePoller:
    """Implements the reconciler's JobUseSubsystem. Used in the deciding thread."""

    def __init__(
        self,
        store: Store,
        workers: Workers,
        clock: Clock,
        connect: Callable[[Claim], Shell],
        settings: SamplerSettings,
        summaries: Summaries,
        connect_own: Callable[[str, str, Path], Shell],
    ) -> None:
        """``connect``: a way into a claim's machine; it may be called in any thread.

        ``connect_own``: one into a node of the site's own, by its name, its address, and a file of host keys.
        """
        self.settings = settings
        """In force; replaced from the deciding thread."""
        self._store, self._workers, self._clock = store, workers, clock
        self._connect, self._summaries, self._connect_own = connect, summaries, connect_own
        self._runs: dict[_Run, _JobRun] = {}
        self._restored = False
        self._machines: dict[str, _Machine] = {}
        self._own: dict[str, str] = {}
        """Nodes of the site's own that are up, and their addresses, as Slurm showed them last."""
        self._left: dict[str, str] = {}
        """Such nodes that are not in ``own_nodes`` any more, and whose sampler is still to end."""
        self._allowance = float("inf")
        """Calls that may be begun now."""
        self._counted = clock.now()

    def uses(self) -> Mapping[str, JobUse]:
        """By the id in the queue, what running jobs have used so far, without series."""
        return {run.use.job: run.use for run in self._runs.values() if run.use.ended is None and run.use.nodes}

    def awaited(self) -> frozenset[str]:
        """Claims whose machine owes the last figures of a job, for ``last_figures_s`` after the job's end."""
        now = self._clock.now()
        return frozenset(run.claims[n] for run in self._runs.values() if now < run.until for n in run.awaited)

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Begins what is due; returns when the next is, in burstd's time. Raises StoreError."""
        now = self._clock.now()
        machines = {node.id: node for node in self._nodes(slurm, claims)}
        for gone in self._machines.keys() - machines.keys():
            del self._machines[gone]
        for claim_id in machines:
            self._machines.setdefault(claim_id, _Machine())
        if not self.settings.enabled:
            self._runs.clear()
            self._restored = False
        elif isinstance(slurm, SlurmView):
            self._follow(slurm, {node.name: node for node in machines.values() if node.measured}, now)
        self._settle(machines, now)
        return self._call_due(machines.values(), now)

    def _nodes(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> Iterable[MeasuredNode]:
        enabled = self.settings.enabled
        for claim in claims:
            if claim.state in _WITH_SLURMD:
                yield MeasuredNode(claim.id, claim.slot, claim.offer, partial(self._connect, claim), enabled)
        slots = {claim.slot for claim in claims}
        self._left |= {name: address for name, address in self._own.items() if not self._is_own(name)}
        self._left = {name: address for name, address in self._left.items() if not self._is_own(name)}
        self._own = {name: address for name, address in self._own.items() if self._is_own(name)}
        if isinstance(slurm, SlurmView):
            self._own = {
                name: node.address
                for name, node in slurm.nodes.items()
                if node.responding and name not in slots and self._is_own(name)
            }
        for nodes, measured in ((self._own, enabled), (self._left, False)):
            for name, address in nodes.items():
                connect = partial(self._connect_own, name, address, self.settings.known_hosts)
                yield MeasuredNode(name, name, None, connect, measured)

    def _is_own(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.settings.own_nodes)

    def _follow(self, slurm: SlurmView, nodes: Mapping[str, MeasuredNode], now: float) -> None:
        """Takes up runs that have begun, and asks for the last figures of those that are over."""
        if not self._restored:
            self._restored = True
            for use in self._store.open_job_uses():
                self._runs[_key(use)] = _JobRun(use, 0, 0, shared_gpus=False, claims={})
        running: set[_Run] = set()
        for job in slurm.jobs:
            if job.state not in _ON_NODES or not job.start:
                continue
            here = {name: nodes[name].id for name in job.node_list if name in nodes}
            key = _key(job)
            if here or key in self._runs:
                running.add(key)
                self._take_up(key, job, here)
                completing = job.state is JobState.COMPLETING and job.start <= job.end <= now
                self._runs[key].completing_since = job.end if completing else None
        for key, run in self._runs.items():
            if run.use.ended is None and key not in running:
                self._end(run, nodes, now)

    def _take_up(self, key: _Run, job: Job, here: Mapping[str, str]) -> None:
        run = self._runs.get(key)
        if run is None or not run.claims:
            nodes = max(1, len(job.node_list))
            cpus = job.cpus if nodes == 1 else 0
            memory = 0 if job.memory_whole else job.memory_mib * (cpus if job.memory_per_cpu else 1)
            known = run.use if run is not None else JobUse(
                job=job.id, number=job.number or job.id, restarts=job.restarts, user=job.user, account=job.account,
                partition=job.partitions[0] if job.partitions else "", nodes=(), nodes_allocated=nodes,
                started=job.start, run_start=job.run_start,
            )  # fmt: skip
            shared = any(gres.name in _SHARED for gres in (*job.gres_per_node, *job.gres_per_job))
            self._runs[key] = _JobRun(known, cpus, memory, shared, dict(here))
        elif here.keys() - run.claims.keys():
            run.claims |= here

    def _end(self, run: _JobRun, nodes: Mapping[str, MeasuredNode], now: float) -> None:
        run.left = now
        run.use = replace(run.use, ended=now if run.completing_since is None else run.completing_since)
        # After a restart of burstd the claims of a run that has ended meanwhile are those of its nodes.
        places = run.claims or {node.node: nodes[node.node].id for node in run.use.nodes if node.node in nodes}
        run.claims = {name: id_ for name, id_ in places.items() if name in nodes and nodes[name].id == id_}
        run.awaited = set(run.claims)
        run.until = now + self.settings.last_figures_s

    def _settle(self, machines: Mapping[str, MeasuredNode], now: float) -> None:
        """Writes runs down for good whose last figures have come, or are not waited for any more."""
        for key, run in [*self._runs.items()]:
            if run.use.ended is None:
                continue
            run.awaited = {node for node in run.awaited if run.claims[node] in machines}
            if not run.awaited or now >= run.until:
                self._finish(run)
                del self._runs[key]

    def _finish(self, run: _JobRun) -> None:
        use, seen = run.use, run.use.nodes
        if len(seen) >= use.nodes_allocated and all(node.ended for node in seen):
            # However late burstd sees it, as after an outage.
            last = max(node.sampled_at for node in seen)
            use = replace(use, ended=min(max(last, use.started), run.left))
        late = (use.ended or 0.0) - END_TOLERANCE * self.settings.every_s
        nodes = tuple(
            node if node.ended else replace(node, ended=True, cut=node.sampled_at < late) for node in seen
        )  # fmt: skip
        use = replace(use, nodes=nodes)
        self._store.end_job_use(use, [node for node, before in zip(nodes, seen, strict=True) if node != before])
        for node, claim_id in run.claims.items():
            if claim_id in self._machines:
                self._machines[claim_id].forget |= run.kept_as.get(node, set())
        if self.settings.jobstats and nodes and not use.cut:
            self._workers.submit(QUEUE_NAME, lambda: self._summaries.write(use), partial(_summary_written, use.job))

    def _call_due(self, nodes: Iterable[MeasuredNode], now: float) -> float:
        """Begins calls; returns when the next is due that no loop would come by for.

        First come machines that owe last figures, then new ones, then those with jobs that were asked longest ago.
        """
        owing = self.awaited()
        with_jobs = {claim_id for run in self._runs.values() for claim_id in run.claims.values()}
        due: list[tuple[float, MeasuredNode]] = []
        wake = min((run.until for run in self._runs.values() if run.awaited), default=float("inf"))
        for node in nodes:
            machine = self._machines[node.id]
            if not node.measured:
                # Of one that has not answered since burstd began nobody knows whether a sampler runs there.
                if machine.state != "ended" and not machine.call.is_busy(now):
                    due.append((now, node))
                continue
            urgent = node.id in owing or machine.state in ("", "ended")
            if machine.call.in_flight or not (urgent or node.id in with_jobs):
                continue
            if now < machine.call.due or (not urgent and now < machine.begun + self.settings.collect_s):
                wake = min(wake, machine.call.due) if urgent else wake
            else:
                due.append((-2.0 if node.id in owing else -1.0 if urgent else machine.begun, node))
        rate = self.settings.calls_per_minute / 60
        self._allowance = min(max(1.0, BURST_S * rate), self._allowance + (now - self._counted) * rate)
        self._counted = now
        allowed = int(self._allowance)
        for _, node in sorted(due, key=lambda one: one[0])[:allowed]:
            self._allowance -= 1
            self._ask(node, now, urgent=node.id in owing)
        return min(wake, now + BURST_S) if len(due) > allowed else wake

    def _ask(self, node: MeasuredNode, now: float, *, urgent: bool) -> None:
        settings, machine = self.settings, self._machines[node.id]
        config = SamplerConfig(settings.every_s, settings.idle_below_percent) if node.measured else None
        machine.call.in_flight, machine.begun = True, now
        forget = frozenset(islice(machine.forget, MAX_FORGET))

        def work() -> NodeFigures:
            with node.connect() as shell:
                return fetch_figures(shell, node.name, config, forget=forget, now=self._clock.now())

        done = partial(self._take, node, machine, now, forget)
        # No loop is run for figures that nothing waits for.
        self._workers.submit(QUEUE_NAME, work, done, quiet=lambda _: not urgent)

    def _take(
        self,
        node: MeasuredNode,
        machine: _Machine,
        asked: float,
        forgotten: frozenset[str],
        found: NodeFigures | Exception,
    ) -> None:
        now = self._clock.now()
        if isinstance(found, Exception):
            machine.call.fail(now, _FIRST_RETRY_S, self.settings.collect_s, spread=node.id)
            if not isinstance(found, BurstdError):
                raise found
            log.info("figures of jobs could not be fetched", slot=node.name, error=str(found))
            if node.name in self._left and machine.call.failures >= _MAX_FAILURES:
                del self._left[node.name]
                log.warning("a node that left own_nodes may still have a sampler", slot=node.name, error=str(found))
            return
        if found.state != machine.state and found.state in ("no_python", "refused"):
            log.warning("a machine does not measure what jobs use", slot=node.name, state=found.state)
        if found.unreadable:
            log.warning("figures of jobs are not what a sampler writes", slot=node.name, jobs=found.unreadable[:10])
        machine.call.succeed()
        machine.state = found.state
        if not node.measured and found.state == "ended":
            self._left.pop(node.name, None)
        machine.forget -= forgotten
        runs = {key: run for key, run in self._runs.items() if run.claims.get(node.name) == node.id}
        latest: dict[_Run, NodeUse] = {}
        for name, use in sorted(found.runs.items(), key=lambda one: one[1].started):
            key = _run_of(runs, name.partition("-")[0], use)
            if key is not None:
                runs[key].kept_as.setdefault(node.name, set()).add(name)
                latest[key] = use
        for run in runs.values():
            if asked >= run.left:
                run.awaited.discard(node.name)
        if latest:
            changed = [self._with_node(key, _checked(runs[key], use, node.offer)) for key, use in latest.items()]
            self._store.save_job_uses(changed)

    def _with_node(self, key: _Run, node: NodeUse) -> JobUse:
        """Takes a node's figures in; returns the run with these alone, and their series.

        On record it ends only when all is there: until then a restart of burstd takes it up again.
        """
        run = self._runs[key]
        others = [one for one in run.use.nodes if one.node != node.node]
        loading = node.read_now_mib_s > self.settings.loading_mib_s
        before = next((one.loading_at for one in run.use.nodes if one.node == node.node), 0.0)
        node = replace(node, loading_at=node.sampled_at if loading else before)
        nodes = sorted([*others, node.without_series()], key=lambda one: one.node)
        run.use = replace(run.use, nodes=tuple(nodes))
        return replace(run.use, nodes=(node,), ended=None)


def _key(run: Job | JobUse) -> _Run:
    return (run.job if isinstance(run, JobUse) else run.id), run.restarts, run.run_start


def _run_of(runs: Mapping[_Run, _JobRun], number: str, node: NodeUse) -> _Run | None:
    """The one that has begun when these figures did: of a number there may be several."""
    found = [
        (abs(run.use.started - node.started), key)
        for key, run in runs.items()
        if run.use.number == number
        and run.use.started - START_TOLERANCE_S <= node.started <= (run.use.ended or node.started)
    ]
    return min(found)[1] if found else None


def _checked(run: _JobRun, node: NodeUse, offer: Offer | None) -> NodeUse:
    """With what Slurm says of the job in place of what the node says, where it is known, and the price of its GPUs."""
    gpus = node.gpus
    if run.shared_gpus:
        gpus = tuple(replace(g, share=GpuShare.SHARD) if g.share is GpuShare.WHOLE else g for g in gpus)
    node = replace(node, cpus=run.cpus or node.cpus, memory_mib=run.memory_mib or node.memory_mib, gpus=gpus)
    if offer is None or not offer.shape.gpus():
        return node
    # A node that names more GPUs than it has is no dearer for that.
    shares = max(offer.shape.gpus(), sum(gpu.share is GpuShare.WHOLE for gpu in gpus))
    return replace(node, gpu_price=offer.price / shares, currency=offer.currency)


def _summary_written(job: str, result: bool | Exception) -> None:
    if isinstance(result, BurstdError):
        log.warning("a job's summary could not be written to Slurm's accounting", job=job, error=str(result))
    elif isinstance(result, Exception):
        raise result
    elif not result:
        log.info("a job's AdminComment is somebody else's, and stays", job=job)
