"""Figures of jobs, fetched from the nodes while the jobs run and once more when they have ended.

A node with jobs is asked every few minutes for all its jobs, a machine that is new at once, so that its sampler runs.
A machine that is not to be measured any more is asked until it says that its sampler has ended. These calls keep to a
rate. A job that has left the queue has its last figures fetched at once, first from machines that are to end. Such a
machine is kept for them for a short time; those that are silent then are not waited for, and their figures stay as they
came last, marked as cut. All is on record with each answer, and the nodes keep what they have until it has come home: a
restart of burstd loses nothing.

A step costs what has changed and what is due: rows of the queue that are the same are not looked at again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

import structlog

from burstd.db import Store, packed_figures
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import BurstdError
from burstd.domain.job_use import GpuShare, JobUse, NodeUse
from burstd.domain.plugins.shell import Shell
from burstd.domain.slurm.job import RUNNING_STATES, Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import SHARD
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.node.job_use import MAX_NAMES, NodeFigures, SamplerConfig, fetch_figures
from burstd.reconciler.pollers.figure_calls import FigureCalls, Rank
from burstd.runtime.poller import RepeatedCall
from burstd.runtime.workers import Workers
from burstd.settings.sampler import SamplerSettings

log = structlog.get_logger(__name__)

QUEUE_NAME = "figures"
BURST_S = 15.0
"""Calls that the rate allows in so long may be begun at once: about the time from one loop to the next."""
MAX_OWED_AT_ONCE = 32
"""Calls for last figures, under way or in the lane: what its threads do in a few seconds."""
OWED_S = 2.0
"""So soon the next loop comes where more of them are due, and a machine is asked again whose answer had no room."""
MAX_ENDED_AT_ONCE = 200
"""Rows of runs that have ended, of which a step writes so many: about 50 ms."""
START_TOLERANCE_S = 60.0
"""So much earlier than its run, by Slurm, a node's figures of a job may begin."""
END_TOLERANCE = 3.0
"""Figures whose last sample is so many intervals older than the job's end are cut."""
_ON_NODES = tuple(RUNNING_STATES - {JobState.STAGE_OUT})
"""Few, and most rows have another: without a set they are found sooner."""
_OWED = (Rank.ENDING, Rank.OWING)
_RATED = (Rank.CHANGE, Rank.ROUTINE)
_WITH_SLURMD = (S.IN_SERVICE, S.READY, S.DRAINING)
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
    ending: bool = False
    """The machine is to end as soon as it is idle and nothing is waited for."""


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
    """So long a machine is kept for its last figures; later only those are waited for that have not failed."""
    recorded: bool = False
    """Its rows have not ended."""
    written: set[str] = field(default_factory=set)
    """Nodes of which it is on record already that it has ended."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a node said."""

    figures: NodeFigures
    """Without series."""
    packed: Mapping[str, bytes]
    """With series, as they are written, by the node's name of the run."""


