"""The world that the crash tests play in: the real reconciler and store among virtual clouds, machines and Slurm."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import policies.idle as policies_idle
from burstd.db import Store, replay_claims
from burstd.db.record_mark import RecordMark
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.offer import FabricTest, OfferRule, Pool
from burstd.domain.plugins.policy import Policy
from burstd.domain.plugins.provider import Idempotency
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.shape import Shape
from burstd.planner.timeouts import Tuning
from burstd.reconciler.context import LoopContext, PollIntervals
from burstd.reconciler.decisions import RuntimeConfig
from burstd.reconciler.pollers.projects import ProjectSync
from burstd.reconciler.quarantine import Quarantine
from burstd.reconciler.reconciler import JobUseSubsystem, Reconciler, StagingSubsystem
from burstd.slurm.projects import SlurmProjects
from tests.crash.clouds import CLUSTER, CPU, GPU, CloudKit, KitInstance, SandboxKit, SimKit
from tests.crash.faults import Crash, CrashPoints, Disk, SlurmLine, crashing_calls, crashing_slurm, crashing_store
from tests.crash.workers import Delay, QueuedWorkers
from tests.doubles.lying_cloud import LyingCloud
from tests.virtual.clock import VirtualClock
from tests.virtual.machines import Machines
from tests.virtual.power import SlurmConf
from tests.virtual.slurm import NodeSpec, SimSlurm
from tests.virtual.validator import SimValidator

ADMIN_REASON = "looks bad"
"""The reason that administrators give."""
CPU_SLOTS = tuple(f"c{i}" for i in range(1, 5))
GPU_SLOTS = tuple(f"g{i}" for i in range(1, 4))
SLOTS = frozenset(CPU_SLOTS + GPU_SLOTS)
OTHER_SLOTS = tuple(f"o{i}" for i in range(1, 4))
"""Of a pool of machines like those of ``CPU_SLOTS``: the two may hand their machines to each other."""
TUNING = Tuning(
    boot_timeout_s=120, validation_timeout_s=60, gang_timeout_s=240, orphan_grace_s=60, node_down_grace_s=30,
    bind_timeout_s=40, power_down_retry_s=20,
)  # fmt: skip
PACE = PollIntervals(tick_s=20, poll_s=10, slurm_fast_s=2, cloud_poll_s=30, cloud_fast_s=4, validation_retry_s=3)
SLURM = SlurmConf(resume_timeout_s=200, suspend_timeout_s=8, ping_s=10, slurmd_timeout_s=60, requeue_delay_s=15)
SLURM_PATIENT = replace(SLURM, resume_timeout_s=24 * 3600.0, suspend_timeout_s=8.0)
KEEP_ALIVE_S = 60.0
THREE_LISTINGS_S = 3 * PACE.cloud_poll_s
_PROVIDER_CALLS = frozenset(
    ["prepare", "launch", "instances", "terminate", "leftovers", "remove", "offers", "notices", "acknowledge"]
)
_VALIDATOR_CALLS = frozenset({"validate", "start_slurmd", "test_fabric"})


@contextmanager
def memory_folder(other: Path | None = None) -> Iterator[Path]:
    """A folder in memory, or (in ``other``) on disk where the machine has none for it."""
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else other) as folder:
        yield Path(folder)


def _living(kit: CloudKit) -> set[tuple[str, str]]:
    return {(one.id, one.claim_id) for one in kit.launched_instances() if one.alive}


def pools(*, spot: bool = False, reuse: bool = False) -> dict[str, Pool]:
    """Four slots without GPUs and three with two each; both clouds may fill them. ``reuse``: three more slots.

    The network between nodes of a gang is tested.
    """
    markets = ("on-demand", "spot") if spot else ("on-demand",)
    made = {}
    for name, slots, shape in (("cpu", CPU_SLOTS, CPU), ("gpu", GPU_SLOTS, GPU)):
        rules = tuple(OfferRule(p, (f"{name}.*",), markets=markets) for p in ("alpha", "beta"))
        fabric = FabricTest("ib_write_bw", 60, 10)
        made[name] = Pool(name, slots, ("burst",), shape, rules, fabric_test=fabric, cpu_jobs=True)
    if reuse:
        cpu = made["cpu"] = replace(made["cpu"], reuse_from=("other",))
        made["other"] = replace(cpu, name="other", slots=OTHER_SLOTS, partitions=("other",), reuse_from=("cpu",))
    return made


class World:
    """One site. ``alpha`` is the cheaper cloud and small, ``beta`` the dearer one; they differ in how they dedupe."""

    def __init__(
        self,
        folder: Path,
        *,
        template: Path | None = None,
        policies: Sequence[Policy] = (),
        tuning: Tuning = TUNING,
        alpha: str = "sandbox",
        beta: Idempotency = Idempotency.SETTLE,
        lag_s: float = 0.0,
        conf: SlurmConf = SLURM,
        stage: StagingSubsystem | None = None,
        spot: bool = False,
        projects: SlurmProjects | None = None,
        reuse: bool = False,
        job_use: JobUseSubsystem | None = None,
        pace: PollIntervals = PACE,
    ) -> None:
        """``spot``: both clouds sell spot machines as well, at half the price. ``projects``: Slurm's side of them."""
        self._stage = stage
        self._pace = pace
        self._projects = projects
        self.job_use = job_use
        self._spot = spot
        self.slots = SLOTS | frozenset(OTHER_SLOTS if reuse else ())
        self.clock = VirtualClock()
        self.slurm = SimSlurm(
            self.clock,
            [
                NodeSpec(("op1",), Shape(2, 4000), ("onprem",), cloud=False),
                NodeSpec(CPU_SLOTS, CPU, ("burst",)),
                NodeSpec(GPU_SLOTS, GPU, ("burst",)),
                *([NodeSpec(OTHER_SLOTS, CPU, ("other",))] if reuse else []),
            ],
            conf,
        )
        self.machines = Machines(self.clock, self.slurm)
        self._furthest_clock_jump = 0.0
        self.violations: list[str] = []
        self.kits: dict[str, CloudKit] = {"beta": self._sim_kit("beta", beta, lag_s)}
        match alpha:
            case "sandbox":
                self.kits["alpha"] = SandboxKit(
                    self.clock, self.machines, "alpha", self._check_no_job_running, lag_s=lag_s, spot=spot
                )
            case "sim":
                self.kits["alpha"] = self._sim_kit("alpha", Idempotency.TOKEN, lag_s, (3, 2), ("1.0", "4.0"))
            case "batches":
                prices = ("1.0", "4.0")
                self.kits["alpha"] = self._sim_kit("alpha", Idempotency.TOKEN, lag_s, (3, 2), prices, batches=True)
            case _:
                pass
        self.lying_clouds = {
            name: LyingCloud(kit.provider, self.clock.now, partial(_living, kit)) for name, kit in self.kits.items()
        }
        self.crash_points, self.disk, self.slurm_line = CrashPoints(), Disk(), SlurmLine(self.clock)
        self.delays: dict[str, Delay] = {}
        """How slow the lanes of the workers are: ``alpha``, ``alpha:list``, ``nodes``."""
        self.workers = QueuedWorkers(self.clock, self.delays)
        self.due = self.clock.now()
        self.reconciler: Reconciler | None = None
        self.calls: list[str] = []
        """Calls to clouds and machines that were made: ``alpha.launch``."""
        keep = policies_idle.plugin.make(policies_idle.IdleSettings(keep_alive_s=KEEP_ALIVE_S))
        self._rules = RuntimeConfig(pools(spot=spot, reuse=reuse), (keep, *policies), tuning)
        self.path = folder / "burstd.db"
        if template is not None:
            shutil.copy(template, self.path)
        self._store: Store | None = None
        self._mark: RecordMark | None = None
        self._claims_made = 0
        self.template_fault: Exception | None = None
        """What is wrong with the site's cloud-init template; None: nothing."""
        self.slurm.programs.resume = self.slurm.programs.suspend = self.slurm.programs.resume_fail = self._wake
        self.start()

    def _sim_kit(
        self,
        name: str,
        idempotency: Idempotency,
        lag_s: float,
        capacity: tuple[int, int] = (4, 3),
        prices: tuple[str, str] = ("1.5", "5.0"),
        *,
        batches: bool = False,
    ) -> SimKit:
        return SimKit(
            self.clock, self.machines, name, self._check_no_job_running,
            idempotency=idempotency, lag_s=lag_s, capacity=capacity, prices=prices, batches=batches, spot=self._spot,
        )  # fmt: skip

    def _wake(self, _nodes: Sequence[str]) -> None:
        self.due = min(self.due, self.clock.now())

    def _check_no_job_running(self, instance_id: str, address: str) -> None:
        """burstd ends a machine: no job may run on it."""
        machine = self.machines.running_at(address)
        if machine is None or not machine.node:
            return
        node = self.slurm.node(machine.node)
        if node.slurmd and node.address == address:
            for job in self.slurm.active:
                if job.state is JobState.RUNNING and machine.node in job.nodes:
                    ended = f"{instance_id} was ended under job {job.id} on {machine.node} at {self.clock.now()}"
                    whose = [c for c in self.all_claims() if c.instance_id == instance_id] if self._store else []
                    self.violations.append("\n".join([ended, f"{job}", *map(self.story, whose)]))

    # The process.

    def start(self) -> None:
        """burstd starts; nothing where it runs."""
        if self.reconciler is not None:
            return
        self._store = Store.open(self.path, self.clock)
        self._mark = RecordMark(self.path.with_name("record.mark"), self._store)
        self._mark.doubt_record()
        self.workers = QueuedWorkers(self.clock, self.delays)
        context = LoopContext(
            cluster=CLUSTER,
            intervals=self._pace,
            store=crashing_store(self._store, self.crash_points, self.disk),
            scheduler=crashing_slurm(self.slurm, self.crash_points, self.slurm_line),
            providers={
                n: crashing_calls(liar, self.crash_points, n, _PROVIDER_CALLS, self.calls)
                for n, liar in self.lying_clouds.items()
            },
            validator=crashing_calls(
                SimValidator(self.machines), self.crash_points, "prover", _VALIDATOR_CALLS, self.calls
            ),
            workers=self.workers,
            clock=self.clock,
            user_data=self._user_data,
            new_id=self._new_id,
            is_authentic=self.made_here,
            quarantine=Quarantine(self.clock),
        )
        projects = ProjectSync(context, self._projects) if self._projects is not None else None
        self.reconciler = Reconciler(context, self._rules, self._stage, projects=projects, job_use=self.job_use)
        self.due = self.clock.now()

    def _user_data(self, pool: Pool, provider: str) -> str:
        if self.template_fault is not None:
            raise self.template_fault
        return f"#cloud-config\n# {pool.name} {provider}\n"

    def _new_id(self) -> str:
        self._claims_made += 1
        return f"claim-{self._claims_made:04}"

    def made_here(self, claim_id: str) -> bool:
        """Every id is, but those of somebody else."""
        return bool(claim_id) and not claim_id.startswith("foreign-")

    def set_policies(self, policies: Sequence[Policy]) -> None:
        """Other policies, from the next loop on."""
        self._rules = replace(self._rules, policies=tuple(policies))
        if self.reconciler is not None:
            self.reconciler.reload(self._rules)
        self.due = self.clock.now()

    def jump(self, seconds: float) -> None:
        """Sets the system's clock forward, or back."""
        self.clock.jump(seconds)
        self._furthest_clock_jump = max(self._furthest_clock_jump, self.clock.wall() - self.clock.now())

    def kill(self) -> None:
        """burstd is killed: all but the database file is lost."""
        self.reconciler = None
        self.workers = QueuedWorkers(self.clock, self.delays)
        if self._store is not None:
            self._store.close()
            self._store = None

    @contextmanager
    def recorded_places(self) -> Iterator[None]:
        """Records the places where burstd can die meanwhile: ``crash_points.distinct_places``."""
        # https://www.sqlite.org/pragma.html#pragma_data_version: another number after each commit of another.
        with closing(sqlite3.connect(self.path)) as beside:

            def outlives() -> object:
                return self.clock.now(), self.clock.wall(), beside.execute("PRAGMA data_version").fetchone()

            self.crash_points.record(outlives)
            yield
            self.crash_points.disarm()

    def lose_record(self) -> None:
        """The database is gone; burstd does not run."""
        for name in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + name).unlink(missing_ok=True)

    @property
    def alarm(self) -> str:
        """What burstd says needs a person."""
        assert self.reconciler is not None, "burstd does not run"
        return self.reconciler.alarm

    def step(self) -> None:
        """One loop of burstd, where it runs."""
        if self.reconciler is None:
            return
        try:
            self.due = self.clock.now() + self.reconciler.step()
            assert self._mark is not None
            self._mark.update_mark()
        except Crash:
            self.kill()

    def work(self, which: int = 0) -> bool:
        """One piece of queued work, any that is due; False: there is none."""
        try:
            return self.workers.run_one(which)
        except Crash:
            self.kill()
            return False

    def turn(self, most_s: float = 60.0) -> None:
        """What happens by itself next: a loop, the work that is due, and time until something is due again."""
        if self.clock.now() >= self.due:
            self.step()
        while self.work():
            pass
        if self.workers.has_results:
            self.due = self.clock.now()
        if self.reconciler is None:
            self.clock.advance(min(1.0, most_s))
        else:
            now = self.clock.now()
            self.clock.advance_to(max(now, min(self.due, self.workers.next_due(), now + most_s)))

    def run(self, seconds: float) -> None:
        """Lets the world go its way for so long."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            before = self.clock.now()
            for _ in range(200):
                self.turn(end - self.clock.now())
                if self.clock.now() > before:
                    break
            else:
                raise AssertionError(f"burstd loops without end\n{self.report()}")

    def run_until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Lets the world go its way until the condition holds, and looks at it each second."""
        end = self.clock.now() + within_s
        while not condition():
            assert self.clock.now() < end, self.report()
            self.run(1.0)
            self.check()

    # What is so.

    @property
    def store(self) -> Store:
        """The record; a process must run."""
        assert self._store is not None, "burstd does not run"
        return self._store

    def claims(self) -> tuple[Claim, ...]:
        """All that are not GONE."""
        return self.store.claims()

    def all_claims(self) -> tuple[Claim, ...]:
        """All that ever were."""
        return self.store.find_claims(limit=100_000)

    def claim_on(self, slot: str) -> Claim:
        """The live claim of a slot."""
        return next(c for c in self.claims() if c.slot == slot)

    @property
    def listings(self) -> list[str]:
        """Providers whose instances were listed, in order."""
        return [call.partition(".")[0] for call in self.calls if call.endswith(".instances")]

    def launch_sent(self, cloud: str) -> bool:
        """A launch has gone out to this cloud."""
        return f"{cloud}.launch" in self.calls

    def launched_instances(self) -> list[KitInstance]:
        """Our instances that ever were, in all clouds."""
        return [one for kit in self.kits.values() for one in kit.launched_instances()]

    def running_instances(self) -> list[KitInstance]:
        """Those that have not ended."""
        return [one for one in self.launched_instances() if one.alive]

    def instance_of(self, claim: Claim) -> KitInstance:
        """The living instance of a claim."""
        return next(i for i in self.running_instances() if i.claim_id == claim.id)

    def states(self, job_id: str) -> list[JobState]:
        """Of the job, the tasks of the array or the components of the het job."""
        return [job.state for job in self.slurm.all_of(job_id)]

    # What must hold at all times.

    def check(self) -> None:
        """Raises AssertionError with what is wrong."""
        assert not self.violations, "\n".join(self.violations)
        for name, kit in self.kits.items():
            assert kit.neighbour_untouched(), f"the neighbour's machine in {name} was ended"
        # No client of a cloud without tokens can tell a machine that lists deny from one that was never made.
        excused = {one for cloud in self.lying_clouds.values() for one in cloud.doubled_by_lists}
        counted = Counter(i.claim_id for i in self.running_instances() if i.id not in excused)
        twice = [claim for claim, n in counted.items() if n > 1]
        assert not twice, f"two machines for {twice}"
        if self.reconciler is not None:
            slots = Counter(c.slot for c in self.claims())
            assert all(n == 1 for n in slots.values()), f"two claims for one slot: {slots}"

    def check_replay(self) -> None:
        """The log gives the rows."""
        rows = {c.id: c for c in self.all_claims()}
        assert replay_claims(self.store.events(subject="claim:", limit=1_000_000)) == rows

    # The end.

    def heal(self) -> None:
        """Every fault is over, nobody holds anything back, and burstd runs."""
        for kit in self.kits.values():
            kit.heal()
        for liar in self.lying_clouds.values():
            liar.lie = ""
        self.crash_points.disarm()
        self.delays.clear()
        self.disk.writes_left = None
        self.slurm_line.lost_answers = 0
        # What Slurm was told to do by the foremost clock comes to its end.
        self.jump(max(0.0, self._furthest_clock_jump - (self.clock.wall() - self.clock.now())))
        self.slurm.start()
        self.slurm.resume([n.name for n in self.slurm.nodes() if "DRAIN" in n.flags or n.reason == ADMIN_REASON])
        for job in self.slurm.active:
            if job.limited_by:
                self.slurm.limit(job.id, "")
        self.start()

    def calm(self, hours: float = 4.0) -> None:
        """Lets a healed world go on until nothing is left to do; raises AssertionError where that does not come."""
        began = self.clock.now()
        orphans_by = began + self._rules.tuning.orphan_grace_s + THREE_LISTINGS_S + max(
            k.provider.settle_s for k in self.kits.values()
        )  # fmt: skip
        while not self.at_rest():
            now = self.clock.now()
            assert now - began < hours * 3600, self.report()
            self.run(min(30.0, max(1.0, self.clock.next_alarm() - now)))
            self.check()
            if self.clock.now() > orphans_by:
                owned = {c.id for c in self.claims()} | {c.instance_id for c in self.claims()}
                strays = [i.id for i in self.running_instances() if owned.isdisjoint((i.claim_id, i.id))]
                assert not strays, f"{strays} had no claim for longer than the grace period\n{self.report()}"

    def at_rest(self) -> bool:
        """No job is left, no claim, no machine; every slot is powered down, behind the gate."""
        gate = next((r.nodes for r in self.slurm.reservations()), frozenset())
        slots = [n for n in self.slurm.nodes() if n.name in self.slots]
        return (
            not self.slurm.active
            and not self.claims()
            and not self.running_instances()
            and not any(kit.leftovers() for kit in self.kits.values())
            and all(n.powered_down and n.state == "IDLE" and not n.drained for n in slots)
            and gate == self.slots
            and len(self.slurm.reservations()) == 1
        )

    def check_bill(self) -> None:
        """Every machine that ran is billed to its claim; a claim that never had one costs nothing."""
        now = self.clock.now()
        made = {one.claim_id: one for one in self.launched_instances()}
        paid = {claim.instance_id for claim in self.all_claims() if claim.cost(now)}
        where = {one.id: one.where for one in self.launched_instances()}
        for claim in self.all_claims():
            assert claim.state is ClaimState.GONE
            if claim.instance_id:
                offer = (claim.offer.zone, claim.offer.instance_type)
                assert where[claim.instance_id] == offer, f"billed as another machine: {self.story(claim)}"
            one = made.get(claim.id)
            if one is None:
                # Of a batch whose answer never came each claim pays for one of the machines, whichever.
                # A machine that was handed over has a claim for each node that it was.
                assert not claim.cost(now) or claim.batch or claim.instance_id in where, self.story(claim)
            elif one.ran and not self.disk.was_full:
                assert claim.cost(now) > 0 or one.id in paid, f"{one} is billed to nobody: {self.story(claim)}"

    def story(self, claim: Claim) -> str:
        """The life of a claim, for a person."""
        lines = [f"{claim.id} on {claim.slot}"]
        lines += [
            f"{e.time - claim.created:.1f} {e.old}>{e.new} {e.reason} {e.data.get('set', '')}"
            for e in self.store.claim_events(claim.id)
        ]
        return "\n".join(lines)

    def report(self) -> str:
        """What is left, for a person."""
        lines = [f"jobs: {[(j.id, j.state.value, j.spec) for j in self.slurm.active]}"]
        lines += [f"job row: {j}" for j in self.slurm.jobs()]
        lines += [f"claim: {self.story(c)}" for c in self.claims()]
        lines += [f"instance: {i}" for i in self.running_instances()]
        lines += [f"thing: {thing}" for kit in self.kits.values() for thing in kit.leftovers()]
        lines += [f"node: {n.name} {n.state} {sorted(n.flags)} {n.reason} {n.address}" for n in self.slurm.nodes()]
        lines += [f"reservation: {r}" for r in self.slurm.reservations()]
        lines += [f"breaker: {b}" for b in self.store.breakers()]
        if self.reconciler is not None and self.reconciler.latest is not None:
            lines += [f"action: {a}" for a in self.reconciler.latest[1].actions]
            lines += [f"remark: {r}" for r in self.reconciler.latest[1].remarks]
        return "\n".join(lines)
