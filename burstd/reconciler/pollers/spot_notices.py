"""The queues in which clouds announce what they take back: read here, forgotten there once Slurm bears the notice.

What waits lives in memory only: a queue says it again until it is acknowledged, and that is done when nothing is left
to be done for it (burstd.planner.lifecycle.spot_notices.settled).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.errors import BurstdError
from burstd.domain.plugins.provider import Notice, NoticeKind, NoticeSource
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.isolation import node_subject
from burstd.planner.lifecycle.spot_notices import notice_is_settled, notice_reason
from burstd.reconciler.context import LoopContext
from burstd.runtime.poller import Poller

log = structlog.get_logger(__name__)

_UNKNOWN_MACHINE_S = 60.0
"""How long a notice of an unknown machine is kept while the answer to a launch is awaited: it may be its machine."""
_ALARM_FAILURES = 5
_Key = tuple[str, NoticeKind]


@dataclass(slots=True)
class _NoticeQueue:
    source: NoticeSource
    poller: Poller
    unsettled: dict[_Key, Notice] = field(default_factory=dict)
    first_seen: dict[_Key, float] = field(default_factory=dict)


def _key(notice: Notice) -> _Key:
    return notice.instance_id, notice.kind


class SpotNoticePoller:
    """Of the providers that have a queue. Used in the deciding thread; the calls are made in the lanes of listings."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        pace = context.intervals
        self._queues = {
            name: _NoticeQueue(
                p,
                Poller(
                    context.workers, context.clock, f"{name}:list", f"notices of {name}",
                    interval_s=lambda: pace.notices_idle_s, retry_s=lambda: pace.call_retry_s,
                ),
            )
            for name, p in context.providers.items()
            if isinstance(p, NoticeSource) and p.notice_markets
        }  # fmt: skip

    def poll(self, claims: Sequence[Claim]) -> None:
        """Reads the queues that are due; what they say comes with ``drain``."""
        self._hasten(claims)
        for queue in self._queues.values():
            known = frozenset(queue.unsettled)
            # Most answers are empty: no loop is run for them.
            queue.poller.poll(
                queue.source.notices,
                partial(self._keep, queue),
                quiet=lambda notices, known=known: all(_key(notice) in known for notice in notices),  # type: ignore[misc]
            )

    def next_poll(self, claims: Sequence[Claim]) -> float:
        """When the next reading is due, in burstd's time."""
        self._hasten(claims)
        return min((queue.poller.next_due() for queue in self._queues.values()), default=float("inf"))

    def _hasten(self, claims: Sequence[Claim]) -> None:
        for name, queue in self._queues.items():
            markets = queue.source.notice_markets
            if any(c.offer.provider == name and c.offer.market in markets for c in claims):
                queue.poller.hasten(queue.poller.begun + self._context.intervals.notices_s)

    def _keep(self, queue: _NoticeQueue, notices: Sequence[Notice]) -> None:
        for notice in notices:
            queue.first_seen.setdefault(_key(notice), self._context.clock.now())
            queue.unsettled[_key(notice)] = notice

    def alarms(self) -> list[str]:
        """Queues that have not been read for long."""
        return [
            f"the notices of provider {name} cannot be read: {queue.poller.error}"
            for name, queue in self._queues.items()
            if queue.poller.failures >= _ALARM_FAILURES
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
                young = self._context.clock.now() - queue.first_seen[key] < _UNKNOWN_MACHINE_S
                if claim is None and young and name in launching_providers:
                    continue
                with self._context.quarantine.contain_errors(
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

        self._context.workers.submit(f"{name}:list", lambda: queue.source.acknowledge(notices), done)
