"""Output at its destination: from the store or the job's folder on premises, with a manifest that tells what came."""

from __future__ import annotations

import errno
import json
import os
import posixpath
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import IO, Any

from burstd.domain.plugins.stager import Stager
from burstd.domain.staging import WORKDIR_INPUT, OutputCondition, StageOut, Staging, Tree
from burstd.staging.controller.tasks import DeliveredOutput, JobSummary, StageFailed, StagingTask
from burstd.staging.directives.lexer import literal_text, substitute_variables
from burstd.staging.movement import output_journal
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.user_workers import UserWorkers
from burstd.staging.submission.locations import directive_variables, job_succeeded, resolve_location
from burstd.transfer.content_store.upload_pool import TransferCancelled
from burstd.transfer.privsep.client import UserWorkerError, printable
from burstd.transfer.privsep.object_workers import object_scheme
from burstd.transfer.privsep.relayed_copy import relay_copy
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.restore import (
    OverSent,
    RestoredFile,
    ReuseObjects,
    TreeRestorer,
    remove_unfinished_files,
    stored_entries,
)
from burstd.transfer.trees.walk import fixed_part, is_pattern

FILE_PREFIX = "file:"
"""Begins the word, in place of a stage_out's number, for a file of standard output or error: its path follows."""
MISSING_KEY = "missing"
"""... and for what could not be read: links whose names are the paths and whose targets the reasons."""
WORKDIR_KEY = WORKDIR_INPUT
"""... and for what is new or changed in the working directory."""
_LEGACY_FILES_KEY = "files"
"""... and for all of these in one tree, in older records: it may name any path."""
_MAX_REPORTED = 100
"""At most so much of one node and line is reported: links that were left out, files that are missing."""
_MAX_SENTENCE_CHARS = 1000


def output_applies(wanted: StageOut, job: Staging) -> bool:
    """Whether an output is asked for after the end that the job came to."""
    return wanted.when is OutputCondition.ALWAYS or (wanted.when is OutputCondition.SUCCESS) == job_succeeded(job)


@dataclass(frozen=True, slots=True)
class _LocalOutput:
    """What a line names of what the job left on this machine."""

    number: int
    source: str
    directory: str
    """The directory in which the names lie."""
    entries: dict[str, list[Any]]
    """By name: what a walk said of it."""
    single: bool
    earlier_names: tuple[str, ...] = ()
    """Names that an earlier try had as well."""


@dataclass(slots=True)
class _Delivery:
    """One job's way home."""

    task: StagingTask
    user_workers: UserWorkers
    restorer: TreeRestorer
    file_list: IO[str]
    started_at: float = field(default_factory=time.monotonic)
    size: int = 0
    files: int = 0
    manifest_roots: dict[str, None] = field(default_factory=dict)
    """Where a manifest goes, in order."""
    warnings: list[str] = field(default_factory=list)
    missing_files: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    """Paths of files that went beside those of the working directory, which had changed."""
    folder: str = ""
    """The job's on this machine, where it ran on premises."""
    local_outputs: list[_LocalOutput] = field(default_factory=list)

    def file_recorder(self, root: str, node: str) -> Callable[[RestoredFile], None]:
        """Notes files of one node."""

        def record(file: RestoredFile) -> None:
            row = {"path": posixpath.join(root, file.path), "size": file.size, "sha256": file.digest, "node": node}
            self.file_list.write(("," if self.files else "") + "\n    " + json.dumps(row))
            self.files += 1
            if file.skipped:
                self.task.meter.add_moved(file.size)

        return record


