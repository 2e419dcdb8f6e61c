"""The mount controller: has trees mounted before a job starts and unmounted after it. In the deciding thread.

Nothing is on record but the streams' own files: what is wanted follows from the queue and from the prologs that wait,
in each loop anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import BurstdError
from burstd.domain.mounts import NOBODY_UID, PUBLIC_USER, MountedTree, MountRule, MountsView, public_trees, user_trees
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.planner.mounts import users_of_nodes
from burstd.runtime.workers import Workers
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.slurm.hostlist import expand
from burstd.transfer.privsep.errors import Account, account, user_name_of

log = structlog.get_logger(__name__)

StreamKey = tuple[str, int]
"""A claim's id and a user's uid."""
_NODES = frozenset({ClaimState.READY, ClaimState.IN_SERVICE, ClaimState.DRAINING})
_QUEUE = "mounts"
_RETRY_S = 2.0
_UNKNOWN_NODE_S = 60.0
"""A slot whose machine is not on record so long after its job got it is a machine that burstd does not know."""
_FREE_NODE_S = 60.0
"""So long a job waits until the mounts of a node's last user are gone."""


class Streams(Protocol):
    """What ``MountStreams`` does, as the controller needs it."""

    def start(self, claim: Claim, who: Account, trees: Sequence[MountedTree]) -> None:
        """Returns when all trees are mounted. Raises BurstdError."""
        ...

    def stop(self, claim: Claim | None, claim_id: str, uid: int) -> None:
        """Unmounts, as far as the machine can be reached (None: it is gone), and ends the processes of the head."""
        ...

    def alive(self) -> Mapping[StreamKey, tuple[MountedTree, ...]]:
        """Streams that carry, those of an earlier process of burstd included."""
        ...

    def ended(self) -> frozenset[StreamKey]:
        """Streams that ended by themselves, and for which ``stop`` has not been called since."""
        ...


