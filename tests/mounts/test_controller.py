"""The mount controller, whatever comes between: no job starts without its trees, and nobody's stay without a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.errors import BurstdError, NodeNotReady
from burstd.domain.mounts import MountedTree, MountRule
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.mounts.controller import MountController, StreamKey
from burstd.mounts.streams import Stream
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.transfer.privsep.client import Account
from tests.crash.workers import QueuedWorkers
from tests.planner.worlds import NOW, claim, job, pool
from tests.virtual.clock import VirtualClock

UIDS = {"ada": 3001, "bob": 3002}
CPU = pool(slots=2)
HOME = MountRule("home", "/home/{user}")
PROJECT = MountRule("project", "/project")
SOFTWARE = MountRule("software", "/sw", read_only=True, public=True)


def find_account(user: str) -> Account:
    uid = UIDS.get(user, 65534)
    return Account(user, uid, uid, (uid,), f"/home/{user}")


@dataclass
class FakeStreams:
    """Streams in memory, which outlive the controller."""

    up: dict[StreamKey, Stream] = field(default_factory=dict)
    failing: bool = False

    def start(self, claim: Claim, who: Account, trees: Sequence[MountedTree]) -> None:
        key = (claim.id, who.uid)
        if self.failing:
            raise NodeNotReady("no answer")
        there = self.up.get(key)
        if there is not None and (there.ended or there.trees != tuple(trees)):
            raise NodeNotReady("it shows other trees")
        self.up[key] = Stream(who.user, tuple(trees))

    def stop(self, claim: Claim | None, claim_id: str, uid: int) -> None:  # noqa: ARG002  there is no machine
        self.up.pop((claim_id, uid), None)

    def streams(self) -> Mapping[StreamKey, Stream]:
        return dict(self.up)

    def end(self, key: StreamKey) -> None:
        """The line breaks."""
        self.up[key] = replace(self.up[key], ended=True)


class World:
    """A controller with all around it in memory."""

    def __init__(self, *rules: MountRule) -> None:
        self.clock = VirtualClock(NOW)
        self.workers = QueuedWorkers(self.clock, {})
        self.streams = FakeStreams()
        self.rules = rules
        self.claims = {slot: claim(slot, ClaimState.IN_SERVICE, address="10.0.0.1") for slot in CPU.slots}
        self.jobs: dict[str, Any] = {}
        self.replies: dict[str, StageReply] = {}
        self.held: dict[str, str] = {}
        self.restart()

    def restart(self) -> None:
        """burstd is killed and started: what is under way goes on, and nobody hears of it."""
        self.workers = QueuedWorkers(self.clock, {})
        self.controller = MountController(
            self.streams, self.workers, self.clock, rules=lambda: self.rules, pools=lambda: {"cpu": CPU},
            find_account=find_account, held=self.held,
        )  # fmt: skip
        for number in [n for n, j in self.jobs.items() if j.state is JobState.CONFIGURING and n not in self.replies]:
            self.run_prolog(number)

    def run_prolog(self, number: str) -> None:
        """Slurm runs burstd-prolog (again)."""
        one = self.jobs[number]
        info = {"user": one.user, "nodes": ",".join(one.node_list), "queue_id": number}
        call = StageCall("prolog", number, UIDS[one.user], info=info)
        self.controller.handle_prolog(call, lambda reply: self.replies.__setitem__(number, reply))

    def allocate(self, number: str, user: str, *nodes: str) -> None:
        """Slurm gives a job its nodes, and runs PrologSlurmctld."""
        self.jobs[number] = job(number, user=user, state=JobState.CONFIGURING, node_list=nodes)
        self.replies.pop(number, None)
        self.run_prolog(number)

    def view(self) -> SlurmView:
        return SlurmView(tuple(self.jobs.values()), {}, (), read_at=self.clock.now())

    def step(self, slurm: SlurmView | Unavailable | None = None) -> None:
        self.controller.step(self.view() if slurm is None else slurm, list(self.claims.values()))

    def settle(self) -> None:
        """As many loops as change anything."""
        for _ in range(12):
            self.clock._now += 1.0
            self.work()
            self.step()

    def work(self) -> None:
        """What the workers have to do is done."""
        run_all(self.workers)


def run_all(workers: QueuedWorkers) -> None:
    while workers._queued:
        _, _, work, done, _ = workers._queued.pop(0)
        outcome = _outcome(work)
        workers.post(lambda done=done, outcome=outcome: done(outcome))  # type: ignore[misc]
    workers.run_callbacks()


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BurstdError as error:
        return error


def test_a_job_starts_when_all_its_nodes_show_all_trees() -> None:
    world = World(HOME, SOFTWARE)
    world.allocate("7", "ada", "cpu1", "cpu2", "op1")
    world.step()
    assert "7" not in world.replies
    world.settle()
    assert world.replies["7"] == StageReply("ok")
    assert {key: stream.trees for key, stream in world.streams.up.items()} == {
        (claim_id, uid): trees
        for claim_id in ("c-cpu1", "c-cpu2")
        for uid, trees in (
            (3001, (MountedTree("/home/ada", optional=True),)),
            (65534, (MountedTree("/sw", read_only=True),)),
        )
    }
    del world.jobs["7"]
    world.settle()
    assert world.streams.up == {}


def test_a_failed_mount_refuses_the_start_and_is_explained() -> None:
    world = World(HOME)
    world.streams.failing = True
    world.allocate("7", "ada", "cpu1")
    world.settle()
    assert "7" not in world.replies, "it is tried again"
    world.clock._now += 60.0
    world.settle()
    assert world.replies["7"] == StageReply("refused", "cpu1: no answer")
    assert world.controller.view().refusals == {"7": "its trees could not be mounted on cpu1: no answer"}
    world.streams.failing = False
    world.allocate("7", "ada", "cpu1")
    world.settle()
    assert world.replies["7"].result == "ok"
    assert world.controller.view().refusals == {}


def test_refusals_in_a_row_are_counted_until_the_job_is_held() -> None:
    world = World(HOME)
    world.streams.failing = True

    def refuse() -> int:
        world.allocate("7", "ada", "cpu1")
        world.settle()
        world.clock._now += 60.0
        world.settle()
        return world.controller.view().refused_times["7"]

    assert [refuse(), refuse(), refuse()] == [1, 2, 3]
    world.jobs["7"] = job("7", user="ada", reason="JobHeldUser")
    world.step()
    assert world.controller.view().refused_times == {"7": 0}
    assert "7" in world.controller.view().refusals
    assert refuse() == 1, "after its release it has as many attempts again"
    world.streams.failing = False
    world.allocate("7", "ada", "cpu1")
    world.settle()
    assert world.controller.view().refused_times == {}


def test_why_a_job_is_held_is_known_after_a_restart() -> None:
    world = World(HOME)
    world.held = {"7": "no answer, 3 times", "8": "no answer, 3 times", "9": "no answer, 3 times"}
    world.jobs = {"7": job("7", user="ada", reason="JobHeldUser"), "8": job("8", user="ada")}
    world.restart()
    world.step(Unavailable("no answer", NOW))
    for _ in range(2):
        world.step()
        assert world.controller.view().refusals == {"7": "no answer, 3 times"}
    world.jobs["8"] = job("8", user="ada", reason="JobHeldUser")
    world.step()
    assert world.controller.view().refusals == {"7": "no answer, 3 times"}, "its user has held it since"


def test_a_refusal_of_a_het_job_is_told_of_its_component() -> None:
    world = World(HOME)
    world.streams.failing = True
    for i, node in enumerate(("cpu1", "cpu2")):
        state = JobState.CONFIGURING
        world.jobs[f"7+{i}"] = job(f"7+{i}", user="ada", state=state, node_list=(node,), het_job_id="7", het_offset=i)
    info = {"user": "ada", "nodes": "cpu2", "queue_id": "8"}
    world.controller.handle_prolog(StageCall("prolog", "8", 3001, info=info), lambda _reply: None)
    world.settle()
    world.clock._now += 60.0
    world.settle()
    assert list(world.controller.view().refusals) == ["7+1"]


def test_a_node_that_shows_whole_trees_changes_hands_only_when_it_is_free() -> None:
    world = World(PROJECT)
    world.allocate("7", "ada", "cpu1")
    world.settle()
    world.allocate("8", "bob", "cpu1")
    world.settle()
    assert "8" not in world.replies
    world.clock._now += 60.0
    world.settle()
    assert "its partition needs ExclusiveUser=YES" in world.replies["8"].text
    world.allocate("8", "bob", "cpu1")
    del world.jobs["7"]
    world.settle()
    assert world.replies["8"].result == "ok"
    assert set(world.streams.up) == {("c-cpu1", 3002)}


def test_lost_mounts_are_told_until_no_job_needs_them() -> None:
    world = World(HOME)
    world.allocate("7", "ada", "cpu1")
    world.settle()
    world.jobs["7"] = replace(world.jobs["7"], state=JobState.RUNNING)
    world.streams.end(("c-cpu1", 3001))
    world.restart()
    world.settle()
    assert world.controller.view().lost == {"c-cpu1": frozenset({"ada"})}
    world.jobs["7"] = replace(world.jobs["7"], state=JobState.PENDING, node_list=())
    world.settle()
    assert world.controller.view().lost == {}
    assert world.streams.up == {}


def test_a_job_waits_for_the_trees_of_now() -> None:
    world = World(HOME)
    world.allocate("7", "ada", "cpu1")
    world.settle()
    world.rules = (HOME, MountRule("scratch", "/scratch/{user}"))
    world.allocate("8", "ada", "cpu1")
    world.settle()
    assert "8" not in world.replies
    world.clock._now += 60.0
    world.settle()
    assert world.replies["8"] == StageReply("refused", "cpu1: it shows other trees")
    del world.jobs["7"], world.jobs["8"]
    world.settle()
    world.allocate("9", "ada", "cpu1")
    world.settle()
    assert [tree.path for tree in world.streams.up["c-cpu1", 3001].trees] == ["/home/ada", "/scratch/ada"]


@pytest.mark.parametrize("state", [JobState.SIGNALING, JobState.RESIZING, JobState.COMPLETING, JobState.UNKNOWN])
def test_what_a_job_may_still_need_is_kept(state: JobState) -> None:
    world = World(HOME)
    world.allocate("7", "ada", "cpu1")
    world.settle()
    nodes = () if state is JobState.UNKNOWN else ("cpu1",)
    world.jobs["7"] = replace(world.jobs["7"], state=state, node_list=nodes)
    world.restart()
    world.settle()
    assert set(world.streams.up) == {("c-cpu1", 3001)}


def test_nothing_is_stopped_while_the_record_is_in_doubt() -> None:
    world = World(HOME)
    world.allocate("7", "ada", "cpu1")
    world.settle()
    world.claims.clear()
    world.restart()
    world.clock._now += 1.0
    world.controller.step(world.view(), [], doubt=True)
    world.work()
    assert set(world.streams.up) == {("c-cpu1", 3001)}


def test_a_user_whom_slurm_and_the_head_number_differently_is_refused() -> None:
    world = World(HOME)
    call = StageCall("prolog", "7", 4242, info={"user": "ada", "nodes": "cpu1", "queue_id": "7"})
    world.controller.handle_prolog(call, lambda reply: world.replies.__setitem__("7", reply))
    world.settle()
    assert "Slurm says that ada has uid 4242" in world.replies["7"].text
    bad = replace(call, info={**call.info, "nodes": "cpu[1-"})
    world.controller.handle_prolog(bad, lambda reply: world.replies.__setitem__("7", reply))
    assert "Slurm's list of the job's nodes cannot be read" in world.replies["7"].text


class Interleavings(RuleBasedStateMachine):
    """Jobs come and go, mounts fail and break, burstd dies, machines go, Slurm shows old news or nothing."""

    @initialize()
    def begin(self) -> None:
        self.world = World(HOME, SOFTWARE)
        self.numbers = iter(range(1, 10_000))
        self.old = self.world.view()

    @rule(user=st.sampled_from(sorted(UIDS)), nodes=st.sets(st.sampled_from(CPU.slots), min_size=1))
    def allocate(self, user: str, nodes: set[str]) -> None:
        self.world.allocate(str(next(self.numbers)), user, *sorted(nodes & self.world.claims.keys()))

    @rule(failing=st.booleans())
    def work(self, failing: bool) -> None:
        self.world.streams.failing = failing
        self.world.work()

    @rule(loops=st.integers(1, 4))
    def loop(self, loops: int) -> None:
        for _ in range(loops):
            self.world.clock._now += 1.0
            self.world.work()
            self.world.step()
            self.jobs_have_their_trees_from_the_start()

    @rule()
    def keep_old_view(self) -> None:
        self.old = self.world.view()

    @rule()
    def loop_with_old_news(self) -> None:
        self.world.clock._now += 1.0
        self.world.step(self.old)
        self.world.work()

    @rule()
    def step_without_slurm(self) -> None:
        self.world.step(Unavailable("no answer", 0.0))

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @precondition(lambda self: self.world.streams.up)
    @rule(data=st.data())
    def break_stream(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.streams.up)))
        self.world.streams.end(key)

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data())
    def end_job(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.world.jobs)))
        del self.world.jobs[number]
        self.world.replies.pop(number, None)

    @rule(slot=st.sampled_from(CPU.slots))
    def replace_machine(self, slot: str) -> None:
        """A machine goes with all that is on it; its jobs begin anew elsewhere."""
        old = self.world.claims[slot]
        for number in [n for n, j in self.world.jobs.items() if slot in j.node_list]:
            del self.world.jobs[number]
        for key in [k for k in self.world.streams.up if k[0] == old.id]:
            self.world.streams.end(key)
        self.world.claims[slot] = replace(old, id=old.id + "x")

    @invariant()
    def jobs_have_their_trees_from_the_start(self) -> None:
        world = self.world
        for number, one in list(world.jobs.items()):
            reply = world.replies.get(number)
            if reply is None:
                continue
            if reply.result != "ok":
                del world.jobs[number]
                continue
            for node in one.node_list:
                for uid in (UIDS[one.user], 65534):
                    key = (world.claims[node].id, uid)
                    assert key in world.streams.up, (number, key)
            world.jobs[number] = replace(one, state=JobState.RUNNING)

    @rule()
    def requeue_lost(self) -> None:
        """What the plan does about lost mounts."""
        lost = self.world.controller.view().lost
        slots = {slot: lost[c.id] for slot, c in self.world.claims.items() if c.id in lost}
        for number, one in list(self.world.jobs.items()):
            users = {user for node in one.node_list for user in slots.get(node, ())}
            if one.state is JobState.RUNNING and users & {one.user, "nobody"}:
                del self.world.jobs[number]

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is None:
            return
        world.streams.failing = False
        for _ in range(3):
            world.settle()
            self.requeue_lost()
            self.jobs_have_their_trees_from_the_start()
        needed = {
            (world.claims[node].id, uid)
            for one in world.jobs.values()
            for node in one.node_list
            for uid in (UIDS[one.user], 65534)
        }
        assert set(world.streams.up) <= needed
        assert not [n for n, j in world.jobs.items() if j.state is JobState.CONFIGURING]


TestInterleavings = Interleavings.TestCase