@dataclass(slots=True)
class _Machine:
    """A claim's, or a node of the site's own, as far as its figures go."""

    node: MeasuredNode
    origin: Claim | str
    """What ``node`` was made of: its claim, or the address of one of the site's own."""
    call: RepeatedCall = field(default_factory=RepeatedCall)
    begun: float = float("-inf")
    """When it was last asked."""
    state: str = ""
    """Of its sampler, as it said last; empty: it never answered."""
    runs: dict[_Run, _JobRun] = field(default_factory=dict)
    """Those that it may have figures of."""
    forget: set[str] = field(default_factory=set)
    """Runs, as the node calls them, whose figures are on record for good."""

    @property
    def owes(self) -> bool:
        """The last figures of a run."""
        return any(self.node.name in run.awaited for run in self.runs.values())

    def owed_as(self) -> Iterator[str]:
        """What it calls these runs, as far as it has sent them before."""
        name = self.node.name
        return (kept for run in self.runs.values() if name in run.awaited for kept in run.kept_as.get(name, ()))


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
        self._ended: dict[_Run, _JobRun] = {}
        """Those of them whose last figures are still to come."""
        self._uses: dict[str, _JobRun] = {}
        """By the id in the queue, those that run and have figures."""
        self._shown: Mapping[str, JobUse] | None = None
        """What ``uses`` says; None: figures have come since."""
        self._restored = False
        self._machines: dict[str, _Machine] = {}
        self._by_name: dict[str, _Machine] = {}
        """Those that are measured, by their node."""
        self._own: dict[str, str] = {}
        """Nodes of the site's own that are up, and their addresses, as Slurm showed them last."""
        self._left: dict[str, str] = {}
        """Such nodes that are not in ``own_nodes`` any more, and whose sampler is still to end."""
        self._seen: tuple[object, ...] = ()
        """The settings, claims and nodes of the last step."""
        self._queue: Sequence[Job] | None = None
        """Of the last step."""
        self._rows: dict[int, Job] = {}
        """The same by identity: a row that did not change is the same object."""
        self._jobs: dict[_Run, Job] = {}
        """Those of them that are on nodes."""
        self._jobs_on: dict[str, dict[_Run, Job]] = {}
        """The same by node."""
        self._calls = FigureCalls()
        self._unsaved: dict[tuple[_Run, str], JobUse] = {}
        """By run and node, figures that are still to be written."""
        self._packed: dict[tuple[_Run, str], bytes] = {}
        """The same with series, as they are written."""
        self._last: list[tuple[_Machine, _JobRun]] = []
        """Machines that have sent the last figures of a run, which may be among these."""
        self._owed_in_flight = 0
        self._allowance = float("inf")
        """Calls that may be begun now, without those for last figures."""
        self._counted = clock.now()

    def uses(self) -> Mapping[str, JobUse]:
        """By the id in the queue, what running jobs have used so far, without series."""
        if self._shown is None:
            self._shown = {job: run.use for job, run in self._uses.items()}
        return self._shown

    def awaited(self) -> frozenset[str]:
        """Claims whose machine owes the last figures of a job, for ``last_figures_s`` after the job's end."""
        now = self._clock.now()
        return frozenset(run.claims[n] for run in self._ended.values() if now < run.until for n in run.awaited)

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Begins what is due; returns when the next is, in burstd's time. Raises StoreError."""
        self.save()
        now = self._clock.now()
        nodes = slurm.nodes if isinstance(slurm, SlurmView) and self.settings.own_nodes else None
        seen = (self.settings, claims, nodes)
        if len(self._seen) != len(seen) or any(a is not b for a, b in zip(self._seen, seen, strict=True)):
            anew = not self._seen or self._seen[0] is not self.settings
            self._seen = seen
            self._meet(claims, nodes, anew=anew)
        if not self.settings.enabled:
            self._forget_runs()
        elif isinstance(slurm, SlurmView):
            self._follow(slurm.jobs, now)
        self._settle(now)
        return self._call_due(now)

    def save(self) -> None:
        """Writes down what has come. A StoreError loses nothing: the next step tries again."""
        if self._unsaved:
            runs = [run for key in {key for key, _ in self._unsaved} if (run := self._runs.get(key)) is not None]
            with self._store.batch():
                self._store.reopen_job_uses(run.use for run in runs if not run.recorded)
                self._store.save_job_uses([*self._unsaved.values()], self._packed)
            for run in runs:
                run.recorded = True
            self._unsaved.clear()
            self._packed.clear()
        for machine, run in self._last:
            run.awaited.discard(machine.node.name)
            self._plan_call(machine)
        self._last.clear()

    def _meet(self, claims: Sequence[Claim], nodes: Mapping[str, Node] | None, *, anew: bool) -> None:
        """Takes in which machines there are; ``anew``: also those that have not changed, as after other settings."""
        enabled = self.settings.enabled
        present: set[str] = set()
        for claim in claims:
            if claim.state in _WITH_SLURMD:
                present.add(claim.id)
                if anew or self._differs(claim.id, claim):
                    ending, connect = claim.state is S.DRAINING, partial(self._connect, claim)
                    self._put(MeasuredNode(claim.id, claim.slot, claim.offer, connect, enabled, ending), claim)
        slots = {claim.slot for claim in claims}
        self._left |= {name: address for name, address in self._own.items() if not self._is_own(name)}
        self._left = {name: address for name, address in self._left.items() if not self._is_own(name)}
        self._own = {name: address for name, address in self._own.items() if self._is_own(name)}
        if nodes is not None:
            self._own = {
                name: node.address
                for name, node in nodes.items()
                if node.responding and name not in slots and self._is_own(name)
            }
        for some, measured in ((self._own, enabled), (self._left, False)):
            for name, address in some.items():
                present.add(name)
                if anew or self._differs(name, address):
                    connect = partial(self._connect_own, name, address, self.settings.known_hosts)
                    self._put(MeasuredNode(name, name, None, connect, measured), address)
        for gone in self._machines.keys() - present:
            self._remove(gone)

    def _is_own(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.settings.own_nodes)

    def _differs(self, machine_id: str, origin: Claim | str) -> bool:
        machine = self._machines.get(machine_id)
        return machine is None or (machine.origin is not origin and machine.origin != origin)

    def _put(self, node: MeasuredNode, origin: Claim | str) -> None:
        machine = self._machines.get(node.id)
        before = machine.node if machine is not None else None
        if machine is None:
            machine = self._machines[node.id] = _Machine(node, origin)
        machine.node, machine.origin = node, origin
        if node.measured:
            self._by_name[node.name] = machine
            if before is None or not before.measured:
                for key, job in self._jobs_on.get(node.name, {}).items():
                    self._take_up(key, job)
        elif self._by_name.get(node.name) is machine:
            self._give_up(machine)
        self._plan_call(machine)

    def _remove(self, machine_id: str) -> None:
        self._give_up(self._machines.pop(machine_id))
        self._calls.drop(machine_id)

    def _give_up(self, machine: _Machine) -> None:
        """It is not measured any more: no last figures are waited for."""
        if self._by_name.get(machine.node.name) is machine:
            del self._by_name[machine.node.name]
        for run in machine.runs.values():
            run.awaited.discard(machine.node.name)

    def _forget_runs(self) -> None:
        for machine in self._machines.values():
            machine.runs.clear()
        for kept in (self._runs, self._ended, self._uses, self._rows, self._jobs, self._jobs_on):
            kept.clear()
        self._shown, self._queue, self._restored = None, None, False

    def _follow(self, jobs: Sequence[Job], now: float) -> None:
        """Takes up runs that have begun, and asks for the last figures of those that are over."""
        restored = not self._restored
        if restored:
            for use in self._store.open_job_uses():
                known = self._runs[_key(use)] = _JobRun(use, 0, 0, shared_gpus=False, claims={})
                self._uses[use.job], self._shown = known, None
            self._restored = True
        if jobs is self._queue:
            return
        rows, before = dict(zip(map(id, jobs), jobs, strict=True)), self._rows
        for row in rows.keys() - before.keys():
            job = rows[row]
            if job.state in _ON_NODES and job.start:
                self._see(self._key_in_queue(job), job)
        for row in before.keys() - rows.keys():
            job = before[row]
            key = self._key_in_queue(job)
            if self._jobs.get(key) is job:
                self._leave_nodes(key)
                if (run := self._runs.get(key)) is not None:
                    self._end(key, run, job, now)
        if restored:
            for key in self._runs.keys() - self._jobs.keys():
                self._end(key, self._runs[key], None, now)
        self._queue, self._rows = jobs, rows

    def _key_in_queue(self, job: Job) -> _Run:
        """Of the run that a row is of: Slurm counts a requeue before the run has left its nodes."""
        before = job.id, job.restarts - 1, job.run_start
        return before if job.state is JobState.COMPLETING and before in self._runs else _key(job)

    def _see(self, key: _Run, job: Job) -> None:
        before = self._jobs.get(key)
        if before is not None and before.node_list != job.node_list:
            self._leave_nodes(key)
        if key not in self._jobs:
            for name in job.node_list:
                self._jobs_on.setdefault(name, {})
        for name in job.node_list:
            self._jobs_on[name][key] = job
        self._jobs[key] = job
        if (run := self._ended.pop(key, None)) is not None:
            # As after a row that could not be read.
            run.use, run.awaited = replace(run.use, ended=None), set()
            self._detach(key, run)
            run.claims = {}
        if key in self._runs or any(name in self._by_name for name in job.node_list):
            self._take_up(key, job)

    def _leave_nodes(self, key: _Run) -> None:
        for name in self._jobs.pop(key).node_list:
            there = self._jobs_on[name]
            del there[key]
            if not there:
                del self._jobs_on[name]

    def _take_up(self, key: _Run, job: Job) -> None:
        here = {name: self._by_name[name] for name in job.node_list if name in self._by_name}
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
            run = self._runs[key] = _JobRun(known, cpus, memory, shared, {}, run.kept_as if run is not None else {})
            if known.nodes:
                self._uses[known.job], self._shown = run, None
        for name, machine in here.items():
            if run.claims.get(name) != machine.node.id:
                run.claims[name] = machine.node.id
                machine.runs[key] = run
                self._plan_call(machine)

    def _end(self, key: _Run, run: _JobRun, job: Job | None, now: float) -> None:
        """``job``: as it was last in the queue; None: it was never seen there."""
        completing = job is not None and job.state is JobState.COMPLETING and job.start <= job.end <= now
        run.use = replace(run.use, ended=job.end if job is not None and completing else now)
        if self._uses.get(run.use.job) is run:
            del self._uses[run.use.job]
            self._shown = None
        # After a restart of burstd the claims of a run that has ended meanwhile are those of its nodes.
        places = run.claims or {
            node.node: self._by_name[node.node].node.id for node in run.use.nodes if node.node in self._by_name
        }
        here = {name: self._by_name[name] for name in places if name in self._by_name}
        run.claims = {name: id_ for name, id_ in places.items() if name in here and here[name].node.id == id_}
        run.left, run.until, run.awaited = now, now + self.settings.last_figures_s, set(run.claims)
        self._ended[key] = run
        for name in run.claims:
            here[name].runs[key] = run
            self._plan_call(here[name])

    def _settle(self, now: float) -> None:
        """Writes runs down for good whose last figures have come, or are not waited for any more."""
        for run in self._ended.values():
            if now >= run.until:
                run.awaited = {name for name in run.awaited if not self._machines[run.claims[name]].call.failures}
        over = {key: run for key, run in self._ended.items() if not run.awaited}
        if not over:
            return
        room, written = MAX_ENDED_AT_ONCE, []
        with self._store.batch():
            for key, run in over.items():
                use, changed = self._at_end(run)
                left = [node for node in changed if node.node not in run.written]
                part = left[:room]
                ends = len(part) == len(left)
                self._store.end_job_use(use if ends else replace(use, ended=None), part)
                written.append((key, run, use, part, ends))
                room -= max(1, len(part))
                if room <= 0:
                    break
        for key, run, use, part, ends in written:
            run.written.update(node.node for node in part)
            if ends:
                self._finish(key, run, use)

    def _detach(self, key: _Run, run: _JobRun) -> None:
        """Its machines are not asked for its figures any more."""
        for claim_id in run.claims.values():
            if (machine := self._machines.get(claim_id)) is not None:
                machine.runs.pop(key, None)
                self._plan_call(machine)

    def _at_end(self, run: _JobRun) -> tuple[JobUse, list[NodeUse]]:
        """What is to be on record of it, and those of its nodes that are not so yet."""
        use, seen = run.use, run.use.nodes
        if len(seen) >= use.nodes_allocated and all(node.ended and not node.cut for node in seen):
            # However late burstd sees it, as after an outage.
            last = max(node.sampled_at for node in seen)
            use = replace(use, ended=min(max(last, use.started), run.left))
        late = (use.ended or 0.0) - END_TOLERANCE * self.settings.every_s
        nodes = tuple(
            node if node.ended else replace(node, ended=True, cut=node.sampled_at < late) for node in seen
        )  # fmt: skip
        changed = [node for node, before in zip(nodes, seen, strict=True) if node is not before]
        return replace(use, nodes=nodes), changed

    def _finish(self, key: _Run, run: _JobRun, use: JobUse) -> None:
        """All of it is on record: ``use``."""
        del self._runs[key], self._ended[key]
        self._detach(key, run)
        for node, claim_id in run.claims.items():
            if claim_id in self._machines:
                self._machines[claim_id].forget |= run.kept_as.get(node, set())
        if self.settings.jobstats and use.nodes and not use.cut:
            self._workers.submit(QUEUE_NAME, lambda: self._summaries.write(use), partial(_summary_written, use.job))

    def _plan_call(self, machine: _Machine) -> None:
        """Puts the next call there into its place; that of one in flight is put when it is answered."""
        node, call = machine.node, machine.call
        if call.in_flight or self._machines.get(node.id) is not machine:
            return
        # Of one that has not answered since burstd began nobody knows whether a sampler runs there.
        if machine.state in ("", "ended") if node.measured else machine.state != "ended":
            rank, due = Rank.CHANGE, call.due
        else:
            rank, due = Rank.ROUTINE, max(call.due, machine.begun + self.settings.collect_s)
        if node.measured and machine.owes:
            rank, due = Rank.ENDING if node.ending else Rank.OWING, call.due
        if rank is Rank.ROUTINE and not (node.measured and machine.runs):
            self._calls.drop(node.id)
        else:
            self._calls.put(node.id, rank, due)

    def _call_due(self, now: float) -> float:
        """Begins calls; returns when the next is due that no loop would come by for.

        Those for last figures keep to a number at once: machines wait for them. The others keep to a rate.
        """
        while self._owed_in_flight < MAX_OWED_AT_ONCE and (call := self._calls.pop(_OWED, now)) is not None:
            self._ask(self._machines[call[0]], call[1], now)
        rate = self.settings.calls_per_minute / 60
        self._allowance = min(max(1.0, BURST_S * rate), self._allowance + (now - self._counted) * rate)
        self._counted = now
        while self._allowance >= 1 and (call := self._calls.pop(_RATED, now)) is not None:
            self._allowance -= 1
            self._ask(self._machines[call[0]], call[1], now)
        owed, changes, rated = (self._calls.next_due(ranks) for ranks in (_OWED, (Rank.CHANGE,), _RATED))
        return min(
            owed if owed > now else now + OWED_S,
            changes if changes > now else float("inf"),
            now + BURST_S if rated <= now else float("inf"),
            now + OWED_S if any(not run.awaited for run in self._ended.values()) else float("inf"),
            min((run.until for run in self._ended.values() if run.until > now), default=float("inf")),
        )

    def _ask(self, machine: _Machine, rank: Rank, now: float) -> None:
        settings, node = self.settings, machine.node
        config = SamplerConfig(settings.every_s, settings.idle_below_percent) if node.measured else None
        machine.call.in_flight, machine.begun = True, now
        self._owed_in_flight += rank in _OWED
        forget = frozenset(islice(machine.forget, MAX_NAMES))
        owed = frozenset(islice(machine.owed_as(), MAX_NAMES))

        def work() -> _Answer:
            with node.connect() as shell:
                said = fetch_figures(shell, node.name, config, forget=forget, owed=owed, now=self._clock.now())
            plain = {name: use.without_series() for name, use in said.runs.items()}
            return _Answer(replace(said, runs=plain), {name: packed_figures(use) for name, use in said.runs.items()})

        def done(found: _Answer | Exception) -> None:
            self._owed_in_flight -= rank in _OWED
            try:
                self._take(machine, now, forget, found)
            finally:
                self._plan_call(machine)

        # No loop is run for figures that nothing waits for, nor for each node of a job that has many.
        quiet = rank in _RATED or (rank is Rank.OWING and self._calls.next_due(_OWED) <= now)
        self._workers.submit(QUEUE_NAME, work, done, quiet=lambda _: quiet)

    def _take(self, machine: _Machine, asked: float, forgotten: frozenset[str], answer: _Answer | Exception) -> None:
        now, node = self._clock.now(), machine.node
        if isinstance(answer, Exception):
            machine.call.fail(now, _FIRST_RETRY_S, self.settings.collect_s, spread=node.id)
            if not isinstance(answer, BurstdError):
                raise answer
            log.info("figures of jobs could not be fetched", slot=node.name, error=str(answer))
            if node.name in self._left and machine.call.failures >= _MAX_FAILURES:
                del self._left[node.name]
                self._remove(node.id)
                log.warning("a node that left own_nodes may still have a sampler", slot=node.name, error=str(answer))
            return
        found = answer.figures
        if found.state != machine.state and found.state in ("no_python", "refused"):
            log.warning("a machine does not measure what jobs use", slot=node.name, state=found.state)
        if found.unreadable:
            log.warning("figures of jobs are not what a sampler writes", slot=node.name, jobs=found.unreadable[:10])
        machine.call.succeed()
        machine.state = found.state
        if not node.measured and found.state == "ended" and self._left.pop(node.name, None) is not None:
            self._remove(node.id)
        machine.forget -= forgotten
        runs = {key: run for key, run in machine.runs.items() if self._runs.get(key) is run}
        latest: dict[_Run, str] = {}
        for name, use in sorted(found.runs.items(), key=lambda one: one[1].started):
            key = _run_of(runs, name.partition("-")[0], use)
            if key is not None:
                runs[key].kept_as.setdefault(node.name, set()).add(name)
                latest[key] = name
        for key, run in runs.items():
            if asked < run.left:
                continue
            if key in latest or not found.left_out or now >= run.until:
                self._last.append((machine, run))
            else:
                machine.call.due = now + OWED_S
        for key, name in latest.items():
            checked = _checked(runs[key], found.runs[name], node.offer)
            self._unsaved[key, node.name] = self._with_node(runs[key], checked)
            self._packed[key, node.name] = answer.packed[name]

    def _with_node(self, run: _JobRun, node: NodeUse) -> JobUse:
        """Takes a node's figures in; returns the run with these alone.

        On record it ends only when all is there: until then a restart of burstd takes it up again.
        """
        seen = run.use.nodes
        place = bisect_left(seen, node.node, key=lambda one: one.node)
        known = seen[place : place + 1]
        known = known if known and known[0].node == node.node else ()
        loading = node.read_now_mib_s > self.settings.loading_mib_s
        before = known[0].loading_at if known else 0.0
        node = replace(node, loading_at=node.sampled_at if loading else before)
        nodes = (*seen[:place], node, *seen[place + len(known) :])
        run.use = replace(run.use, nodes=nodes)
        run.written.discard(node.node)
        if run.use.ended is None:
            self._uses[run.use.job], self._shown = run, None
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
