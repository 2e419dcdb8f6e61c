"""Staging as a whole: made from the settings, stepped by the reconciler, shown to the control interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import structlog

from burstd.db import Store
from burstd.domain.claim import Claim
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.command import CommandResult, DiscardOutput, Evict, RemoveVolume, RetryStage, StageCommand
from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.plugins.provider import Provider
from burstd.domain.plugins.shell import Shell
from burstd.domain.plugins.stager import OnDemand, Stager, StagerError, StoreBusy
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.domain.staging import OUTPUT_ON_NODES, StageState, Staging, StagingView, WorkdirRules
from burstd.domain.storage_node import NodeBackedStore, StorageNodeSpec, StorageNodeView
from burstd.domain.volume import VolumeNeed
from burstd.node.agent import NodeAgent
from burstd.planner.staging.scratch import scratch_fault
from burstd.planner.staging.transfer_schedule import StorageUse, TransferLimits
from burstd.planner.staging.volume_life import VolumeLimits
from burstd.runtime.guarded_calls import Sure, guard_calls
from burstd.runtime.poller import Poller
from burstd.runtime.workers import Workers
from burstd.settings import QuotaSettings, ResolvedPlugin, Settings, StagingSettings, VolumeSettings
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hooks.stage_server import StageServer
from burstd.staging.controller.controller import NOBODY, StageRules, StagingController
from burstd.staging.controller.hook_queue import HookQueue
from burstd.staging.controller.job_runs import ACTIVE_STATES, QUEUED_STATES
from burstd.staging.controller.tasks import MeterReading
from burstd.staging.movement.garbage_collection import (
    ORPHAN_GRACE_S,
    GarbageCollectionRules,
    GarbageCollector,
    SweepResult,
    UsageCounts,
    count_usage,
    needed_digests,
)
from burstd.staging.movement.images import ImageRules, image_fault
from burstd.staging.movement.job_folders import JobFolders, folder_key
from burstd.staging.movement.output_delivery import OutputDelivery
from burstd.staging.movement.output_reuse import OutputReuse
from burstd.staging.movement.quota_room import QuotaRoom
from burstd.staging.movement.transfers import HeadTransfers, IsLivePath
from burstd.staging.storage_node.controller import StorageNodeController
from burstd.staging.storage_node.follower import StorageNodeFollower
from burstd.staging.submission.container import ContainerRules
from burstd.staging.submission.locations import in_place_path
from burstd.staging.submission.submit_check import SubmitCheck, SubmitCheckRules
from burstd.staging.volumes.controller import VolumeController, VolumeRules
from burstd.staging.volumes.node_mounts import VolumeMounts
from burstd.staging.volumes.turns import VolumeTurns
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.images.client import ConversionLimits, image_socket, open_image_worker
from burstd.transfer.privsep.client import CHANGING_REQUESTS, Account, UserWorker, user_worker_for
from burstd.transfer.privsep.errors import user_name_of
from burstd.transfer.privsep.object_workers import ObjectWorker, object_worker_for
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.upload import TreeUploader

log = structlog.get_logger(__name__)

T = TypeVar("T")

SWEEP_INTERVAL_S = 600.0
SWEEP_RETRY_S = 60.0
DAY_S = 86400.0
HOUR_S = 3600.0
USAGE_COUNT_INTERVAL_S = 10.0
"""How often at most it is counted who takes up how much."""


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """The store in use, as last read."""

    name: str
    kind: str
    measured_at: float
    """Burstd's time; 0: not yet."""
    objects: int = 0
    bytes: int = 0
    free: int | None = None
    """Bytes; None: the store cannot tell."""
    leftovers: int = 0
    """Objects and unfinished puts that belong to nothing, and are to be removed."""
    error: str = ""
    """Why it cannot be read; empty: it can."""


@dataclass(frozen=True, slots=True)
class StagingUsage:
    """Who takes up how much of the store, at the last count. Bytes, by user and by Slurm account."""

    store: StoreUsage
    users: Mapping[str, int] = field(default_factory=dict)
    projects: Mapping[str, int] = field(default_factory=dict)
    quota: QuotaSettings = field(default_factory=QuotaSettings)