class OutputDelivery:
    """Brings what a job left to where its owner wants it."""

    def __init__(self, stager: Stager, limits: BandwidthLimits, reuse: ReuseObjects, folders: JobFolders) -> None:
        self._reuse = reuse
        self._stager = stager
        self._limits = limits
        self._folders = folders

    def deliver(self, task: StagingTask, user_workers: UserWorkers, summary: JobSummary) -> DeliveredOutput:
        """Delivers one job. Raises UserWorkerError, StagerError, ManifestDamaged, TransferCancelled."""
        job = task.job
        task.meter.expect_total(sum(tree.size for tree in job.outputs.values()))
        # Millions of files have a long list: it waits on the disk.
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file_list:
            restorer = TreeRestorer(
                self._stager.get,
                self._stager.name,
                lambda size: self._limits.wait(user_workers.who.uid, size, task.cancelled),
                self._reuse,
            )
            delivery = _Delivery(task, user_workers, restorer, file_list)
            if summary.on_premises:
                delivery.folder = self._folders.existing_folder_path(
                    user_workers.files, user_workers.who.uid, job.job_id
                )
                delivery.local_outputs = [
                    self._local_output(delivery, n, w)
                    for n, w in enumerate(job.directives.stage_out)
                    if output_applies(w, job)
                ]
                self._update_journal(delivery)
            for number, wanted in enumerate(job.directives.stage_out):
                if output_applies(wanted, job):
                    self._deliver_line(delivery, number, wanted)
            self._deliver_workdir(delivery)
            for path, node in _standard_output_files(job).items():
                self._restore_tree(
                    delivery, job.outputs[f"{node}/{FILE_PREFIX}{path}"], node, *posixpath.split(path), {}
                )
            for node in job.nodes:
                if (missing_tree := job.outputs.get(f"{node}/{MISSING_KEY}")) is not None:
                    delivery.missing_files += [
                        printable(
                            f"{node}: {os.fsdecode(e.path)} is missing: {os.fsdecode(e.link_target)}"[
                                :_MAX_SENTENCE_CHARS
                            ]
                        )
                        for e in islice(
                            stored_entries(self._stager.get, missing_tree, self._stager.name), _MAX_REPORTED
                        )
                    ]
                if (
                    legacy_files := job.outputs.get(f"{node}/{_LEGACY_FILES_KEY}")
                ) is not None and legacy_files.entries:
                    delivery.missing_files.append(
                        f"{node}: standard output and error are not brought home, because an older "
                        f"burstd collected them: {legacy_files.entries} files, {legacy_files.size} bytes"
                    )
            if job.directives.workdir and (
                delivery.beside or delivery.warnings or delivery.missing_files or summary.lost_nodes
            ):
                delivery.manifest_roots[posixpath.normpath(job.work_dir)] = None
            self._write_manifests(delivery, summary)
            return DeliveredOutput(delivery.size, tuple(delivery.beside), restorer.content_bytes)

    def _deliver_line(self, delivery: _Delivery, number: int, wanted: StageOut) -> None:
        destination = resolve_location(
            wanted.destination,
            directive_variables(delivery.user_workers.who, delivery.task.job.job_id),
            delivery.task.job.work_dir,
        )
        if destination is None:
            raise StageFailed(f"stage_out to {printable(wanted.destination)}: cannot resolve it", retryable=False)
        trees_by_node = [
            (n, t)
            for n in delivery.task.job.nodes
            if (t := delivery.task.job.outputs.get(f"{n}/{number}")) and t.entries
        ]
        singles = [tree.single for _, tree in trees_by_node] or [
            h.single for h in delivery.local_outputs if h.number == number
        ]
        as_single_file = singles == [True] and not _is_directory(delivery, destination)
        root, name = posixpath.split(destination) if as_single_file else (destination.rstrip("/") or "/", "")
        delivery.manifest_roots[root] = None
        claimed_paths: dict[int, str] = {}
        for node, tree in trees_by_node:
            self._restore_tree(delivery, tree, node, root, name, claimed_paths)
        moved = 0
        for local_output in delivery.local_outputs:
            if local_output.number == number and object_scheme(destination):
                moved = self._upload_local(delivery, local_output, destination, root)
            elif local_output.number == number:
                moved = self._move_local(delivery, local_output, destination, root)
        delivery.warnings += [
            f"{printable(path)} was left out: links are no objects" for path in delivery.user_workers.pop_left_out()
        ]
        if not trees_by_node and not moved:
            delivery.warnings.append(f"nothing matched stage_out {wanted.pattern}")

    def _deliver_workdir(self, delivery: _Delivery) -> None:
        """What is new or changed in the working directory, from each node; what has changed here meanwhile stays."""
        job = delivery.task.job
        before = job.trees.get(WORKDIR_INPUT)
        trees_by_node = [(n, t) for n in job.nodes if (t := job.outputs.get(f"{n}/{WORKDIR_KEY}"))]
        if before is None or not trees_by_node:
            return
        root = posixpath.normpath(job.work_dir)

        def note_conflict(path: str, beside: str) -> None:
            delivery.beside.append(beside)
            if len(delivery.beside) <= _MAX_REPORTED:
                delivery.warnings.append(
                    f"{printable(path)} has changed here since the job began, or is new: "
                    f"the job's is {printable(beside)}"
                )

        sent = {entry.path: entry for entry in stored_entries(self._stager.get, before, self._stager.name)}
        over = OverSent(sent, f".burst-{job.job_id}", note_conflict)
        claimed_paths: dict[int, str] = {}
        for node, tree in trees_by_node:
            if tree.entries > 1:  # More than the directory itself.
                self._restore_tree(delivery, tree, node, root, "", claimed_paths, over)

    def _restore_tree(
        self,
        delivery: _Delivery,
        tree: Tree,
        node: str,
        root: str,
        name: str,
        claimed_paths: dict[int, str],
        over: OverSent | None = None,
    ) -> None:
        """``taken``: which node brought a path (its hash); another's file of that path gets its node's name too."""

        def unique_path(path: str) -> str:
            return path if claimed_paths.setdefault(hash(path), node) == node else f"{path}.{node}"

        links: list[str] = []

        def record_left_out(sentence: str) -> None:
            if len(links) < _MAX_REPORTED:
                links.append(f"{node}: {printable(sentence[:_MAX_SENTENCE_CHARS])}")
            elif len(links) == _MAX_REPORTED:
                links.append(f"{node}: more links were left out: they lead out of {printable(root)}")

        delivery.size += delivery.restorer.restore(
            delivery.user_workers.worker_for_location(root),
            tree,
            root,
            job=delivery.task.job.job_id,
            name=name,
            unique_path=unique_path if len(delivery.task.job.nodes) > 1 else lambda path: path,
            on_file=delivery.file_recorder(root, node),
            on_bytes=delivery.task.meter.add_moved,
            on_left_out=record_left_out,
            over=over,
            cancelled=delivery.task.cancelled,
        )
        delivery.warnings += links

    def _local_output(self, delivery: _Delivery, number: int, wanted: StageOut) -> _LocalOutput:
        """What a line names of what the job left in its folder here."""
        job = delivery.task.job.job_id
        pattern = (
            substitute_variables(wanted.pattern, directive_variables(delivery.user_workers.who, job)) or wanted.pattern
        )
        path = posixpath.normpath(f"{delivery.folder}/out/{pattern}")
        literal_path = literal_text(path)
        source = path if literal_path is None else literal_path
        entries: dict[str, list[Any]] = {}
        if literal_path is not None and is_pattern(literal_path) and not _exists(delivery, literal_path):
            # A walk would take it for a pattern.
            return _LocalOutput(number, source, "", entries, single=False)
        walk = delivery.user_workers.files.walk(source)
        while True:
            try:
                for row in next(walk).rows:
                    # Of a directory all that is in it goes, of a pattern what it names and no more.
                    if literal_path is None and row[0] not in ("d", "x"):
                        entries[str(row[1])] = row
                    elif literal_path is not None and row[1]:
                        entries.setdefault(str(row[1]).partition("/")[0], row)
                if len(entries) > output_journal.MAX_NAMES:
                    text = f"stage_out {printable(wanted.pattern)} names more than {output_journal.MAX_NAMES} files in"
                    remedy = "pack some of them into one archive there, or remove them, then: burstctl stage retry"
                    raise StageFailed(f"{text} {delivery.folder}/out: {remedy} {job}", retryable=False)
            except StopIteration as end:
                single = bool(end.value)
                break
            except UserWorkerError as error:
                if error.errno != errno.ENOENT:
                    raise
                return _LocalOutput(number, source, "", {}, single=False)
        directory = posixpath.dirname(source) if single else fixed_part(source) if literal_path is None else source
        return _LocalOutput(number, source, directory.rstrip("/"), entries, single)

    def _update_journal(self, delivery: _Delivery) -> None:
        """Adds what earlier tries were about to take home, and notes all of it before anything moves.

        It lies in the job's folder, as its owner's: what he makes of it is his own manifest.
        """
        earlier: dict[int, tuple[bool, output_journal.JournalNames]] = {}
        # Nothing was noted, or its owner has made it unreadable: what an earlier try took is not in the manifest then.
        with suppress(UserWorkerError, ValueError):
            (fd,) = delivery.user_workers.files.open_files(delivery.folder, [output_journal.JOURNAL_NAME])
            with os.fdopen(fd, encoding="utf-8") as file:
                earlier = output_journal.read(file)
        for index, local_output in enumerate(delivery.local_outputs):
            single, names = earlier.get(local_output.number, (False, {}))
            delivery.local_outputs[index] = replace(
                local_output,
                single=local_output.single or (single and not local_output.entries),
                earlier_names=tuple(names),
            )
        try:
            with _AtomicTextFile(delivery, delivery.folder, output_journal.JOURNAL_NAME) as out:
                names_by_line = {
                    h.number: (h.single, {**dict.fromkeys(h.entries), **dict.fromkeys(h.earlier_names)})
                    for h in delivery.local_outputs
                }
                output_journal.write(out, names_by_line)
        except (UserWorkerError, OSError):
            # A disk that the job has filled must not keep its output here: only a second try's manifest would miss it.
            return

    def _move_local(self, delivery: _Delivery, local_output: _LocalOutput, destination: str, root: str) -> int:
        """Renames, or copies to another file system or where a later line names it too, what the job left here."""
        worker, job = delivery.user_workers.files, delivery.task.job.job_id
        named_again = _names_used_later(local_output, delivery.local_outputs)
        names = [
            *local_output.entries,
            *(name for name in local_output.earlier_names if name not in local_output.entries),
        ]
        for name in names:
            if delivery.task.cancelled.is_set():
                raise TransferCancelled("the transfer was cancelled")
            target = (
                posixpath.basename(destination) if local_output.single and root != destination.rstrip("/") else name
            )
            row = local_output.entries.get(name)
            if row is None:
                # An earlier try has moved it.
                (existing,) = worker.file_facts(root, [target])
                if existing is not None:
                    delivery.file_recorder(root, "")(
                        RestoredFile(target, 0 if existing.kind == "d" else existing.size, "", skipped=False)
                    )
                continue
            worker.make_directories(root, ["", *_relative_ancestors(target)])
            if name not in named_again:
                moved = worker.move(local_output.directory, name, root, target, job=job)
            elif row[0] == "l" and row[1] == name:
                worker.symlink(root, [(row[2], target, row[4])], job=job)
                moved = 0
            else:
                moved = worker.copy(f"{local_output.directory}/{name}", root, target, job=job)
            delivery.size += moved
            delivery.file_recorder(root, "")(RestoredFile(target, moved, "", skipped=False))
        return len(names)

    def _upload_local(self, delivery: _Delivery, local_output: _LocalOutput, destination: str, root: str) -> int:
        """Puts what the job left in its folder here; how many objects."""
        source, single = local_output.source, local_output.single
        if not local_output.entries:
            return 0
        name = ""
        if single and not _is_directory(delivery, destination):
            delivery.manifest_roots.pop(root, None)
            root, name = posixpath.split(destination)
            delivery.manifest_roots[root] = None
        before = delivery.files
        delivery.size += relay_copy(
            delivery.user_workers.files,
            source,
            delivery.user_workers.worker_for_location(root),
            root,
            name,
            job=delivery.task.job.job_id,
            cancelled=delivery.task.cancelled,
            on_file=delivery.file_recorder(root, ""),
        )
        return delivery.files - before

    def _write_manifests(self, delivery: _Delivery, summary: JobSummary) -> None:
        """Writes the manifest beside the outputs, and where the job did not end well says so where nobody misses it."""
        job = delivery.task.job
        complete = job_succeeded(job) and not summary.lost_nodes and not delivery.missing_files
        seconds = time.monotonic() - delivery.started_at
        head: dict[str, Any] = {
            "job": job.job_id, "user": job.user, "state": job.job_state, "exit_code": job.exit_code,
            "complete": complete, "nodes": list(job.nodes), "lost_nodes": list(summary.lost_nodes),
            "bytes": delivery.size, "files_count": delivery.files, "seconds": round(seconds, 3),
            "bytes_per_second": round(delivery.size / seconds) if seconds > 0 else 0,
            "input_bytes": job.bytes_in, "input_bytes_sent": job.bytes_sent, "cost": summary.cost,
            "warnings": [*summary.warnings, *delivery.missing_files, *delivery.warnings],
        }  # fmt: skip
        text = json.dumps(head, indent=2)[:-2] + ',\n  "files": ['
        for root in delivery.manifest_roots:
            delivery.user_workers.worker_for_location(root).make_directories(root, [""])
            remove_unfinished_files(delivery.user_workers.worker_for_location(root), root, [""], job.job_id)
            with _AtomicTextFile(delivery, root, f"burst-{job.job_id}.json") as out:
                out.write(text)
                delivery.file_list.seek(0)
                while block := delivery.file_list.read(1 << 20):
                    out.write(block)
                out.write("\n  ]\n}\n")
            partial_marker = f"burst-{job.job_id}.PARTIAL"
            if complete:
                delivery.user_workers.worker_for_location(root).remove_files(root, [partial_marker])
                continue
            lost = (
                f" Output of {', '.join(summary.lost_nodes)} is lost: the nodes went before it was fetched."
                if summary.lost_nodes
                else ""
            )
            with _AtomicTextFile(delivery, root, partial_marker) as out:
                how = f" ({job.job_state}, {job.exit_code})"
                ended_how = "ended" if job_succeeded(job) else f"did not end well{how}"
                out.write(f"Job {job.job_id} {ended_how}: what is here may be incomplete.{lost}\n")
                out.writelines(f"{sentence}\n" for sentence in delivery.missing_files)


