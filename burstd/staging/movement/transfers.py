"""The bytes of jobs, moved: with workers on this machine, through a store, by agents on nodes. In worker threads."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from errno import ENOENT, ENOTDIR, EPERM
from functools import partial
from itertools import chain, islice
from typing import Any

import structlog

from burstd.domain.claim import Claim
from burstd.domain.errors import NodeNotReady, NodeRefused, SchedulerRefused, SchedulerUnavailable
from burstd.domain.plugins.stager import (
    NodeAccess,
    NoSuchObject,
    ObjectTooLarge,
    Stager,
    StagerError,
    StoreBusy,
    StoreSpaceGone,
)
from burstd.domain.staging import WORKDIR_INPUT, Access, Checkpoint, StageIn, Staging, Tree, WorkdirRules
from burstd.domain.units import size_text
from burstd.node.agent import AgentError, AgentStopped, NodeAgent
from burstd.node.ssh.key_pair import new_key_pair
from burstd.planner.staging.transfer_schedule import MAX_INPUT_BYTES
from burstd.slurm.commands.job_facts import JobFacts, read_job_facts
from burstd.slurm.commands.run import SlurmCommands
from burstd.staging.controller.tasks import (
    CheckpointRequest,
    CollectedCheckpoint,
    CollectedOutput,
    CommandEnd,
    DeliveredOutput,
    InputSize,
    JobSummary,
    SharedScratchServer,
    StageFailed,
    StagingTask,
    UploadedInput,
)
from burstd.staging.directives.lexer import substitute_variables
from burstd.staging.movement.agent_requests import (
    answer_agent_request,
    is_damaged,
    parse_collected_checkpoint,
    parse_collected_output,
    parse_command_end,
    parse_shared_port,
    repair_objects,
    tree_keys,
)
from burstd.staging.movement.garbage_collection import CHECKPOINT_PREFIX
from burstd.staging.movement.images import ImageInputs, ImageRules, OpenImageWorker, is_image
from burstd.staging.movement.job_folders import JobFolders, shared_scratch_path
from burstd.staging.movement.output_delivery import OutputDelivery, output_applies
from burstd.staging.movement.user_workers import OpenObjectWorker, UserWorkers
from burstd.staging.submission.container import PROGRAM_PATH
from burstd.staging.submission.locations import DatasetSource, directive_variables, in_place_path, input_location
from burstd.staging.submission.workdir import (
    check_workdir,
    paths_inside,
    read_ignore_rules,
    workdir_size_fault,
)
from burstd.transfer.content_store.manifest import ManifestDamaged
from burstd.transfer.content_store.upload_pool import TransferCancelled, UploadProgress
from burstd.transfer.images.client import open_image_worker
from burstd.transfer.privsep.client import Account, SourceSize, UserWorker, UserWorkerError, account, printable
from burstd.transfer.privsep.object_workers import object_scheme
from burstd.transfer.privsep.relayed_copy import relay_copy
from burstd.transfer.trees.restore import TreeRestorer
from burstd.transfer.trees.upload import StagedFor, TreeUploader
from burstd.transfer.trees.walk import fixed_part, is_pattern

log = structlog.get_logger(__name__)

MEASURE_TIMEOUT_S = 60.0
MEASURE_MAX_ENTRIES = 2_000_000
OBJECTS_PER_DELETE = 1000
MAX_KEPT_OBJECTS = 500_000
"""Of the checkpoints of a job that are kept, as its nodes list them: their names are held in memory."""
_RECHECKS_SINCE = (23, 11, 0)
CACHE_KEEP_FREE_BYTES = 1 << 30
"""Bytes that the caches of nodes leave free."""


IsLivePath = Callable[[Claim, str, str], bool]
"""Whether a path on a machine is the same file on the head, for a user."""


class HeadTransfers:
    """Implements ``burstd.staging.controller.tasks.Transfers``."""

    def __init__(
        self,
        *,
        commands: SlurmCommands,
        stager: Stager,
        uploader: TreeUploader,
        agent: NodeAgent,
        output_delivery: OutputDelivery,
        open_worker: Callable[[Account], UserWorker],
        open_object_worker: OpenObjectWorker,
        folders: JobFolders,
        cache_dir: str,
        datasets: DatasetSource,
        container_program: Callable[[], str] = lambda: "apptainer",
        is_live: IsLivePath = lambda _claim, _path, _user: False,
        workdir_rules: Callable[[], WorkdirRules] = WorkdirRules,
        open_image_worker: OpenImageWorker = open_image_worker,
        image_rules: Callable[[], ImageRules] = ImageRules,
    ) -> None:
        self._images = ImageInputs(uploader, open_image_worker, image_rules)
        self._container_program = container_program
        self._is_live = is_live
        self._workdir_rules = workdir_rules
        self._commands = commands
        self._stager = stager
        self._uploader = uploader
        self._agent = agent
        self._output_delivery = output_delivery
        self._open_worker = open_worker
        self._open_object_worker = open_object_worker
        self._folders = folders
        self._cache_dir = cache_dir
        self._datasets = datasets

    def query_job(self, job_id: str) -> JobFacts | None:
        """Returns what Slurm knows of the job; None: nothing (any more). Raises SchedulerUnavailable."""
        return read_job_facts(self._commands, job_id)

    def nudge_scheduler(self, job_id: str) -> None:
        """Makes Slurm look at the job: before 23.11 slurmctld does not do so by itself when its input is there."""
        if self._commands.version() < _RECHECKS_SINCE:
            self._commands("scontrol", "update", f"JobId={job_id}", "AdminComment=burstd: its input is staged")

    def release_hold(self, job_id: str) -> None:
        """Releases the hold that Slurm puts on a job whose input was refused."""
        self._commands("scontrol", "release", job_id)

    def requeue_job(self, task: StagingTask) -> bool:
        """Has Slurm start the job again, with its variables asked for anew; False: it does not."""
        try:
            self._commands("scontrol", "requeue", task.job.job_id)
        except SchedulerUnavailable as error:
            raise StageFailed(str(error), retryable=True) from None
        except SchedulerRefused as error:
            log.warning("a job is not requeued", job=task.job.job_id, error=str(error))
            return False
        return True

    def measure_sources(self, task: StagingTask) -> InputSize:
        """Measures the job's sources."""
        size = entries = 0
        whole = True
        sources: list[str] = []
        with self._owner_workers(task) as user_workers:
            for stage_in in task.job.directives.stage_in:
                origin = self._source(stage_in, task.job, user_workers.who)
                if in_place_path(self._stager, stage_in, origin):
                    continue
                if is_image(origin):
                    image = self._images.measure(origin, user_workers, task.cancelled)
                    sources.append(image.source)
                    size, entries = size + image.size, entries + 1
                    continue
                sources.append(origin)
                found = user_workers.worker_for_location(origin).measure_source(
                    origin, seconds=MEASURE_TIMEOUT_S, entries=MEASURE_MAX_ENTRIES
                )
                size, entries, whole = size + found.size, entries + found.entries, whole and found.complete
                _check_size(size)
            if task.job.directives.workdir:
                path, rules = task.job.work_dir, self._workdir_rules()
                ignore = self._workdir_ignore(task.job, user_workers)
                found = user_workers.files.measure_source(
                    path, seconds=MEASURE_TIMEOUT_S, entries=rules.max_files + 1, ignore=ignore
                )
                if fault := workdir_size_fault(path, found, rules):
                    raise StageFailed(fault, retryable=False)
                sources.append(path)
                size, entries, whole = size + found.size, entries + found.entries, whole and found.complete
        return InputSize(size, entries, whole, tuple(sources))

    def _workdir_ignore(self, job: Staging, user_workers: UserWorkers) -> list[tuple[bool, str]]:
        """What of the job's working directory is not staged. Raises UserWorkerError where it cannot be."""
        check_workdir(user_workers.files, job.work_dir, user_workers.who)
        return read_ignore_rules(user_workers.files, job.work_dir, self._workdir_rules())

    def upload_input(self, task: StagingTask) -> UploadedInput:
        """Sends the sources to the store, with the owner's rights."""
        began = time.monotonic()
        trees: dict[str, Tree] = {}
        size = sent = hits = 0

        def send(name: str, bring: Callable[..., Tree], *what: object) -> None:
            nonlocal size, sent, hits
            progress = UploadProgress()
            before = (size, sent, hits)
            task.meter.follow_source(
                lambda: (
                    before[0] + progress.bytes_done,
                    before[1] + progress.bytes_sent,
                    before[2] + progress.bytes_hits,
                )
            )
            trees[name] = tree = bring(*what, progress=progress)
            size, sent, hits = size + tree.size, sent + progress.bytes_sent, hits + progress.bytes_hits
            _check_size(size)

        upload = partial(
            self._uploader.upload, owner=StagedFor(task.job.uid, task.job.account), cancelled=task.cancelled
        )
        with self._owner_workers(task) as user_workers:
            for stage_in in task.job.directives.stage_in:
                origin = self._source(stage_in, task.job, user_workers.who)
                if path_on_nodes := in_place_path(self._stager, stage_in, origin):
                    trees[stage_in.name] = Tree("", "", (), 0, 0, node_path=path_on_nodes)
                elif is_image(origin):
                    send(stage_in.name, self._images.bring, origin, user_workers, task)
                else:
                    send(stage_in.name, upload, user_workers.worker_for_location(origin), origin)
            if task.job.directives.workdir:
                path, rules = task.job.work_dir, self._workdir_rules()
                ignore = self._workdir_ignore(task.job, user_workers)
                send(WORKDIR_INPUT, partial(upload, ignore=ignore), user_workers.files, path)
                tree = trees[WORKDIR_INPUT] = replace(trees[WORKDIR_INPUT], ignore=tuple(ignore))
                if fault := workdir_size_fault(path, SourceSize(tree.size, tree.entries, True, False, ()), rules):
                    raise StageFailed(fault, retryable=False)
        return UploadedInput(trees, size, sent, time.monotonic() - began)

    def fetch_input(self, task: StagingTask, claim: Claim, files: Sequence[str]) -> None:
        """Copies the input from the store to the disk of one node; ``files``: the job's own output files."""
        job = task.job
        task.meter.expect_total(sum(tree.size for tree in job.trees.values()))
        trees = [
            {
                "name": stage_in.name, "access": stage_in.access.value, "prefix": tree.prefix, "digest": tree.digest,
                "manifest": _manifest_pieces(tree), "single": tree.single, "size": tree.size,
            }
            for stage_in in job.directives.stage_in
            if (tree := job.trees.get(stage_in.name)) is not None and not tree.node_path
        ]  # fmt: skip
        links = [{"name": name, "target": tree.node_path} for name, tree in job.trees.items() if tree.node_path]
        cache = {"dir": self._cache_dir, "keep_free": CACHE_KEEP_FREE_BYTES}
        with self._translated_errors(task):
            who = _job_owner(job)
        name = self._container_program()
        # One that a path names may lie in a tree that is mounted later.
        program = [name, PROGRAM_PATH] if job.directives.container and "/" not in name else None
        self._run_agent(
            task, claim, "place", who, trees=trees, links=links, scratch=job.directives.scratch_bytes, cache=cache,
            program=program, workdir=self._workdir_request(task, claim, who, files),
        )  # fmt: skip

    def _workdir_request(
        self, task: StagingTask, claim: Claim, who: Account, files: Sequence[str]
    ) -> dict[str, Any] | None:
        """What the agent is to put at the path of the working directory; None: nothing."""
        job, path = task.job, posixpath.normpath(task.job.work_dir)
        tree = job.trees.get(WORKDIR_INPUT)
        if not job.directives.workdir or tree is None or self._is_live(claim, path, who.user):
            return None
        directories = map(posixpath.dirname, paths_inside(path, files).values())
        return {
            "path": path, "home": posixpath.normpath(who.home), "ignore": tree.ignore,
            "directories": sorted({d for d in directories if d}),
            "tree": {
                "prefix": tree.prefix, "digest": tree.digest, "manifest": _manifest_pieces(tree), "single": tree.single,
                "size": tree.size,
            },
        }  # fmt: skip

    def serve_shared_scratch(self, task: StagingTask, claim: Claim) -> SharedScratchServer | None:
        """Makes the shared scratch, empty, on the job's first node, and has it serve the others, if there are any."""
        job = task.job
        with self._translated_errors(task):
            who = _job_owner(job)
        server, client, wanted = new_key_pair(), new_key_pair(), None
        if len(job.nodes) > 1:
            wanted = {"address": claim.address, "host_key": server.private, "client_key": client.public}
        size = job.directives.scratch_bytes + (job.directives.shared_scratch_bytes or 0)
        reported = self._run_agent(task, claim, "serve_shared", who, bytes=size, server=wanted)
        port = parse_shared_port(claim.slot, reported)
        return SharedScratchServer(claim.address, port, server.public, client.private) if wanted else None

    def mount_shared_scratch(self, task: StagingTask, claim: Claim, server: SharedScratchServer) -> None:
        """Mounts it on another node of the job, anew where it was."""
        with self._translated_errors(task):
            who = _job_owner(task.job)
        self._run_agent(task, claim, "mount_shared", who, server=asdict(server))

    def link_on_premises(self, task: StagingTask) -> None:
        """Links the sources and makes the output folders, for nodes on premises."""
        job = task.job.job_id
        with self._owner_workers(task) as user_workers:
            file_worker = user_workers.files
            folder = self._folders.existing_folder_path(file_worker, user_workers.who.uid, job)
            try:
                file_worker.make_private_directories(folder, ["", "in", "out", "scratch"])
                if task.job.directives.shared_scratch_bytes is not None:
                    file_worker.make_private_directories(shared_scratch_path(folder), [""])
            except UserWorkerError as error:
                if error.errno in (EPERM, ENOTDIR):
                    raise
                above = folder.rpartition("/")[0]
                text = f"{error}; the administrator makes {above} once, for all users, with install -d -m 1733 {above}"
                raise StageFailed(text, retryable=True) from None
            for stage_in in task.job.directives.stage_in:
                origin = self._source(stage_in, task.job, user_workers.who)
                if is_image(origin):
                    self._restore_image(task, file_worker, f"{folder}/in", stage_in.name)
                elif object_scheme(origin):
                    object_worker, name = user_workers.worker_for_location(origin), stage_in.name
                    relay_copy(
                        object_worker, origin, file_worker, f"{folder}/in", name, job=job, cancelled=task.cancelled
                    )
                elif stage_in.access is Access.READ_ONLY and is_pattern(origin):
                    _link_matches(file_worker, origin, f"{folder}/in", stage_in.name, job)
                elif stage_in.access is Access.READ_ONLY:
                    if in_place_path(self._stager, stage_in, origin):
                        # Nobody has looked whether it is on premises too.
                        file_worker.measure_source(origin, seconds=MEASURE_TIMEOUT_S, entries=1)
                    file_worker.symlink(f"{folder}/in", [(origin, stage_in.name, None)], job=job)
                else:
                    file_worker.copy(origin, f"{folder}/in", stage_in.name, job=job)
            if task.job.directives.checkpoint is not None and task.job.checkpoints:
                self._restore_on_premises(task, file_worker, f"{folder}/out")

    def collect_output(self, task: StagingTask, claim: Claim, files: Sequence[str]) -> CollectedOutput:
        """Sends the output from the disk of one node to the store."""
        job = task.job
        with self._translated_errors(task):
            who = _job_owner(job)
        variables = directive_variables(who, job.job_id)
        lines = [(n, wanted) for n, wanted in enumerate(job.directives.stage_out) if output_applies(wanted, job)]
        patterns = [substitute_variables(wanted.pattern, variables) or wanted.pattern for _, wanted in lines]
        node = claim.slot
        prefix = f"out/{job.job_id}/{node}"
        # What a job writes in a mounted tree is at home, and others may write to it.
        paths = [
            path for path in files if path.startswith("/") and not self._is_live(claim, path, who.user or job.user)
        ]
        workdir: dict[str, Any] | None = None
        if job.directives.workdir and not self._is_live(claim, job.work_dir, who.user):
            # Slurm's own files in it come home with it, and by its rule.
            inside = paths_inside(job.work_dir, paths)
            paths = [path for path in paths if path not in inside]
            workdir = {"always": sorted(inside.values())}
        reported = self._run_agent(
            task, claim, "collect", who, patterns=patterns, files=paths, prefix=prefix, workdir=workdir
        )
        numbers = [number for number, _ in lines]
        return parse_collected_output(node, prefix, numbers, paths, reported, workdir=workdir is not None)

    def collect_checkpoint(self, task: StagingTask, claim: Claim, request: CheckpointRequest) -> CollectedCheckpoint:
        """Sends the newest whole checkpoint from the disk of one node to the store."""
        job, line = task.job, task.job.directives.checkpoint
        if line is None:
            raise StageFailed("the job names no checkpoint", retryable=False)
        with self._translated_errors(task):
            who = _job_owner(job)
        pattern = substitute_variables(line.pattern, directive_variables(who, job.job_id)) or line.pattern
        untold = [line.signal] if request.tell_job and line.signal else []

        def tell_job() -> None:
            # Once, whatever the node says.
            while untold:
                self._signal_job(job.job_id, untold.pop())

        reported = self._run_agent(
            task, claim, "checkpoint", who, tell_job=tell_job, pattern=pattern, prefix=_checkpoint_prefix(job),
            known=request.known, max_bytes=request.max_bytes, wait_s=request.wait_s,
        )  # fmt: skip
        return parse_collected_checkpoint(claim.slot, _checkpoint_prefix(job), pattern, request.max_bytes, reported)

    def _signal_job(self, job_id: str, signal: str) -> None:
        """Sends a signal to the job's steps, or with ``B:`` to its batch shell, as sbatch --signal does."""
        target, _, name = signal.rpartition(":")
        try:
            self._commands("scancel", f"--signal={name}", *(["--batch"] if target else []), job_id)
        except (SchedulerRefused, SchedulerUnavailable) as error:
            # What is there is taken all the same.
            log.warning("a job was not told to write a checkpoint", job=job_id, signal=signal, error=str(error))

    def remove_other_checkpoints(self, task: StagingTask) -> None:
        """Removes the objects that are of no checkpoint on the job's record; of very many none."""
        needed: set[str] = set()
        kept = (tree for checkpoint in task.job.checkpoints for tree in checkpoint.trees.values())
        with self._translated_errors(task):
            try:
                for key in chain.from_iterable(tree_keys(self._stager, tree, task.cancelled) for tree in kept):
                    needed.add(key)
                    if len(needed) > MAX_KEPT_OBJECTS:
                        return
            except (NoSuchObject, ObjectTooLarge, ManifestDamaged) as error:
                # It cannot be put back, which is found out when it is tried; nothing is removed on its word.
                log.warning("a checkpoint is damaged", job=task.job.job_id, error=str(error))
                return
            stored = self._stager.objects(f"{_checkpoint_prefix(task.job)}/")
            others = (one.key for one in stored if one.key.rpartition("/")[2] not in needed)
            while some := list(islice(others, OBJECTS_PER_DELETE)):
                self._stager.delete(some)

    def run_checkpoint_command(self, task: StagingTask, claim: Claim, limit_s: float) -> CommandEnd:
        """Runs the command of the job's line in the job, on one of its nodes."""
        line = task.job.directives.checkpoint
        with self._translated_errors(task):
            who = _job_owner(task.job)
        command = line.command if line is not None else ""
        reported = self._run_agent(task, claim, "command", who, command=command, limit_s=limit_s)
        return parse_command_end(claim.slot, reported)

    def restore_checkpoint(self, task: StagingTask, claim: Claim, checkpoint: Checkpoint, part: str) -> None:
        """Puts a checkpoint back on the disk of one node."""
        tree = checkpoint.trees[part]
        task.meter.expect_total(tree.size)
        with self._translated_errors(task):
            who = _job_owner(task.job)
        row = {
            "path": checkpoint.path, "prefix": tree.prefix, "digest": tree.digest, "manifest": _manifest_pieces(tree),
            "single": tree.single, "size": tree.size, "entries": tree.entries,
        }  # fmt: skip
        cache = {"dir": self._cache_dir, "keep_free": CACHE_KEEP_FREE_BYTES}
        self._run_agent(task, claim, "place", who, put_back=tree, trees=[], checkpoints=[row], scratch=0, cache=cache)

    def _restore_image(self, task: StagingTask, worker: UserWorker, folder: str, name: str) -> None:
        """Puts an image that was converted into a folder of its owner's, with his rights."""
        tree = task.job.trees.get(name)
        try:
            if tree is None:
                raise StageFailed("its image is not in the store", retryable=True, resend=True)
            TreeRestorer(self._stager.get, self._stager.name).restore(
                worker, tree, folder, job=task.job.job_id, name=name, cancelled=task.cancelled
            )
        except NoSuchObject as error:
            raise StageFailed(str(error), retryable=True, resend=True) from None

    def _restore_on_premises(self, task: StagingTask, worker: UserWorker, root: str) -> None:
        """Puts the newest checkpoint of one node into a folder of its owner's, with his rights."""
        newest = task.job.checkpoints[-1]
        if len(newest.trees) > 1:
            return
        (tree,) = newest.trees.values()
        above, _, name = newest.path.rpartition("/")
        folder = "/".join(part for part in (root, above, "" if tree.single else name) if part)
        restorer = TreeRestorer(self._stager.get, self._stager.name)
        restorer.restore(
            worker, tree, folder, job=task.job.job_id, name=name if tree.single else "", cancelled=task.cancelled
        )

    def deliver_output(self, task: StagingTask, summary: JobSummary) -> DeliveredOutput:
        """Copies the output to its destinations and writes the manifest."""
        with self._owner_workers(task) as user_workers:
            return self._output_delivery.deliver(task, user_workers, summary)

    def remove_job_data(self, task: StagingTask, claims: Sequence[Claim], *, checkpoints: bool = True) -> None:
        """Removes what is left of the job in the store, on nodes and on premises; ``checkpoints``: these too."""
        job = task.job
        with self._translated_errors(task):
            for prefix in (f"out/{job.job_id}", *([_checkpoint_prefix(job)] if checkpoints else [])):
                objects = self._stager.objects(f"{prefix}/")
                while some := [stored.key for stored in islice(objects, OBJECTS_PER_DELETE)]:
                    self._stager.delete(some)
        # His account may be gone by now, or another's: what is left belongs to a number.
        who = Account("", job.uid, job.gid, (job.gid,), "/")
        for claim in claims:
            self._run_agent(task, claim, "clear", who)
        with self._translated_errors(task), self._open_worker(who) as worker:
            try:
                folder, _, name = self._folders.existing_folder_path(worker, who.uid, job.job_id).rpartition("/")
                worker.remove_tree(folder, [name, shared_scratch_path(name)])
            except UserWorkerError as error:
                # Where no job runs on premises there is no such folder.
                if error.errno != ENOENT:
                    raise

    # Shared parts.

    def _source(self, stage_in: StageIn, job: Staging, who: Account) -> str:
        try:
            path = input_location(stage_in, directive_variables(who, job.job_id), job.work_dir, self._datasets)
        except ValueError as error:
            raise StageFailed(f"stage_in of {stage_in.name}: {error}", retryable=False) from None
        if path is None:
            raise StageFailed(
                f"stage_in {printable(stage_in.source)}: cannot resolve it on this machine", retryable=False
            )
        return path

    @contextmanager
    def _owner_workers(self, task: StagingTask) -> Iterator[UserWorkers]:
        with self._translated_errors(task):
            who = _job_owner(task.job)
            with UserWorkers(who, self._open_worker(who), self._open_object_worker, task.cancelled) as user_workers:
                yield user_workers

    @contextmanager
    def _translated_errors(self, task: StagingTask) -> Iterator[None]:
        """Turns every error into StageFailed or TransferCancelled."""
        try:
            yield
        except UserWorkerError as error:
            if task.cancelled.is_set():
                raise TransferCancelled("the transfer was cancelled") from None
            # A file that is not there or not readable needs its owner; a worker that died does not.
            raise StageFailed(str(error), retryable=error.errno == 0 or error.errno in _TRANSIENT_ERRNOS) from None
        except StagerError as error:
            if task.cancelled.is_set():
                raise TransferCancelled("the transfer was cancelled") from None
            raise StageFailed(
                str(error), retryable=True, retry_after_s=error.retry_after_s if isinstance(error, StoreBusy) else 0.0,
                full=isinstance(error, StoreSpaceGone),
            ) from None  # fmt: skip
        except ManifestDamaged as error:
            raise StageFailed(f"{self._stager.name}: {error}", retryable=True) from None

    def _run_agent(
        self,
        task: StagingTask,
        claim: Claim,
        operation: str,
        who: Account,
        *,
        tell_job: Callable[[], None] = lambda: None,
        put_back: Tree | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Has the agent of one node do something with the rights of ``who``; ``tell_job`` when it says it is ready.

        ``put_back``: the checkpoint that is placed.
        """
        job = task.job
        bounds = {
            "place": (("GET",), "in" if put_back is None else put_back.prefix),
            "checkpoint": (("GET", "PUT"), _checkpoint_prefix(job)),
        }.get(operation, (("GET", "PUT"), f"out/{job.job_id}/{claim.slot}"))

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            if question.keys() == {"ready"}:
                tell_job()
                return {}
            return answer_agent_request(self._stager, claim.slot, *bounds, question)

        with self._translated_errors(task):
            # What needs no object must not wait for a store that is not there.
            reach = (
                self._stager.node_access()
                if operation in ("collect", "checkpoint")
                or more.get("trees")
                or more.get("workdir")
                or put_back is not None
                else NodeAccess("dir", {"path": "/"})
            )
            request: dict[str, Any] = {
                "do": operation, "job": job.job_id, "user": job.user, "uid": job.uid, "gid": job.gid,
                "groups": list(who.groups), "dir": self._folders.folder_path(job.job_id),
                "dir_before": self._folders.legacy_folder_path(job.job_id),
                "reach": {"kind": reach.kind, "facts": dict(reach.facts)}, **more,
            }  # fmt: skip
            try:
                return self._agent.run(
                    claim, request, answer=answer,
                    progress=lambda done, of: task.meter.set_counts(done=done, sent=done, hits=0, total=of),
                    cancelled=task.cancelled,
                )  # fmt: skip
            except AgentError as error:
                again, resend = error.kind in ("store", "full", "agent", "damaged"), False
                if error.kind == "damaged" and put_back is not None:
                    resend = is_damaged(self._stager, put_back, error.keys, task.cancelled)
                elif error.kind == "damaged" and operation == "place":
                    index, trees = self._uploader.index, [tree for tree in job.trees.values() if not tree.node_path]
                    resend = repair_objects(self._stager, index, trees, error.keys, task.cancelled)
                raise StageFailed(
                    f"{claim.slot}: {error}", retryable=again, resend=resend, full=error.kind == "full"
                ) from None
            except AgentStopped:
                raise TransferCancelled("the transfer was cancelled") from None
            except (NodeNotReady, NodeRefused) as error:
                if task.cancelled.is_set():
                    raise TransferCancelled("the transfer was cancelled") from None
                raise StageFailed(f"{claim.slot}: {error}", retryable=True) from None


def _checkpoint_prefix(job: Staging) -> str:
    """Where its checkpoints are in the store: of all its nodes and runs, so that what is there is not sent again."""
    return f"{CHECKPOINT_PREFIX}/{job.job_id}"


def _job_owner(job: Staging) -> Account:
    """Raises UserWorkerError, StageFailed."""
    who = account(job.user)
    if who.uid != job.uid:
        text = f"{who.user} is user {who.uid} on this machine and {job.uid} in Slurm"
        raise StageFailed(f"{text}: burstd stages nothing for this user", retryable=False)
    return who


_TRANSIENT_ERRNOS = (5, 11, 12, 23, 24, 28, 30, 116, 122)
"""EIO, EAGAIN, ENOMEM, ENFILE, EMFILE, ENOSPC, EROFS, ESTALE, EDQUOT: what may be otherwise in a while."""


def _check_size(size: int) -> None:
    if size > MAX_INPUT_BYTES:
        text = (
            f"its input is {size_text(size)} and more, by the sizes of its files; the most is "
            f"{size_text(MAX_INPUT_BYTES)}"
        )
        raise StageFailed(f"{text}: are there sparse files among them?", retryable=False)


def _manifest_pieces(tree: Tree) -> list[list[Any]]:
    return [[piece.key, piece.offset, piece.length] for piece in tree.manifest]


def _link_matches(worker: UserWorker, pattern: str, root: str, name: str, job: str) -> None:
    """A directory of links to what a pattern names."""
    worker.make_directories(root, [name])
    base = fixed_part(pattern)
    for rows in worker.walk(pattern):
        linked = [row for row in rows.rows if row[0] in ("f", "h", "l")]
        parents = dict.fromkeys(f"{name}/{row[1]}".rpartition("/")[0] for row in linked)
        worker.make_directories(root, [path for path in parents if path != name])
        worker.symlink(root, [(f"{base}/{row[1]}", f"{name}/{row[1]}", None) for row in linked], job=job)
