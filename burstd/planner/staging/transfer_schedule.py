"""Which transfers begin, when they will be done, what leaves the store, and when a node is started for an input."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType

from burstd.domain.units import size_text

AGING_S = 600.0
"""Waiting so long counts a transfer for a quarter of its size, twice so long for a ninth, and so on."""
NEWCOMER_BYTES = 1 << 30
"""What every user is taken to have moved, so that age weighs against users who have moved nothing as well."""
SMALL_BYTES = 1 << 20
"""Transfers smaller than this are much alike: the older one comes first."""
MIN_MEASURED_BYTES = 8 << 20
"""A transfer of less tells how long it takes to begin, and nothing of the rate."""
HALF_LIFE_S = 120.0
"""After so many seconds of transfer what was measured before counts half."""
BOOT_S = 60.0
"""How long a node takes from its claim until it is ready, as long as none has been seen to."""
MAX_ESTIMATE_S = 366 * 86400.0
"""What would take longer than this has no time at which it will be done, and no measurement takes so long."""
MAX_INPUT_BYTES = 1 << 60
"""Of all inputs of a job together: sums of more sizes than one still fit a signed 64-bit number."""
_NO_RECENT_BYTES: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """How many transfers are under way at once."""

    site: int = 4
    per_user: int = 2


@dataclass(frozen=True, slots=True)
class PendingTransfer:
    """A transfer that waits or is under way. ``since``: when it was asked for, seconds since 1970 in burstd's time."""

    id: str
    user: str
    size_bytes: int
    since: float


def next_transfers(
    waiting: Sequence[PendingTransfer],
    under_way: Sequence[PendingTransfer],
    limits: TransferLimits,
    recent: Mapping[str, int] = _NO_RECENT_BYTES,
) -> tuple[str, ...]:
    """The ids of the transfers that begin now, in this order.

    The user with the fewest bytes under way and moved of late (``recent``, bytes by user) comes first, and of one user
    the smallest transfer. What has waited long counts as smaller than it is (AGING_S), so that nothing waits for ever
    while others keep coming; age is counted up to the newest that waits.
    """
    newest = max((w.since for w in waiting), default=0.0)
    busy: Counter[str] = Counter(w.user for w in under_way)
    load: Counter[str] = Counter(recent)
    for one in under_way:
        load[one.user] += one.size_bytes
    groups: dict[str, list[PendingTransfer]] = {}
    for one in waiting:
        groups.setdefault(one.user, []).append(one)
    oldest = {user: min(one.since for one in group) for user, group in groups.items()}
    queues: dict[str, list[PendingTransfer]] = {}
    for user, group in groups.items():
        free_slots = min(limits.per_user - busy[user], limits.site - len(under_way))
        if free_slots > 0:
            queues[user] = heapq.nsmallest(
                free_slots, group, key=lambda w: (_aged(w.size_bytes + SMALL_BYTES, newest - w.since), w.id)
            )
    begun: list[str] = []
    while queues and len(under_way) + len(begun) < limits.site:
        user = min(queues, key=lambda u: (_aged(load[u] + NEWCOMER_BYTES, newest - oldest[u]), u))
        first = queues[user].pop(0)
        if not queues[user]:
            del queues[user]
        load[user] += first.size_bytes
        begun.append(first.id)
    return tuple(begun)


def _aged(size: int, waited: float) -> float:
    return size / (1 + waited / AGING_S) ** 2


@dataclass(frozen=True, slots=True)
class DecayedThroughput:
    """Bytes and seconds of transfer, older ones decayed."""

    size: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TransferRates:
    """How fast each store was of late in each direction (``in``, ``place``, ``collect``, ``home``)."""

    measured: Mapping[tuple[str, str], DecayedThroughput] = field(default_factory=dict)

    def rate(self, store: str, direction: str) -> float:
        """Bytes/s; 0: nothing has been measured."""
        found = self.measured.get((store, direction))
        return found.size / found.seconds if found else 0.0


def with_measurement(rates: TransferRates, store: str, direction: str, size: int, seconds: float) -> TransferRates:
    """The rates after a transfer of so many bytes in so many seconds. Less than MIN_MEASURED_BYTES teaches nothing.

    Nor does one of more than MAX_INPUT_BYTES or MAX_ESTIMATE_S, or of a time that is none.

    Exponentially weighted by time spent, so that a long transfer counts for more than many short ones.
    """
    if not (MIN_MEASURED_BYTES <= size <= MAX_INPUT_BYTES and 0 < seconds <= MAX_ESTIMATE_S):
        return rates
    before = rates.measured.get((store, direction), DecayedThroughput(0.0, 0.0))
    decay = 0.5 ** (seconds / HALF_LIFE_S)
    after = DecayedThroughput(before.size * decay + size, before.seconds * decay + seconds)
    return TransferRates({**rates.measured, (store, direction): after})


