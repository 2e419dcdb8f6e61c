"""Figures of jobs, fetched from machines and written down: machines and workers are played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from burstd.db import Store, StoreError
from burstd.db.repositories import job_use as job_use_rows
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse, Series
from burstd.domain.plugins.shell import Closing, ConnectionLost
from burstd.domain.slurm.job import RUNNING_STATES, Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.node.job_use import NodeFigures
from burstd.reconciler.pollers import job_use
from burstd.reconciler.pollers.job_use import JobUsePoller
from burstd.settings.sampler import SamplerSettings
from tests.db.samples import OFFER, START, ManualClock, planned

GPU = GpuUse("GPU-1", 0, "V100", GpuShare.WHOLE, 0.0, 0.0, 5, 16384, 100.0, 90.0, 90.0, START + 100)
NODE = NodeUse("gpu1", 4, 999, START + 1, START + 100, 50.0, 0.5, 1.5, 300, 310, 12, 3, 0.5, 0.0, (GPU,))


def claim(slot: str = "gpu1", state: S = S.IN_SERVICE) -> Claim:
    return replace(planned(f"c-{slot}", slot), state=state)


def job(number: int = 7, *nodes: str, **fields: Any) -> Job:
    base = Job(
        str(number), "ada", JobState.RUNNING, ("burst",), START, account="lab", cpus=8, memory_mib=2000, start=START,
        node_list=nodes or ("gpu1",),
    )  # fmt: skip
    made = replace(base, **fields)
    return replace(made, run_start=int(made.start))


def run_name(number: str, use: NodeUse) -> str:
    """As the node has it."""
    return f"{number}-{int(use.started)}"


class World:
    """Machines that answer, or not, when their turn comes."""

    def __init__(self, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.clock = store, clock
        self.jobs: list[Job] = [job()]
        self.claims = [claim()]
        self.nodes: dict[str, Node] = {}
        self.figures: dict[str, dict[str, NodeUse]] = {}
        """Of each node, by the job's number: its last run."""
        self.kept: list[tuple[str, NodeUse]] = []
        """Of runs before, by their number, on all nodes."""
        self.silent: set[str] = set()
        self.asked: list[tuple[str, tuple[str, ...], bool]] = []
        self.owed: list[frozenset[str]] = []
        """Runs that were asked for first, by call."""
        self.fits = 999
        """Runs in an answer."""
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.summaries: list[JobUse] = []
        monkeypatch.setattr(job_use, "fetch_figures", self.fetch)
        self.settings = SamplerSettings()
        self.poller = self.new_poller()

    def new_poller(self) -> JobUsePoller:
        return JobUsePoller(self.store, self, self.clock, self.connect, self.settings, self, self.connect_own)  # type: ignore[arg-type]

    def write(self, use: JobUse) -> bool:
        self.summaries.append(use)
        return True

    def connect(self, claim: Claim) -> Any:
        if claim.slot in self.silent:
            raise ConnectionLost("it is silent")
        return _Shell()

    def connect_own(self, name: str, address: str, known_hosts: Path) -> Any:
        assert (address, known_hosts) == (f"{name}.site", self.settings.known_hosts)
        if name in self.silent:
            raise ConnectionLost("it is silent")
        return _Shell()

    def fetch(
        self, _shell: object, node: str, config: object, *, forget: frozenset[str], owed: frozenset[str], now: float
    ) -> NodeFigures:
        assert now == self.clock.now()
        self.asked.append((node, tuple(sorted(forget)), config is not None))
        uses = [*self.figures.get(node, {}).items(), *self.kept]
        found = {run_name(number, use): use for number, use in uses if run_name(number, use) not in forget}
        self.owed.append(owed)
        sent = dict([*found.items()][: self.fits])
        return NodeFigures("running" if config is not None else "ended", sent, (), left_out=len(sent) < len(found))

    def submit(self, _lane: str, work: Callable[[], Any], done: Callable[[Any], None], **_: object) -> None:
        self.waiting.append((work, done))

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work, done in waiting:
            try:
                result = work()
            except ConnectionLost as error:
                result = error
            done(result)
        self.poller.save()

    def step(self, after: float = 0.0, *, answers: bool = True) -> list[str]:
        """One loop; the machines that were asked in it."""
        self.clock.time += after
        before = len(self.asked)
        slurm = SlurmView(tuple(self.jobs), self.nodes, (), self.clock.now())
        self.due = self.poller.step(slurm, self.claims)
        if answers:
            self.answer()
        return [node for node, _, _ in self.asked[before:]]


