"""Scratch that no machine has: what sbatch says, and what becomes of jobs that ask for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.node import Node
from burstd.domain.staging import StageState, StagingView
from burstd.domain.volume import VolumeNeed
from burstd.planner.staging.scratch import scratch_fault
from burstd.slurm.hooks.stage_server import StageCall
from burstd.staging.submission.submit_check import SubmitCheck, SubmitCheckRules

from .worlds import job, last_verdict, make_snapshot, node, pool, target, wants

GIB = 1 << 30
SMALL, LARGE = pool(scratch=100 * GIB), pool("gpu", partitions=("burst", "gpu"), scratch=500 * GIB)
HERE, THERE = node("n1"), node("n2", partitions=("burst",))
NEVER = "scratch of 2 TiB is impossible: the most that a machine of "


@pytest.mark.parametrize(
    ("wanted", "partitions", "pools", "nodes", "fault"),
    [
        (2 << 40, ("burst",), (SMALL,), (), f"{NEVER}pool cpu has is 100 GiB; ask for less"),
        (2 << 40, ("burst",), (SMALL, LARGE), (), f"{NEVER}pools cpu, gpu has is 500 GiB, in pool gpu; ask for less"),
        (2 << 40, ("gpu",), (SMALL, LARGE), (HERE,), f"{NEVER}pool gpu has is 500 GiB; ask for less"),
        (2 << 40, (), (SMALL, LARGE), (), f"{NEVER}pools cpu, gpu has is 500 GiB, in pool gpu; ask for less"),
        (500 * GIB, ("burst",), (SMALL, LARGE), (), ""),
        (2 << 40, ("burst",), (SMALL, pool("any")), (), ""),
        (2 << 40, ("burst",), (SMALL,), (THERE,), ""),
        (2 << 40, (), (SMALL,), (HERE,), ""),
        (2 << 40, ("onprem",), (SMALL,), (HERE,), ""),
        (0, ("burst",), (SMALL,), (), ""),
    ],
    ids=[
        "one pool", "two pools", "one of two pools", "no partition is known", "it fits", "a pool does not say it",
        "nodes of the site", "nodes of the site, and no partition", "no pool", "none is asked for",
    ],
)  # fmt: skip
def test_what_no_machine_has(
    wanted: int, partitions: tuple[str, ...], pools: tuple[Pool, ...], nodes: tuple[Node, ...], fault: str
) -> None:
    slots = {slot: node(slot, partitions=some.partitions) for some in pools for slot in some.slots}
    every = slots | {found.name: found for found in nodes}
    assert scratch_fault(wanted, partitions, {some.name: some for some in pools}, every) == fault


@pytest.mark.parametrize(
    ("most", "info", "fault"),
    [
        (None, {"partition": "burst"}, f"{NEVER}pool cpu has is 100 GiB; ask for less"),
        (None, {"partition": "burst,onprem"}, ""),
        (None, {}, ""),
        (1 << 40, {"partition": "burst"}, "scratch of 2 TiB is more than the 1 TiB allowed"),
    ],
)
def test_sbatch_refuses_it(most: int | None, info: dict[str, str], fault: str) -> None:
    mistakes: list[str] = []
    snapshot = make_snapshot(pools=(SMALL,), nodes=(HERE,))
    rules = SubmitCheckRules(
        1.0, most, lambda _: None,
        scratch_fault=lambda wanted, partitions: scratch_fault(
            wanted, partitions, snapshot.pools, snapshot.slurm.nodes  # type: ignore[union-attr]
        ),
    )  # fmt: skip
    check = SubmitCheck(
        rules,
        lambda *_: pytest.fail("nothing is to be opened"),
        lambda *_: pytest.fail("nothing is to be opened"),
        lambda *_: pytest.fail("nothing is to be opened"),
        mistakes.append,
    )
    said = check(StageCall("check", "1", text="#BURST scratch 1T\n#BURST scratch shared 1T\n", info=info))
    assert (said.result, said.text) == (("refused", fault) if fault else ("ok", ""))
    assert mistakes == (["scratch"] if fault else [])


@pytest.mark.parametrize("state", [StageState.WAITING, StageState.UPLOADING, StageState.STAGED])
def test_no_machine_starts_for_it(state: StageState) -> None:
    data = {"1": StagingView(state, 0.0, scratch=2 << 40)}
    found = target(job(reason="BurstBufferStageIn"), job("2"), pools=(SMALL,), data=data)
    assert last_verdict(found) == ("impossible", f"{NEVER}pool cpu has is 100 GiB; ask for less")
    assert wants(found) == [("cpu", 1, ("2",))]
    data["1"] = replace(data["1"], state=StageState.STAGED, scratch=100 * GIB)
    assert last_verdict(target(job(), pools=(SMALL,), data=data))[0] == "boot"


@pytest.mark.parametrize(("scratch", "machines"), [(100 * GIB, 1), (2 << 40, 0)])
def test_no_machine_starts_for_it_with_a_volume(scratch: int, machines: int) -> None:
    data = {"1": StagingView(StageState.STAGED, 0.0, volume_reason="its volume", scratch=scratch)}
    need = {"1": VolumeNeed("v", frozenset({"sky"}))}
    found = target(job(), pools=(SMALL,), volume_needs=need, data=data)
    assert len(found.wants) == machines
