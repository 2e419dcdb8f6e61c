"""Staging as a whole: made from the settings, stepped by the reconciler, shown to the control interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import structlog

from burstd.api.backend import KeptNode, StageUse, StoreUse
from burstd.db import Store
from burstd.domain.claim import Claim
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.command import CommandResult, DiscardOutput, Evict, RetryStage, StageCommand
from burstd.domain.plugins.stager import OnDemand, Stager, StagerError
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.domain.staging import OUTPUT_ON_NODES, DataView, Staging
from burstd.domain.storage_node import NodeWish, OnNode, StoreNode
from burstd.node.agent import NodeAgent
from burstd.planner.staging.transfer_schedule import TransferLimits, Use
from burstd.runtime.workers import Workers
from burstd.settings import Chosen, Settings
from burstd.settings import Staging as StagingSettings
from burstd.slurm.commands.run import Commands
from burstd.slurm.hooks.stage_server import StageServer
from burstd.staging.controller.controller import StageDesk, StageRules
from burstd.staging.controller.hook_queue import Hooks
from burstd.staging.movement.garbage_collection import Sweep, SweepRules, Swept, Usage, needed, usage, user_name
from burstd.staging.movement.job_folders import JobFolders, folder_key
from burstd.staging.movement.output_delivery import Homeward
from burstd.staging.movement.output_reuse import Adoption
from burstd.staging.movement.progress import Reading
from burstd.staging.movement.transfers import HeadTransfers
from burstd.staging.storage_node.controller import NodeDesk
from burstd.staging.storage_node.follower import StorageNode
from burstd.staging.submission.locations import in_place
from burstd.staging.submission.quota import Taken
from burstd.staging.submission.submit_check import Check, CheckRules
from burstd.transfer.content_store.index import Index
from burstd.transfer.privsep.client import Account, Hand, hand_of
from burstd.transfer.privsep.object_workers import ObjectHand, object_hand
from burstd.transfer.trees.rate_limit import Limits
from burstd.transfer.trees.upload import Sender

log = structlog.get_logger(__name__)

SWEEP_EVERY_S = 600.0
SWEEP_AGAIN_S = 60.0
DAY_S = 86400.0
HOUR_S = 3600.0
COUNT_EVERY_S = 10.0
"""How often at most it is counted who takes up how much."""


@dataclass(frozen=True, slots=True)
class Around:
    """What staging needs of the daemon."""

    store: Store
    workers: Workers
    clock: Clock
    commands: Commands
    agent: NodeAgent
    pools: Callable[[], Mapping[str, Pool]]
    slurm_uid: Callable[[], int | None]
    """SlurmUser's, once it is known."""


def _sweep_rules(staging: StagingSettings) -> SweepRules:
    return SweepRules(staging.lifetime_days * DAY_S, staging.cache_size)