class _Shell(Closing):
    def close(self) -> None:
        pass


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    clock = ManualClock()
    with Store.open(tmp_path / "burstd.db", clock) as store:
        yield World(store, clock, monkeypatch)


def test_a_new_machine_is_asked_at_once_and_one_with_jobs_again_and_again(world: World) -> None:
    world.claims = [claim(), claim("gpu2", S.READY), claim("gpu3", S.BOOTING)]
    assert world.step() == ["gpu1", "gpu2"]
    assert [world.step(60.0) for _ in range(6)] == [[], [], ["gpu1"], [], [], ["gpu1"]]


def test_when_a_job_last_read_much_from_disks_is_kept_over_a_restart(world: World) -> None:
    seen = []
    for rate in (1.0, 6.0, 4.0):
        world.figures["gpu1"] = {"7": replace(NODE, sampled_at=world.clock.now(), read_now_mib_s=rate)}
        world.step(180.0)
        seen.append(world.poller.uses()["7"].nodes[0].loading_at)
    assert seen == [0.0, START + 180, START + 180]
    world.poller = world.new_poller()
    world.step(answers=False)
    assert world.poller.uses()["7"].nodes[0].loading_at == START + 180


def test_figures_are_on_record_with_what_slurm_says_of_the_job(world: World) -> None:
    world.figures["gpu1"] = {"7": NODE, "8": NODE}
    world.step()
    (use,) = world.store.job_uses("7")
    assert (use.user, use.account, use.partition, use.started, use.ended) == ("ada", "lab", "burst", START, None)
    assert use.nodes == (replace(NODE, cpus=8, memory_mib=2000, gpu_price=Decimal("0.765"), currency=OFFER.currency),)
    assert use.gpu_idle_cost() == {"EUR": Decimal("0.765") * 90 / 3600}
    assert world.poller.uses() == {"7": use}
    assert world.store.job_uses("8") == (), "no such job runs there"


def test_a_gpu_whose_job_has_shards_is_shared_whatever_the_node_says(world: World) -> None:
    world.jobs = [job(gres_per_node=(Gres("shard", "", 2),))]
    world.figures["gpu1"] = {"7": NODE}
    world.step()
    assert world.store.job_uses("7")[0].gpus[0].share is GpuShare.SHARD


def test_a_node_that_names_more_gpus_than_it_has_is_no_dearer(world: World) -> None:
    gpus = tuple(replace(GPU, uuid=f"GPU-{n}") for n in range(16))
    world.figures["gpu1"] = {"7": replace(NODE, gpus=gpus)}
    world.step()
    (use,) = world.store.job_uses("7")
    assert use.gpu_idle_cost() == {"EUR": OFFER.price * 90 / 3600}


def test_the_last_figures_are_fetched_before_the_machine_may_end(world: World) -> None:
    world.figures["gpu1"] = {"7": NODE}
    world.step()
    world.jobs = []
    assert world.step(30.0, answers=False) == []
    assert (set(world.poller.awaited()), world.due) == ({"c-gpu1"}, world.clock.time + 20)
    assert world.store.job_uses("7")[0].ended is None
    world.figures["gpu1"] = {"7": replace(NODE, cpu_s=60.0, sampled_at=world.clock.time, ended=True)}
    world.answer()
    world.step()
    (use,) = world.store.job_uses("7")
    assert (use.nodes[0].cpu_s, use.ended, use.cut, world.poller.awaited()) == (60.0, START + 30, False, frozenset())
    assert world.poller.uses() == {}
    # The node forgets them with the next call.
    world.jobs = [job(9)]
    world.step(200.0)
    assert world.asked[-1] == ("gpu1", (run_name("7", NODE),), True)


