"""What comes next for each claim, from what is seen. One function a state; the gate's part is in gate.py.

Nothing is ended on an Unavailable: unknown is never taken for gone. An instance counts as gone after two complete
listings in a row without it, both begun after it should have shown (missing_sightings), where Slurm does not hear its
node and its shell does not answer; see listing.py for lists that are doubted altogether.
"""

from __future__ import annotations

from collections.abc import Callable

from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.cloud.offer import Offer
from burstd.domain.plan import (
    Action,
    ChangeClaimState,
    LaunchMachine,
    PowerDown,
    ProbeMachine,
    RecordAddress,
    RegisterNodes,
    RemoveOrphans,
    SetNodesDown,
    StartSlurmd,
    TerminateMachines,
    ValidateNode,
)
from burstd.domain.plugins.provider import Idempotency, NoticeKind
from burstd.domain.snapshot import CloudView, Unavailable
from burstd.planner.lifecycle.interruption import give_up_reason
from burstd.planner.lifecycle.listing import NOT_REGISTERED_YET, slurm_hears
from burstd.planner.lifecycle.output_retention import MIN_ABSENT_WITH_OUTPUT_S
from burstd.planner.lifecycle.spot_notices import closing_error
from burstd.planner.offers.reuse import handover_on_record
from burstd.planner.snapshot_view import SnapshotView
from burstd.planner.timeouts import Tuning

ENDED = "ended"
"""Error of a claim whose machine ended before it was a node, as its cloud says; ``lost``: any other end."""
UNWANTED = "unwanted"
"""Error of a claim whose launch is not repeated, because nobody waits for its machine: no fault of the offer's."""
VALIDATION_TIMEOUT = "validation_timeout"
"""Error of a claim whose machine answers, and is no node in time."""
MIN_ABSENT_LISTINGS = 2
MIN_ABSENT_S = 10.0
"""While other machines boot listings are a second apart: a cloud that leaves one out gets that long to think better."""
REACH_RESULT_VALID_S = 60.0
"""For so long a shell that did not answer is taken for one that does not."""
_ON_A_MACHINE = frozenset({S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.DRAINING})
_POWERED_OFF = frozenset({"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN"})
"""Jobs that Slurm has put on a node with one of these wait for a machine, they do not run on one."""


def advance_claims(view: SnapshotView, tuning: Tuning) -> list[Action]:
    """The next step of every claim that is not waiting for the gate."""
    actions: list[Action] = []
    for claim in view.snapshot.claims:
        step = _STEPS.get(claim.state)
        if claim.state in _ON_A_MACHINE and (done := handover_on_record(claim, view)) is not None:
            actions.append(done)
        elif why := give_up_reason(claim, view):
            actions += fail_claim(claim, closing_error(why), why)
        elif step is not None:
            actions += step(claim, view, tuning)
    return _merged(actions)


def _merged(actions: list[Action]) -> list[Action]:
    """One action for all nodes where Slurm or the cloud takes many at once."""
    registers = [a for a in actions if isinstance(a, RegisterNodes)]
    terminates = [a for a in actions if isinstance(a, TerminateMachines)]
    powers: dict[tuple[bool, str], list[PowerDown]] = {}
    downs: dict[str, list[str]] = {}
    rest: list[Action] = []
    for action in actions:
        if isinstance(action, PowerDown):
            powers.setdefault((action.force, action.reason), []).append(action)
        elif isinstance(action, SetNodesDown):
            downs.setdefault(action.reason, []).extend(action.nodes)
        elif not isinstance(action, (RegisterNodes, TerminateMachines)):
            rest.append(action)
    merged: list[Action] = [SetNodesDown(tuple(nodes), reason) for reason, nodes in downs.items()]
    for (force, reason), some in powers.items():
        nodes = tuple(n for a in some for n in a.nodes)
        merged.append(PowerDown(nodes, force, reason, tuple(c for a in some for c in a.terminating)))
    if registers:
        addresses = tuple(p for r in registers for p in r.addresses)
        merged.append(RegisterNodes(addresses))
    if terminates:
        merged.append(TerminateMachines(tuple(c for t in terminates for c in t.claims), terminates[0].reason))
    return [*merged, *rest]


