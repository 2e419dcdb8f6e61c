"""Transfers of the desk: how each is begun, what is written down when it has come back, and what when it failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import structlog

from burstd.db import Store
from burstd.db.events import stage_subject
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.errors import BurstdError
from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging, Tree
from burstd.planner.staging.transfer_schedule import Rates, ready_at, seen
from burstd.runtime.workers import Workers
from burstd.staging.controller.isolation import Isolation
from burstd.staging.controller.job_runs import Back, Life, Run
from burstd.staging.controller.recovery import unaccounted
from burstd.staging.controller.tasks import Cancelled, Collected, Ended, Looked, Sent, StageFailed, Task, Transfers
from burstd.staging.movement.progress import Meter

log = structlog.get_logger(__name__)

RETRY_S = 2.0
SLOWEST_RETRY_S = 300.0
LONGEST_RETRY_S = 3600.0
LOOKS_PER_USER = 2
"""So that a file system of one user that does not answer keeps nobody else's input waiting."""
_HERE = "stage:look"
"""The lane of work on this machine's file systems."""


class Moves:
    """Each method begins what is missing of one step and returns the record, moved on where nothing is missing."""

    def __init__(
        self,
        store: Store,
        workers: Workers,
        clock: Clock,
        transfers: Transfers,
        retries: Callable[[], int],
        isolation: Isolation,
    ) -> None:
        self.rates = Rates()
        self.slots: frozenset[str] = frozenset()
        """Those of today's settings."""
        self._isolation = isolation
        self._store = store
        self._workers = workers
        self._clock = clock
        self._transfers = transfers
        self._retries = retries
        self._looking: Counter[int] = Counter()
        self.short: dict[str, Staging] = {}
        """Data by job for which the store had no room since this was emptied, as it was while it moved."""

    def cloud(self, nodes: Iterable[str], since: float) -> frozenset[str]:
        """Which of these nodes are in the cloud: slots of the settings, and those that had a machine since then.

        A slot may leave the settings while a job is on its machine. Raises StoreError.
        """
        return frozenset(n for n in nodes if n in self.slots or self._store.find(slot=n, since=since, limit=1))

    def cloud_of(self, row: Staging, run: Run) -> frozenset[str]:
        """Which of a job's nodes are in the cloud. Raises StoreError."""
        return self.cloud(row.nodes, self.came(row, run.life, S.PLACING))

    # Input.

    def look(self, row: Staging, run: Run) -> None:
        """How much it is, unless its user has others looked at already: then a later step looks."""
        if self._looking[row.uid] >= LOOKS_PER_USER:
            return

        def done(row: Staging, found: Looked) -> Staging:
            run.life.size, run.life.sources = found.size, found.sources
            return row

        self._begin(row, run, "in", self._transfers.look, done, lane=_HERE)

    def send(self, row: Staging, run: Run) -> Staging:
        """To the store."""
        began = self._clock.now()
        ready = row.estimated_ready or ready_at(began, run.life.size or 0, 0, self.rates.of(row.store, "in"))
        row = self._store.move_staging(row.job_id, S.WAITING, S.SENDING, "its turn has come", estimated_ready=ready)

        def done(row: Staging, sent: Sent) -> Staging:
            after = self._store.move_staging(
                row.job_id, S.SENDING, S.STAGED, f"{sent.size} bytes are in the store, {sent.sent} had to be sent",
                trees=sent.trees, bytes_in=sent.size, bytes_sent=sent.sent, attempts=0, error="",
            )  # fmt: skip
            self.rates = seen(self.rates, row.store, "in", sent.sent, self._clock.now() - began)
            return after

        self._begin(row, run, "in", self._transfers.send, done, lane="stage:in", total=run.life.size or 0)
        return row

    def place(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> Staging:
        """To its nodes."""
        cloud = sorted(self.cloud_of(row, run))
        missing = [node for node in cloud if node not in machines]
        if missing:
            return self._isolation.hold(row, f"burstd has no machine for {', '.join(missing)}: look at burstctl status")

        def done(mark: str, row: Staging, _nothing: object) -> Staging:
            run.life.placed.add(mark)
            return row

        for node in cloud:
            claim = machines[node]
            if claim.id not in run.life.placed:
                work = partial(self._transfers.place, claim=claim)
                self._begin(row, run, f"place {node}", work, partial(done, claim.id), lane="stage:nodes")
        if len(cloud) < len(row.nodes) and "link" not in run.life.placed:
            self._begin(row, run, "link", self._transfers.link, partial(done, "link"), lane=_HERE)
        if run.tasks:
            return row
        return self._store.move_staging(
            row.job_id, S.PLACING, S.PLACED, "its data is on its nodes", attempts=0, error=""
        )

    # Output.

    def left(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> dict[str, Claim]:
        """Nodes in the cloud that have output which is not in the store."""
        placed = self.came(row, run.life, S.PLACING)
        # A machine that came later to the same slot never had this job.
        there = {n: machines[n] for n in row.nodes if n in machines and machines[n].created <= placed}
        return {node: claim for node, claim in there.items() if node not in _fetched(row)}

    def fetch(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> Staging:
        """From its nodes to the store; what is gone for good is told when the rest is brought home."""
        if run.directives and not row.directives:
            row = self._store.touch_staging(row.job_id, "its script was read", directives=run.directives)
        left, facts = self.left(row, run, machines), run.facts_of(row)
        if left and row.directives:
            if row.error and not row.attempts:
                row = self._store.touch_staging(row.job_id, "its nodes are known", error="")
        elif why := unaccounted(self._store, row, self._lost(row, run), self.came(row, run.life, S.PLACING)):
            run.life.rest_until = self._clock.now() + RETRY_S
            return self._store.touch_staging(row.job_id, why, error=why)
        files: tuple[str, ...] = ()
        if facts is not None:
            files = tuple(dict.fromkeys(f for f in (facts.std_out, facts.std_err) if f))
        elif left:
            run.life.warnings = ("Slurm had forgotten the job, so its own output files were not looked for",)

        def done(node: str, row: Staging, result: Collected) -> Staging:
            trees = {f"{node}/{name}": tree for name, tree in result.trees.items()}
            size = sum(tree.size for tree in trees.values())
            # A node without output is on record too: it need not be asked again, and is not lost.
            trees = trees or {f"{node}/": Tree(f"out/{row.job_id}/{node}", "", (), 0, 0)}
            after = self._store.touch_staging(
                row.job_id, f"{node}: {size} bytes of output are in the store",
                outputs={**row.outputs, **trees}, bytes_out=row.bytes_out + size,
            )  # fmt: skip
            run.life.warnings += result.warnings
            self.rates = seen(self.rates, row.store, "collect", result.sent, result.seconds)
            return after

        for node, claim in left.items():
            work = partial(self._transfers.collect, claim=claim, files=files)
            self._begin(row, run, f"collect {node}", work, partial(done, node), lane="stage:nodes")
        if left:
            return row
        reason = "its output is in the store" if row.outputs else "nothing has to be fetched from a cloud node"
        if lost := self._lost(row, run):
            reason += f"; {', '.join(lost)} went before its output was fetched"
        return self._store.move_staging(row.job_id, S.COLLECTING, S.BRINGING, reason, attempts=0, error="")

    def bring(self, row: Staging, run: Run) -> None:
        """To its destinations."""
        ended = Ended(
            lost=self._lost(row, run), cost=self._cost(row, run),
            on_premises=not self.cloud_of(row, run).issuperset(row.nodes), warnings=run.life.warnings,
        )  # fmt: skip

        def done(row: Staging, size: int) -> Staging:
            return self._store.move_staging(
                row.job_id, S.BRINGING, S.HOME, f"{size} bytes of output are home", bytes_out=size, attempts=0, error=""
            )

        self._begin(row, run, "home", lambda task: self._transfers.bring(task, ended), done, lane="stage:home")

    def _lost(self, row: Staging, run: Run) -> tuple[str, ...]:
        """Nodes in the cloud whose output was not fetched."""
        return tuple(sorted(self.cloud_of(row, run) - _fetched(row)))

    def _cost(self, row: Staging, run: Run) -> str:
        """Of its nodes while they were the job's, those that are gone by now too."""
        facts = run.facts_of(row)
        seconds = Decimal(facts.seconds if facts else 0.0)
        placed = self.came(row, run.life, S.PLACING)
        prices = []
        for node in row.nodes:
            lived = [c for c in self._store.find(slot=node, since=placed, limit=10) if c.created <= placed]
            prices += [claim.offer.price for claim in lived[:1]]
        return f"{sum(prices) * seconds / 3600:.4f}" if prices and seconds else ""

    def clear(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> None:
        """What is left of it in the store and on nodes."""
        there = [machines[node] for node in row.nodes if node in machines]

        def done(row: Staging, _nothing: object) -> Staging:
            return self._store.move_staging(
                row.job_id, row.state, S.CLEARED, "nothing of it is left in the store and on nodes"
            )

        run.clearing = frozenset(claim.id for claim in there)
        self._begin(row, run, "clear", lambda task: self._transfers.clear(task, there), done, lane="stage:clear")

    # All of them.

    def _begin(
        self,
        row: Staging,
        run: Run,
        name: str,
        work: Callable[[Task], Any],
        done: Callable[[Staging, Any], Staging],
        *,
        lane: str,
        total: int = 0,
    ) -> None:
        """Has a piece of work done, of ``total`` bytes where that is known; several may be under way for one job."""
        task = Task(row, Meter(name, name.partition(" ")[0]))
        task.meter.expect(total)
        run.begin(name, task)
        self._looking[row.uid] += lane == _HERE

        def back(result: Any) -> None:
            with self._isolation.job(row.job_id):
                self._looking[row.uid] -= lane == _HERE
                run.end(name)
                run.back[name] = Back(task, result, done)

        self._workers.submit(lane, lambda: work(task), back, user=row.uid)

    def settle(self, row: Staging, run: Run) -> Staging:
        """Writes down what has come back; what cannot be written, for want of space, is kept and written later.

        Raises StoreError.
        """
        clearing = "clear" in run.back
        for name, one in tuple(run.back.items()):
            belongs = one.task.job.state is row.state and one.task.job.created == row.created
            if isinstance(one.result, Exception):
                if belongs and not isinstance(one.result, Cancelled):
                    run.life.failures.append(one.result)
            elif belongs:
                row = one.done(row, one.result)
            del run.back[name]
            if row.state is S.CLEARED:
                return row
        if run.life.failures and not run.tasks:
            row = self._failed(row, run, may_hold=not clearing)
            run.life.failures.clear()
        return row

    def _failed(self, row: Staging, run: Run, *, may_hold: bool) -> Staging:
        """All that was begun together has come back, and some of it without success.

        ``may_hold`` False: it is tried for ever.
        """
        errors = run.life.failures
        for error in errors:
            if not isinstance(error, BurstdError):
                log.error("staging broke", job=row.job_id, exc_info=error)
        final = [e for e in errors if isinstance(e, StageFailed) and not e.again]
        text = str(final[0] if final else errors[0])
        attempts = row.attempts + 1
        if any(getattr(error, "full", False) for error in errors):
            self.short[row.job_id] = row
        if may_hold and (final or attempts >= self._retries()):
            return self._isolation.hold(row, text)
        wanted = max(getattr(error, "retry_after_s", 0.0) for error in errors)
        pause = max(min(wanted, LONGEST_RETRY_S), min(RETRY_S * 2.0 ** min(attempts - 1, 20), SLOWEST_RETRY_S))
        reason = f"tried again in {pause:.0f} s: {text}"
        if row.state is S.PLACING and any(getattr(error, "resend", False) for error in errors):
            run.life.placed.clear()
            after = self._store.move_staging(
                row.job_id, S.PLACING, S.WAITING, f"its input is sent again: {text}", attempts=attempts, error=text,
                trees={},
            )  # fmt: skip
        elif row.state is S.SENDING:
            # Others have their turn meanwhile.
            after = self._store.move_staging(
                row.job_id, S.SENDING, S.WAITING, reason, attempts=attempts, error=text,
                estimated_ready=row.estimated_ready,
            )  # fmt: skip
        else:
            after = self._store.touch_staging(row.job_id, reason, attempts=attempts, error=text)
        run.life.rest_until = self._clock.now() + pause
        log.warning("staging is tried again", job=row.job_id, error=text, pause_s=round(pause, 1))
        return after

    def came(self, row: Staging, life: Life, state: S) -> float:
        """When the data first came into a state in this life, in burstd's time; 0: never."""
        if state not in life.times:
            events = self._store.events(subject=stage_subject(row.job_id), limit=100_000)
            found = next((e.time for e in events if e.old != e.new == state and e.time >= row.created), 0.0)
            if not found:
                return 0.0
            life.times[state] = found
        return life.times[state]


_ON_MACHINE = frozenset({ClaimState.OPEN, ClaimState.CLOSING, ClaimState.READY})


def machines_of(claims: Collection[Claim]) -> dict[str, Claim]:
    """By slot, the claims whose machine answers."""
    return {
        claim.slot: claim
        for claim in claims
        if claim.state in _ON_MACHINE or (claim.state is ClaimState.PROVING and claim.opened is not None)
    }


def _fetched(row: Staging) -> set[str]:
    return {key.partition("/")[0] for key in row.outputs}