def test_a_node_is_made_to_forget_all_jobs_however_many_ended_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_use, "MAX_ENDED_AT_ONCE", 600)
    jobs = [job(n) for n in range(1, 601)]
    world.figures["gpu1"] = {str(n): replace(NODE, ended=True) for n in range(1, 601)}
    world.jobs = jobs
    world.step()
    world.jobs = []
    world.step(10.0)
    world.jobs = [job(9999)]
    for _ in range(3):
        world.step(200.0)
    calls = [forgotten for _, forgotten, _ in world.asked[-3:]]
    assert [len(forgotten) for forgotten in calls] == [256, 256, 88]
    assert len({number for forgotten in calls for number in forgotten}) == 600


@pytest.mark.parametrize("way", ["silent", "gone"])
def test_a_machine_that_is_silent_is_not_waited_for(world: World, way: str) -> None:
    world.figures["gpu1"] = {"7": NODE}
    world.step()
    world.jobs = []
    if way == "gone":
        world.claims = []
    world.silent = {"gpu1"}
    world.step(150.0)
    assert world.poller.awaited() == ({"c-gpu1"} if way == "silent" else frozenset())
    for _ in range(5):
        world.step(5.0)
    assert world.poller.awaited() == frozenset()
    (use,) = world.store.job_uses("7")
    assert (use.cut, use.nodes[0].cut, use.nodes[0].cpu_s, use.ended) == (True, True, 50.0, START + 150)


def test_a_restart_of_burstd_loses_nothing(world: World) -> None:
    """What ran before runs on, or has ended meanwhile: its last figures are still there."""
    world.figures["gpu1"] = {"7": NODE, "8": NODE}
    world.jobs = [job(), job(8)]
    world.step()
    world.poller = world.new_poller()
    world.poller.step(Unavailable("down", 0.0), world.claims)
    world.jobs = [job(8)]
    world.figures["gpu1"]["7"] = replace(NODE, cpu_s=70.0, sampled_at=START + 120, ended=True)
    world.step(120.0)
    for _ in range(2):
        world.step(1.0)
    (use,) = world.store.job_uses("7")
    assert (use.nodes[0].cpu_s, use.cut, use.ended) == (70.0, False, START + 120)
    assert list(world.poller.uses()) == ["8"]


def test_a_job_that_is_requeued_has_figures_of_each_run(world: World) -> None:
    world.figures["gpu1"] = {"7": NODE}
    world.step()
    world.jobs = [job(restarts=1, start=START + 300)]
    world.step(310.0)
    assert [use.restarts for use in world.store.job_uses("7")] == [0], "these figures are of the first run"
    world.figures["gpu1"] = {"7": replace(NODE, started=START + 301, sampled_at=START + 500)}
    world.step(190.0)
    first, second = world.store.job_uses("7")
    assert (first.restarts, first.ended, first.nodes[0].cut) == (0, START + 310, True)
    assert (second.restarts, second.ended, second.nodes[0].started) == (1, None, START + 301)


@pytest.mark.parametrize("visited", [True, False])
def test_figures_of_a_job_are_not_those_of_another_with_its_id(world: World, visited: bool) -> None:
    """Slurm's ids begin anew, as after the loss of its state: another job has the number, on the same node."""
    world.figures["gpu1"] = {"7": NODE}
    world.step()
    world.kept = [("7", replace(NODE, cpu_s=70.0, sampled_at=START + 290, ended=True))]
    world.figures["gpu1"] = {"7": replace(NODE, started=START + 301, sampled_at=START + 305, cpu_s=1.0)}
    if visited:
        world.jobs = []
        world.step(295.0)
    world.jobs = [job(user="bob", start=START + 300)]
    for after in (310.0, 1.0):
        world.step(after)
    first, second = world.store.job_uses("7")
    assert (first.user, first.nodes[0].cpu_s, first.cut, first.ended is None) == ("ada", 70.0, False, False)
    assert (second.user, second.nodes[0].cpu_s, second.ended) == ("bob", 1.0, None)
    assert world.poller.uses() == {"7": second}
    world.step(200.0)
    assert {name for _, names, _ in world.asked for name in names} == {run_name("7", NODE)}