def steps_if_lost(claim: Claim, view: SnapshotView) -> list[Action]:
    """The machine went without our doing: its end, or what is to be found out first."""
    progress = view.snapshot.runtime_state
    seen = progress.missing_sightings.get(claim.id)
    if seen is None or seen.times < MIN_ABSENT_LISTINGS:
        return []
    instance = view.by_claim.get(claim.id)
    output = view.retained.get(claim.id)
    min_absent_s = (
        MIN_ABSENT_WITH_OUTPUT_S
        if output is not None and output.job_ended
        else MIN_ABSENT_S
        if instance is None
        else 0.0
    )
    if view.now - seen.first < min_absent_s:
        return []
    notice = view.notice(claim.slot)
    announced = notice is not None and notice.kind is NoticeKind.INTERRUPTION
    is_heard = slurm_hears(claim, view.snapshot)
    # slurmctld misses a node late; where the end was announced, only its shell is asked.
    if (is_heard and not announced) or (is_heard is None and claim.state not in NOT_REGISTERED_YET):
        return []
    doubted = claim.offer.provider in view.doubted
    fresh = seen.first if doubted else max(seen.first, view.now - REACH_RESULT_VALID_S)
    if claim.address and progress.unreachable_at.get(claim.id, 0.0) < fresh:
        return [] if f"reach:{claim.id}" in progress.busy else [ProbeMachine(claim.id)]
    if doubted:
        return []
    if instance is not None and instance.state is InstanceState.ERROR:
        error_text = with_detail("is in error, and its node is not up", instance.error)
        return [ChangeClaimState(claim.id, claim.state, S.LOST, f"instance {instance.id} {error_text}", error="lost")]
    why = instance.error if instance and instance.error else "the cloud no longer lists it"
    over = claim.state in NOT_REGISTERED_YET and instance is not None and instance.state is InstanceState.TERMINATED
    error = ENDED if over else "lost"
    what = f"instance {claim.instance_id or claim.id} is gone: {why}"
    return [ChangeClaimState(claim.id, claim.state, S.LOST, what, error=error)]


def fail_claim(claim: Claim, error: str, reason: str) -> list[Action]:
    """Gives the machine up."""
    return [ChangeClaimState(claim.id, claim.state, S.FAILED, reason, error=error)]


