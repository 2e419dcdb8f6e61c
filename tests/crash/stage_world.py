"""The world of staging's crash tests: the real desk and record among virtual bytes, machines and a Slurm with hooks."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from burstd.db import Store, StoreError, replay_stagings
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.domain.staging import OUTPUT_ON_NODES, StageState
from burstd.planner.staging.transfer_schedule import TransferLimits
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.controller.controller import StageRules, StagingController
from burstd.staging.controller.decision import has_undelivered_output
from burstd.staging.controller.job_runs import ACTIVE_STATES
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.submission.quota import EvictTrees, FindQuotaUsage, keep_all, no_quota
from burstd.staging.volumes.turns import VolumeTurns
from tests.crash.faults import Crash, CrashPoints, Disk, crashing_calls, crashing_store, store_with_claims
from tests.crash.stage_ground import SLOTS, DataLocations, FakeTransfers, Output
from tests.crash.stage_slurm import BurstJob, BurstSlurm
from tests.crash.workers import Delay, QueuedWorkers
from tests.virtual.clock import VirtualClock

SHAPE = Shape(4, 8000)
POOLS = {"cpu": Pool("cpu", SLOTS, ("burst",), SHAPE)}
LIMITS = TransferLimits(site=2, per_user=1)
WORKER_QUEUES = ("stage:slurm", "stage:look", "stage:in", "stage:nodes", "stage:home", "stage:clear")
SCRIPT = """#!/bin/sh
#BURST stage_in /data/{user}/a as a
#BURST stage_in /data/b as b copy
#BURST stage_out out to /home/{user}/results
"""
TICK_S = 10.0
LISTING_S = 5.0
TRANSFER_CALLS = frozenset(
    {
        "measure_sources",
        "upload_input",
        "fetch_input",
        "serve_shared_scratch",
        "mount_shared_scratch",
        "link_on_premises",
        "collect_output",
        "deliver_output",
        "remove_job_data",
    }
)


class StageWorld:
    """One site with four cloud nodes that are up, and one on premises."""

    def __init__(self, folder: Path, *, template: Path | None = None, retries: int = 4) -> None:
        self.clock = VirtualClock()
        self.locations = DataLocations()
        self.slurm = BurstSlurm(self.clock, self)
        self.crash_points, self.disk = CrashPoints(), Disk()
        self.delays: dict[str, Delay] = {}
        self.claims: dict[str, Claim] = {}
        self.history: dict[str, Claim] = {}
        """All claims that there were, by id."""
        self.unrecorded: set[str] = set()
        self.leaving: dict[str, float] = {}
        """Jobs that are requeued for other projects, and when."""
        """Those that a lost record does not know."""
        self._claims_made = self._generation = 0
        self.quotas: FindQuotaUsage = no_quota
        self.evict: EvictTrees = keep_all
        self.volumes: VolumeTurns | None = None
        """Also of processes that start later."""
        self._rules = StageRules(JobFolders("/scratch", b"key"), "store", LIMITS, retries)
        self._path = folder / "burstd.db"
        if template is not None:
            shutil.copy(template, self._path)
        self._view: SlurmView | Unavailable = Unavailable("", 0.0)
        self._listed = self.due = 0.0
        self.controller: StagingController | None = None
        self.workers = QueuedWorkers(self.clock, self.delays)
        self._store: Store | None = None
        for slot in SLOTS:
            self.boot(slot)
        self.clock.advance(1)
        self.start()

    # Machines.

    def boot(self, slot: str) -> None:
        """A new machine on a slot."""
        self._claims_made += 1
        now = self.clock.now()
        offer = Offer("sim", "r", "z", "t", False, SHAPE, Decimal(1))
        self.claims[slot] = Claim(
            f"claim-{self._claims_made}", "site", "cpu", slot, offer, Cause.DEMAND, ClaimState.IN_SERVICE, now, now
        )
        self._note(self.claims[slot])
        self.locations.disks[self.claims[slot].id] = {}

    def _note(self, claim: Claim) -> None:
        self.claims[claim.slot] = self.history[claim.id] = claim

    def find_claims(self, *, slot: str, since: float, limit: int) -> tuple[Claim, ...]:
        """See Store.find_claims."""
        found = [claim for claim in self.history.values() if claim.slot == slot and claim.id not in self.unrecorded]
        return tuple(c for c in found if c.state is not ClaimState.GONE or c.since >= since)[:limit]

    def break_node(self, slot: str, *, requeue: bool = False, noticed_s: float = 5.0, again_s: float = 60.0) -> None:
        """A machine is gone; burstd notices it later, and starts another one later still."""
        claim = self.claims.get(slot)
        if claim is None or claim.id not in self.locations.disks:
            return
        for outputs in self.locations.disks.pop(claim.id).values():
            self.locations.lost_with_machine |= outputs
        self.slurm.fail_node(slot, requeue=requeue)
        now = self.clock.now()
        self.clock.at(now + noticed_s, lambda: self._note(replace(claim, state=ClaimState.LOST)))
        self.clock.at(now + noticed_s + again_s, lambda: self.boot(slot))

    # For Slurm: see Site.

    def send_call(self, call: StageCall, deliver: Callable[[StageReply], None]) -> bool:
        """See Site."""
        if self.controller is None:
            return False
        desk, generation = self.controller, self._generation

        def told(reply: StageReply) -> None:
            if generation == self._generation:
                self._check_answer(call, reply)
                deliver(reply)

        self.workers.post(lambda: desk.handle_hook(call, told))
        return True

    def available_nodes(self, partition: str) -> tuple[str, ...]:
        """See Site."""
        if partition == "onprem":
            return ("op1",)
        return tuple(s for s in SLOTS if self.claims[s].id in self.locations.disks)

    def allocated(self, job: BurstJob) -> None:
        """See Site: Slurm allocates nothing before the input is in the store."""
        if job.partition == "burst" and job.id not in {j for j, _ in self.locations.inputs}:
            self.locations.violations.append(f"job {job.id} was allocated before its input was in the store")
        if self.controller is not None:
            self.locations.environments[job.id] = self.controller.job_environment(job.id)

    def started(self, job: BurstJob) -> None:
        """See Site."""
        promised = self.locations.environments.get(job.id, {}).get("BURST_CHECKPOINT", "")
        back = [path for job_id, _, path in self.locations.put_back if job_id == job.id]
        if promised and not (back and promised.endswith(f"/{back[-1]}")):
            self.locations.violations.append(f"job {job.id} has {promised}, and {back[-1:]} was put back")
        shared = self.locations.shared.get(job.id, [])
        if "scratch shared" in job.script and job.partition == "burst" and sorted(shared) != sorted(job.nodes):
            self.locations.violations.append(f"job {job.id} on {job.nodes} has its shared scratch on {shared}")
        for node in job.nodes:
            output = Output(job.id, job.runs, node)
            self.locations.written.add(output)
            if node not in SLOTS:
                places: dict[str, set[Output]] | None = self.locations.premises
            else:
                places = self.locations.disks.get(self.claims[node].id)
            if places is None:
                self.locations.lost_with_machine.add(output)
            elif job.id not in places:
                self.locations.violations.append(f"job {job.id} started on {node} without its input")
            else:
                places[job.id].add(output)

    def output_discarded(self, job: BurstJob) -> None:
        """See Site."""
        self.locations.discarded_jobs.add(job.id)

    def _check_answer(self, call: StageCall, reply: StageReply) -> None:
        if call.hook == "data_out" and reply.result != "ok":
            self.locations.violations.append(f"data_out of {call.job_id} was answered {reply}")

    # The process.

    def start(self) -> None:
        """burstd starts; nothing where it runs."""
        if self.controller is not None:
            return
        self._generation += 1
        self._store = Store.open(self._path, self.clock)
        self.workers = QueuedWorkers(self.clock, self.delays)
        transfers = crashing_calls(
            FakeTransfers(self.locations, self.slurm),
            self.crash_points,
            "stage",
            TRANSFER_CALLS | {"query_job", "nudge_scheduler", "release_hold"},
            [],
        )
        self.controller = StagingController(
            store=store_with_claims(crashing_store(self._store, self.crash_points, self.disk), self.find_claims),
            workers=self.workers, clock=self.clock,
            transfers=transfers, pools=lambda: POOLS, rules=self._rules, quotas=self.quotas, evict=self.evict,
            volumes=self.volumes,
        )  # fmt: skip
        self._listed = 0.0
        self._view = Unavailable("not read yet", self.clock.now())
        self.due = self.clock.now()

    def lose_record(self, adopted_s: float, kept: Path | None = None) -> None:
        """burstd dies and starts with an empty record, or with a copy; its machines are adopted after a while."""
        self.kill()
        for file in self._path.parent.glob(f"{self._path.name}*"):
            file.unlink()
        if kept is not None:
            shutil.copy(kept, self._path)
        else:
            self.unrecorded |= self.history.keys()
        self.clock.at(self.clock.now() + adopted_s, self.unrecorded.clear)
        self.start()

    def copy_record(self, to: Path) -> Path:
        """burstd ends kindly and starts, and its record is copied meanwhile."""
        self.kill()
        shutil.copy(self._path, to)
        self.start()
        return to

    def kill(self) -> None:
        """burstd is killed: all but the database file is lost."""
        if self.controller is None:
            return
        self.controller = None
        self._generation += 1
        self.workers = QueuedWorkers(self.clock, self.delays)
        if self._store is not None:
            self._store.close()
            self._store = None
        self.slurm.burstd_died()

    def step(self) -> None:
        """One loop of burstd, where it runs."""
        if self.controller is None:
            return
        now = self.clock.now()
        if now >= self._listed + LISTING_S:
            self._listed = now
            self._view = Unavailable("silent", now) if self.slurm.silent else self.slurm.view()
        try:
            changed = self.workers.run_callbacks()
            known = tuple(claim for claim in self.claims.values() if claim.id not in self.unrecorded)
            due = self.controller.step(self._view, known, self.leaving)
            self.due = now if changed else max(now, min(due, now + TICK_S))
            self._check_views()
        except StoreError:
            self.due = now + 5.0
        except Crash:
            self.kill()

    def work(self, which: int = 0) -> bool:
        """One piece of queued work, any that is due; False: there is none."""
        try:
            return self.workers.run_one(which)
        except Crash:
            self.kill()
            return False

    def turn(self, most_s: float) -> None:
        """What happens by itself next."""
        if self.clock.now() >= self.due:
            self.step()
        while self.work():
            pass
        if self.workers.has_results:
            self.due = self.clock.now()
        if self.controller is None:
            self.clock.advance(min(1.0, most_s))
        else:
            now = self.clock.now()
            goal = min(self.due, self.workers.next_due(), self.clock.next_alarm(), now + most_s)
            self.clock.advance_to(max(now, goal))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Lets the world go its way for so long, or until something is so."""
        end = self.clock.now() + seconds
        turns = 0
        before = self.clock.now()
        while self.clock.now() < end and not until():
            self.turn(end - self.clock.now())
            turns = turns + 1 if self.clock.now() == before else 0
            before = self.clock.now()
            assert turns < 200, f"burstd loops without end\n{self.report()}"

    # What is so.

    @property
    def store(self) -> Store:
        """The record; a process must run."""
        assert self._store is not None
        return self._store

    def state(self, job_id: str) -> StageState | None:
        """Where the data of a job stands."""
        row = self.store.find_staging(job_id)
        return row.state if row else None

    def is_(self, job_id: str, *states: StageState) -> Callable[[], bool]:
        """For ``run``: a job's data has come so far."""
        return lambda: self._store is not None and self.state(job_id) in states

    def phase(self, job_id: str, *phases: str) -> Callable[[], bool]:
        """For ``run``: a job has come so far in Slurm."""
        return lambda: self.slurm.jobs[job_id].phase in phases

    def count(self, kind: str, job_id: str) -> int:
        """How often a transfer came to its end."""
        return sum(1 for moved in self.locations.completed_transfers if moved[:2] == (kind, job_id))

    def submit(
        self, job_id: str, *, nodes: int = 1, run_s: float = 30.0, user: str = "ada", partition: str = "burst",
        queue_id: str = "", end_as: str = "COMPLETED", lines: str = "",
    ) -> str:  # fmt: skip
        """A job with input and output; ``lines``: more of its script."""
        uid = {"ada": 1001, "bob": 1002}[user]
        job = BurstJob(
            job_id, queue_id or job_id, user, uid, SCRIPT.format(user=user) + lines, nodes, run_s, partition, end_as
        )
        self.locations.inputs -= {(job_id, name) for name in ("a", "b", "workdir")}
        return self.slurm.submit(job)

    def _check_views(self) -> None:
        """Output that is nowhere but on a node keeps it."""
        assert self.controller is not None
        ground, rows = self.locations, {row.job_id: row for row in self.store.stagings()}
        jobs = () if isinstance(self._view, Unavailable) else self._view.jobs
        busy = {node for job in jobs if job.state.value in ACTIVE_STATES for node in job.node_list}
        only_here = [
            (slot, job_id, left)
            for slot, claim in self.claims.items()
            for job_id, outputs in ground.disks.get(claim.id, {}).items()
            if (left := outputs - ground.delivered - ground.outputs.get((job_id, slot), set()))
            and job_id not in ground.discarded_jobs
            and slot not in busy
            and job_id in rows
        ]
        views = self.controller.data_views() if only_here else {}
        for slot, job_id, left in only_here:
            view = views.get(job_id)
            if view is None or view.state not in OUTPUT_ON_NODES or slot not in view.nodes:
                ground.violations.append(f"{slot} is not kept for {left}: {view}")
        sending = [row for row in rows.values() if row.state is StageState.UPLOADING]
        users = Counter(row.user for row in sending)
        if len(sending) > LIMITS.site or any(n > LIMITS.per_user for n in users.values()):
            self.locations.violations.append(f"too many are sent at once: {[r.job_id for r in sending]}")

    def check(self) -> None:
        """Raises AssertionError with what is wrong."""
        assert not self.locations.violations, "\n".join([*self.locations.violations, self.report()])

    def heal(self) -> None:
        """Every fault is over, and burstd runs."""
        self.crash_points.disarm()
        self.delays.clear()
        self.locations.faults.clear()
        self.disk.writes_left = None
        self.slurm.silent = False
        self.start()

    def calm(self, hours: float = 3.0) -> None:
        """Lets a healed world go on, with an administrator who has held data tried again, until nothing is left."""
        end = self.clock.now() + hours * 3600
        while not self.at_rest():
            assert self.clock.now() < end, self.report()
            assert self.controller is not None
            for row in self.store.stagings():
                if row.state is StageState.HELD:
                    self.controller.retry(row.job_id, "root")
            for job in self.slurm.jobs.values():
                self.slurm.release(job.id)
            self.run(30.0)
            self.check()

    def at_rest(self) -> bool:
        """No job is left, and none's data."""
        return all(job.phase == "gone" for job in self.slurm.jobs.values()) and not self.store.stagings()

    def check_end(self) -> None:
        """Output is home, and nothing of any job is left; the log gives the rows."""
        ground = self.locations
        for output in ground.written - ground.delivered:
            if output.job_id in ground.discarded_jobs:
                continue
            told = {node for ended in ground.ended.get(output.job_id, []) for node in ended.lost_nodes}
            assert output in ground.lost_with_machine, f"{output} was dropped\n{self.report()}"
            assert output.node in told, f"nobody was told that {output} is lost\n{self.report()}"
        assert not ground.outputs, ground.outputs
        assert not any(ground.disks.values()), ground.disks
        assert not ground.premises, ground.premises
        self.check_log()

    def check_log(self) -> None:
        """The log gives the rows."""
        rows = {row.job_id: row for row in self.store.stagings(live=False)}
        assert replay_stagings(self.store.events(subject="stage:", limit=1_000_000)) == rows

    def jobs_needing_attention(self) -> list[str]:
        """Jobs whose output waits for a person."""
        return [row.job_id for row in self.store.stagings() if has_undelivered_output(row)]

    def report(self) -> str:
        """What is left, for a person."""
        lines = [f"{j.id} {j.queue_id}: {j.phase} {j.state} life {j.life} {j.nodes}" for j in self.slurm.jobs.values()]
        lines.append(f"answers: {self.slurm.hook_replies[-30:]}")
        lines.append(
            f"machines: {[(c.slot, c.id, c.state.value) for c in self.claims.values()]} {self.locations.disks}"
        )
        lines.append(
            f"written {self.locations.written} home {self.locations.delivered} died {self.locations.lost_with_machine}"
        )
        if self._store is not None:
            events = self.store.events(subject="stage:", limit=100_000)[-60:]
            lines += [f"{e.time - 1_800_000_000:.2f} {e.subject} {e.old}>{e.new} {e.reason}" for e in events]
        return "\n".join(lines)
