"""burstd's line in a job's comment: what it waits for, which node is coming for it, or where it runs.

It is written into Slurm, so it says nothing that changes with every look: times are of the clock, what is left of a
boot is in minutes. Every user of the cluster may read it there, and the accounting may keep it: of what a cloud, a
store or a policy answered when it failed it says the kind only (``capacity``, ``auth``), never the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from math import ceil

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import Snapshot, Unavailable
from burstd.planner.staging.input_deadlines import boots
from burstd.planner.staging.transfer_schedule import boot_estimate

MOST_LETTERS = 240
_SHOWN = 3
# A reason may quote what a user has written: no more digits than a calendar has days for.
_SPAN = re.compile(r"\bin ([0-9]{1,6}) (d|h|min|s)(?: ([0-9]{1,6}) (h|min|s))?\b")
_SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
_BEING_STARTED = "being started"
_DOING = {ClaimState.BOOTING: "booting", ClaimState.PROVING: "being checked", ClaimState.READY: "ready"}
_HOW_FAR = (_BEING_STARTED, "booting", "being checked", "ready")
_STARTED = frozenset({JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED})


@dataclass(frozen=True, slots=True)
class Line:
    """What a job's comment shall say. ``kind``: a change of it is news; within one kind the words may wait."""

    kind: str
    """``waits``, ``never``, ``coming``, ``soon``, ``on``."""
    text: str
    """Empty: nothing of burstd's."""


_OFF_PREMISES = Line("on", "")
_BEGINS = ("waits: ", "never starts as it is: ", "node ", "nodes ", "starts soon: ")
"""How a line begins that is out of date once the job has started."""


class Lines:
    """Makes the lines of one snapshot and its plan."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self._snapshot = snapshot
        self._words = {r.subject: r for r in plan.remarks}
        self._placed = plan.target.placed
        self._claims = {claim.slot: claim for claim in snapshot.claims}
        self._coming: dict[str, dict[str, str]] = {}
        for want in plan.target.wants:
            for job in want.jobs:
                self._coming.setdefault(job, {}).update(dict.fromkeys(want.slots, want.pool))
        self._boots: Mapping[str, Sequence[float]] | None = None
        self._private = tuple(f": {words}" for words in _answers(snapshot, plan) if words)

    def word(self, job: Job) -> Remark | None:
        """The plan's last word on a job."""
        return self._words.get(f"job:{job.id}")

    def of(self, job: Job, ours: str) -> Line | None:
        """Its line; None: what stands there stays. ``ours`` is burstd's line so far."""
        if job.state is not JobState.PENDING:
            return self._started(job, ours)
        word = self.word(job)
        if word is None:
            return None
        if word.verdict in ("boot", "covered"):
            return self._served(job, word)
        if word.verdict == "impossible":
            return self._line("never", f"never starts as it is: {word.reason}")
        return self._line("waits", f"waits: {word.reason}")

    def _line(self, kind: str, text: str) -> Line:
        for words in self._private:
            text = text.replace(words, "")
        if "in " in text:
            text = _SPAN.sub(self._clock, text)
        text = " ".join(text.split())
        return Line(kind, text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 3].rstrip() + "...")

    def _clock(self, span: re.Match[str]) -> str:
        """The time of the clock of ``in 57 s``, ``in 2 min 20 s``."""
        seconds = int(span[1]) * _SECONDS[span[2]] + (int(span[3]) * _SECONDS[span[4]] if span[3] else 0)
        at = ceil((self._snapshot.now + seconds) / 60) * 60
        same = seconds < 20 * 3600
        return datetime.fromtimestamp(at, UTC).strftime("at %H:%M UTC" if same else "on %F at %H:%M UTC")

    def _started(self, job: Job, ours: str) -> Line | None:
        if job.state not in _STARTED or not (ours.startswith(_BEGINS) or not ours):
            return None
        claims = [self._claims[name] for name in job.node_list if name in self._claims]
        if not claims:
            return _OFF_PREMISES if ours else None
        clouds = ", ".join(dict.fromkeys(claim.offer.provider for claim in claims))
        sums: dict[str, Decimal] = {}
        for claim in claims:
            sums[claim.offer.currency] = sums.get(claim.offer.currency, Decimal(0)) + claim.offer.price
        cost = " + ".join(f"{price_text(amount)} {currency}/h" for currency, amount in sums.items())
        return Line("on", f"on {_names(job.node_list)} ({clouds}, {cost})")

    def _served(self, job: Job, word: Remark) -> Line:
        new = self._coming.get(job.id, {})
        names = [*self._placed.get(job.id, ()), *self._placed.get(job.het_job_id, ())] if not new else list(new)
        claims = {name: self._claims.get(name) for name in names}
        late = [n for n, c in claims.items() if n in new or (c is not None and c.state is not ClaimState.OPEN)]
        if not late or job.tasks > 1:
            return self._line("soon", f"starts soon: {word.reason}")
        doing = min((_doing(claims[name]) for name in late), key=_HOW_FAR.index)
        left = max(self._left(claims[name], new.get(name, "")) for name in late)
        about = f", about {ceil(left / 60)} min" if left > 0 else ""
        are = "are" if len(late) > 1 else "is"
        return Line("coming", f"node{'s' if len(late) > 1 else ''} {_names(late)} {are} {doing}{about}")

    def _left(self, claim: Claim | None, pool: str) -> float:
        """How long until a node is ready that is coming, in seconds; 0 or less: it is late."""
        if self._boots is None:
            self._boots = boots(self._snapshot)
        takes = boot_estimate(self._boots.get(claim.pool if claim is not None else pool, ()))
        return takes - (self._snapshot.now - claim.created if claim is not None else 0.0)


def _answers(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What others answered when they failed, the longest first as one may be a part of another."""
    found = {breaker.error for breaker in snapshot.breakers}
    found |= {failed.error for failed in plan.target.failed}
    found |= {view.error for view in snapshot.data.values()}
    for cloud in snapshot.clouds.values():
        found |= {part.error for part in (cloud.offers, cloud.instances) if isinstance(part, Unavailable)}
    return sorted(found, key=lambda words: (-len(words), words))


def named(job: Job) -> str:
    """As scontrol takes it: the number of an array alone would mean its running tasks as well."""
    return f"{job.id}_[{job.array_tasks}]" if job.array_tasks else job.id


def price_text(price: Decimal) -> str:
    """``0.42``, ``12.00``, ``0.0061``."""
    return f"{price:.2f}" if price >= Decimal("0.1") or not price else f"{price.normalize():f}"


def _doing(claim: Claim | None) -> str:
    return _DOING.get(claim.state, _BEING_STARTED) if claim is not None else _BEING_STARTED


def _names(names: Iterable[str]) -> str:
    found = sorted(set(names), key=lambda name: (len(name), name))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