class StageRoom:
    """Implements what the reconciler, the control interface and the commands ask of staging."""

    def __init__(self, settings: Settings, chosen: Chosen, around: Around, stack: ExitStack) -> None:
        """Calls no store yet. Raises BurstdError where its socket cannot be made."""
        staging = settings.staging
        self._settings = staging
        self._around = around
        self._kind = chosen.plugin.name
        stager: Stager = chosen.plugin.make(chosen.name, settings.cluster, chosen.settings)
        stack.callback(stager.close)
        self._stager = stager
        self._index = Index(settings.daemon.state_dir / "stage-index.db")
        stack.callback(self._index.close)
        limits = Limits(site_bytes_s=staging.bandwidth, user_bytes_s=staging.user_bandwidth)
        self._limits = limits

        # Root starts hands itself; who is not root has systemd do it.
        at = None if os.geteuid() == 0 else settings.hand_socket

        def hand(who: Account, deadline: float = float("inf")) -> Hand:
            return hand_of(who, deadline, socket_path=at, min_uid=staging.min_uid)

        def objects(who: Account, kind: str, timeout_s: float | None = None) -> ObjectHand:
            beside = at.with_name("object-hand.sock") if at else None
            return object_hand(who, kind, socket_path=beside, min_uid=staging.min_uid, timeout_s=timeout_s)

        key = folder_key(settings.folder_key)
        self._folders = folders = JobFolders(str(staging.job_dir), key)
        transfers = HeadTransfers(
            commands=around.commands, stager=stager, sender=Sender(self._index, stager, limits), agent=around.agent,
            homeward=Homeward(stager, limits, Adoption(stager, self._index), folders), hand=hand, objects=objects,
            folders=folders, cache_dir=f"{staging.job_dir}/cache", datasets=self._dataset,
        )  # fmt: skip
        wish = stager.wish if isinstance(stager, OnNode) else None
        desk = NodeDesk if wish is not None else StageDesk
        self.desk = desk(
            store=around.store, workers=around.workers, clock=around.clock, transfers=transfers, pools=around.pools,
            rules=self._stage_rules(staging), quotas=self._taken,
        )  # fmt: skip
        self._node: StorageNode | None = None
        if wish is not None and isinstance(stager, OnNode):
            self._node = StorageNode(around.store, self._index, stager, wish, chosen.name, settings.storage_folder)
        self._sweep = Sweep(stager.name, stager, self._index, _sweep_rules(staging))
        self._swept: Swept | None = None
        self._looked = 0.0
        self._sweep_due = 0.0
        self._sweeping = False
        self._error = ""
        self._index_error = ""
        self._short: frozenset[str] = frozenset()
        """Jobs whose data the store has no room for, and nothing was left to evict for them."""
        self._usage = Usage()
        self._counting = False
        self._count_due = 0.0
        self._use = StageUse(StoreUse(stager.name, self._kind, 0.0), quota=staging.quota)
        self._kept: tuple[KeptNode, ...] = ()
        self._check = Check(self._check_rules(staging), hand, objects, self._may)
        hooks = Hooks(self.desk, around.workers, self._check)
        self._server = StageServer(settings.stage_socket, self._may_call, hooks.handle)
        self._server.start()
        stack.callback(self._server.close)
        log.info("jobs' data is staged", store=stager.name, kind=self._kind, job_dir=str(staging.job_dir))

    def reload(self, staging: StagingSettings) -> None:
        """Goes by other settings, but for what waits for a restart; in the deciding thread."""
        self._settings = staging
        self.desk.rules = self._stage_rules(staging)
        self._check.rules = self._check_rules(staging)
        self._sweep.rules = _sweep_rules(staging)
        self._limits.set(staging.bandwidth, staging.user_bandwidth)
        self._tell_use()

    def _stage_rules(self, staging: StagingSettings) -> StageRules:
        limits = TransferLimits(staging.transfers, staging.transfers_per_user)
        return StageRules(self._folders, self._stager.name, limits, staging.retries)

    def _check_rules(self, staging: StagingSettings) -> CheckRules:
        return CheckRules(staging.check_s, staging.scratch_max, self._dataset, partial(in_place, self._stager))

    def _dataset(self, name: str) -> str | None:
        title, _, version = name.partition("@")
        found = self._settings.datasets.get(title)
        return found.source(version) if found else None

    def _may(self, user: str, uid: int, project: str) -> tuple[Use, Use]:
        quota = self._settings.quota
        # From memory: slurmctld waits.
        used, shared = self._usage.uids.get(uid, 0), self._usage.accounts.get(project, 0) if project else 0
        return Use(user, used, quota.of_user(user)), Use(project, shared, quota.of_project(project))

    def _taken(self, row: Staging, sources: Sequence[str]) -> Taken | None:
        user, project = self._may(row.user, row.uid, row.account)
        if user.limit_bytes is None and project.limit_bytes is None:
            return None
        there: dict[str, int] = {}
        try:
            for known in self._index.trees(row.store):
                if known.uid == row.uid and known.source in sources:
                    there[known.source] = max(known.tree.size, there.get(known.source, 0))
        except StagerError as error:
            log.warning("a quota was not looked at", job=row.job_id, error=str(error))
            return None
        return Taken(user, project, sum(there.values()))

    # For the reconciler.

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """One loop's share; returns when the next is due, in burstd's time."""
        if (slurm_uid := self._around.slurm_uid()) is not None:
            self._server.admit(slurm_uid)
        if self._node is not None and isinstance(self.desk, NodeDesk):
            try:
                self._node.follow(claims, self.desk, self._around.clock.now())
                self._index_error = ""
            except StagerError as error:
                self._index_error = str(error)
        due = self.desk.step(slurm, claims)
        if short := self.desk.short_of_room():
            self._make_room(short)
        now = self._around.clock.now()
        if now >= self._sweep_due and not self._sweeping:
            if self._sleeps(now):
                self._sweep_due = now + SWEEP_EVERY_S
            else:
                self._begin_sweep()
        if self._counts_are_old() and now >= self._count_due and not self._counting:
            self._count()
        self._kept = tuple(
            KeptNode(
                node, row.job_id, row.user, row.since + self._settings.keep_node_h * HOUR_S, row.error or row.reason
            )
            for row in self.desk.rows()
            if row.job_state and (row.state in OUTPUT_ON_NODES or row.resume in OUTPUT_ON_NODES)
            for node in row.nodes
        )
        if self._counts_are_old() and not self._counting:
            due = min(due, self._count_due)
        return min(due, self._sweep_due)

    def views(self) -> dict[str, DataView]:
        """See StageDesk."""
        found = self.desk.views()
        return self._node.delayed(found, self._around.clock.now()) if self._node is not None else found

    def store_nodes(self) -> Sequence[StoreNode]:
        """See Data."""
        return (self._node.node,) if self._node is not None else ()

    def wishes(self) -> Mapping[str, NodeWish]:
        """What storage nodes shall be, by pool."""
        return {self._node.node.pool.name: self._node.wish} if self._node is not None else {}

    def alarms(self) -> list[str]:
        """What needs a person."""
        found = [f"the store of staged data: {e}" for e in dict.fromkeys((self._error, self._index_error)) if e]
        held = [row for row in self.desk.rows() if row.needs_person]
        if waits := next((row for row in self.desk.rows() if row.error and row.job_id in self._short), None):
            found.append(
                f"the store of staged data has no room for job {waits.job_id}; jobs need all burstd has there: "
                f"make room ('burstctl stage usage'): {waits.error}"
            )
        return found + [f"the data of job {row.job_id} ({row.user}) is held: {row.needed}" for row in held[:5]]

    def _sleeps(self, now: float) -> bool:
        """Whether the store is not to be woken for a look."""
        asleep = isinstance(self._stager, OnDemand) and not self._stager.awake
        return asleep and not self._error and self._swept is not None and now - self._looked < DAY_S

    def _begin_sweep(self) -> None:
        live = self._around.store.stagings()
        wall, ahead = self._around.clock.wall(), self._ahead()
        self._sweeping = True

        def done(result: Swept | Exception) -> None:
            self._sweeping = False
            now = self._around.clock.now()
            if isinstance(result, Exception):
                if not isinstance(result, StagerError):
                    log.error("sweeping the store broke", exc_info=result)
                self._error = str(result)
                self._sweep_due = now + SWEEP_AGAIN_S
            else:
                self._error = ""
                self._swept = result
                self._looked = now
                self._sweep_due = now + SWEEP_EVERY_S
            self._tell_use()

        self._around.workers.submit("stage:sweep", lambda: self._sweep.run(live, wall, ahead), done)

    def _make_room(self, short: Sequence[Staging]) -> None:
        """The puts are tried again in any case."""
        jobs = frozenset(row.job_id for row in short)
        live = [*short, *(row for row in self._around.store.stagings() if row.job_id not in jobs)]
        wall, ahead = self._around.clock.wall(), self._ahead()

        def done(result: int | Exception) -> None:
            if isinstance(result, Exception):
                log.error("no room could be made in the store", error=str(result))
            self._short = self._short - jobs if result and not isinstance(result, Exception) else self._short | jobs
            self._sweep_due = 0.0

        self._around.workers.submit("stage:sweep", lambda: self._sweep.make_room(live, wall, ahead), done)

    def _ahead(self) -> float:
        return self._around.clock.wall() - self._around.clock.now()

    def _counts_are_old(self) -> bool:
        return self._usage.changes != self._index.changes

    def _count(self) -> None:
        """Who takes up how much; elsewhere, because of large stores this takes a second."""
        self._counting = True

        def done(result: Usage | Exception) -> None:
            self._counting = False
            self._count_due = self._around.clock.now() + COUNT_EVERY_S
            if isinstance(result, Exception):
                log.warning("what users take up was not counted", error=str(result))
            else:
                self._usage = result
                self._tell_use()

        self._around.workers.submit("stage:sweep", lambda: usage(self._index), done)

    def _tell_use(self) -> None:
        swept = self._swept
        store = StoreUse(
            self._use.store.name, self._kind, self._looked, swept.objects if swept else 0,
            swept.bytes if swept else 0, swept.free if swept else None, 0, self._error,
        )  # fmt: skip
        self._use = StageUse(store, self._usage.users, self._usage.accounts, self._settings.quota)

    # For the control interface; from any thread.

    def progress(self) -> Mapping[str, Sequence[Reading]]:
        """See StageOffice."""
        return self.desk.readings()

    def _may_call(self, uid: int) -> bool | None:
        """For StageServer: root, burstd itself, and SlurmUser once slurmctld has told who that is."""
        slurm_uid = self._around.slurm_uid()
        if uid in (0, os.geteuid(), slurm_uid):
            return True
        return None if slurm_uid is None else False

    def use(self) -> StageUse:
        """See StageOffice."""
        return self._use

    def kept(self) -> Sequence[KeptNode]:
        """See StageOffice."""
        return self._kept

    # What a person asks; in the deciding thread.

    def do(self, command: StageCommand) -> CommandResult:
        """Carries it out."""
        match command:
            case RetryStage():
                text = self.desk.retry(command.job_id, command.by)
                said = text or f"the data of job {command.job_id} is not held"
                return CommandResult(said, done=bool(text), changed=bool(text))
            case DiscardOutput():
                text = self.desk.discard(command.job_id, command.by)
                said = text or f"job {command.job_id} has no data"
                return CommandResult(said, done=bool(text), changed=bool(text))
            case Evict():
                return self._evict(command)

    def _evict(self, command: Evict) -> CommandResult:
        source = self._dataset(command.name) if command.kind == "dataset" else None
        if command.kind == "dataset" and source is None:
            return CommandResult(f"there is no dataset {command.name}", done=False, changed=False)
        live, now = self._around.store.stagings(), self._around.clock.wall()
        try:
            trees = self._index.trees()
        except StagerError as error:
            return CommandResult(str(error), done=False, changed=False)
        chosen = [
            known
            for known in trees
            if command.kind == "unneeded"
            or (command.kind == "dataset" and known.source == source)
            or (command.kind == "tree" and known.tree.digest.startswith(command.name))
            or (command.kind == "user" and user_name(known.uid) == command.name)
        ]
        in_use = needed(trees, live, now, self._ahead())
        gone = [known for known in chosen if known.tree.digest not in in_use]

        def done(result: int | Exception) -> None:
            if isinstance(result, Exception):
                log.error("eviction failed", error=str(result))
            self._sweep_due = 0.0

        if gone:
            self._around.workers.submit("stage:sweep", lambda: self._sweep.evict(gone), done)
        stay = f"; {len(chosen) - len(gone)} that jobs need stay" if len(chosen) > len(gone) else ""
        return CommandResult(f"{len(gone)} trees leave the store{stay}", changed=bool(gone))