@dataclass(frozen=True, slots=True)
class RetainedNode:
    """A node kept only because a job's output is on it."""

    node: str
    job_id: str
    user: str
    until: float
    """When burstd terminates it and the output is lost, in burstd's time."""
    reason: str


@dataclass(frozen=True, slots=True)
class StagingContext:
    """What staging needs of the daemon."""

    store: Store
    workers: Workers
    clock: Clock
    commands: SlurmCommands
    agent: NodeAgent
    pools: Callable[[], Mapping[str, Pool]]
    slurm_uid: Callable[[], int | None]
    """SlurmUser's, once it is known."""
    is_live: IsLivePath
    providers: Mapping[str, Provider] = field(default_factory=dict)
    connect: Callable[[Claim], Shell] | None = None
    """A session with a claim's node; None: there are no volumes."""
    count_mistake: Callable[[str], None] = lambda _kind: None
    """Counts a job that was refused for a mistake of its user's, by its kind; from any thread."""
    sure: Sure | None = None
    """Comes before what changes files of users or deletes in the store: raises where this head may not lead."""


def _sweep_rules(staging: StagingSettings) -> GarbageCollectionRules:
    return GarbageCollectionRules(staging.lifetime_days * DAY_S, staging.cache_size)


def _trees_of_site(settings: Settings) -> tuple[str, ...]:
    """Where nodes show trees of the site, with ``{user}`` for the user's name; less the user's home."""
    return tuple(tree.path for tree in settings.mounts.trees.values() if "{home}" not in tree.path)


def _volume_rules(volumes: VolumeSettings) -> VolumeRules:
    return VolumeRules(volumes.prices, VolumeLimits(volumes.max_size, volumes.user_size))


def _views_with_volumes(
    found: Mapping[str, StagingView], rows: Sequence[Staging], turns: VolumeTurns, now: float
) -> dict[str, StagingView]:
    """What volumes change in the views of jobs' data."""
    changed = {
        row.job_id: replace(found[row.job_id], volume_reason=reason)
        for row in rows
        if row.job_id in found and (reason := turns.view_reason(row))
    }
    # What a job has written may be in the memory of its node: the node stays, as with output.
    for job_id, node in turns.mounted_nodes().items():
        changed[job_id] = StagingView(StageState.COLLECTING, 0.0, (node,), now, "its volume is still mounted", now)
    return changed


def _guarded(worker: T, sure: Sure | None) -> T:
    return guard_calls(worker, CHANGING_REQUESTS, sure, StoreBusy)


