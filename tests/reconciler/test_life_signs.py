"""Which nodes get burstd's sign of life, and in which commands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from burstd.domain.claim import Cause, ClaimState
from burstd.domain.errors import SchedulerRefused
from burstd.domain.slurm.node import LIFE_SIGN
from burstd.domain.snapshot import SlurmView
from burstd.reconciler.pollers.life_signs import LifeSigns
from tests.planner.worlds import claim, make_snapshot
from tests.virtual.clock import VirtualClock

if TYPE_CHECKING:
    from burstd.domain.snapshot import Snapshot
    from burstd.reconciler.context import LoopContext


class Rig:
    """A Slurm that takes signs, or refuses some nodes."""

    def __init__(self) -> None:
        self.written: list[list[str]] = []
        self.refused = ""
        context = SimpleNamespace(
            scheduler=self, workers=self, clock=VirtualClock(),
            intervals=SimpleNamespace(life_sign_s=120.0, call_retry_s=2.0),
        )  # fmt: skip
        self.signs = LifeSigns(cast("LoopContext", context))

    def set_extra(self, nodes: Collection[str], text: str) -> None:
        assert text.startswith(LIFE_SIGN)
        self.written.append(list(nodes))
        if self.refused in nodes:
            raise SchedulerRefused("Invalid node name specified")

    def submit(self, _lane: str, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            done(work())
        except SchedulerRefused as error:
            done(error)


def world(*foreign: str) -> Snapshot:
    """Two nodes in service; of these the Extra is somebody else's."""
    here = [claim(slot=slot, state=ClaimState.IN_SERVICE) for slot in ("cpu1", "cpu2")]
    snapshot = make_snapshot(claims=tuple(here))
    assert isinstance(snapshot.slurm, SlurmView)
    nodes = {n: replace(v, extra="rack=7") if n in foreign else v for n, v in snapshot.slurm.nodes.items()}
    return replace(snapshot, slurm=replace(snapshot.slurm, nodes=nodes))


def test_one_command_for_all_and_none_before_it_is_due() -> None:
    rig = Rig()
    rig.signs.step(world())
    rig.signs.step(world())
    assert rig.written == [["cpu1", "cpu2"]]


def test_what_is_somebody_elses_stays() -> None:
    rig = Rig()
    rig.signs.step(world("cpu2"))
    assert rig.written == [["cpu1"]]


def test_a_node_in_quarantine_hears_of_burstd_and_holds_up_no_other() -> None:
    """Its machine must not take an error of burstd's own for burstd's end. A storage node is none of Slurm's."""
    rig, whole = Rig(), world()
    one, two = whole.claims
    store = replace(one, id="s", slot="store", cause=Cause.STORAGE)
    rig.refused = two.slot
    rig.signs.step(replace(whole, claims=(one,), quarantined_claims=(two, store)))
    assert rig.written == [[one.slot], [two.slot]]
    assert rig.signs.alarms() == ["machines hear nothing of burstd: Invalid node name specified"]