@dataclass(slots=True)
class _Prolog:
    """A job that waits for its trees."""

    call: StageCall
    since: float
    answer: Callable[[StageReply], None]
    missing: set[StreamKey] = field(default_factory=set)
    """Streams that do not carry so far."""


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
        find_user: Callable[[int], str] = user_name_of,
    ) -> None:
        """``find_account`` tells of a user, or raises UserWorkerError; called in the workers.

        ``find_user``: the name of a uid.
        """
        self._streams, self._workers, self._clock = streams, workers, clock
        self._rules, self._pools, self._find_account, self._find_user = rules, pools, find_account, find_user
        self._prologs: dict[str, _Prolog] = {}
        """By job id."""
        self._busy: dict[StreamKey, float] = {}
        """Streams that are being started or stopped, and those that rest after a failed stop: until when."""
        self._began = clock.now()
        self._started_at: dict[StreamKey, float] = {}
        self._users: dict[int, str] = {}
        self._refusals: dict[str, str] = {}
        """By the job's id in the queue."""
        self._view = MountsView()

    def handle_prolog(self, call: StageCall, answer: Callable[[StageReply], None]) -> None:
        """A job has its nodes; the answer may come much later. A client that asks again waits for what is under way."""
        before = self._prologs.get(call.job_id)
        self._prologs[call.job_id] = _Prolog(call, before.since if before else self._clock.now(), answer)

    def view(self) -> MountsView:
        """Of the last step."""
        return self._view

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Brings on what is due. Returns when the next step is, in burstd's time."""
        now = self._clock.now()
        claim_by_slot = {c.slot: c for c in claims if c.state in _NODES}
        alive, ended = self._streams.alive(), self._streams.ended()
        for job_id in list(self._prologs):
            self._advance_prolog(job_id, claim_by_slot, alive)
        reachable = {claim.id: claim for claim in claim_by_slot.values()}
        live = {claim.id for claim in claims if claim.state is not ClaimState.GONE}
        lost: set[StreamKey] = set()
        if isinstance(slurm, SlurmView):
            lost = set(self._used(ended, users_of_nodes(slurm.jobs, claim_by_slot, started=True), claim_by_slot))
            wanted = self._wanted_by_prologs(claim_by_slot)
            wanted |= set(self._used(alive, users_of_nodes(slurm.jobs, claim_by_slot), claim_by_slot))
            for key in {*(alive.keys() - wanted), *(ended - lost)}:
                # A job that has just got its node may be missing in what Slurm showed before.
                if self._started_at.get(key, self._began) < slurm.read_at:
                    self._stop(key, reachable.get(key[0]))
            shown = {job.id for job in slurm.jobs}
            self._refusals = {job: text for job, text in self._refusals.items() if job in shown}
        else:
            for key in {*alive, *ended}:
                if key[0] not in live:
                    self._stop(key, None)
        self._view = MountsView(self._users_by_claim(lost), dict(self._refusals))
        return now + _RETRY_S if self._prologs or self._busy else float("inf")

    # What a job's start needs.

    def _advance_prolog(
        self, job_id: str, claim_by_slot: Mapping[str, Claim], alive: Mapping[StreamKey, tuple[MountedTree, ...]]
    ) -> None:
        prolog = self._prologs[job_id]
        call = prolog.call
        pool_of_slot = {slot: pool for pool in self._pools().values() for slot in pool.slots}
        prolog.missing.clear()
        for node in expand(call.info.get("nodes", "")):
            pool = pool_of_slot.get(node)
            if pool is None or not any(rule.is_shown_in(pool.name) for rule in self._rules()):
                continue
            claim = claim_by_slot.get(node)
            if claim is None:
                if self._clock.now() - prolog.since > _UNKNOWN_NODE_S:
                    self._refuse(job_id, f"{node}: burstd has no machine on record for this node")
                    return
                prolog.missing.add(("", 0))
                continue
            for user in self._users_served(call, pool):
                self._start_missing(prolog, claim, pool, user, alive)
        if not prolog.missing and job_id in self._prologs:
            self._refusals.pop(call.info.get("queue_id", job_id), None)
            self._prologs.pop(job_id).answer(StageReply("ok"))

    def _users_served(self, call: StageCall, pool: Pool) -> list[str]:
        rules = [rule for rule in self._rules() if rule.is_shown_in(pool.name)]
        users = [call.info.get("user", "")] if any(not rule.public for rule in rules) else []
        return users + ([PUBLIC_USER] if any(rule.public for rule in rules) else [])

    def _start_missing(
        self, prolog: _Prolog, claim: Claim, pool: Pool, user: str, alive: Mapping[StreamKey, tuple[MountedTree, ...]]
    ) -> None:
        uid = self._uid_of(prolog.call, user)
        key = (claim.id, uid)
        busy = self._busy.get(key, 0.0) > self._clock.now()
        if key in alive and not busy:
            # What the job's end would have stopped is wanted again.
            self._started_at[key] = self._clock.now()
            return
        prolog.missing.add(key)
        if busy:
            return
        rules = tuple(self._rules())
        exclusive = any(rule.exclusive_user and rule.is_shown_in(pool.name) for rule in rules)
        others = [k for k in alive if k[0] == claim.id and k[1] != uid and self._user_of(k[1]) != PUBLIC_USER]
        if exclusive and user != PUBLIC_USER and others:
            # Slurm gives the node to another user once the last one's jobs are over; the next step unmounts theirs.
            if self._clock.now() - prolog.since > _FREE_NODE_S:
                text = (
                    f"{claim.slot}: it shows trees to user {self._user_of(others[0][1])}, and can show them to one "
                    f"user at a time: its partition needs ExclusiveUser=YES ('burstctl slurm-config')"
                )
                self._refuse(prolog.call.job_id, text)
            return
        if key in self._streams.ended():
            # Jobs at work lose what they have open there; once they are requeued, the next step clears the node.
            if self._clock.now() - prolog.since > _FREE_NODE_S:
                text = f"{claim.slot}: the mounts of {user} there are broken, and jobs that used them have not ended"
                self._refuse(prolog.call.job_id, text)
            return

        def start() -> None:
            who = self._find_account(user)
            if user == PUBLIC_USER:
                trees = public_trees(rules, pool.name)
            else:
                trees = user_trees(rules, pool.name, user, who.home)
            self._streams.start(claim, who, trees)

        self._busy[key] = float("inf")
        self._workers.submit(_QUEUE, start, partial(self._started, key, claim.slot), user=uid)

    def _started(self, key: StreamKey, slot: str, result: object) -> None:
        del self._busy[key]
        self._started_at[key] = self._clock.now()
        if not isinstance(result, Exception):
            log.info("trees are mounted", node=slot, uid=key[1])
            return
        if not isinstance(result, BurstdError):
            log.error("trees are not mounted", node=slot, uid=key[1], exc_info=result)
        for job_id in [job_id for job_id, prolog in self._prologs.items() if key in prolog.missing]:
            self._refuse(job_id, f"{slot}: {result}")

    def _refuse(self, job_id: str, text: str) -> None:
        prolog = self._prologs.pop(job_id)
        log.error("a job does not start: its trees are not mounted", job=job_id, reason=text)
        self._refusals[prolog.call.info.get("queue_id", job_id)] = f"its trees could not be mounted on {text}"
        prolog.answer(StageReply("refused", text))

    # What is wanted.

    def _wanted_by_prologs(self, claim_by_slot: Mapping[str, Claim]) -> set[StreamKey]:
        return {
            (claim_by_slot[node].id, self._uid_of(prolog.call, user))
            for prolog in self._prologs.values()
            for node in expand(prolog.call.info.get("nodes", ""))
            if node in claim_by_slot
            for user in (prolog.call.info.get("user", ""), PUBLIC_USER)
        }

    def _used(
        self, keys: Iterable[StreamKey], users_of_slots: Mapping[str, set[str]], claim_by_slot: Mapping[str, Claim]
    ) -> Iterator[StreamKey]:
        """Those of these streams whose user has a job on the node; a public one is everybody's."""
        users = {claim_by_slot[slot].id: {*names, PUBLIC_USER} for slot, names in users_of_slots.items()}
        return (key for key in keys if self._user_of(key[1]) in users.get(key[0], ()))

    def _users_by_claim(self, keys: Iterable[StreamKey]) -> Mapping[str, frozenset[str]]:
        users: dict[str, frozenset[str]] = {}
        for claim_id, uid in keys:
            users[claim_id] = users.get(claim_id, frozenset()) | {self._user_of(uid)}
        return users

    def _stop(self, key: StreamKey, claim: Claim | None) -> None:
        if self._busy.get(key, 0.0) > self._clock.now():
            return
        self._busy[key] = float("inf")
        self._workers.submit(_QUEUE, lambda: self._streams.stop(claim, *key), partial(self._stopped, key), user=key[1])

    def _stopped(self, key: StreamKey, result: object) -> None:
        if isinstance(result, Exception):
            log.warning("trees are not unmounted; it is tried again", claim=key[0], uid=key[1], error=str(result))
            self._busy[key] = self._clock.now() + _RETRY_S
        else:
            del self._busy[key]
            self._started_at.pop(key, None)

    def _uid_of(self, call: StageCall, user: str) -> int:
        uid = NOBODY_UID if user == PUBLIC_USER else int(call.uid or 0)
        self._users[uid] = user
        return uid

    def _user_of(self, uid: int) -> str:
        if uid not in self._users:
            self._users[uid] = self._find_user(uid)
        return self._users[uid]
