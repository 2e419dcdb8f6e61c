"""Ends machines, and removes what bears our tag and has no owner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import structlog

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import InstanceState
from burstd.domain.errors import BurstdError
from burstd.domain.plan import RemoveOrphans, TerminateMachines
from burstd.domain.plugins.provider import Provider
from burstd.domain.snapshot import CloudView, Unavailable
from burstd.planner.isolation import node_subject
from burstd.reconciler.context import LoopContext
from burstd.reconciler.machines.progress import ProgressTable, Step
from burstd.reconciler.observer import Observer
from burstd.runtime.poller import RepeatedCall

log = structlog.get_logger(__name__)


class Terminator:
    """The only caller of ``terminate`` and ``remove``. Both are repeated until a listing shows that all is gone."""

    def __init__(self, context: LoopContext, progress: ProgressTable, observer: Observer) -> None:
        self._context, self._store = context, context.store
        self._progress = progress
        self._observer = observer

    def terminate(self, action: TerminateMachines) -> int:
        """Asks for the end of every instance that bears one of the claims' ids."""
        by_provider: dict[str, list[Claim]] = {}
        for claim_id in action.claims:
            claim = self._store.claim(claim_id)
            if claim.state is S.TERMINATING and not self._progress.claims[claim.id].call.in_flight:
                by_provider.setdefault(claim.offer.provider, []).append(claim)
        for name, claims in by_provider.items():
            wanted = {c.id for c in claims}
            view = self._observer.cloud_views()[name]
            ids = tuple(sorted(_instance_ids(view, wanted) | {c.instance_id for c in claims if c.instance_id}))
            still_running = {c.id for c in claims if _is_still_running(view, c)}
            self._call(
                name,
                {claim_id: self._progress.claims[claim_id].call for claim_id in wanted},
                lambda p, i=ids: p.terminate(i),  # type: ignore[misc]
                partial(self._termination_accepted, still_running=still_running),
            )
        return 0

    def _termination_accepted(self, claims: Collection[str], still_running: Collection[str]) -> None:
        with self._store.batch():
            for claim_id in claims:
                claim = self._store.claim(claim_id)
                self._progress.claims[claim_id].advance(claim.state, Step.TERMINATION_ACCEPTED)
                with self._context.quarantine.contain_errors("end of a machine", node_subject(claim.slot)):
                    if claim.billed_from is not None and (claim.billed_until is None or claim_id in still_running):
                        self._store.update_claim(claim.id, billed_until=self._context.clock.now())

    def remove_orphans(self, action: RemoveOrphans) -> int:
        """Removes instances and leftovers; what a live claim has on record by now is left alone."""
        live = {c.instance_id for c in self._store.claims() if c.state is not S.TERMINATING}
        instances = tuple(i.id for i in action.instances if i.id not in live)
        keys = [f"{action.provider}/{thing}" for thing in (*instances, *(left.id for left in action.leftovers))]
        now = self._context.clock.now()
        calls = {key: call for key in keys if not (call := self._progress.orphans[key].call).is_busy(now)}
        if not calls:
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

        self._call(action.provider, calls, work, lambda _: None)
        return 0

    def _call(
        self,
        name: str,
        calls: Mapping[str, RepeatedCall],
        work: Callable[[Provider], None],
        on_success: Callable[[Collection[str]], None],
    ) -> None:
        provider = self._context.providers[name]
        for call in calls.values():
            call.in_flight = True

        def done(result: Exception | None) -> None:
            self._observer.list_soon(name)
            now, pause = self._context.clock.now(), self._context.intervals.call_retry_s
            for call in calls.values():
                if result is None:
                    # The listing needs a moment to show it.
                    call.succeed(now + pause)
                else:
                    call.fail(now, pause, at_least_s=getattr(result, "retry_after_s", 0.0))
            if result is None:
                on_success(calls)
                return
            if isinstance(result, BurstdError):
                log.warning("the cloud did not end it", provider=name, things=list(calls), error=str(result))
            else:
                log.error("provider broke while ending machines", provider=name, exc_info=result)

        self._context.workers.submit(name, lambda: work(provider), done)


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
