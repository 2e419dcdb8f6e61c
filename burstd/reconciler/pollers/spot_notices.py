"""The queues in which clouds announce what they take back: read here, forgotten there once Slurm bears the notice.

What waits lives in memory only: a queue says it again until it is acknowledged, and that is done when nothing is left
to be done for it (burstd.planner.lifecycle.spot_notices.settled).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.clock import Clock
from burstd.domain.errors import BurstdError
from burstd.domain.plugins.provider import Notice, NoticeKind, NoticeSource, Provider
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.isolation import node_subject
from burstd.planner.lifecycle.spot_notices import notice_is_settled, notice_reason
from burstd.reconciler.observer import PollIntervals
from burstd.reconciler.quarantine import Quarantine
from burstd.runtime.workers import Workers

log = structlog.get_logger(__name__)

_UNKNOWN_MACHINE_S = 60.0
"""How long a notice of an unknown machine is kept while the answer to a launch is awaited: it may be its machine."""
_ALARM_FAILURES = 5
_FETCH_S = 1.0
_Key = tuple[str, NoticeKind]


@dataclass(slots=True)
class _NoticeQueue:
    source: NoticeSource
    reading: bool = False
    read: float = float("-inf")
    """When the last reading began, or failed."""
    failures: int = 0
    error: str = ""
    unsettled: dict[_Key, Notice] = field(default_factory=dict)
    first_seen: dict[_Key, float] = field(default_factory=dict)


def _key(notice: Notice) -> _Key:
    return notice.instance_id, notice.kind


class SpotNoticePoller:
    """Of the providers that have a queue. Used in the deciding thread; the calls are made in the lanes of listings."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        workers: Workers,
        clock: Clock,
        intervals: PollIntervals,
        quarantine: Quarantine,
    ) -> None:
        self._quarantine = quarantine
        self._workers = workers
        self._clock = clock
        self._intervals = intervals
        self._queues = {
            name: _NoticeQueue(p) for name, p in providers.items() if isinstance(p, NoticeSource) and p.notice_markets
        }

    def poll(self, claims: Sequence[Claim]) -> None:
        """Reads the queues that are due; what they say comes with ``drain``."""
        now = self._clock.now()
        for name, queue in self._queues.items():
            if not queue.reading and now >= self._due(name, queue, claims):
                self._read(name, queue)

    def next_poll(self, claims: Sequence[Claim]) -> float:
        """When the next reading is due, in burstd's time."""
        # An answer without news wakes nobody: it is fetched when the next reading is due, or once a second after that.
        soonest = self._clock.now() + _FETCH_S
        return min(
            (max(self._due(n, q, claims), soonest if q.reading else 0.0) for n, q in self._queues.items()),
            default=float("inf"),
        )

    def _due(self, name: str, queue: _NoticeQueue, claims: Sequence[Claim]) -> float:
        if queue.failures:
            return queue.read + min(self._intervals.call_retry_s * 2.0 ** min(queue.failures - 1, 10), 60.0)
        markets = queue.source.notice_markets
        busy = any(c.offer.provider == name and c.offer.market in markets for c in claims)
        return queue.read + (self._intervals.notices_s if busy else self._intervals.notices_idle_s)

    def _read(self, name: str, queue: _NoticeQueue) -> None:
        queue.reading, queue.read = True, self._clock.now()
        known = frozenset(queue.unsettled)

        def done(result: Sequence[Notice] | Exception) -> None:
            queue.reading = False
            if isinstance(result, Exception):
                self._failed(name, queue, result)
                return
            if queue.failures:
                log.info("notices can be read again", provider=name)
            queue.failures, queue.error = 0, ""
            for notice in result:
                queue.first_seen.setdefault(_key(notice), self._clock.now())
                queue.unsettled[_key(notice)] = notice

        def quiet(result: Sequence[Notice]) -> bool:
            return all(_key(notice) in known for notice in result)

        # Most answers are empty: no loop is run for them.
        self._workers.submit(f"{name}:list", queue.source.notices, done, quiet)

    def _failed(self, name: str, queue: _NoticeQueue, error: Exception) -> None:
        queue.failures, queue.read = queue.failures + 1, self._clock.now()
        queue.error = str(error) or type(error).__name__
        if not isinstance(error, BurstdError):
            log.error("provider broke while telling notices", provider=name, exc_info=error)
        elif queue.failures == 1:
            log.warning("notices cannot be read", provider=name, error=queue.error)

    def alarms(self) -> list[str]:
        """Queues that have not been read for long."""
        return [
            f"the notices of provider {name} cannot be read: {queue.error}"
            for name, queue in self._queues.items()
            if queue.failures >= _ALARM_FAILURES
        ]

    def notices_by_claim(self, claims: Iterable[Claim]) -> dict[str, Notice]:
        """What was announced and is not settled, by claim; of two notices of one machine the worse."""
        found: dict[str, Notice] = {}
        for claim in claims:
            queue = self._queues.get(claim.offer.provider)
            if queue is not None and queue.unsettled and claim.instance_id:
                for kind in (NoticeKind.REBALANCE, NoticeKind.INTERRUPTION):
                    if notice := queue.unsettled.get((claim.instance_id, kind)):
                        found[claim.id] = notice
        return found

    def acknowledge_settled(self, snapshot: Snapshot) -> None:
        """Lets the queues forget what is done, and what is about machines that are not ours."""
        slurm = snapshot.slurm
        if not any(queue.unsettled for queue in self._queues.values()) or not isinstance(slurm, SlurmView):
            return
        claims = {
            (c.offer.provider, c.instance_id): c for c in (*snapshot.claims, *snapshot.storage_claims) if c.instance_id
        }
        launching_providers = {
            c.offer.provider for c in (*snapshot.claims, *snapshot.storage_claims) if c.state is S.LAUNCHING
        }
        for name, queue in self._queues.items():
            done = []
            for key, notice in queue.unsettled.items():
                claim = claims.get((name, notice.instance_id))
                young = self._clock.now() - queue.first_seen[key] < _UNKNOWN_MACHINE_S
                if claim is None and young and name in launching_providers:
                    continue
                with self._quarantine.contain_errors(
                    "notices", node_subject(claim.slot) if claim is not None else f"the notices of {name}"
                ):
                    if notice_is_settled(notice, claim, slurm.nodes.get(claim.slot) if claim is not None else None):
                        done.append(key)
            if done:
                self._acknowledge(name, queue, [queue.unsettled.pop(key) for key in done])
                for key in done:
                    del queue.first_seen[key]

    def _acknowledge(self, name: str, queue: _NoticeQueue, notices: Sequence[Notice]) -> None:
        log.info("notices are settled", provider=name, notices=[f"{n.instance_id} {notice_reason(n)}" for n in notices])

        def done(result: Exception | None) -> None:
            # The queue says them again then.
            if isinstance(result, BurstdError):
                log.warning("notices could not be acknowledged", provider=name, error=str(result))
            elif isinstance(result, Exception):
                log.error("provider broke while acknowledging notices", provider=name, exc_info=result)

        self._workers.submit(f"{name}:list", lambda: queue.source.acknowledge(notices), done)