class StagingService:
    """Implements what the reconciler, the control interface and the commands ask of staging."""

    def __init__(self, settings: Settings, chosen: ResolvedPlugin, context: StagingContext, stack: ExitStack) -> None:
        """Calls no store yet. Raises BurstdError where its socket cannot be made."""
        staging = settings.staging
        self._settings = staging
        self._trees = _trees_of_site(settings)
        self._context = context
        self._store_kind = chosen.plugin.name
        stager: Stager = guard_calls(
            chosen.plugin.make(chosen.name, settings.cluster, chosen.settings), ("delete", "abort"), context.sure,
            StoreBusy,
        )  # fmt: skip
        stack.callback(stager.close)
        self._stager = stager
        self._index = ContentIndex(settings.daemon.state_dir / "stage-index.db")
        stack.callback(self._index.close)
        limits = BandwidthLimits(site_bytes_s=staging.bandwidth, user_bytes_s=staging.user_bandwidth)
        self._limits = limits

        # Root starts workers itself; otherwise systemd does.
        worker_socket = None if os.geteuid() == 0 else settings.worker_socket

        def open_worker(who: Account, deadline: float = float("inf")) -> UserWorker:
            return _guarded(
                user_worker_for(who, deadline, socket_path=worker_socket, min_uid=staging.min_uid), context.sure
            )

        def open_object_worker(who: Account, kind: str, timeout_s: float | None = None) -> ObjectWorker:
            beside = worker_socket.with_name("object-worker.sock") if worker_socket else None
            return _guarded(
                object_worker_for(who, kind, socket_path=beside, min_uid=staging.min_uid, timeout_s=timeout_s),
                context.sure,
            )

        key = folder_key(settings.job_folder_key)
        self._folders = folders = JobFolders(str(staging.job_dir), key)
        self._transfers = transfers = HeadTransfers(
            commands=context.commands,
            stager=stager,
            uploader=TreeUploader(self._index, stager, limits),
            agent=context.agent,
            output_delivery=OutputDelivery(stager, limits, OutputReuse(stager, self._index), folders),
            open_worker=open_worker,
            open_object_worker=open_object_worker,
            folders=folders,
            cache_dir=f"{staging.job_dir}/cache",
            datasets=self._dataset,
            open_image_worker=partial(open_image_worker, socket_path=image_socket(worker_socket)),
            image_rules=self._image_rules,
            container_program=lambda: self._settings.container_program,
            is_live=context.is_live,
            workdir_rules=self._workdir_rules,
        )
        self._garbage_collector = GarbageCollector(stager.name, stager, self._index, _sweep_rules(staging))
        room = QuotaRoom(
            context.store, context.clock, context.workers, self._index, self._garbage_collector, self._quota_uses,
            self._keep_usage,
        )  # fmt: skip
        node_spec = stager.node_spec if isinstance(stager, NodeBackedStore) else None
        self.volumes: VolumeController | None = None
        if context.connect is not None:
            self.volumes = VolumeController(
                cluster=settings.cluster, store=context.store, workers=context.workers, clock=context.clock,
                providers=context.providers, mounts=VolumeMounts(context.connect), pools=context.pools,
                rules=_volume_rules(settings.volumes),
            )  # fmt: skip
        controller_class = StorageNodeController if node_spec is not None else StagingController
        self.controller = controller_class(
            store=context.store, workers=context.workers, clock=context.clock, transfers=transfers, pools=context.pools,
            rules=self._stage_rules(staging), quotas=room.usage, evict=room.evict,
            volumes=self.volumes.turns if self.volumes is not None else None,
        )  # fmt: skip
        self._storage_node: StorageNodeFollower | None = None
        if node_spec is not None and isinstance(stager, NodeBackedStore):
            self._storage_node = StorageNodeFollower(
                context.store, self._index, stager, node_spec, chosen.name, settings.storage_keys_dir
            )
        self._swept: SweepResult | None = None
        self._swept_at = 0.0
        self._sweeps = Poller(
            context.workers, context.clock, "stage:sweep", "the store of staged data",
            interval_s=lambda: SWEEP_INTERVAL_S, retry_s=lambda: SWEEP_RETRY_S, from_end=True,
        )  # fmt: skip
        self._index_error = ""
        self._volume_rows: tuple[Staging, ...] = ()
        self._out_of_space_jobs: frozenset[str] = frozenset()
        """Jobs whose data the store has no space for, with nothing left to evict."""
        self._usage = UsageCounts()
        self._counts = Poller(
            context.workers, context.clock, "stage:sweep", "what users take up",
            interval_s=lambda: USAGE_COUNT_INTERVAL_S, retry_s=lambda: USAGE_COUNT_INTERVAL_S,
            most_s=lambda: USAGE_COUNT_INTERVAL_S, from_end=True,
        )  # fmt: skip
        self._stage_use = StagingUsage(StoreUsage(stager.name, self._store_kind, 0.0), quota=staging.quota)
        self._retained_nodes: tuple[RetainedNode, ...] = ()
        self._nodes: Mapping[str, Node] | None = None
        """Slurm's, as last seen."""
        self._check = SubmitCheck(
            self._check_rules(staging), open_worker, open_object_worker, self._quota_uses, context.count_mistake
        )
        hook_queue = HookQueue(self.controller, context.workers, self._check)
        self._server = StageServer(settings.stage_socket, self._caller_allowed, hook_queue.handle_call)
        self._server.start()
        stack.callback(self._server.close)
        log.info("jobs' data is staged", store=stager.name, kind=self._store_kind, job_dir=str(staging.job_dir))

    def reload(self, settings: Settings) -> None:
        """Goes by other settings, but for what waits for a restart; in the deciding thread."""
        self._settings = staging = settings.staging
        self._trees = _trees_of_site(settings)
        self.controller.rules = self._stage_rules(staging)
        self._check.rules = self._check_rules(staging)
        if self.volumes is not None:
            self.volumes.reload(_volume_rules(settings.volumes))
        self._garbage_collector.rules = _sweep_rules(staging)
        self._limits.set_rates(staging.bandwidth, staging.user_bandwidth)
        self._publish_usage()

    def _stage_rules(self, staging: StagingSettings) -> StageRules:
        limits = TransferLimits(staging.transfers, staging.transfers_per_user)
        containers = ContainerRules(staging.container_program, self._trees)
        return StageRules(self._folders, self._stager.name, limits, staging.retries, containers)

    def _check_rules(self, staging: StagingSettings) -> SubmitCheckRules:
        rules = SubmitCheckRules(
            staging.check_s,
            staging.scratch_max,
            self._dataset,
            partial(in_place_path, self._stager),
            staging.workdir.rules(),
            image_fault=lambda source: image_fault(source, self._image_rules()),
            scratch_fault=self._scratch_fault,
        )
        return rules if self.volumes is None else replace(rules, volume_fault=self.volumes.turns.submit_fault)

    def _scratch_fault(self, wanted: int, partitions: tuple[str, ...]) -> str:
        nodes = self._nodes
        return "" if nodes is None else scratch_fault(wanted, partitions, self._context.pools(), nodes)

    def _workdir_rules(self) -> WorkdirRules:
        return self._settings.workdir.rules()

    def _image_rules(self) -> ImageRules:
        images = self._settings.images
        limits = ConversionLimits(str(images.dir), images.max_size, self._settings.container_program)
        return ImageRules(images.registries, limits, images.conversions)

    def _dataset(self, name: str) -> str | None:
        title, _, version = name.partition("@")
        found = self._settings.datasets.get(title)
        return found.version_source(version) if found else None

    def _quota_uses(self, user: str, uid: int, project: str) -> tuple[StorageUse, StorageUse]:
        quota = self._settings.quota
        # From memory: slurmctld waits.
        user_bytes, project_bytes = self._usage.uids.get(uid, 0), self._usage.accounts.get(project, 0) if project else 0
        return StorageUse(user, user_bytes, quota.user_limit(user)), StorageUse(
            project, project_bytes, quota.project_limit(project)
        )

    # For the reconciler.

    def step(
        self, slurm: SlurmView | Unavailable, claims: Sequence[Claim], leaving: Mapping[str, float] = NOBODY
    ) -> float:
        """One loop's share; returns when the next is due, in burstd's time."""
        if isinstance(slurm, SlurmView):
            self._nodes = slurm.nodes
        if (slurm_uid := self._context.slurm_uid()) is not None:
            self._server.allow_connect(slurm_uid)
        if self._storage_node is not None and isinstance(self.controller, StorageNodeController):
            try:
                self._storage_node.follow_claims(claims, self.controller, self._context.clock.now())
                self._index_error = ""
            except StagerError as error:
                self._index_error = str(error)
        due = min(self._step_volumes(slurm, claims), self.controller.step(slurm, claims, leaving))
        if self._volume_rows != self._named_rows():
            due = min(due, self._step_volumes(slurm, claims))
        if out_of_space := self.controller.pop_out_of_space():
            self._free_space(out_of_space)
        if self._sweeps.is_due:
            if self._store_sleeps(self._context.clock.now()):
                self._sweeps.skip()
            else:
                self._begin_sweep()
        if self._usage_is_stale():
            # Elsewhere, because of large stores this takes a second.
            self._counts.poll(lambda: count_usage(self._index), self._keep_usage)
        retention_s = self._settings.output_retention_h * HOUR_S
        self._retained_nodes = tuple(
            RetainedNode(node, row.name, row.user, row.since + retention_s, row.error or row.reason)
            for row in self.controller.recorded_stagings()
            if row.job_state and (row.state in OUTPUT_ON_NODES or row.resume in OUTPUT_ON_NODES)
            for node in row.nodes
        )
        if self._usage_is_stale():
            due = min(due, self._counts.next_due())
        return min(due, self._sweeps.next_due())

    def views(self) -> dict[str, StagingView]:
        """Returns how the data of each job stands."""
        found = self.controller.data_views()
        if self.volumes is not None:
            found |= _views_with_volumes(found, self._volume_rows, self.volumes.turns, self._context.clock.now())
        return (
            self._storage_node.delayed_views(found, self._context.clock.now())
            if self._storage_node is not None
            else found
        )

    def volume_needs(self) -> Mapping[str, VolumeNeed]:
        """The jobs whose turn it is to have their volume, and what their machine must be."""
        return self.volumes.turns.needs() if self.volumes is not None else {}

    def _named_rows(self) -> tuple[Staging, ...]:
        return tuple(row for row in self.controller.recorded_stagings() if row.directives.volume is not None)

    def _step_volumes(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Before jobs' data, which goes by it, and once more where that has changed."""
        if self.volumes is None:
            return float("inf")
        self._volume_rows = self._named_rows()
        return self.volumes.step(self._volume_rows, slurm, claims)

    def store_nodes(self) -> Sequence[StorageNodeView]:
        """Returns the stores whose storage node burstd launches."""
        return (self._storage_node.store_node,) if self._storage_node is not None else ()

    def storage_node_specs(self) -> Mapping[str, StorageNodeSpec]:
        """What storage nodes shall be, by pool."""
        return (
            {self._storage_node.store_node.pool.name: self._storage_node.spec} if self._storage_node is not None else {}
        )

    def alarms(self) -> list[str]:
        """What needs a person."""
        found = [f"the store of staged data: {e}" for e in dict.fromkeys((self._sweeps.error, self._index_error)) if e]
        found += self.volumes.alarms() if self.volumes is not None else []
        held = [row for row in self.controller.recorded_stagings() if row.needs_attention and not row.is_owners_matter]
        if waits := next(
            (row for row in self.controller.recorded_stagings() if row.error and row.job_id in self._out_of_space_jobs),
            None,
        ):
            found.append(
                f"the store of staged data has no space for job {waits.name}, and jobs need all data there: "
                f"free space ('burstctl stage usage'): {waits.error}"
            )
        return found + [f"the data of job {row.name} ({row.user}) is held: {row.attention_text}" for row in held[:5]]

    def _store_sleeps(self, now: float) -> bool:
        """Whether the store is not to be woken for a look."""
        asleep = isinstance(self._stager, OnDemand) and not self._stager.awake
        return asleep and not self._sweeps.error and self._swept is not None and now - self._swept_at < DAY_S

    def _begin_sweep(self) -> None:
        live = self._context.store.stagings()
        wall, clock_offset = self._context.clock.wall(), self._clock_offset()

        def keep(result: SweepResult) -> None:
            self._swept, self._swept_at = result, self._context.clock.now()
            self._publish_usage()

        self._sweeps.poll(
            lambda: self._garbage_collector.sweep(live, wall, clock_offset, self._job_is_over),
            keep,
            lambda _: self._publish_usage(),
        )

    def _job_is_over(self, job_id: str) -> bool:
        """Whether Slurm says so; in a worker thread."""
        try:
            facts = self._transfers.query_job(job_id)
        except SchedulerUnavailable:
            return False
        return facts is None or facts.state not in ACTIVE_STATES | QUEUED_STATES | {"STAGE_OUT"}

    def _free_space(self, out_of_space: Sequence[Staging]) -> None:
        """The puts are tried again in any case."""
        jobs = frozenset(row.job_id for row in out_of_space)
        live = [*out_of_space, *(row for row in self._context.store.stagings() if row.job_id not in jobs)]
        wall, clock_offset = self._context.clock.wall(), self._clock_offset()

        def done(result: int | Exception) -> None:
            if isinstance(result, Exception):
                log.error("cannot free space in the store", error=str(result))
            self._out_of_space_jobs = (
                self._out_of_space_jobs - jobs
                if result and not isinstance(result, Exception)
                else self._out_of_space_jobs | jobs
            )
            if result and not isinstance(result, Exception):
                self._record_freed_space(jobs, result)
            self._sweeps.make_due()

        self._context.workers.submit(
            "stage:sweep", lambda: self._garbage_collector.free_space(live, wall, clock_offset), done
        )

    def _record_freed_space(self, jobs: Collection[str], objects: int) -> None:
        """Writes down at the jobs that found no space what has left the store for them."""
        for row in self._context.store.stagings():
            if row.job_id in jobs:
                reason = f"the store is full: {objects} objects that no waiting or running job needs have left it"
                self._context.store.set_staging_reason(row.job_id, reason)

    def _clock_offset(self) -> float:
        return self._context.clock.wall() - self._context.clock.now()

    def _usage_is_stale(self) -> bool:
        return self._usage.changes != self._index.changes

    def _keep_usage(self, usage: UsageCounts) -> None:
        self._usage = usage
        self._publish_usage()

    def _publish_usage(self) -> None:
        swept = self._swept
        store = StoreUsage(
            self._stage_use.store.name, self._store_kind, self._swept_at, swept.objects if swept else 0,
            swept.bytes if swept else 0, swept.free if swept else None, 0, self._sweeps.error,
        )  # fmt: skip
        self._stage_use = StagingUsage(store, self._usage.users, self._usage.accounts, self._settings.quota)

    # For the control interface; from any thread.

    def transfer_progress(self) -> Mapping[str, Sequence[MeterReading]]:
        """Returns the transfers under way, by job."""
        return self.controller.progress_by_job()

    def _caller_allowed(self, uid: int) -> bool | None:
        """For StageServer: root, burstd itself, and SlurmUser once slurmctld has reported it."""
        slurm_uid = self._context.slurm_uid()
        if uid in (0, os.geteuid(), slurm_uid):
            return True
        return None if slurm_uid is None else False

    def usage(self) -> StagingUsage:
        """Returns quotas and usage from memory."""
        return self._stage_use

    def retained_nodes(self) -> Sequence[RetainedNode]:
        """Returns the nodes that are kept for output."""
        return self._retained_nodes

    # What a person asks; in the deciding thread.

    def execute_command(self, command: StageCommand) -> CommandResult:
        """Carries it out."""
        match command:
            case RetryStage():
                text = self.controller.retry(command.job_id, command.by)
                reply_text = text or f"the data of job {command.job_id} is not held"
                return CommandResult(reply_text, done=bool(text), changed=bool(text))
            case DiscardOutput():
                text = self.controller.discard(command.job_id, command.by)
                reply_text = text or f"job {command.job_id} has no data"
                return CommandResult(reply_text, done=bool(text), changed=bool(text))
            case Evict():
                return self._evict(command)
            case RemoveVolume():
                return self._remove_volume(command)

    def _remove_volume(self, command: RemoveVolume) -> CommandResult:
        volume = next((v for v in self._context.store.volumes() if v.id == command.volume_id), None)
        if volume is None or self.volumes is None:
            return CommandResult(f"there is no volume {command.volume_id}", done=False, changed=False)
        if refusal := self.volumes.remove(volume, command.by):
            return CommandResult(refusal, done=False, changed=False)
        held = ", ".join(self.volumes.held_jobs(volume))
        text = f"volume {volume.name} of {volume.user} is removed, with all that is on it"
        return CommandResult(f"{text}; held jobs still ask for it: {held}" if held else text)

    def _evict(self, command: Evict) -> CommandResult:
        source = self._dataset(command.name) if command.kind == "dataset" else None
        if command.kind == "dataset" and source is None:
            return CommandResult(f"there is no dataset {command.name}", done=False, changed=False)
        live, now = self._context.store.stagings(), self._context.clock.wall()
        try:
            trees = self._index.trees()
        except StagerError as error:
            return CommandResult(str(error), done=False, changed=False)
        chosen = [
            known
            for known in trees
            if command.owner in ("", user_name_of(known.uid))
            and (
                command.kind == "unneeded"
                or (command.kind == "dataset" and known.source == source)
                or (command.kind == "tree" and known.tree.digest.startswith(command.name))
                or (command.kind == "user" and user_name_of(known.uid) == command.name)
            )
        ]
        in_use = needed_digests(trees, live, now, self._clock_offset())
        evicted = [known for known in chosen if known.tree.digest not in in_use]

        # What lately came into the store may be of others, who would have to send it again.
        unused_s = ORPHAN_GRACE_S if command.owner else 0.0

        def remove() -> UsageCounts:
            self._garbage_collector.evict(evicted, unused_s=unused_s)
            return count_usage(self._index)

        def done(result: UsageCounts | Exception) -> None:
            if isinstance(result, Exception):
                log.error("eviction failed", error=str(result))
            else:
                self._keep_usage(result)
            self._sweeps.make_due()

        if evicted:
            self._context.workers.submit("stage:sweep", remove, done)
        stay = f"; {len(chosen) - len(evicted)} that jobs need stay" if len(chosen) > len(evicted) else ""
        return CommandResult(f"{len(evicted)} trees leave the store{stay}", changed=bool(evicted))