def test_the_end_of_a_run_reads_and_writes_no_series(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing and unpacking those of 500 nodes would keep the deciding thread for seconds."""
    series = Series(START, 10.0, (1.5, None), (2.0, None))
    names = [f"gpu{n}" for n in range(1, 5)]
    world.jobs, world.claims = [job(7, *names)], [claim(name) for name in names]
    for name in names:
        world.figures[name] = {"7": replace(NODE, node=name, cpu_series=series, memory_series=series)}
    world.step()
    world.jobs, world.claims = [], [claim("gpu1")]
    world.figures["gpu1"]["7"] = replace(world.figures["gpu1"]["7"], sampled_at=START + 300, ended=True)
    world.step(300.0)
    with monkeypatch.context() as patched:
        patched.setattr(job_use_rows, "zlib", None)
        world.step(1.0)
    use = world.store.last_job_use("7", series_nodes=None)
    assert use is not None
    assert (use.ended, [(node.ended, node.cut) for node in use.nodes]) == (
        START + 300, [(True, False), (True, True), (True, True), (True, True)],
    )  # fmt: skip
    assert [node.cpu_series for node in use.nodes] == [series] * 4


@pytest.mark.parametrize("state", sorted(RUNNING_STATES - {JobState.STAGE_OUT}))
def test_a_run_goes_on_in_any_state_of_a_job_that_is_on_its_nodes(world: World, state: JobState) -> None:
    """As SIGNALING, for the moment of a scancel --signal, and STOPPED."""
    world.figures["gpu1"] = {"7": NODE}
    world.step()
    world.jobs = [job(state=state)]
    world.step(30.0)
    assert list(world.poller.uses()) == ["7"]


def test_after_an_outage_a_run_ends_when_its_nodes_saw_it_end(world: World) -> None:
    world.settings = SamplerSettings(jobstats=True)
    world.figures["gpu1"] = {"7": NODE}
    world.step()
    world.poller = world.new_poller()
    world.jobs = []
    world.figures["gpu1"] = {"7": replace(NODE, sampled_at=START + 600, ended=True)}
    world.step(7200.0)
    world.poller = world.new_poller()
    world.step(1.0)
    world.step(1.0)
    assert [one.ended for one in world.store.job_uses("7")] == [START + 600]
    assert [one.ended for one in world.summaries] == [START + 600]


@pytest.mark.parametrize(("record", "ended"), [(START + 20, START + 20), (START + 9999, START + 150)])
def test_a_run_whose_node_is_silent_ends_when_slurm_says(world: World, record: float, ended: float) -> None:
    world.figures["gpu1"] = {"7": NODE}
    world.step()
    world.jobs = [job(state=JobState.COMPLETING, end=record)]
    world.silent = {"gpu1"}
    world.step(30.0)
    world.jobs = []
    world.step(120.0)
    world.step(world.settings.last_figures_s)
    assert [one.ended for one in world.store.job_uses("7")] == [ended]


def test_a_job_with_a_node_that_never_said_anything_is_cut(world: World) -> None:
    world.jobs, world.claims = [job(7, "gpu1", "gpu2")], [claim(), claim("gpu2")]
    world.figures["gpu1"] = {"7": replace(NODE, ended=True)}
    world.step()
    world.jobs = []
    world.step(10.0)
    world.step(1.0)
    (use,) = world.store.job_uses("7")
    assert (use.nodes_allocated, [node.node for node in use.nodes], use.cut) == (2, ["gpu1"], True)
    assert use.nodes[0].cpus == 4, "of several nodes each says how many CPUs the job has there"


def test_all_calls_keep_to_a_rate(world: World) -> None:
    """4,000 machines; the last figures come first."""
    world.claims = [claim(f"gpu{n}") for n in range(4000)]
    world.jobs = [job(n, f"gpu{n}") for n in range(4000)]
    begun = sum(len(world.step(10.0)) for _ in range(30))
    assert abs(begun - 300 / 60 * world.settings.calls_per_minute) <= 180
    world.jobs = [one for one in world.jobs if one.id != "3999"]
    assert world.step(10.0)[0] == "gpu3999"


def _wide_job(world: World, nodes: int) -> None:
    """It has run, and ended a moment ago; the machine of its last node is to end."""
    names = [f"gpu{n}" for n in range(nodes)]
    world.claims, world.jobs = [claim(name) for name in names], [job(7, *names)]
    for name in names:
        world.figures[name] = {"7": replace(NODE, node=name, ended=True)}
    world.step()
    world.claims = [*world.claims[:-1], claim(names[-1], S.DRAINING)]
    world.jobs = []


def test_the_last_figures_of_a_wide_job_keep_to_a_number_at_once_and_to_no_rate(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_use, "MAX_OWED_AT_ONCE", 4)
    world.poller.settings = SamplerSettings(calls_per_minute=1)
    _wide_job(world, 18)
    asked = [world.step(100.0)]
    while world.poller.awaited():
        assert world.due <= world.clock.time + job_use.OWED_S
        asked.append(world.step(job_use.OWED_S))
    assert asked[0][0] == "gpu17", "it is to end"
    assert [len(some) for some in asked] == [4, 4, 4, 4, 2]
    world.step()
    (use,) = world.store.job_uses("7")
    assert (len(use.nodes), use.cut, use.ended) == (18, False, START + 100)


def test_no_machine_waits_longer_for_a_wide_job_whose_figures_come_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_use, "MAX_OWED_AT_ONCE", 2)
    world.silent = {"gpu28"}
    _wide_job(world, 30)
    world.step(100.0)
    held = [len(world.poller.awaited())]
    while world.step(job_use.OWED_S):
        held.append(len(world.poller.awaited()))
    assert held.index(0) == world.settings.last_figures_s / job_use.OWED_S < len(held)
    (use,) = world.store.job_uses("7")
    assert (len(use.nodes), use.cut, use.ended) == (29, True, START + 100)


def test_nodes_of_the_site_are_measured_where_it_wants_that(world: World) -> None:
    up, down = Node("cn1", "IDLE", address="cn1.site"), Node("cn2", "DOWN", address="cn2.site")
    world.nodes = {"cn1": up, "cn2": down, "gpu1": replace(up, name="gpu1"), "other1": replace(up, name="other1")}
    world.jobs = [job(7, "cn1")]
    world.figures["cn1"] = {"7": replace(NODE, node="cn1")}
    assert world.step() == ["gpu1"]
    world.poller.settings = world.settings = SamplerSettings(own_nodes=("cn*",))
    assert world.step() == ["cn1"]
    (use,) = world.store.job_uses("7")
    assert (use.nodes[0].node, use.gpu_idle_cost()) == ("cn1", {})


def test_samplers_end_though_burstd_was_started_again_meanwhile(world: World) -> None:
    """Nobody knows then whether one runs: each machine is visited until it says that none does, and not again."""
    world.claims = [claim(), claim("gpu2", S.READY)]
    world.step()
    world.settings = SamplerSettings(enabled=False)
    world.poller = world.new_poller()
    world.silent = {"gpu2"}
    assert world.step(1.0) == ["gpu1"]
    world.silent = set()
    assert [world.step(300.0), world.step(300.0)] == [["gpu2"], []]
    assert {config for _, _, config in world.asked[-2:]} == {False}
    world.poller.settings = SamplerSettings()
    assert sorted(world.step(1.0)) == ["gpu1", "gpu2"], "and they start again at once"
    assert {config for _, _, config in world.asked[-2:]} == {True}


def test_the_ends_of_samplers_keep_to_the_rate(world: World) -> None:
    world.settings = SamplerSettings(enabled=False, calls_per_minute=240)
    world.poller = world.new_poller()
    world.claims = [claim(f"gpu{n}") for n in range(400)]
    begun = [len(world.step(15.0)) for _ in range(10)]
    assert (max(begun), sum(begun)) == (60, 400)


@pytest.mark.parametrize("patterns", [(), ("other*",)])
def test_the_sampler_of_a_node_that_left_own_nodes_ends(world: World, patterns: tuple[str, ...]) -> None:
    world.claims, world.jobs = [], [job(7, "cn1")]
    world.nodes = {"cn1": Node("cn1", "IDLE", address="cn1.site")}
    world.poller.settings = SamplerSettings(own_nodes=("cn*",))
    world.figures["cn1"] = {"7": replace(NODE, node="cn1")}
    world.step()
    world.poller.settings = SamplerSettings(own_nodes=patterns)
    world.silent = {"cn1"}
    assert world.step(1.0) == []
    world.silent = set()
    assert [world.step(300.0), world.step(300.0)] == [["cn1"], []]
    assert world.asked[-1] == ("cn1", (), False)
    world.jobs = []
    world.step(1.0)
    assert world.store.job_uses("7")[0].ended == world.clock.time, "what came is kept"
    world.poller.settings = SamplerSettings(own_nodes=("cn*",))
    assert world.step(1.0) == ["cn1"]
    assert world.asked[-1][2] is True


def test_a_node_that_left_own_nodes_and_is_silent_is_given_up(world: World) -> None:
    world.claims = []
    world.nodes = {"cn1": Node("cn1", "IDLE", address="cn1.site")}
    world.poller.settings = SamplerSettings(own_nodes=("cn*",))
    world.step()
    world.poller.settings = SamplerSettings()
    world.silent = {"cn1"}
    for _ in range(11):
        world.step(600.0)
    world.silent = set()
    assert world.step(600.0) == []


def test_samplers_end_where_the_settings_say_so(world: World) -> None:
    world.step()
    world.poller.settings = SamplerSettings(enabled=False)
    world.step(1.0)
    assert world.asked[-1] == ("gpu1", (), False)
    assert [world.step(300.0), world.poller.uses(), world.poller.awaited()] == [[], {}, frozenset()]


@pytest.mark.parametrize("missing", ["the last figures", "a node"])
def test_a_run_that_is_cut_gets_no_summary(world: World, missing: str) -> None:
    world.settings = SamplerSettings(jobstats=True)
    world.poller = world.new_poller()
    world.jobs = [job(7, "gpu1", "gpu2")] if missing == "a node" else [job()]
    world.figures["gpu1"] = {"7": replace(NODE, ended=missing == "a node")}
    world.step()
    world.jobs, world.silent = [], {"gpu1"}
    for _ in range(2):
        world.step(300.0)
    assert [use.cut for use in world.store.job_uses("7")] == [True]
    assert world.summaries == []


def test_a_summary_is_written_once_where_the_site_wants_it(world: World) -> None:
    world.settings = SamplerSettings(jobstats=True)
    world.poller = world.new_poller()
    world.figures["gpu1"] = {"7": replace(NODE, ended=True)}
    world.step()
    world.jobs = []
    for _ in range(4):
        world.step(30.0)
    assert [(use.job, use.ended) for use in world.summaries] == [("7", START + 30)]


def _fail_once(monkeypatch: pytest.MonkeyPatch, world: World, call: str) -> None:
    def fail(*_: object) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(job_use, "fetch_figures", world.fetch)
        raise StoreError("the disk is full")

    monkeypatch.setattr(world.store, call, fail)


@pytest.mark.parametrize("last", [False, True])
def test_a_write_that_fails_loses_no_figures_and_no_visits(
    world: World, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    world.step()
    if last:
        world.jobs = []
    world.figures["gpu1"] = {"7": replace(NODE, ended=last)}
    _fail_once(monkeypatch, world, "save_job_uses")
    with pytest.raises(StoreError):
        world.step(200.0)
    assert (world.store.job_uses("7"), world.poller.awaited()) == ((), {"c-gpu1"} if last else frozenset())
    world.step(1.0)
    (use,) = world.store.job_uses("7")
    assert (use.nodes[0].cpu_s, use.ended, use.cut) == (50.0, START + 100 if last else None, False)
    assert world.step(200.0) == ([] if last else ["gpu1"])


def test_an_answer_that_burstd_cannot_take_in_ends_no_visits(world: World) -> None:
    world.step()
    world.figures["gpu1"] = {"7": replace(NODE, read_now_mib_s=None)}  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(TypeError):
            world.step(200.0)
    world.figures["gpu1"] = {"7": NODE}
    assert world.step(200.0) == ["gpu1"]


def test_runs_on_record_are_taken_up_though_the_first_read_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.figures["gpu1"] = {"7": replace(NODE, ended=True)}
    world.step()
    world.poller, world.jobs = world.new_poller(), []
    _fail_once(monkeypatch, world, "open_job_uses")
    with pytest.raises(StoreError):
        world.step(10.0)
    world.step(10.0)
    world.step(1.0)
    assert [use.ended for use in world.store.job_uses("7")] == [START + 20]


@pytest.mark.parametrize("settled", [False, True])
def test_a_run_whose_row_could_not_be_read_for_a_moment_goes_on(world: World, settled: bool) -> None:
    world.figures["gpu1"] = {"7": NODE}
    world.step()
    world.jobs = [job(state=JobState.UNKNOWN, start=0.0)]
    world.step(5.0, answers=settled)
    if settled:
        world.step(1.0)
    world.jobs = [job()]
    world.step(1.0)
    world.figures["gpu1"] = {"7": replace(NODE, cpu_s=70.0, sampled_at=START + 200)}
    assert [world.step(200.0) for _ in range(2)] == [["gpu1"], ["gpu1"]]
    (use,) = world.store.job_uses("7")
    assert (use.nodes[0].cpu_s, use.ended, [*world.poller.uses()]) == (70.0, None, ["7"])
    world.jobs = []
    world.step(10.0)
    world.step(1.0)
    assert world.store.job_uses("7")[0].ended == world.clock.time - 1


def test_last_figures_that_did_not_fit_are_asked_for_first_and_waited_for(world: World) -> None:
    world.jobs = [job(8), job(7)]
    world.figures["gpu1"] = {"8": NODE, "7": NODE}
    world.step()
    world.jobs, world.fits = [job(8)], 1
    world.figures["gpu1"]["7"] = replace(NODE, cpu_s=70.0, ended=True)
    world.step(10.0)
    assert (set(world.owed[-1]), set(world.poller.awaited())) == ({run_name("7", NODE)}, {"c-gpu1"})
    world.fits = 2
    assert [world.step(0.1), world.step(job_use.OWED_S)] == [[], ["gpu1"]]
    world.step(1.0)
    (use,) = world.store.job_uses("7")
    assert (use.nodes[0].cpu_s, use.cut) == (70.0, False)


@pytest.mark.parametrize("restarts", [False, True])
def test_the_end_of_a_wide_job_is_written_over_several_steps(
    world: World, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    monkeypatch.setattr(job_use, "MAX_ENDED_AT_ONCE", 4)
    names = [f"gpu{n}" for n in range(10)]
    world.claims, world.jobs = [claim(name) for name in names], [job(7, *names)]
    for name in names:
        world.figures[name] = {"7": replace(NODE, node=name)}
    world.step()
    world.claims, world.jobs = [], []
    world.step(300.0)
    assert world.due <= world.clock.time + job_use.OWED_S
    if restarts:
        world.poller = world.new_poller()
    world.step(1.0)
    (use,) = world.store.job_uses("7")
    assert (use.ended, sum(node.cut for node in use.nodes)) == (None, 8)
    for _ in range(2):
        world.step(1.0)
    (use,) = world.store.job_uses("7")
    assert (use.ended is None, sum(node.cut for node in use.nodes)) == (False, 10)
    assert world.store.open_job_uses() == ()


def test_a_job_that_is_requeued_goes_on_as_its_run_until_it_has_left_the_nodes(world: World) -> None:
    """Slurm counts the requeue as soon as it is asked for."""
    world.figures["gpu1"] = {"7": NODE}
    world.step()
    world.jobs = [job(state=JobState.COMPLETING, restarts=1)]
    world.step(200.0)
    assert [(use.restarts, use.ended) for use in world.store.job_uses("7")] == [(0, None)]
    world.jobs = [job(state=JobState.PENDING, restarts=1, start=0.0)]
    world.step(10.0)
    world.step(1.0)
    assert [(use.restarts, use.ended) for use in world.store.job_uses("7")] == [(0, START + 210)]
