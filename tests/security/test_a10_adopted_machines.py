"""What a cloud says of machines that the record does not know: it fills no slot of others, and no bill of years."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import TAG_POOL, TAG_SLOT, Instance, InstanceState
from burstd.domain.plan import AdoptMachine
from burstd.domain.snapshot import CloudView, SlurmView, Snapshot
from burstd.planner.lifecycle.adoption import MAX_BACKDATED_S, adoptable_machines, plan_adoptions, unlisted_slots
from burstd.planner.snapshot_view import SnapshotView
from tests.planner.worlds import NOW, claim, make_snapshot, offer, pool, slot_node

MACHINE = Instance(
    "i-1", "sky", InstanceState.RUNNING, "abc-1", {TAG_SLOT: "cpu1", TAG_POOL: "cpu"}, address="10.0.0.7",
    launched=NOW - 600,
)  # fmt: skip


def listed(*machines: Instance) -> Snapshot:
    seen = make_snapshot(unrecorded_instances=frozenset((m.provider, m.id) for m in machines))
    clouds = {
        name: CloudView((replace(offer(), provider=name),), tuple(m for m in machines if m.provider == name))
        for name in ("sky", "storm")
    }
    return replace(seen, clouds=clouds)


def _view(seen: Snapshot) -> SnapshotView:
    assert isinstance(seen.slurm, SlurmView)
    return SnapshotView(seen, seen.slurm)


def adopted(*machines: Instance) -> list[AdoptMachine]:
    seen = listed(*machines)
    return plan_adoptions(seen, _view(seen))


def test_a_machine_of_a_cloud_that_fills_the_slot_is_adopted() -> None:
    (one,) = adopted(MACHINE)
    assert (one.claim.id, one.claim.slot, one.claim.billed_from) == ("abc-1", "cpu1", NOW - 600)


def test_a_cloud_has_no_say_in_slots_that_it_may_not_fill() -> None:
    false = [
        replace(MACHINE, id=f"i-{n}", provider="storm", claim_id=f"abc-{n}", tags={TAG_SLOT: f"cpu{n}"})
        for n in range(1, 5)
    ]
    assert adopted(*false) == []
    seen = listed(*false)
    assert not adoptable_machines(seen, _view(seen))


@pytest.mark.parametrize("said", ["../../spool/x", "a/b", "a\nb", ".hidden", "-x", "a" * 64, "\udc80", "a b"])
def test_an_id_that_no_claim_has_is_not_taken_over(said: str) -> None:
    assert adopted(replace(MACHINE, claim_id=said)) == []


@pytest.mark.parametrize("said", [1.0, 1.8e9 - 400 * 86400.0])
def test_no_word_of_a_cloud_is_billed_for_years(said: float) -> None:
    seen = replace(listed(replace(MACHINE, launched=said)), now=1.8e9)
    (one,) = plan_adoptions(seen, _view(seen))
    assert one.claim.billed_from == one.claim.created == 1.8e9 - MAX_BACKDATED_S


def test_a_node_whose_machine_is_listed_for_a_claim_without_an_address_keeps_no_doubt() -> None:
    """The copy that was put back was made while the machine booted."""
    cpu = pool()
    seen = replace(
        listed(MACHINE),
        claims=(claim("cpu1", S.LAUNCHING, id="abc-1"),),
        unrecorded_instances=frozenset(),
        record_doubt="older",
        slurm=SlurmView(
            (), {"cpu1": replace(slot_node(cpu, "cpu1", up=True), address=MACHINE.address)}, (), read_at=NOW
        ),
    )
    assert unlisted_slots(seen) == ()
    assert unlisted_slots(replace(seen, clouds=listed().clouds)) == ("cpu1",)
