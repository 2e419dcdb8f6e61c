"""Output at its destination: from the store or the job's folder on premises, with a manifest that tells what came."""

from __future__ import annotations

import errno
import json
import os
import posixpath
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from burstd.core.words import fill, literal
from burstd.daemon.stage.places import ended_well, place, values
from burstd.daemon.stage.user_hands import UserHands
from burstd.daemon.stage.work import Ended, StageFailed, Task
from burstd.data.bringer import Adopt, Bringer, Brought, Stopped
from burstd.data.carrying import carry
from burstd.data.hands import HandError, printable
from burstd.data.limits import Limits
from burstd.data.object_hands import scheme
from burstd.data.walk import fixed_part, is_pattern
from burstd.model.data import StageOut, Staging, Tree, When
from burstd.model.stager import Stager

FILES = "files"
"""The word, in the place of a stage_out's number, for the job's own standard output and error."""


def applies(wanted: StageOut, job: Staging) -> bool:
    """Whether an output is asked for after the end that the job came to."""
    return wanted.when is When.ALWAYS or (wanted.when is When.SUCCESS) == ended_well(job)


@dataclass(slots=True)
class _Trip:
    """One job's way home."""

    task: Task
    hands: UserHands
    bringer: Bringer
    rows: IO[str]
    began: float = field(default_factory=time.monotonic)
    size: int = 0
    files: int = 0
    roots: dict[str, None] = field(default_factory=dict)
    """Where a manifest goes, in order."""
    warnings: list[str] = field(default_factory=list)

    def brought(self, root: str, node: str) -> Callable[[Brought], None]:
        """Notes files of one node."""

        def note(file: Brought) -> None:
            row = {"path": posixpath.join(root, file.path), "size": file.size, "sha256": file.digest, "node": node}
            self.rows.write(("," if self.files else "") + "\n    " + json.dumps(row))
            self.files += 1
            if file.skipped:
                self.task.meter.add(file.size)

        return note


