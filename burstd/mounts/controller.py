"""The mount controller: has trees mounted before a job starts and unmounted after it. In the deciding thread.

Nothing is on record but the streams' own files: what is wanted follows from the queue and from the prologs that wait,
in each loop anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import BurstdError, NodeNotReady, NodeRefused
from burstd.domain.mounts import NOBODY_UID, PUBLIC_USER, MountedTree, MountRule, MountsView, public_trees, user_trees
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.mounts.streams import Stream
from burstd.planner.mounts import users_of_nodes
from burstd.runtime.workers import Workers
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.slurm.hostlist import expand
from burstd.transfer.privsep.errors import Account, account

log = structlog.get_logger(__name__)

StreamKey = tuple[str, int]
"""A claim's id and a user's uid."""
_NODES = frozenset({ClaimState.READY, ClaimState.IN_SERVICE, ClaimState.DRAINING})
_QUEUE, _STOP_QUEUE = "mounts", "mounts:stop"
_RETRY_S = 2.0
_WAIT_S = 60.0
"""So long a job waits for a machine, for the mounts of a node's last user to go, and for a machine to answer."""


class Streams(Protocol):
    """What ``MountStreams`` does, as the controller needs it."""

    def start(self, claim: Claim, who: Account, trees: Sequence[MountedTree]) -> None:
        """Returns when all trees are mounted. Raises BurstdError."""
        ...

    def stop(self, claim: Claim | None, claim_id: str, uid: int) -> None:
        """Unmounts, as far as the machine can be reached (None: it is gone), and ends the processes of the head."""
        ...

    def streams(self) -> Mapping[StreamKey, Stream]:
        """All whose trees stood, those of an earlier process of burstd included, until they are stopped."""
        ...


@dataclass(slots=True)
class _Prolog:
    """A job that waits for its trees."""

    call: StageCall
    nodes: tuple[str, ...]
    since: float
    answer: Callable[[StageReply], None]
    ready: set[StreamKey] = field(default_factory=set)
    """Streams that show the trees that the job shall find."""
    missing: set[StreamKey] = field(default_factory=set)
    """Streams that do not carry so far, as of the last step."""


