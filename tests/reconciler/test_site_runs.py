"""Runs on the site's own nodes are written down as they come and go, and charged once, also over restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest

from burstd.db import Store
from burstd.db.repositories.bill import BillGrouping
from burstd.domain.billing.site_cost import NodeGroup, SiteCosts, plain_hour
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.reconciler.pollers.site_runs import SiteRunRecorder
from burstd.reconciler.quarantine import Quarantine
from tests.db.samples import START, ManualClock, planned
from tests.virtual.clock import VirtualClock

if TYPE_CHECKING:
    from burstd.reconciler.context import LoopContext

NODES = {
    name: Node(name, "MIXED", cpus=8, memory_mib=16000, gres=gres)
    for name, gres in (("op1", ()), ("op2", ()), ("gpu1", (Gres("gpu", "v100", 4),)), ("burst1", ()))
}
COSTS = SiteCosts(
    (
        NodeGroup("cpu", ("op*",), plain_hour("EUR", Decimal("3.60"), None, per_gpu=False)),
        NodeGroup("gpu", ("gpu*", "burst*"), plain_hour("USD", Decimal("1.80"), None, per_gpu=True)),
    )
)
"""A second of a CPU node costs 0.001 EUR, one of a GPU 0.0005 USD."""
NONE = SiteCosts()
Look = SlurmView | Unavailable


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "burstd.db", ManualClock()) as opened:
        yield opened


def job(job_id: str = "17", **fields: Any) -> Job:
    base = Job(job_id, "ann", JobState.RUNNING, ("cpu",), START, account="atlas", cpus=2, start=START + 10,
               run_start=int(START) + 10, node_list=("op1",))  # fmt: skip
    return replace(base, **fields)


def ended(end: float, **fields: Any) -> Job:
    return job(state=JobState.COMPLETED, end=START + end, **fields)


def at(time: float, *jobs: Job, over: tuple[Job, ...] = ()) -> SlurmView:
    shifted = [tuple(replace(j, start=j.start + time * 1e-7) for j in some) for some in (jobs, over)]
    return SlurmView(shifted[0], NODES, (), START + time, ended=shifted[1])


def recorder(store: Store) -> SiteRunRecorder:
    context = SimpleNamespace(store=store, quarantine=Quarantine(VirtualClock()))
    return SiteRunRecorder(cast("LoopContext", context), lambda: {"burst1"})


def costs(store: Store, until: float = 1000) -> dict[str, str]:
    lines = store.site_bill("job", START - 86400, START + until)
    return {line.key: f"{line.cost:.3f} {line.currency}" for line in lines}


TWICE = job(restarts=1, start=START + 50, run_start=int(START) + 50)
DONE = JobState.COMPLETED
ON_BURST: dict[str, Any] = {"node_list": ("burst1",)}
ON_TWO: dict[str, Any] = {"node_list": ("op1", "op2"), "exclusive": True}


@pytest.mark.parametrize(
    ("case", "looks", "bill"),
    [
        ("it runs: a quarter of a node for 90 s by now", [at(20, job())], {"17": "0.022 EUR"}),
        ("it has ended", [at(20, job()), at(60, over=(ended(50),)), at(70, over=(ended(50),))], {"17": "0.010 EUR"}),
        ("it came and went between two looks", [at(5), at(60, over=(ended(50),))], {"17": "0.010 EUR"}),
        ("slurmctld has forgotten its end: until it was last seen", [at(20, job()), at(900)], {"17": "0.002 EUR"}),
        ("it was requeued", [at(20, job()), at(60, TWICE), at(99, over=(replace(TWICE, state=DONE, end=START + 90),))],
         {"17": "0.012 EUR"}),
        ("it waits", [at(20, job(state=JobState.PENDING, node_list=("op1",)))], {}),
        ("its output is on its way", [at(20, job()), at(60, job(state=JobState.STAGE_OUT), over=())],
         {"17": "0.002 EUR"}),
        ("on a machine of a cloud", [at(20, job(**ON_BURST)), at(60, over=(ended(50, **ON_BURST),))], {}),
        ("two nodes, whole", [at(20, job(**ON_TWO)), at(60, over=(ended(50, **ON_TWO),))], {"17": "0.080 EUR"}),
        ("2 of 4 GPUs at 0.0005", [at(20, job(node_list=("gpu1",), gres_per_node=(Gres("gpu", "", 2),))),
                                   at(60, over=(ended(50, node_list=("gpu1",)),))], {"17": "0.040 USD"}),
        ("Slurm is away", [at(20, job()), Unavailable("no", 0.0), at(60, over=(ended(50),))], {"17": "0.010 EUR"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_charged(store: Store, case: str, looks: list[Look], bill: dict[str, str], restarted: bool) -> None:
    one = recorder(store)
    for slurm in looks:
        one.record(slurm, COSTS)
        one = recorder(store) if restarted else one
    assert costs(store, 100) == bill, case


def test_every_grouping_adds_up_to_the_same_and_a_user_sees_his_own(store: Store) -> None:
    one = recorder(store)
    one.record(at(20, job(), job("18", user="bob", account="belle", node_list=("op1", "gpu1"))), COSTS)
    one.record(at(99, job(), over=(ended(91, id="18", user="bob", account="belle", node_list=("op1", "gpu1")),)), COSTS)
    groups: tuple[BillGrouping, ...] = get_args(BillGrouping)
    for user, wanted in (("", {"EUR", "USD"}), ("ann", {"EUR"}), ("bob", {"EUR", "USD"}), ("eve", set())):
        sums = []
        for group in groups:
            found: dict[str, Decimal] = {}
            for line in store.site_bill(group, START - 86400, START + 100, user):
                found[line.currency] = found.get(line.currency, Decimal(0)) + line.cost
            sums.append(found)
        assert sums.count(sums[0]) == len(sums)
        assert sums[0].keys() == wanted


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_the_dearest_jobs_are_lines_and_the_others_one_a_currency(store: Store, limit: int) -> None:
    gpu = {"node_list": ("gpu1",), "gres_per_node": (Gres("gpu", "", 2),)}
    over = [ended(10 + 4 * n, id=str(n), **(gpu if n == 5 else {})) for n in range(1, 6)]
    one = recorder(store)
    one.record(at(20, job("9")), COSTS)
    one.record(at(60, job("9"), over=tuple(over)), COSTS)
    every = store.site_bill("job", START - 86400, START + 22)
    assert [line.key for line in every] == ["4", "5", "3", "9", "2", "1"], "5 is in USD"
    lines = store.site_bill("job", START - 86400, START + 22, limit=limit)
    assert lines[:limit] == every[:limit]
    for currency in ("EUR", "USD"):
        left = [line for line in every[limit:] if line.currency == currency]
        sums = [(sum(line.cost for line in left), sum(line.seconds for line in left), len(left))] if left else []
        found = [(line.cost, line.seconds, line.others) for line in lines[limit:] if line.currency == currency]
        assert found == sums


def test_prices_hold_from_the_beginning_of_a_run(store: Store) -> None:
    one = recorder(store)
    one.record(at(20, job()), COSTS)
    dear = SiteCosts((NodeGroup("cpu", ("op*",), plain_hour("EUR", Decimal(36), None, per_gpu=False)),))
    one.record(at(30, job(), job("18")), dear)
    one.record(at(60, over=(ended(50), ended(50, id="18"))), dear)
    assert costs(store) == {"17": "0.010 EUR", "18": "0.100 EUR"}


DEAR = SiteCosts((NodeGroup("cpu", ("op*",), plain_hour("EUR", Decimal(36), None, per_gpu=False)),))
GPUS_ONLY = SiteCosts(COSTS.groups[1:])


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("case", "prices", "bill"),
    [
        ("taken away", (COSTS, NONE, NONE), {"17": "0.025 EUR"}),
        ("taken away and put back", (COSTS, NONE, DEAR), {"17": "0.025 EUR", "18": "0.150 EUR"}),
        ("another group is taken away", (COSTS, GPUS_ONLY, GPUS_ONLY), {"17": "0.025 EUR"}),
        ("set while jobs run: from their start", (NONE, COSTS, COSTS), {"17": "0.025 EUR", "18": "0.015 EUR"}),
        ("another group is set first", (GPUS_ONLY, COSTS, DEAR), {"17": "0.025 EUR", "18": "0.015 EUR"}),
    ],
)
def test_prices_change_while_jobs_run(
    store: Store, case: str, prices: tuple[SiteCosts, ...], bill: dict[str, str], restarted: bool
) -> None:
    late: dict[str, Any] = {"id": "18", "start": START + 50, "run_start": int(START) + 50}
    one = recorder(store)
    for time, some in zip((20, 60, 90), prices, strict=True):
        one.record(at(time, job(), *([job(**late)] if time > 50 else [])), some)
        one = recorder(store) if restarted else one
    one.record(at(120, over=(ended(110), ended(110, **late))), prices[-1])
    assert store.open_site_runs() == []
    assert costs(store) == bill, case


def test_a_machine_whose_pool_left_the_settings_is_no_node_of_the_site(store: Store) -> None:
    store.make_claims([planned(slot="op2")])
    recorder(store).record(at(20, job(node_list=("op2",)), job("18")), COSTS)
    assert [run.payer.job for run in store.open_site_runs()] == ["18"]


def test_nothing_is_read_or_written_without_prices(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = recorder(store)
    one.record(at(10, job()), NONE)
    monkeypatch.setattr(one, "_context", None)
    one.record(at(20, job(), over=(ended(15, id="16"),)), NONE)


def test_a_write_that_fails_is_made_up_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = recorder(store)
    one.record(at(20, job()), COSTS)
    with monkeypatch.context() as patch:
        patch.setattr(store, "save_site_runs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            one.record(at(60, over=(ended(50),)), COSTS)
    one.record(at(70, over=(ended(50),)), COSTS)
    assert costs(store) == {"17": "0.010 EUR"}


def test_charges_are_kept_as_long_as_those_of_machines(store: Store) -> None:
    recorder(store).record(at(60, over=(ended(50),)), COSTS)
    store.purge(START + 40 * 86400, START + 2 * 86400)
    assert costs(store)
    store.purge(START + 40 * 86400, START + 40 * 86400)
    assert not costs(store)
