"""Jobs that Slurm shows as running though it never began their script.

slurmctld from 26.05 on takes a PrologSlurmctld that was killed when slurmctld was stopped for a good one, and has no
time left to send the script to the node. Only the node tells such a job from one that is at work: slurmctld lists its
batch step all the same. It takes the job as started when it has read its state again, so the job's start is a little
later than its own. A slurmctld that has long been up did not do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import structlog

from burstd.domain.claim import Claim
from burstd.domain.clock import Clock
from burstd.domain.errors import BurstdError, NodeNotReady
from burstd.domain.plugins.shell import Shell
from burstd.domain.slurm.job import Job, JobState
from burstd.runtime.workers import Workers
from burstd.slurm.commands.job_facts import JobFacts

log = structlog.get_logger(__name__)

RunKey = tuple[str, int]
"""A job's id in the queue, and how often Slurm has started it before."""
CHECK_AFTER_S = 10.0
"""From the first loop that sees a job run: most that are over sooner are never looked for."""
RECHECK_S = 10.0
CHECKS = 2
"""So many in a row must find nothing of a job on its nodes."""
RECOVERY_S = 300.0
"""In this time slurmctld has read its state again."""
_QUEUE = "mounts:batch"
_CALL_TIMEOUT_S = 20.0
_SIDE_BY_SIDE = 16
"""So many nodes of a job are asked at once."""


class UnstartedJobs:
    """Used in the deciding thread. A node is asked only for jobs from before slurmctld's last start, or soon after."""

    def __init__(
        self,
        workers: Workers,
        clock: Clock,
        slurmctld_start: Callable[[], float],
        script_begun: Callable[[Claim, Job], bool],
    ) -> None:
        """Both are called in the workers, and raise BurstdError where they cannot tell.

        ``slurmctld_start``: in burstd's time. ``script_begun``: whether a node has, or had, the script of a job; True
        where the job has none.
        """
        self._workers, self._clock = workers, clock
        self._slurmctld_start, self._script_begun = slurmctld_start, script_begun
        self._seen: dict[RunKey, float] = {}
        """When each run that is not known to have begun was first seen."""
        self._begun: set[RunKey] = set()
        self._misses: dict[RunKey, int] = {}
        self._under_way = False
        self._next_check = 0.0

    def jobs(self) -> Mapping[str, int]:
        """By job id, how often those were started before that never began, though Slurm shows them as running."""
        return {key[0]: key[1] for key, misses in self._misses.items() if misses >= CHECKS}

    def step(self, jobs: Iterable[Job], claims: Mapping[str, Claim]) -> float:
        """``claims``: by slot, those on whose nodes PrologSlurmctld has something to do. Returns when to come again."""
        now = self._clock.now()
        running = {
            (job.id, job.restarts): job
            for job in jobs
            if job.state is JobState.RUNNING
            and job.node_list
            and not job.het_offset
            and claims.keys() >= {*job.node_list}
        }
        self._begun &= running.keys()
        self._seen = {key: self._seen.get(key, now) for key in running.keys() - self._begun}
        self._misses = {key: misses for key, misses in self._misses.items() if key in self._seen}
        if not self._seen or self._under_way:
            return float("inf")
        due = max(min(self._seen.values()) + CHECK_AFTER_S, self._next_check)
        if now < due:
            return due
        some = {key: running[key] for key, at in self._seen.items() if now >= at + CHECK_AFTER_S}
        machines = dict(claims)
        self._under_way = True
        self._workers.submit(_QUEUE, lambda: self._check(some, machines), self._checked)
        return float("inf")

    def _check(self, jobs: Mapping[RunKey, Job], claims: Mapping[str, Claim]) -> dict[RunKey, bool]:
        """Whether the script of each has begun; those of which that cannot be told now are left out."""
        recovered = self._slurmctld_start() + RECOVERY_S
        found = {}
        for key, job in jobs.items():
            try:
                found[key] = job.start > recovered or self._has_begun(job, [claims[node] for node in job.node_list])
            except BurstdError as error:
                log.info("it is not known whether a job's script has begun", job=job.id, error=str(error))
        return found

    def _has_begun(self, job: Job, claims: Sequence[Claim]) -> bool:
        """The first node, which nearly always has the script, is asked alone. Raises BurstdError."""
        if self._script_begun(claims[0], job):
            return True
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            return any(pool.map(lambda claim: self._script_begun(claim, job), claims[1:]))

    def _checked(self, result: Mapping[RunKey, bool] | Exception) -> None:
        self._under_way = False
        self._next_check = self._clock.now() + RECHECK_S
        if isinstance(result, Exception):
            log.info("it is not known whether jobs' scripts have begun", error=str(result))
            return
        for key, begun in result.items():
            if begun:
                self._begun.add(key)
                self._misses.pop(key, None)
            elif key in self._seen:
                self._misses[key] = self._misses.get(key, 0) + 1
                log.warning("Slurm shows a job as running, and its node has nothing of it", job=key[0])


class BatchScripts:
    """Looks on nodes for jobs' scripts. For worker threads."""

    def __init__(self, connect: Callable[[Claim], Shell], read_facts: Callable[[str], JobFacts | None]) -> None:
        """``read_facts``: what Slurm knows of a job; raises SchedulerUnavailable."""
        self._connect, self._read_facts = connect, read_facts
        self._script = files("burstd.node").joinpath("scripts", "batch.sh").read_text(encoding="utf-8")

    def have_begun(self, claim: Claim, job: Job) -> bool:
        """Whether the machine has the script of a job at work, or slurmd prepares it. True: also where it has none."""
        facts = self._read_facts(job.id)
        if facts is None or facts.state != JobState.RUNNING or facts.restarts != job.restarts or not facts.std_out:
            return True  # It is over, or salloc's or srun's.
        with self._connect(claim) as shell:
            done = shell.script(self._script, facts.job_id, timeout_s=_CALL_TIMEOUT_S)
        if done.rc != 0 or done.out.strip() not in ("begun", "none"):
            raise NodeNotReady(f"{claim.slot} does not tell which jobs it has: {done.last_line}")
        return done.out.strip() == "begun"