def _planned(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    del tuning
    if claim.id in view.snapshot.runtime_state.busy or view.snapshot.paused or claim.offer.provider in view.doubted:
        return []
    if (there := view.by_claim.get(claim.id)) is not None and not there.state.ended:
        why = f"instance {there.id} exists: the record is older than its launch"
        return [ChangeClaimState(claim.id, S.PLANNED, S.LAUNCHING, why)]
    if claim.pool not in view.snapshot.pools or view.cloud(claim) is None:
        why = "its pool or provider is no longer configured; nothing was launched"
        return [ChangeClaimState(claim.id, S.PLANNED, S.GONE, why)]
    if _unwanted(claim, view):
        return [ChangeClaimState(claim.id, S.PLANNED, S.GONE, "its jobs no longer wait; nothing was launched")]
    return [LaunchMachine(claim.id, claim.reason)]


def _unwanted(claim: Claim, view: SnapshotView) -> bool:
    """Whether all jobs that it is for are known to wait no more."""
    return bool(view.slurm) and claim.cause is Cause.DEMAND and not any(view.is_waiting(job) for job in claim.jobs)


def _launching(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    progress, cloud = view.snapshot.runtime_state, view.cloud(claim)
    if claim.id in progress.busy or cloud is None:
        return []
    instance = view.by_claim.get(claim.id)
    if instance is not None and not instance.state.ended:
        if instance.state is InstanceState.ERROR:
            return [
                ChangeClaimState(
                    claim.id,
                    S.LAUNCHING,
                    S.FAILED,
                    with_detail("the cloud could not build it", instance.error),
                    error=instance.cause or "boot",
                    instance_id=instance.id,
                    offer=_actual_offer(claim, instance, cloud),
                )
            ]
        return [
            ChangeClaimState(claim.id, S.LAUNCHING, S.BOOTING, f"instance {instance.id} exists",
                 instance_id=instance.id, address=instance.address, offer=_actual_offer(claim, instance, cloud))
        ]  # fmt: skip
    if gone := steps_if_lost(claim, view):
        return gone
    if claim.attempts >= tuning.launch_attempts:
        return fail_claim(claim, "unknown", f"{claim.attempts} launch calls had no answer")
    if _unwanted(claim, view):
        # In an older copy of the record: its machine may have run and ended long ago.
        return fail_claim(claim, UNWANTED, "its jobs no longer wait; burstd does not repeat the launch")
    if claim.offer.provider in view.doubted:
        # A list that lacks what lives says nothing of what an unanswered call has made.
        return []
    # The call was written down before it was made: until when it was made only the process that made it knows.
    asked = max(claim.launch_called or claim.since, progress.process_start)
    settled = not isinstance(cloud.instances, Unavailable) and cloud.instances_listed > asked + cloud.settle_s
    if cloud.idempotency is not Idempotency.SETTLE or settled:
        return [LaunchMachine(claim.id, "the answer to the launch was lost; repeat the same request")]
    return []


def _actual_offer(claim: Claim, instance: Instance, cloud: CloudView) -> Offer | None:
    """The offer that a machine is of, found without its launch's answer, where it is not the one asked for first."""
    where = (instance.zone, instance.instance_type, instance.spot)
    asked = claim.offer
    if where == (asked.zone, asked.instance_type, asked.spot) or isinstance(cloud.offers, Unavailable):
        return None
    return next((o for o in cloud.offers if (o.zone, o.instance_type, o.spot) == where), None)


def with_detail(text: str, detail: str) -> str:
    """With what the cloud or Slurm says, where it says anything."""
    return f"{text}: {detail}" if detail else text


def _booting(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    if gone := steps_if_lost(claim, view):
        return gone
    if claim.pool not in view.snapshot.pools:
        return fail_claim(claim, "pool", f"pool {claim.pool} is no longer configured")
    instance = view.by_claim.get(claim.id)
    if instance is not None and instance.state is InstanceState.ERROR:
        return fail_claim(claim, instance.cause or "boot", with_detail("the instance is in error", instance.error))
    time = tuning.boot_timeout_s + claim.offer.capacity_wait_s
    address = (instance.address if instance is not None else "") or claim.address
    other = view.other_node_at(address, claim)
    if view.now - max(claim.since, view.snapshot.runtime_state.process_start) > time:
        if other:
            return fail_claim(
                claim, "address", f"{claim.offer.provider} says that it is at {address}, which is {other}'s"
            )
        return fail_claim(claim, "boot_timeout", f"not reached within {time:.0f} s of its launch")
    if instance is None or instance.state.ended or other:
        return []
    if instance.address and instance.address != claim.address:
        return [RecordAddress(claim.id, instance.address, instance.id)]
    if instance.state is InstanceState.RUNNING and claim.address and claim.id not in view.snapshot.runtime_state.busy:
        return [ValidateNode(claim.id, "the instance runs")]
    return []


def _validating(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    if gone := steps_if_lost(claim, view):
        return gone
    progress, node = view.snapshot.runtime_state, view.node(claim.slot)
    if claim.id in progress.slurmd_started and node is not None and node.up and node.address == claim.address:
        return [ChangeClaimState(claim.id, S.VALIDATING, S.READY, "slurmd registered with Slurm")]
    has_had_job = node is not None and node.busy and not node.flags & _POWERED_OFF and node.address == claim.address
    has_had_job = has_had_job or claim.id in view.retained
    instance = view.by_claim.get(claim.id)
    if instance is not None and instance.state is InstanceState.ERROR and not has_had_job:
        return fail_claim(claim, instance.cause or "boot", with_detail("the instance is in error", instance.error))
    # After a long time without burstd: a job that Slurm has started meanwhile runs on it.
    if (
        view.now - max(claim.since, view.snapshot.runtime_state.process_start) > tuning.validation_timeout_s
        and not has_had_job
    ):
        return fail_claim(
            claim, VALIDATION_TIMEOUT, f"Slurm did not see the node within {tuning.validation_timeout_s:.0f} s"
        )
    if claim.pool not in view.snapshot.pools and not has_had_job:
        return fail_claim(claim, "pool", f"pool {claim.pool} is no longer configured")
    if claim.id in progress.busy or not claim.address or claim.pool not in view.snapshot.pools:
        return []
    if view.cloud(claim) is None or view.other_node_at(claim.address, claim):
        return []
    if claim.id not in progress.validated:
        return [ValidateNode(claim.id, "validate again after a restart")]
    # A slurmctld that was restarted meanwhile may take no notice of a slurmd: starting it again mends that.
    fresh = view.now - progress.slurmd_started.get(claim.id, float("-inf")) < tuning.slurmd_restart_s
    if node is None or fresh or "POWERING_DOWN" in node.flags:
        return []
    if "POWER_UP" in node.flags:
        # Asked for and not begun (up to 1.5 s): a slurmd that registers now leaves the flag behind for ever.
        return []
    if node.address != claim.address:
        return [RegisterNodes(((claim.slot, claim.address),))]
    return [StartSlurmd(claim.id)]


def _ready(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    if gone := _in_service(claim, view, tuning):
        return gone
    node = view.node(claim.slot)
    if claim.id in view.retained:
        return []
    known_s = view.now - max(claim.since, view.snapshot.runtime_state.process_start)
    if node is not None and not node.up and not node.busy and known_s > tuning.node_down_grace_s:
        return fail_claim(claim, "node_down", with_detail(f"Slurm has the node as {node.state}", node.reason))
    return []


def _in_service(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    del tuning
    if gone := steps_if_lost(claim, view):
        return gone
    node = view.node(claim.slot)
    if node is None or node.state == "DOWN" or node.flags & {"POWERING_DOWN", "POWER_DOWN"}:
        return []
    if node.flags & _POWERED_OFF and (not node.powered_down or node.busy or claim.id in view.retained):
        # As after slurmctld -c: it knows neither address nor slurmd, and waits for a boot that nobody begins.
        return [
            ChangeClaimState(
                claim.id, claim.state, S.VALIDATING, "Slurm reports the node as powered down: validate again"
            )
        ]
    return []


def _draining(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    del tuning
    if gone := steps_if_lost(claim, view):
        return gone
    node = view.node(claim.slot)
    # The node must be seen idle after the gate came down: until then a job may have got in.
    if view.slurm is None or node is None or claim.slot not in view.gated or view.slurm.read_at <= claim.since:
        return []
    if any(claim.slot in nodes for nodes in view.snapshot.bound.values()):
        # The gate does not keep the job out that the node is bound to; gate.py ends the binding.
        return []
    if not node.busy and claim.id in view.retained:
        # Behind the gate no job comes, and what the last one left can be taken off in peace.
        return []
    if not node.busy and claim.id in view.snapshot.runtime_state.last_figures_awaited:
        return []
    missing = view.snapshot.runtime_state.missing_sightings.get(claim.id)
    if (
        missing is not None
        and view.now - missing.first < REACH_RESULT_VALID_S
        and slurm_hears(claim, view.snapshot) is False
    ):
        # Neither its cloud nor Slurm has it: whether it is lost, and why, is found out first.
        return []
    if not node.busy and (handover := view.handovers.get(claim.id)) is not None:
        return [handover]
    if not node.busy:
        why = claim.reason if closing_error(claim.reason) else "drained and idle"
        return [PowerDown((claim.slot,), False, why, (claim.id,))]
    if claim.slot in view.snapshot.drained_slots or node.drained:
        return []
    return [ChangeClaimState(claim.id, S.DRAINING, S.READY, "a job started before the gate closed")]


def _failed_or_lost(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    """FAILED and LOST: Slurm first, so that it requeues what ran there, then the machine."""
    node = view.node(claim.slot)
    if view.slurm is None:
        return []
    if _slot_has_unknown_machine(claim, view):
        return [ChangeClaimState(claim.id, claim.state, S.TERMINATING, claim.reason, error=claim.error)]
    if node is not None and claim.state is S.LOST and node.busy and node.state != "DOWN":
        return [SetNodesDown((claim.slot,), f"burstd: machine lost ({claim.reason})"[:200])]
    off = _power_down(claim, view, tuning)
    return [*off, ChangeClaimState(claim.id, claim.state, S.TERMINATING, claim.reason, error=claim.error)]


def _power_down(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    """Slurm must not expect a node whose machine goes."""
    node = view.node(claim.slot)
    if node is None or node.powered_down or "POWERING_DOWN" in node.flags or _slot_has_unknown_machine(claim, view):
        return []
    last = view.snapshot.runtime_state.power_down_sent_at.get(claim.slot)
    if last is not None and view.now - last < tuning.power_down_retry_s:
        return []
    return [PowerDown((claim.slot,), True, "its machine is terminated")]


def _slot_has_unknown_machine(claim: Claim, view: SnapshotView) -> bool:
    """Slurm's node of its slot is a machine that the record does not know: the claim was over before the record."""
    node = view.node(claim.slot)
    return node is not None and node.address != claim.address and node.address in view.unknown_addresses()


def _is_vacated(claim: Claim, view: SnapshotView) -> bool:
    """No job runs on a machine that is not wanted any more, seen after Slurm was told so; one that broke is not asked.

    A job that got in at the last moment keeps its node until it ends and its output is off it; Slurm then powers it
    down.
    """
    if claim.error:
        return True
    if view.slurm is None or view.slurm.read_at <= claim.since:
        return False
    if claim.id in view.retained and claim.id not in view.snapshot.runtime_state.termination_accepted:
        return False
    node = view.node(claim.slot)
    return node is None or not node.busy or bool(node.flags & _POWERED_OFF) or node.address != claim.address


def _terminating(claim: Claim, view: SnapshotView, tuning: Tuning) -> list[Action]:
    cloud = view.cloud(claim)
    if cloud is None or isinstance(cloud.instances, Unavailable) or not _is_vacated(claim, view):
        return []
    power_down = _power_down(claim, view, tuning)
    if claim.offer.provider in view.doubted:
        return power_down
    instance = view.by_claim.get(claim.id)
    busy = claim.id in view.snapshot.runtime_state.busy
    if instance is not None and not claim.instance_id:
        # The launch was given up for want of an answer, and went through all the same: it is to be paid for.
        return [
            *power_down,
            RecordAddress(claim.id, instance.address, instance.id, _actual_offer(claim, instance, cloud)),
        ]
    if instance is not None and instance.state is not InstanceState.TERMINATED:
        return power_down if busy else [*power_down, TerminateMachines((claim.id,), claim.reason)]
    if instance is None and claim.instance_id and claim.id not in view.snapshot.runtime_state.termination_accepted:
        # What a cloud does not list may run, and cost, all the same: its end is asked for by the id that is known.
        return power_down if busy else [*power_down, TerminateMachines((claim.id,), claim.reason)]
    asked = max(claim.since, (claim.launch_called or 0.0) + cloud.settle_s)
    if cloud.instances_listed <= asked:
        return power_down
    unread = isinstance(cloud.leftovers, Unavailable)
    # Where leftovers cannot be read the slot does not wait for ever: they are found later, as nobody's.
    if (view.now - claim.since < tuning.orphan_grace_s) if unread else cloud.leftovers_listed <= asked:
        return power_down
    leftovers = view.leftovers.get(claim.id, ())
    if leftovers:
        return (
            power_down
            if busy
            else [*power_down, RemoveOrphans(claim.offer.provider, (), leftovers, "its machine is gone")]
        )
    node = view.node(claim.slot)
    slurm_knows = node is None or node.powered_down or bool(node.flags & {"POWERING_DOWN", "POWER_DOWN"})
    slurm_knows = slurm_knows or _slot_has_unknown_machine(claim, view)
    if view.slurm is not None and slurm_knows:
        why = "no instance; its leftovers cannot be listed" if unread else "neither instance nor leftovers"
        # Only now: a machine with an error is ended whatever still runs on it.
        error = "" if claim.error else closing_error(claim.reason)
        return [ChangeClaimState(claim.id, S.TERMINATING, S.GONE, f"the cloud lists {why}", error=error)]
    return power_down


_STEPS: dict[S, Callable[[Claim, SnapshotView, Tuning], list[Action]]] = {
    S.PLANNED: _planned,
    S.LAUNCHING: _launching,
    S.BOOTING: _booting,
    S.VALIDATING: _validating,
    S.READY: _ready,
    S.IN_SERVICE: _in_service,
    S.DRAINING: _draining,
    S.FAILED: _failed_or_lost,
    S.LOST: _failed_or_lost,
    S.TERMINATING: _terminating,
}
