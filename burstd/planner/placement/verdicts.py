"""What placement says about a job: the verdict in a word and the reason in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burstd.domain.claim import ClaimState
from burstd.domain.snapshot import Snapshot
from burstd.planner.demand.demand import Ask
from burstd.planner.demand.requeued_jobs import steady_first, why_steady
from burstd.planner.offers.offers import Judged, free_slots_reason, hopeless, why_none
from burstd.planner.placement.bins import Bin, Kind
from burstd.planner.placement.equivalence_class import Pattern, Patterns, Route
from burstd.planner.placement.first_fit import OPEN_TRUST_S, Outcome, Packer

_COMING = {
    ClaimState.PLANNED: "planned",
    ClaimState.LAUNCHING: "being launched",
    ClaimState.BOOTING: "booting",
    ClaimState.PROVING: "being proven",
    ClaimState.READY: "ready",
}
_SHOWN = 4


class Wording:
    """Puts outcomes into words; what holds for a whole pattern is worked out once."""

    def __init__(
        self, snapshot: Snapshot, judged: Mapping[str, tuple[Judged, ...]], patterns: Patterns, packer: Packer
    ) -> None:
        self._judged = judged
        self._patterns = patterns
        self._packer = packer
        self._free = {name: packer.free_count(name) for name in snapshot.pools}
        self._slots = {n: free_slots_reason(snapshot, pool, self._free[n]) for n, pool in snapshot.pools.items()}

    def of(self, ask: Ask, patterns: Sequence[Pattern], done: Outcome) -> tuple[str, str]:
        """Verdict and reason; see ``new_node`` for a job that gets one new node."""
        if ask.tasks == 1 and not done.left and len(done.there) + len(done.new) == 1:
            return self.on((done.there or done.new)[0])
        if not done.left and not done.new:
            return "covered", f"it has room on {_names(done.there)}"
        if not done.left and not done.there:
            return "boot", f"it gets {len(done.new)} new node(s): {_names(done.new)}"
        if done.left == ask.tasks:
            return self._left_out(ask, patterns, done)
        parts = []
        if done.there:
            parts.append(f"{_tasks(ask, done.tasks_there)} room on {_names(done.there)}")
        if done.new:
            parts.append(f"{_tasks(ask, done.tasks_new)} {len(done.new)} new node(s): {_names(done.new)}")
        if done.left:
            parts.append(f"{done.left} task(s) wait: {self._left_out(ask, patterns, done)[1]}")
        return "boot" if done.new else "covered", "; ".join(parts)

    def new_node(self, found: Bin, times: int, whose: str = "its machines") -> tuple[str, str]:
        """The words for a job on this new node once all jobs that share it are placed.

        ``times``: how often machines were taken from one of them, if it avoids spot for it.
        """
        offers = tuple(j.offer for j in self._judged[found.pool] if j.offer is not None and not j.refused)
        offers = steady_first(offers) if times else offers
        why = why_steady(offers, times, whose)
        return "boot", f"it gets a new node in pool {found.pool}: {found.name}, {offers[0].id}{why}"

    def on(self, found: Bin) -> tuple[str, str]:
        """Verdict and reason for a job that is placed on this bin alone; the same for all of them."""
        if found.words is None:
            found.words = self._on(found)
        return found.words

    def left_out(self, pattern: Pattern) -> tuple[str, str]:
        """Verdict and reason for a job for which nothing is left: as for the first of its kind."""
        if pattern.why is None:
            pattern.why = self._why(pattern)
        return pattern.why

    def _on(self, found: Bin) -> tuple[str, str]:
        if found.kind is Kind.NEW:
            return self.new_node(found, 0)
        if found.claim is not None and found.kind is Kind.COMING:
            return "covered", f"it has room on {found.name}, which is {_COMING[found.claim.state]}"
        return "covered", f"it has room on {found.name}, which is up and open to it"

    def _left_out(self, ask: Ask, patterns: Sequence[Pattern], done: Outcome) -> tuple[str, str]:
        if done.stuck:
            return "wait", (
                f"it fits {done.stuck}, which is open, but Slurm has not started it there for more than"
                f" {OPEN_TRUST_S / 60:.0f} min; no machine is started for it meanwhile"
            )
        if done.given_up:
            return "wait", (
                f"open nodes that fit it were there for more than {OPEN_TRUST_S / 60:.0f} min and Slurm did not start"
                " it; for an hour no machine is started for it"
            )
        words = [self.left_out(pattern) for pattern in patterns]
        worst = next((i for i, (verdict, _) in enumerate(words) if verdict == "impossible"), done.lacking)
        verdict, reason = words[worst]
        if len(patterns) == 1:
            return verdict, reason
        return verdict, f"its components start together, and {ask.jobs[worst].id} cannot: {reason}"

    def _why(self, pattern: Pattern) -> tuple[str, str]:
        if pattern.need.constraint.problem:
            return "impossible", pattern.need.constraint.problem
        if not pattern.routes:
            lacking = "; ".join(f"pool {name} lacks {what}" for name, what in pattern.lacking.items())
            if self._patterns.elsewhere(pattern):
                return "wait", f"it waits for the other nodes of {_partitions(pattern)}" + (
                    f": {lacking}" if lacking else ", no pool serves it"
                )
            return "impossible", f"no pool and no other node of {_partitions(pattern)} can run it: {lacking}"
        if not self._patterns.possible(pattern):
            pools = ", ".join(f"{len(r.pool.slots)} slots in pool {r.pool.name}" for r in pattern.routes)
            wanted = f"it takes {min(r.nodes for r in pattern.routes)} node(s) at once"
            if pattern.excluded or pattern.named:
                wanted += " of those that it names or does not exclude"
            if self._patterns.elsewhere(pattern):
                return "wait", f"{wanted}, and there are {pools}; it waits for other nodes as well"
            return "impossible", f"{wanted}, and there are {pools}"
        names = {route.pool.name for route in pattern.routes}
        if all(hopeless(self._judged[name]) for name in names) and not self._patterns.without(pattern, names):
            pools = ", ".join(sorted(names))
            why = why_none(judged for route in pattern.routes for judged in self._judged[route.pool.name])
            return "impossible", f"no offer can ever fill the slots of pool {pools}: {why}"
        return "wait", "; ".join(self._closed(route, pattern) for route in pattern.routes)

    def _closed(self, route: Route, pattern: Pattern) -> str:
        """Why a pool that could run it gives no new slot now."""
        pool = route.pool
        if route.price is None:
            return f"no offer for pool {pool.name} can be used now: {why_none(self._judged[pool.name])}"
        free = len(list(self._packer.slots(route, pattern)))
        given = self._free[pool.name] - self._packer.free_count(pool.name)
        left = f"{free} free slot(s) are left where {route.nodes} are needed" if free else "no slot is left"
        return (
            f"pool {pool.name}: {left} ({self._slots[pool.name]}, {given} for jobs before it; {len(pool.slots)} in all)"
        )


def _names(bins: Sequence[Bin]) -> str:
    names = list(dict.fromkeys(b.name for b in bins))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _partitions(pattern: Pattern) -> str:
    return ", ".join(pattern.partitions)


def _tasks(ask: Ask, count: int) -> str:
    return f"{count} task(s) have" if ask.tasks > 1 else "it has"