def ready_at(now: float, left_bytes: int, ahead_bytes: int, rate: float) -> float:
    """When the last of ``left_bytes`` will have been moved, after ``ahead_bytes`` of others; 0: nobody can say.

    ``rate`` in bytes/s, 0 where it is not known. Nobody can say where it is later than MAX_ESTIMATE_S from now.
    """
    left = max(0, left_bytes) + max(0, ahead_bytes)
    if not left:
        return now
    return now + left / rate if rate * MAX_ESTIMATE_S >= left else 0.0


def boot_quantile(seconds: Sequence[float], share: float) -> float:
    """Within which time such a share of nodes is ready, by how long others took. Where none did, two thirds to twice
    BOOT_S. Seconds.

    Between values of a sample of n the share of the k-th is k / (n + 1); beyond its ends is the end.
    """
    if not seconds:
        return BOOT_S * min(2.0, max(2 / 3, 1.0 + (share - 0.5) * 2.5))
    ordered, place = sorted(seconds), share * (len(seconds) + 1) - 1
    low = min(max(0, int(place)), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * min(1.0, max(0.0, place - low))


def boot_estimate(seconds: Sequence[float]) -> float:
    """How long a node will take from its claim until it is ready, by how long others took: the median."""
    return boot_quantile(seconds, 0.5)


def latest_boot_start(now: float, ready_at: float, boot_s: float) -> float:
    """When to start a node that takes ``boot_s``, so that it is ready about when the input is; ``now`` at the soonest.

    ``ready_at`` 0 (it is there) means now.
    """
    return max(now, ready_at - boot_s)


@dataclass(frozen=True, slots=True)
class CachedTree:
    """A tree in a store. ``last_used``: seconds since 1970 in burstd's time; ``size_bytes``: what goes with it."""

    id: str
    size_bytes: int
    last_used: float


def evictable(
    trees: Sequence[CachedTree], needed: AbstractSet[str], now: float, lifetime_s: float, keep_bytes: int | None
) -> tuple[str, ...]:
    """Ids of the trees to remove, least recently used first: those beyond their lifetime, and more until the rest fits.

    ``needed`` are ids of trees that a waiting or running job reads: they count, and stay, even where that is too much.
    ``keep_bytes`` None: the store may grow without a limit.
    """
    left = sum(tree.size_bytes for tree in trees)
    gone: list[str] = []
    for tree in sorted(trees, key=lambda t: (t.last_used, t.id)):
        if tree.id in needed:
            continue
        if now - tree.last_used > lifetime_s or (keep_bytes is not None and left > keep_bytes):
            gone.append(tree.id)
            left -= tree.size_bytes
    return tuple(gone)


@dataclass(frozen=True, slots=True)
class StorageUse:
    """What a user, or the jobs of a project (a Slurm account), have staged, and may. Bytes; limit None: no limit."""

    name: str
    size_bytes: int
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class QuotaShortage:
    """Whose quota an input does not fit into."""

    kind: str
    """``user`` or ``project``."""
    use: StorageUse
    more_bytes: int
    """What the input would add."""
    limit_bytes: int

    @property
    def missing_bytes(self) -> int:
        """So much has to leave the store before the input fits."""
        return self.use.size_bytes + self.more_bytes - self.limit_bytes

    def __str__(self) -> str:
        free = max(0, self.limit_bytes - self.use.size_bytes)
        return (
            f"the input is {size_text(self.more_bytes)}, and {self.kind} {self.use.name} may stage {size_text(free)}"
            f" more ({size_text(self.use.size_bytes)} of {size_text(self.limit_bytes)} are in use)"
        )


def quota_shortage(more_bytes: int, user: StorageUse, project: StorageUse) -> QuotaShortage | None:
    """The first of the two quotas that so many bytes more do not fit into; None: they fit."""
    for kind, use in (("user", user), ("project", project)):
        if use.limit_bytes is not None and use.size_bytes + more_bytes > use.limit_bytes:
            return QuotaShortage(kind, use, more_bytes, use.limit_bytes)
    return None


def beyond_quota(size_bytes: int, user: StorageUse, project: StorageUse) -> str:
    """Why an input never fits, whatever leaves the store, in a sentence; empty: it may fit."""
    for kind, use in (("user", user), ("project", project)):
        if use.limit_bytes is not None and size_bytes > use.limit_bytes:
            return (
                f"the input is {size_text(size_bytes)}, and the staging quota of {kind} {use.name} is "
                f"{size_text(use.limit_bytes)}: stage less, or ask the administrator for a larger quota"
            )
    return ""
