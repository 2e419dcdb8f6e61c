"""B3: a machine that the record does not know is there while many claims end."""

from __future__ import annotations

from dataclasses import replace

from burstd.domain.claim import ClaimState
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.snapshot import Snapshot
from burstd.planner.lifecycle.lifecycle import advance_claims
from burstd.planner.snapshot_view import build_view
from burstd.planner.timeouts import Tuning
from tests.planner.worlds import claim, make_snapshot, pool, slot_node
from tests.security.test_a04_linear import steps


def test_a_stray_machine_costs_no_look_at_all_others_for_each_claim() -> None:
    def ending(number: int) -> Snapshot:
        slots = pool(slots=number)
        claims = tuple(
            claim(slot, ClaimState.FAILED, pool="cpu", instance_id=f"i-{slot}", address=f"10.1.{n}")
            for n, slot in enumerate(slots.slots)
        )
        listed = tuple(
            Instance(c.instance_id, "sky", InstanceState.RUNNING, c.id, address=f"10.0.{n // 250}.{n % 250}")
            for n, c in enumerate(claims)
        )
        stray = Instance("i-stray", "sky", InstanceState.RUNNING, "strange", address="10.9.9.9")
        nodes = tuple(replace(slot_node(slots, c.slot, up=True), address="10.8.8.8") for c in claims)
        seen = make_snapshot(
            pools=(slots,), claims=claims, nodes=nodes, unrecorded_instances=frozenset({("sky", "i-stray")})
        )
        return replace(seen, clouds={"sky": replace(seen.clouds["sky"], instances=(*listed, stray))})

    advance_claims(build_view(ending(4), "gate"), Tuning())
    small, large = (build_view(ending(number), "gate") for number in (50, 200))
    assert steps(lambda: advance_claims(large, Tuning())) < 6 * steps(lambda: advance_claims(small, Tuning()))
