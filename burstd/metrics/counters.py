"""The counters and histograms: what has happened since this process began, from the record, snapshots and calls."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import PurePath

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from burstd.db import LoggedEvent, StoreReader
from burstd.db.repositories.journal import REMARK_KEY
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Offer
from burstd.domain.plan import Plan
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import Snapshot, Unavailable
from burstd.domain.staging import StageState, Staging
from burstd.metrics.families import FAMILIES, Family, LabelLimit
from burstd.metrics.figures import all_claims, idle_claims
from burstd.planner.lifecycle.orphans import NO_CLAIM
from burstd.planner.lifecycle.spot_notices import INTERRUPTED, closing_error, notice_of_node
from burstd.runtime.precedence import UNDISTURBED, DecisionPrecedence
from burstd.slurm.commands.run import CommandRunner

_PHASES = {S.LAUNCHING: "asked", S.VALIDATING: "running", S.READY: "proved", S.IN_SERVICE: "open"}
"""What has come about when a claim enters a state."""
_ALIVE = frozenset({S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.DRAINING})
_ENDING = frozenset({S.FAILED, S.LOST, S.TERMINATING})
MISTAKES = ("directive", "container", "scratch", "volume", "files", "data", "impossible", "failed")
_MOVED: Mapping[str, tuple[str, Callable[[Staging], int]]] = {
    StageState.STAGED: ("in", lambda staging: staging.bytes_sent),
    StageState.DELIVERED: ("out", lambda staging: staging.bytes_out),
}
"""By the state that a job's data enters, the direction, and how many bytes were moved."""
_CLAIMS_AT_A_TIME = 1000
_VERBS = frozenset({"scontrol", "sacctmgr"})
"""Commands whose next word says what they do."""
_WORD = re.compile(r"[a-z]+")
_NUMBERS = re.compile(r"\d+")
_XID = re.compile(r"Xid \d+")


class _Series:
    """One family with bounded labels."""

    def __init__(self, family: Family, registry: CollectorRegistry) -> None:
        self._limit = LabelLimit()
        self._metric: Counter | Histogram
        if family.kind == "histogram":
            self._metric = Histogram(family.name, family.help, family.labels, registry=registry, buckets=family.buckets)
        else:
            self._metric = Counter(family.name, family.help, family.labels, registry=registry)

    def add(self, value: float, *labels: str) -> None:
        """Counts, or observes, a value."""
        metric = self._metric.labels(*self._limit.admit(labels)) if labels else self._metric
        if isinstance(metric, Histogram):
            metric.observe(value)
        else:
            metric.inc(value)


