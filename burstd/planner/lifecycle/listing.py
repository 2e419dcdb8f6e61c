"""What a cloud's list is worth. No machine is ended because a list lacks it: a second source must say that it is gone.

A node that Slurm hears, and a machine whose shell answers, live, whatever a list says. Where many vanish together the
list is doubted: nothing is launched or ended in that cloud until it shows them again, or a second source says that they
are gone: Slurm has their nodes down, or one that had answered, and is no node yet, answers no more. Of a machine that
boots there is no second source (its shell is silent in any case): the doubt lasts until its boot_timeout. Then it is
ended by its id, as every machine that is given up: if it runs after all, it is not left to cost money.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.clock import utc_clock_text
from burstd.domain.cloud.instance import InstanceState
from burstd.domain.snapshot import CircuitBreaker, SlurmView, Snapshot, Unavailable
from burstd.planner.lifecycle.output_retention import MIN_ABSENT_WITH_OUTPUT_S, retained_nodes

LISTING_CAUSE = "list"
"""Of the breaker that keeps launches off a cloud whose list is doubted."""
MIN_MISSING = 2
MIN_MISSING_SHARE = 4
"""So many machines, and one in so many of those that a list should show, are not lost in one moment."""
LISTING_ALARM_S = 300.0
"""Slurm takes up to a third of SlurmdTimeout to miss a node; a list that is contradicted for longer is an alarm."""
NOT_REGISTERED_YET = frozenset({S.LAUNCHING, S.BOOTING, S.VALIDATING})
"""States of claims whose machine is none of Slurm's nodes so far."""
_BEFORE_FIRST_ANSWER = frozenset({S.LAUNCHING, S.BOOTING})
"""Of these, those whose machine has not answered so far."""
_LISTED = NOT_REGISTERED_YET | {S.READY, S.IN_SERVICE, S.DRAINING}
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DoubtedList:
    """A list that lacks ``slots`` out of so many machines, which nothing else says are gone."""

    provider: str
    slots: tuple[str, ...]
    expected: int
    boots_since: float = 0.0
    """From when on boot_timeout counts for the latest that has never answered, in burstd's time; 0: all have."""

    def __str__(self) -> str:
        return (
            f"the list of {self.provider} lacks {len(self.slots)} of {self.expected} machines, and nothing else says "
            f"they are gone ({abbreviated_list(self.slots)}). burstd launches and terminates nothing there until the "
            "list shows them or their nodes are set down in Slurm ("
            "scontrol update nodename=NODE state=down reason=REASON)"
        )


def doubted_lists(snapshot: Snapshot) -> dict[str, DoubtedList]:
    """By provider, the lists that are not believed now."""
    if not snapshot.runtime_state.missing_sightings:
        return {}
    ended = {
        instance.id
        for cloud in snapshot.clouds.values()
        if not isinstance(cloud.instances, Unavailable)
        for instance in cloud.instances
        if instance.state is InstanceState.TERMINATED
    }
    expected: dict[str, int] = {}
    lacking: dict[str, list[Claim]] = {}
    for claim in {c.id: c for c in (*snapshot.claims, *snapshot.storage_claims)}.values():
        if claim.state not in _LISTED or not claim.instance_id:
            continue
        name = claim.offer.provider
        expected[name] = expected.get(name, 0) + 1
        # Of a machine that is no node yet the cloud's word that it has ended is taken: nothing but a boot is lost.
        if not is_accounted_for(claim, snapshot) and not (
            claim.state in NOT_REGISTERED_YET and claim.instance_id in ended
        ):
            lacking.setdefault(name, []).append(claim)
    born = snapshot.runtime_state.process_start
    return {
        name: DoubtedList(
            name,
            tuple(claim.slot for claim in claims),
            expected[name],
            max(
                (max(c.since, born) + c.offer.capacity_wait_s for c in claims if c.state in _BEFORE_FIRST_ANSWER),
                default=0.0,
            ),
        )
        for name, claims in lacking.items()
        if len(claims) >= MIN_MISSING and len(claims) * MIN_MISSING_SHARE >= expected[name]
    }


def is_accounted_for(claim: Claim, snapshot: Snapshot) -> bool:
    """True where the machine is not missing in lists, or a second source says that it is gone."""
    if claim.id not in snapshot.runtime_state.missing_sightings:
        return True
    if claim in snapshot.storage_claims or claim.state is S.VALIDATING:
        return stopped_answering(claim, snapshot) and not slurm_hears(claim, snapshot)
    return claim.state not in NOT_REGISTERED_YET and slurm_hears(claim, snapshot) is False