class MountController:
    """``handle_prolog`` hears burstd-prolog, ``step`` starts and stops what is due, ``view`` says how things stand."""

    def __init__(
        self,
        streams: Streams,
        workers: Workers,
        clock: Clock,
        *,
        rules: Callable[[], Sequence[MountRule]],
        pools: Callable[[], Mapping[str, Pool]],
        find_account: Callable[[str], Account] = account,
        held: Mapping[str, str] | None = None,
    ) -> None:
        """``find_account`` tells of a user, or raises UserWorkerError; called in the workers.

        ``held``: jobs that burstd held before its last restart, with the reason.
        """
        self._streams, self._workers, self._clock = streams, workers, clock
        self._rules, self._pools, self._find_account = rules, pools, find_account
        self._prologs: dict[str, _Prolog] = {}
        """By job id."""
        self._busy: dict[StreamKey, float] = {}
        """Streams that are being started or stopped, and those that rest after a failed stop: until when."""
        self._began = clock.now()
        self._started_at: dict[StreamKey, float] = {}
        self._held = held or {}
        """Until it is known which of them are held still."""
        self._refusals: dict[str, str] = {}
        """By the job's id in the queue."""
        self._refused_times: dict[str, int] = {}
        """The same; in a row, and since the job was last released."""
        self._jobs: Mapping[str, Job] = {}
        """Those of the last step, by their ids in the queue."""
        self._view = MountsView()

    def handle_prolog(self, call: StageCall, answer: Callable[[StageReply], None]) -> None:
        """A job has its nodes; the answer may come much later. A client that asks again waits for what is under way."""
        try:
            nodes = tuple(expand(call.info.get("nodes", "")))
        except ValueError as error:
            answer(StageReply("refused", f"Slurm's list of the job's nodes cannot be read: {error}"))
            return
        before = self._prologs.get(call.job_id)
        self._prologs[call.job_id] = _Prolog(call, nodes, before.since if before else self._clock.now(), answer)

    def view(self) -> MountsView:
        """Of the last step."""
        return self._view

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim], *, doubt: bool = False) -> float:
        """Brings on what is due. Returns when the next step is, in burstd's time.

        ``doubt``: the record may lack machines that are there, so nothing is stopped.
        """
        now = self._clock.now()
        self._busy = {key: until for key, until in self._busy.items() if until > now}
        claim_by_slot = {c.slot: c for c in claims if c.state in _NODES}
        streams = self._streams.streams()
        pool_by_slot = {slot: pool for pool in self._pools().values() for slot in pool.slots} if self._prologs else {}
        for job_id in list(self._prologs):
            self._advance_prolog(job_id, claim_by_slot, pool_by_slot, streams)
        lost: set[StreamKey] = set()
        if isinstance(slurm, SlurmView) and not doubt:
            lost = self._stop_unneeded(slurm, claim_by_slot, streams)
            self._jobs = {job.id: job for job in slurm.jobs}
            held = {job: text for job, text in self._held.items() if job in self._jobs and self._jobs[job].held}
            self._refusals = held | {job: text for job, text in self._refusals.items() if job in self._jobs}
            self._held = {}
            self._refused_times = {
                job: 0 if self._jobs[job].held else times
                for job, times in self._refused_times.items()
                if job in self._refusals
            }
        users: dict[str, frozenset[str]] = {}
        for key in lost:
            users[key[0]] = users.get(key[0], frozenset()) | {streams[key].user}
        self._view = MountsView(users, dict(self._refusals), refused_times=dict(self._refused_times))
        return now + _RETRY_S if self._prologs or self._busy else float("inf")

    def _stop_unneeded(
        self, slurm: SlurmView, claim_by_slot: Mapping[str, Claim], streams: Mapping[StreamKey, Stream]
    ) -> set[StreamKey]:
        """Stops what no job needs; the streams that ended under jobs."""
        claim_by_id = {claim.id: claim for claim in claim_by_slot.values()}
        users = users_of_nodes(slurm.jobs, claim_by_slot)
        started = users_of_nodes(slurm.jobs, claim_by_slot, started=True)
        # Where a row of the queue cannot be read, nobody knows on which nodes its user has a job.
        unreadable = {job.user for job in slurm.jobs if job.state is JobState.UNKNOWN}
        wanted = self._wanted_by_prologs(claim_by_slot)
        lost = set()
        for key, stream in streams.items():
            claim = claim_by_id.get(key[0])
            names = (started if stream.ended else users).get(claim.slot, set()) if claim is not None else set()
            used = stream.user in names or (stream.user == PUBLIC_USER and bool(names))
            if used and stream.ended:
                lost.add(key)
            kept = used or (key in wanted and not stream.ended) or unreadable & {stream.user, ""}
            # A job that has just got its node may be missing in what Slurm showed before.
            if not kept and self._started_at.get(key, self._began) < slurm.read_at:
                self._stop(key, claim)
        return lost

    # What a job's start needs.

    def _advance_prolog(
        self,
        job_id: str,
        claim_by_slot: Mapping[str, Claim],
        pool_by_slot: Mapping[str, Pool],
        streams: Mapping[StreamKey, Stream],
    ) -> None:
        prolog = self._prologs[job_id]
        prolog.missing.clear()
        for node in prolog.nodes:
            pool = pool_by_slot.get(node)
            if pool is None or not any(rule.is_shown_in(pool.name) for rule in self._rules()):
                continue
            claim = claim_by_slot.get(node)
            if claim is None:
                prolog.missing.add(("", 0))
                if self._is_late(prolog):
                    self._refuse(job_id, f"{node}: burstd has no machine in service for this node")
                    return
                continue
            for user in self._users_served(prolog.call, pool):
                self._start_missing(prolog, claim, pool, user, streams)
                if job_id not in self._prologs:
                    return
        if not prolog.missing:
            self._refusals.pop(self._queue_id(prolog), None)
            self._prologs.pop(job_id).answer(StageReply("ok"))

    def _is_late(self, prolog: _Prolog) -> bool:
        return self._clock.now() - prolog.since > _WAIT_S

    def _users_served(self, call: StageCall, pool: Pool) -> list[str]:
        rules = [rule for rule in self._rules() if rule.is_shown_in(pool.name)]
        users = [call.info.get("user", "")] if any(not rule.public for rule in rules) else []
        return users + ([PUBLIC_USER] if any(rule.public for rule in rules) else [])

    def _start_missing(
        self, prolog: _Prolog, claim: Claim, pool: Pool, user: str, streams: Mapping[StreamKey, Stream]
    ) -> None:
        uid = _uid_of(prolog.call, user)
        key = (claim.id, uid)
        there = streams.get(key)
        if there is not None and not there.ended and key in prolog.ready and key not in self._busy:
            # What the job's end would have stopped is wanted again.
            self._started_at[key] = self._clock.now()
            return
        prolog.missing.add(key)
        if key in self._busy:
            return
        rules = tuple(self._rules())
        exclusive = any(rule.exclusive_user and rule.is_shown_in(pool.name) for rule in rules)
        others = {s.user for k, s in streams.items() if k[0] == claim.id} - {user, PUBLIC_USER}
        if exclusive and user != PUBLIC_USER and others:
            # Slurm gives the node to another user once the last one's jobs are over; the next step unmounts theirs.
            if self._is_late(prolog):
                text = (
                    f"{claim.slot}: it shows trees to user {min(others)}, and can show them to one user at a time: its "
                    f"partition needs ExclusiveUser=YES ('burstctl slurm-config')"
                )
                self._refuse(prolog.call.job_id, text)
            return
        if there is not None and there.ended:
            # Jobs at work lose what they have open there; once they are requeued, the next step clears the node.
            if self._is_late(prolog):
                text = f"{claim.slot}: the mounts of {user} there are broken, and jobs that used them have not ended"
                self._refuse(prolog.call.job_id, text)
            return

        def start() -> None:
            who = self._find_account(user)
            if who.uid != uid:
                raise NodeRefused(
                    f"Slurm says that {user} has uid {uid}, and the head's account database says {who.uid}",
                    cause="mounts",
                )
            trees = (
                public_trees(rules, pool.name) if user == PUBLIC_USER else user_trees(rules, pool.name, user, who.home)
            )
            self._streams.start(claim, who, trees)

        self._busy[key] = float("inf")
        # Public trees are everybody's: they are not one user's share of the workers.
        share = None if user == PUBLIC_USER else uid
        self._workers.submit(_QUEUE, start, partial(self._started, key, claim.slot), user=share)

    def _started(self, key: StreamKey, slot: str, result: object) -> None:
        now = self._clock.now()
        del self._busy[key]
        waiting = [prolog for prolog in self._prologs.values() if key in prolog.missing]
        if not isinstance(result, Exception):
            self._started_at[key] = now
            for prolog in waiting:
                prolog.ready.add(key)
            log.info("trees are mounted", node=slot, uid=key[1])
            return
        if not isinstance(result, BurstdError):
            log.error("trees are not mounted", node=slot, uid=key[1], exc_info=result)
        again = isinstance(result, NodeNotReady)
        if again:
            self._busy[key] = now + _RETRY_S
            log.warning("trees are not mounted; it is tried again", node=slot, uid=key[1], error=str(result))
        for prolog in waiting:
            if not again or self._is_late(prolog):
                self._refuse(prolog.call.job_id, f"{slot}: {result}")

    def _refuse(self, job_id: str, text: str) -> None:
        prolog = self._prologs.pop(job_id)
        log.error("a job does not start: its trees are not mounted", job=job_id, reason=text)
        queue_id = self._queue_id(prolog)
        self._refusals[queue_id] = f"its trees could not be mounted on {text}"
        self._refused_times[queue_id] = self._refused_times.get(queue_id, 0) + 1
        prolog.answer(StageReply("refused", text))

    def _queue_id(self, prolog: _Prolog) -> str:
        """Slurm tells PrologSlurmctld the number of a het job's component, which is none of its ids in the queue."""
        named = prolog.call.info.get("queue_id", prolog.call.job_id)
        user = prolog.call.info.get("user", "")
        components = (
            job.id
            for job in self._jobs.values()
            if job.het_job_id and job.user == user and set(job.node_list) == set(prolog.nodes)
        )
        return named if named in self._jobs else next(components, named)

    # What is wanted.

    def _wanted_by_prologs(self, claim_by_slot: Mapping[str, Claim]) -> set[StreamKey]:
        return {
            (claim_by_slot[node].id, _uid_of(prolog.call, user))
            for prolog in self._prologs.values()
            for node in prolog.nodes
            if node in claim_by_slot
            for user in (prolog.call.info.get("user", ""), PUBLIC_USER)
        }

    def _stop(self, key: StreamKey, claim: Claim | None) -> None:
        if key in self._busy:
            return
        self._busy[key] = float("inf")
        # A lane of its own: machines that do not answer keep no start waiting.
        self._workers.submit(_STOP_QUEUE, lambda: self._streams.stop(claim, *key), partial(self._stopped, key))

    def _stopped(self, key: StreamKey, result: object) -> None:
        if isinstance(result, Exception):
            log.warning("trees are not unmounted; it is tried again", claim=key[0], uid=key[1], error=str(result))
            self._busy[key] = self._clock.now() + _RETRY_S
        else:
            del self._busy[key]
            self._started_at.pop(key, None)


def _uid_of(call: StageCall, user: str) -> int:
    return NOBODY_UID if user == PUBLIC_USER else int(call.uid or 0)