class Counters:
    """Added to from any thread, but for ``read_record`` and ``add_snapshot``, which one thread calls."""

    def __init__(self) -> None:
        # Otherwise a time stands beside each series, as a gauge of its own.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._series = {f.name: _Series(f, self.registry) for f in FAMILIES.values() if f.kind != "gauge"}
        self._last_event: int | None = None
        self._phases_seen: set[tuple[str, str]] = set()
        self._orphans: set[str] = set()
        self._unhealthy: set[str] | None = None
        self._costs: dict[str, tuple[tuple[str, str], Decimal]] | None = None
        """By claim, what it had cost, and under which labels."""
        self._owed: Mapping[tuple[str, str], Decimal] = {}
        """What was taken back of a sum, as a machine that is handed over brings about: a counter never falls."""
        self._read_at: float | None = None
        for direction in ("in", "out"):
            self._add("burstd_staging_bytes_total", 0, direction)
        for kind in MISTAKES:
            self._add("burstd_user_mistakes_total", 0, kind)
        self._impossible: set[str] | None = None
        self._failed: set[tuple[str, float]] | None = None

    def _add(self, name: str, value: float, *labels: str) -> None:
        self._series[name].add(value, *labels)

    # Calls.

    def add_loop(self, seconds: float) -> None:
        """One loop is over."""
        self._add("burstd_loop_seconds", seconds)

    def timed(self, run: CommandRunner) -> CommandRunner:
        """The same runner of Slurm's commands, whose durations count."""

        def timed_run(
            argv: Sequence[str], environment: Mapping[str, str], timeout_s: float
        ) -> subprocess.CompletedProcess[str]:
            begun = time.monotonic()
            try:
                return run(argv, environment, timeout_s)
            finally:
                self._add("burstd_slurm_rpc_seconds", time.monotonic() - begun, _command(argv))

        return timed_run

    def add_request(self, provider: str, call: str, outcomes: Mapping[str, int]) -> None:
        """A call to a cloud is over: ``ok`` or causes of failures, and how often each."""
        for outcome, number in outcomes.items():
            self._add("burstd_provider_requests_total", number, provider, call, outcome)

    def add_mistake(self, kind: str) -> None:
        """A job was refused for a mistake of its user's, one of MISTAKES."""
        self._add("burstd_user_mistakes_total", 1, kind)

    # The record.

    def read_record(self, reader: StoreReader) -> None:
        """Counts what came on record since the last call; the first call counts nothing. Raises StoreError."""
        last = reader.last_event_seq()
        if self._last_event is None:
            self._last_event = last
        while self._last_event < last:
            events = reader.state_changes(self._last_event, last)
            ids = {event.subject.removeprefix("claim:") for event in events if event.subject.startswith("claim:")}
            claims = {claim.id: claim for claim in reader.claims_by_id(ids)}
            for event in events:
                if REMARK_KEY in event.data:
                    continue
                kind, _, key = event.subject.partition(":")
                if kind == "claim" and key in claims:
                    self._add_transition(claims[key], event)
                elif kind == "stage" and event.new in _MOVED and (staging := reader.find_staging(key)) is not None:
                    direction, size = _MOVED[event.new]
                    self._add("burstd_staging_bytes_total", size(staging), direction)
                elif kind == "stage" and event.new == StageState.HELD:
                    staging = reader.find_staging(key)
                    if staging is not None and staging.is_owners_matter:
                        self.add_mistake("data")
                elif kind == "orphan" and event.reason.endswith(NO_CLAIM) and key not in self._orphans:
                    # Its removal is asked for until it is gone.
                    self._orphans.add(key)
                    self._add("burstd_leaks_total", 1)
            self._last_event = events[-1].seq if events else last

    def _add_transition(self, claim: Claim, event: LoggedEvent) -> None:
        """``claim``: as it is by now."""
        old, new = S(event.old), S(event.new)
        if phase := _PHASES.get(new):
            self._add_phase(claim, phase, event.time)
        was_node = claim.in_service_from is not None and claim.in_service_from < event.time
        never_asked = old is S.PLANNED and new is S.GONE and bool(claim.error)
        # A machine that was taken back has its error when it is gone, and its reason when its end begins.
        taken_back = claim.spot_interrupted or closing_error(event.reason) == INTERRUPTED
        if old in _ALIVE and new in _ENDING and taken_back:
            self._add("burstd_interruptions_total", 1, *_type_and_zone(claim.offer))
        elif never_asked or (new in (S.FAILED, S.LOST) and not was_node):
            self._add("burstd_launch_failures_total", 1, *_type_and_zone(claim.offer), claim.error or new.value)
        if new is S.GONE:
            self._phases_seen -= {(claim.id, phase) for phase in _PHASES.values()}

    def _add_phase(self, claim: Claim, phase: str, at: float) -> None:
        """Each counts once; a machine that was handed over was launched for another node."""
        opened = claim.in_service_from
        if claim.reused_from or (claim.id, phase) in self._phases_seen or (opened is not None and opened < at):
            return
        self._phases_seen.add((claim.id, phase))
        self._add("burstd_launch_seconds", max(0.0, at - claim.created), claim.pool, phase)

    # Snapshots.

    def add_snapshot(self, snapshot: Snapshot, precedence: DecisionPrecedence = UNDISTURBED) -> None:
        """Counts what has changed since the last snapshot: costs, and faults of nodes. The first counts nothing."""
        precedence.wait()
        claims = all_claims(snapshot)
        # A counter that begins with its first event has no increase that Prometheus could see.
        for place in {_type_and_zone(claim.offer) for claim in claims}:
            self._add("burstd_interruptions_total", 0, *place)
        for labels in {(claim.pool, claim.offer.currency) for claim in claims}:
            self._add("burstd_idle_cost_total", 0, *labels)
        with_cost = (*claims, *(ended.claim for ended in snapshot.ended_claims))
        self._add_costs(precedence.slices(with_cost, _CLAIMS_AT_A_TIME), snapshot.now)
        precedence.wait()
        self._add_idle_costs(snapshot)
        self._add_unhealthy(snapshot)
        self._read_at = snapshot.now

    def add_mistakes(self, snapshot: Snapshot, plan: Plan, precedence: DecisionPrecedence = UNDISTURBED) -> None:
        """Counts the jobs that have become impossible, or failed, since the last loop. The first counts nothing."""
        if isinstance(snapshot.slurm, Unavailable):
            return
        verdicts = {remark.subject: remark.verdict for remark in precedence.slices(plan.remarks, _CLAIMS_AT_A_TIME)}
        impossible = {subject for subject, verdict in verdicts.items() if verdict == "impossible"}
        burst = {partition for pool in snapshot.pools.values() for partition in pool.partitions}
        failed = {
            (job.id, job.end)
            for job in snapshot.slurm.ended
            if job.state is JobState.FAILED and not burst.isdisjoint(job.partitions)
        }
        for kind, found, seen in (
            ("impossible", len(impossible - (self._impossible or set())), self._impossible),
            ("failed", len(failed - (self._failed or set())), self._failed),
        ):
            if found and seen is not None:
                self._add("burstd_user_mistakes_total", found, kind)
        self._impossible, self._failed = impossible, failed

    def _add_costs(self, claims: Iterable[Claim], now: float) -> None:
        costs = {claim.id: ((claim.pool, claim.offer.currency), claim.cost(now)) for claim in claims}
        before = costs if self._costs is None else self._costs
        changes = {labels: Decimal(0) for labels, _ in costs.values()}
        for labels, cost in costs.values():
            changes[labels] += cost
        for claim_id, (labels, cost) in before.items():
            if claim_id in costs:
                changes[labels] = changes.get(labels, Decimal(0)) - cost
        self._costs = costs
        owed: dict[tuple[str, str], Decimal] = {}
        for labels, change in changes.items():
            total = change + self._owed.get(labels, Decimal(0))
            self._add("burstd_spent_total", float(max(total, Decimal(0))), *labels)
            if total < 0:
                owed[labels] = total
        self._owed = owed

    def _add_idle_costs(self, snapshot: Snapshot) -> None:
        """Nodes that are idle now count as idle since the last snapshot, or since they were opened."""
        if self._read_at is None:
            return
        for claim in idle_claims(snapshot, (S.IN_SERVICE, S.DRAINING)):
            hours = (snapshot.now - max(self._read_at, min(snapshot.idle_since(claim), snapshot.now))) / 3600
            cost = float(claim.offer.price) * max(0.0, hours)
            self._add("burstd_idle_cost_total", cost, claim.pool, claim.offer.currency)

    def _add_unhealthy(self, snapshot: Snapshot) -> None:
        if isinstance(snapshot.slurm, Unavailable):
            return
        found = set()
        for claim in all_claims(snapshot):
            notice = notice_of_node(snapshot.slurm.nodes.get(claim.slot))
            if notice is None or not notice.unhealthy:
                continue
            found.add(claim.id)
            if self._unhealthy is not None and claim.id not in self._unhealthy:
                offer = claim.offer
                self._add("burstd_unhealthy_total", 1, offer.provider, offer.instance_type, finding_label(notice.text))
        self._unhealthy = found


def _type_and_zone(offer: Offer) -> tuple[str, str, str]:
    return offer.provider, offer.instance_type, offer.zone


def _command(argv: Sequence[str]) -> str:
    """``squeue``, ``scontrol show``: a few, whatever they are about."""
    program = PurePath(argv[0]).name
    words = (word for word in argv[1:] if _WORD.fullmatch(word))
    return f"{program} {next(words, '')}".strip() if program in _VERBS else program


def finding_label(text: str) -> str:
    """What a node's notice found, without what differs from node to node: ``Xid 79``, ``# of # GPUs``."""
    if xid := _XID.search(text):
        return xid[0]
    what = text.partition(", ")[2].rpartition(" at ")[0]
    return _NUMBERS.sub("#", what)