def stopped_answering(claim: Claim, snapshot: Snapshot) -> bool:
    """Whether the shell of a machine that had answered was reached for in vain since lists lack it."""
    seen = snapshot.runtime_state.missing_sightings.get(claim.id)
    silent = snapshot.runtime_state.unreachable_at.get(claim.id)
    return seen is not None and silent is not None and silent >= seen.first and claim.state not in _BEFORE_FIRST_ANSWER


def slurm_hears(claim: Claim, snapshot: Snapshot) -> bool | None:
    """Whether Slurm hears the node on the claim's machine; None: Slurm cannot be read."""
    if not isinstance(snapshot.slurm, SlurmView):
        return None
    node = snapshot.slurm.nodes.get(claim.slot)
    return node is not None and node.responding and (not claim.address or node.address == claim.address)


def listing_breakers(snapshot: Snapshot) -> tuple[CircuitBreaker, ...]:
    """A breaker for each cloud whose list is doubted: policies, offers and explanations treat it as any other."""
    return tuple(
        CircuitBreaker(
            f"{name.replace('/', '%2F')}/*/*/*/*", LISTING_CAUSE, 0, snapshot.now + LISTING_ALARM_S, str(doubt)
        )
        for name, doubt in doubted_lists(snapshot).items()
    )


def listing_alarms(snapshot: Snapshot, boot_timeout_s: float, retention_s: float) -> list[str]:
    """Sentences on lists that are contradicted: by many machines at once, or by one for long."""
    # A machine with output is not asked before: nothing contradicts the list so far.
    unasked = {id_ for id_, one in retained_nodes(snapshot, retention_s).items() if one.job_ended}
    doubts = doubted_lists(snapshot)
    alarms = [f"{doubt}{_given_up_at(doubt, boot_timeout_s, snapshot.now)}" for doubt in doubts.values()]
    long: dict[str, list[str]] = {}
    for claim in (*snapshot.claims, *snapshot.storage_claims):
        seen = snapshot.runtime_state.missing_sightings.get(claim.id)
        least_s = LISTING_ALARM_S + (MIN_ABSENT_WITH_OUTPUT_S if claim.id in unasked else 0.0)
        if seen is not None and claim.offer.provider not in doubts and snapshot.now - seen.first > least_s:
            long.setdefault(claim.offer.provider, []).append(claim.slot)
    alarms += [
        f"the list of {name} has lacked the machine of {abbreviated_list(slots)} for minutes, but Slurm or its"
        " shell still reaches it; if it is gone, set its node down in Slurm"
        for name, slots in long.items()
    ]
    return alarms


def _given_up_at(doubt: DoubtedList, boot_timeout_s: float, now: float) -> str:
    if not doubt.boots_since:
        return ""
    end = utc_clock_text(doubt.boots_since + boot_timeout_s, now, "%H:%M")
    return f"; burstd gives up and terminates those that boot by {end}"


def termination_alarms(snapshot: Snapshot) -> list[str]:
    """Sentences on machines that cost money though they were to be ended long ago."""
    listed = {
        (i.provider, i.id)
        for cloud in snapshot.clouds.values()
        if not isinstance(cloud.instances, Unavailable)
        for i in cloud.instances
        if not i.state.ended
    }
    alarms = []
    for claim in (*snapshot.claims, *snapshot.storage_claims):
        late = snapshot.now - claim.since
        there = (claim.offer.provider, claim.instance_id) in listed
        if (
            claim.state is S.TERMINATING
            and claim.id in snapshot.runtime_state.termination_accepted
            and there
            and late > LISTING_ALARM_S
        ):
            hours = Decimal(max(0.0, snapshot.now - (claim.billed_from or claim.since))) / 3600
            alarms.append(
                f"{claim.offer.provider} still lists instance {claim.instance_id} of {claim.slot}, which it was told "
                f"to end {late / 60:.0f} min ago (it has cost {hours * claim.offer.price:.2f} {claim.offer.currency} "
                f"so far, {claim.offer.price} more each hour): terminate it with the cloud's own tools"
            )
    return alarms


def abbreviated_list(slots: list[str] | tuple[str, ...]) -> str:
    """The first of these names, and how many there are besides."""
    more = f" and {len(slots) - _MAX_SHOWN} more" if len(slots) > _MAX_SHOWN else ""
    return f"{', '.join(sorted(slots)[:_MAX_SHOWN])}{more}"