class Homeward:
    """Brings what a job left to where its owner wants it."""

    def __init__(self, stager: Stager, limits: Limits, adopt: Adopt, job_folder: Callable[[str], str]) -> None:
        self._adopt = adopt
        self._stager = stager
        self._limits = limits
        self._job_folder = job_folder

    def bring(self, task: Task, hands: UserHands, ended: Ended) -> int:
        """Everything of one job; returns its bytes. Raises HandError, StagerError, ManifestDamaged, Stopped."""
        job = task.job
        task.meter.expect(sum(tree.size for tree in job.outputs.values()))
        # Millions of files have a long list: it waits on the disk.
        with tempfile.TemporaryFile("w+", encoding="utf-8") as rows:
            bringer = Bringer(
                self._stager.get,
                self._stager.name,
                lambda size: self._limits.wait(hands.who.uid, size, task.cancelled),
                self._adopt,
            )
            trip = _Trip(task, hands, bringer, rows)
            for number, wanted in enumerate(job.directives.stage_out):
                if applies(wanted, job):
                    self._line(trip, number, wanted, on_premises=ended.on_premises)
            for node in job.nodes:
                tree = job.outputs.get(f"{node}/{FILES}")
                if tree is not None:
                    self._tree(trip, tree, node, "/", "", {})
            self._tell(trip, ended)
            return trip.size

    def _line(self, trip: _Trip, number: int, wanted: StageOut, *, on_premises: bool) -> None:
        destination = place(wanted.destination, values(trip.hands.who, trip.task.job.job_id), trip.task.job.work_dir)
        if destination is None:
            raise StageFailed(f"stage_out to {printable(wanted.destination)}: there is no such place", again=False)
        found = [(n, t) for n in trip.task.job.nodes if (t := trip.task.job.outputs.get(f"{n}/{number}")) and t.entries]
        alone = len(found) == 1 and found[0][1].single and not _is_directory(trip, destination)
        root, name = posixpath.split(destination) if alone else (destination.rstrip("/") or "/", "")
        trip.roots[root] = None
        taken: dict[str, str] = {}
        for node, tree in found:
            self._tree(trip, tree, node, root, name, taken)
        moved = 0
        if on_premises:
            bring = self._put_objects if scheme(destination) else self._on_premises
            moved = bring(trip, wanted, destination, root)
        trip.warnings += [f"{printable(path)} was left out: links are no objects" for path in trip.hands.left_out()]
        if not found and not moved:
            trip.warnings.append(f"nothing matched stage_out {wanted.pattern}")

    def _tree(self, trip: _Trip, tree: Tree, node: str, root: str, name: str, taken: dict[str, str]) -> None:
        """``taken``: which node brought a path; another node's file of that path gets its node's name too."""

        def free(path: str) -> str:
            first = taken.setdefault(path, node)
            return path if first == node or len(trip.task.job.nodes) == 1 else f"{path}.{node}"

        trip.size += trip.bringer.bring(
            trip.hands.at(root), tree, root, job=trip.task.job.job_id, name=name, taken=free,
            brought=trip.brought(root, node), moved=trip.task.meter.add, cancelled=trip.task.cancelled,
        )  # fmt: skip

    def _on_premises(self, trip: _Trip, wanted: StageOut, destination: str, root: str) -> int:
        """Renames, or copies to another file system, what the job left in its folder here."""
        source = self._left(trip, wanted)
        names: dict[str, None] = {}
        walk = trip.hands.files.walk(source)
        while True:
            try:
                for row in next(walk).rows:
                    # Of a directory all that is in it goes, of a pattern what it names and no more.
                    if is_pattern(source) and row[0] not in ("d", "x"):
                        names[str(row[1])] = None
                    elif not is_pattern(source) and row[1]:
                        names[str(row[1]).partition("/")[0]] = None
            except StopIteration as end:
                single = bool(end.value)
                break
            except HandError as error:
                if error.errno != errno.ENOENT:
                    raise
                return 0
        above = posixpath.dirname(source) if single else fixed_part(source)
        for name in names:
            if trip.task.cancelled.is_set():
                raise Stopped("it was told to stop")
            target = posixpath.basename(destination) if single and root != destination.rstrip("/") else name
            trip.hands.files.make(root, ["", *_above(target)])
            moved = trip.hands.files.move(above, name, root, target, job=trip.task.job.job_id)
            trip.size += moved
            trip.brought(root, "")(Brought(target, moved, "", skipped=False))
        return len(names)

    def _left(self, trip: _Trip, wanted: StageOut) -> str:
        """What an output is on this machine, as a path or a pattern."""
        pattern = fill(wanted.pattern, values(trip.hands.who, trip.task.job.job_id)) or wanted.pattern
        path = posixpath.normpath(f"{self._job_folder(trip.task.job.job_id)}/out/{pattern}")
        plain = literal(path)
        return path if plain is None else plain

    def _put_objects(self, trip: _Trip, wanted: StageOut, destination: str, root: str) -> int:
        """Puts what the job left in its folder here; how many objects."""
        source = self._left(trip, wanted)
        try:
            single = trip.hands.files.look(source, entries=1).single
        except HandError as error:
            if error.errno != errno.ENOENT:
                raise
            return 0
        name = ""
        if single and not _is_directory(trip, destination):
            trip.roots.pop(root, None)
            root, name = posixpath.split(destination)
            trip.roots[root] = None
        before = trip.files
        trip.size += carry(
            trip.hands.files, source, trip.hands.at(root), root, name, job=trip.task.job.job_id,
            cancelled=trip.task.cancelled, brought=trip.brought(root, ""),
        )  # fmt: skip
        return trip.files - before

    def _tell(self, trip: _Trip, ended: Ended) -> None:
        """Writes the manifest beside the outputs, and where the job did not end well says so where nobody misses it."""
        job = trip.task.job
        complete = ended_well(job) and not ended.lost
        seconds = time.monotonic() - trip.began
        head: dict[str, Any] = {
            "job": job.job_id, "user": job.user, "state": job.job_state, "exit_code": job.exit_code,
            "complete": complete, "nodes": list(job.nodes), "lost_nodes": list(ended.lost),
            "bytes": trip.size, "files_count": trip.files, "seconds": round(seconds, 3),
            "bytes_per_second": round(trip.size / seconds) if seconds > 0 else 0,
            "input_bytes": job.bytes_in, "input_bytes_sent": job.bytes_sent, "cost": ended.cost,
            "warnings": [*ended.warnings, *trip.warnings],
        }  # fmt: skip
        text = json.dumps(head, indent=2)[:-2] + ',\n  "files": ['
        for root in trip.roots:
            trip.hands.at(root).make(root, [""])
            with _new(trip, root, f"burst-{job.job_id}.json") as out:
                out.write(text)
                trip.rows.seek(0)
                while block := trip.rows.read(1 << 20):
                    out.write(block)
                out.write("\n  ]\n}\n")
            mark = f"burst-{job.job_id}.PARTIAL"
            if complete:
                trip.hands.at(root).remove(root, [mark])
                continue
            lost = (
                f" Output of {', '.join(ended.lost)} is lost: the nodes went before it was fetched."
                if ended.lost
                else ""
            )
            with _new(trip, root, mark) as out:
                how = f"({job.job_state}, {job.exit_code})"
                out.write(f"Job {job.job_id} did not end well {how}: what is here may be incomplete.{lost}\n")


def _is_directory(trip: _Trip, destination: str) -> bool:
    """Whether a single file goes into the destination, rather than becoming it."""
    if destination.endswith("/"):
        return True
    hand = trip.hands.at(destination)
    if scheme(destination):
        return hand.free(destination).there
    (there,) = hand.facts(posixpath.dirname(destination) or "/", [posixpath.basename(destination)])
    return there is not None and there.kind == "d"


class _new:  # noqa: N801 - used as a verb: with _new(...) as out
    """A text file of the owner's that is there whole at the end of ``with``, or not at all."""

    def __init__(self, trip: _Trip, root: str, name: str) -> None:
        self._hand, self._root, self._name = trip.hands.at(root), root, name
        self._job = trip.task.job.job_id

    def __enter__(self) -> IO[str]:
        ((self._made, descriptor),) = self._hand.create(self._root, [self._name], job=self._job)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape")
        return self._file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if kind is None:
            self._hand.finish(self._root, [(self._made, self._name, 0o644, time.time_ns())])
        else:
            self._hand.remove(self._root, [self._made])


def _above(path: str) -> list[str]:
    """The directories on the way to a relative path, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]