def _standard_output_files(job: Staging) -> dict[str, str]:
    """Where the job's standard output and error go -> the first of its nodes that has the file."""
    found: dict[str, str] = {}
    for node in job.nodes:
        begin = f"{node}/{FILE_PREFIX}"
        for key in job.outputs:
            if key.startswith(begin):
                found.setdefault(key.removeprefix(begin), node)
    return found


def _is_directory(delivery: _Delivery, destination: str) -> bool:
    """Whether a single file goes into the destination, rather than becoming it."""
    if destination.endswith("/"):
        return True
    worker = delivery.user_workers.worker_for_location(destination)
    if object_scheme(destination):
        return worker.destination_space(destination).exists
    (existing,) = worker.file_facts(posixpath.dirname(destination) or "/", [posixpath.basename(destination)])
    return existing is not None and existing.kind == "d"


def _exists(delivery: _Delivery, path: str) -> bool:
    try:
        return (
            delivery.user_workers.files.file_facts(posixpath.dirname(path), [posixpath.basename(path)])[0] is not None
        )
    except UserWorkerError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return False


def _names_used_later(output: _LocalOutput, all_outputs: Sequence[_LocalOutput]) -> set[str]:
    """The names of a line of which a later one names something too, be it above or inside."""
    named: set[str] = set()
    ancestors: set[str] = set()
    for later in all_outputs:
        if later.number > output.number:
            for name in later.entries:
                path = f"{later.directory}/{name}"
                named.add(path)
                ancestors.update(_ancestors(path))
    return {
        name
        for name in output.entries
        if (path := f"{output.directory}/{name}") in named
        or path in ancestors
        or not named.isdisjoint(_ancestors(path))
    }


def _ancestors(path: str) -> list[str]:
    """The directories above an absolute path."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(2, len(parts))]


class _AtomicTextFile:
    """A text file of the owner's that is there whole at the end of ``with``, or not at all."""

    def __init__(self, delivery: _Delivery, root: str, name: str) -> None:
        self._worker, self._root, self._name = delivery.user_workers.worker_for_location(root), root, name
        self._job = delivery.task.job.job_id

    def __enter__(self) -> IO[str]:
        ((self._temporary, descriptor),) = self._worker.create_files(self._root, [self._name], job=self._job)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape")
        return self._file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if kind is None:
            self._worker.commit_files(self._root, [(self._temporary, self._name, 0o644, time.time_ns())])
        else:
            self._worker.remove_files(self._root, [self._temporary])


def _relative_ancestors(path: str) -> list[str]:
    """The directories on the way to a relative path, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]
