"""Ends machines, and removes what bears our tag and has no owner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import structlog

from burstd.db import Store
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.clock import Clock
from burstd.domain.cloud.instance import InstanceState
from burstd.domain.errors import BurstdError
from burstd.domain.plan import RemoveOrphans, TerminateMachines
from burstd.domain.plugins.provider import Provider
from burstd.domain.snapshot import CloudView, Unavailable
from burstd.planner.isolation import node_subject
from burstd.reconciler.memory import LoopState
from burstd.reconciler.observer import Observer
from burstd.reconciler.quarantine import Quarantine
from burstd.runtime.workers import Workers

log = structlog.get_logger(__name__)


class Terminator:
    """The only caller of ``terminate`` and ``remove``. Both are repeated until a listing shows that all is gone."""

    def __init__(
        self,
        *,
        store: Store,
        providers: Mapping[str, Provider],
        workers: Workers,
        clock: Clock,
        loop_state: LoopState,
        observer: Observer,
        quarantine: Quarantine,
    ) -> None:
        self._store = store
        self._providers = providers
        self._workers = workers
        self._clock = clock
        self._loop_state = loop_state
        self._observer = observer
        self._quarantine = quarantine

    def terminate(self, action: TerminateMachines) -> int:
        """Asks for the end of every instance that bears one of the claims' ids."""
        by_provider: dict[str, list[Claim]] = {}
        for claim_id in action.claims:
            claim = self._store.claim(claim_id)
            if claim.state is S.TERMINATING and claim.id not in self._loop_state.in_flight:
                by_provider.setdefault(claim.offer.provider, []).append(claim)
        for name, claims in by_provider.items():
            wanted = {c.id for c in claims}
            view = self._observer.cloud_views()[name]
            ids = tuple(sorted(_instance_ids(view, wanted) | {c.instance_id for c in claims if c.instance_id}))
            still_running = {c.id for c in claims if _is_still_running(view, c)}
            self._call(
                name,
                tuple(wanted),
                lambda p, i=ids: p.terminate(i),  # type: ignore[misc]
                partial(self._termination_accepted, still_running=still_running),
            )
        return 0

    def _termination_accepted(self, claims: Sequence[str], still_running: Collection[str]) -> None:
        self._loop_state.termination_accepted.update(claims)
        with self._store.batch():
            for claim_id in claims:
                claim = self._store.claim(claim_id)
                with self._quarantine.contain_errors("end of a machine", node_subject(claim.slot)):
                    if claim.billed_from is not None and (claim.billed_until is None or claim_id in still_running):
                        self._store.update_claim(claim.id, billed_until=self._clock.now())

    def remove_orphans(self, action: RemoveOrphans) -> int:
        """Removes instances and leftovers; what a live claim has on record by now is left alone."""
        live = {c.instance_id for c in self._store.claims() if c.state is not S.TERMINATING}
        instances = tuple(i.id for i in action.instances if i.id not in live)
        keys = [f"{action.provider}/{thing}" for thing in (*instances, *(left.id for left in action.leftovers))]
        keys = [
            key for key in keys if key not in self._loop_state.in_flight and key not in self._loop_state.backoff_until
        ]
        if not keys:
            return 0
        for instance in action.instances:
            self._store.log_event(f"orphan:{instance.id}", new="removed", reason=action.reason)
            log.warning("orphan is removed", provider=action.provider, instance=instance.id, reason=action.reason)
        for left in action.leftovers:
            self._store.log_event(f"orphan:{left.id}", new="removed", reason=f"{left.kind}: {action.reason}")

        def work(provider: Provider) -> None:
            if instances:
                provider.terminate(instances)
            if action.leftovers:
                provider.remove(action.leftovers)

        self._call(action.provider, tuple(keys), work, lambda _: None)
        return 0

    def _call(
        self,
        name: str,
        keys: Sequence[str],
        work: Callable[[Provider], None],
        on_success: Callable[[Sequence[str]], None],
    ) -> None:
        provider = self._providers[name]
        self._loop_state.in_flight.update(keys)

        def done(result: Exception | None) -> None:
            self._loop_state.in_flight.difference_update(keys)
            self._observer.list_soon(name)
            now = self._clock.now()
            if result is None:
                for key in keys:
                    self._loop_state.reset_back_off(key)
                    # The listing needs a moment to show it.
                    self._loop_state.wait_before_retry(key, now, self._loop_state.intervals.call_retry_s)
                on_success(keys)
                return
            for key in keys:
                self._loop_state.back_off(key, now, getattr(result, "retry_after_s", 0.0))
            if isinstance(result, BurstdError):
                log.warning("the cloud did not end it", provider=name, things=list(keys), error=str(result))
            else:
                log.error("provider broke while ending machines", provider=name, exc_info=result)

        self._workers.submit(name, lambda: work(provider), done)


def _is_still_running(view: CloudView, claim: Claim) -> bool:
    """Whether a machine whose end was taken is still listed as running: it is paid for until now."""
    if claim.billed_until is None or isinstance(view.instances, Unavailable):
        return False
    if view.instances_listed <= claim.billed_until + view.settle_s:
        return False
    return any(i.id == claim.instance_id and i.state is InstanceState.RUNNING for i in view.instances)


def _instance_ids(view: CloudView, claims: set[str]) -> set[str]:
    if isinstance(view.instances, Unavailable):
        return set()
    return {i.id for i in view.instances if i.claim_id in claims and not i.state.ended}
