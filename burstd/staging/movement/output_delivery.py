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
from burstd.domain.staging import StageOut, Staging, Tree, When
from burstd.staging.controller.tasks import Ended, StageFailed, Task
from burstd.staging.directives.lexer import fill, literal
from burstd.staging.movement import output_journal
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.user_workers import UserHands
from burstd.staging.submission.locations import ended_well, place, values
from burstd.transfer.privsep.client import HandError, printable
from burstd.transfer.privsep.object_workers import scheme
from burstd.transfer.privsep.relayed_copy import carry
from burstd.transfer.trees.rate_limit import Limits
from burstd.transfer.trees.restore import Adopt, Bringer, Brought, Stopped, entries, sweep
from burstd.transfer.trees.walk import fixed_part, is_pattern

FILE = "file:"
"""Begins the word, in the place of a stage_out's number, for a file of standard output or error: its path follows."""
MISSING = "missing"
"""... and for what could not be read: links whose names are the paths and whose targets the reasons."""
_FILES_BEFORE = "files"
"""... and for all of these in one tree, in older records: it may name any path."""
_TOLD = 100
"""So much of one node and line is told of: links that were left out, files that are missing."""
_SHOWN = 1000


def applies(wanted: StageOut, job: Staging) -> bool:
    """Whether an output is asked for after the end that the job came to."""
    return wanted.when is When.ALWAYS or (wanted.when is When.SUCCESS) == ended_well(job)


@dataclass(frozen=True, slots=True)
class _Here:
    """What a line names of what the job left on this machine."""

    number: int
    source: str
    above: str
    """The directory in which the names lie."""
    rows: dict[str, list[Any]]
    """By name: what a walk said of it."""
    single: bool
    before: tuple[str, ...] = ()
    """Names that an earlier try had as well."""


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
    missing: list[str] = field(default_factory=list)
    folder: str = ""
    """The job's on this machine, where it ran on premises."""
    here: list[_Here] = field(default_factory=list)

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

    def __init__(self, stager: Stager, limits: Limits, adopt: Adopt, folders: JobFolders) -> None:
        self._adopt = adopt
        self._stager = stager
        self._limits = limits
        self._folders = folders

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
            if ended.on_premises:
                trip.folder = self._folders.there(hands.files, hands.who.uid, job.job_id)
                trip.here = [self._here(trip, n, w) for n, w in enumerate(job.directives.stage_out) if applies(w, job)]
                self._journal(trip)
            for number, wanted in enumerate(job.directives.stage_out):
                if applies(wanted, job):
                    self._line(trip, number, wanted)
            for path, node in _own_files(job).items():
                self._tree(trip, job.outputs[f"{node}/{FILE}{path}"], node, *posixpath.split(path), {})
            for node in job.nodes:
                if (lost := job.outputs.get(f"{node}/{MISSING}")) is not None:
                    trip.missing += [
                        printable(f"{node}: {os.fsdecode(e.path)} is missing: {os.fsdecode(e.target)}"[:_SHOWN])
                        for e in islice(entries(self._stager.get, lost, self._stager.name), _TOLD)
                    ]
                if (old := job.outputs.get(f"{node}/{_FILES_BEFORE}")) is not None and old.entries:
                    trip.missing.append(
                        f"{node}: standard output and error are not brought home, because an older "
                        f"burstd collected them: {old.entries} files, {old.size} bytes"
                    )
            self._tell(trip, ended)
            return trip.size

    def _line(self, trip: _Trip, number: int, wanted: StageOut) -> None:
        destination = place(wanted.destination, values(trip.hands.who, trip.task.job.job_id), trip.task.job.work_dir)
        if destination is None:
            raise StageFailed(f"stage_out to {printable(wanted.destination)}: there is no such place", again=False)
        found = [(n, t) for n in trip.task.job.nodes if (t := trip.task.job.outputs.get(f"{n}/{number}")) and t.entries]
        singles = [tree.single for _, tree in found] or [h.single for h in trip.here if h.number == number]
        alone = singles == [True] and not _is_directory(trip, destination)
        root, name = posixpath.split(destination) if alone else (destination.rstrip("/") or "/", "")
        trip.roots[root] = None
        taken: dict[int, str] = {}
        for node, tree in found:
            self._tree(trip, tree, node, root, name, taken)
        moved = 0
        for here in trip.here:
            if here.number == number and scheme(destination):
                moved = self._put_objects(trip, here, destination, root)
            elif here.number == number:
                moved = self._on_premises(trip, here, destination, root)
        trip.warnings += [f"{printable(path)} was left out: links are no objects" for path in trip.hands.left_out()]
        if not found and not moved:
            trip.warnings.append(f"nothing matched stage_out {wanted.pattern}")

    def _tree(self, trip: _Trip, tree: Tree, node: str, root: str, name: str, taken: dict[int, str]) -> None:
        """``taken``: which node brought a path (its hash); another's file of that path gets its node's name too."""

        def free(path: str) -> str:
            return path if taken.setdefault(hash(path), node) == node else f"{path}.{node}"

        links: list[str] = []

        def left_out(sentence: str) -> None:
            if len(links) < _TOLD:
                links.append(f"{node}: {printable(sentence[:_SHOWN])}")
            elif len(links) == _TOLD:
                links.append(f"{node}: more links were left out: they lead out of {printable(root)}")

        trip.size += trip.bringer.bring(
            trip.hands.at(root), tree, root, job=trip.task.job.job_id, name=name,
            taken=free if len(trip.task.job.nodes) > 1 else lambda path: path, brought=trip.brought(root, node),
            moved=trip.task.meter.add, left_out=left_out, cancelled=trip.task.cancelled,
        )  # fmt: skip
        trip.warnings += links

    def _here(self, trip: _Trip, number: int, wanted: StageOut) -> _Here:
        """What a line names of what the job left in its folder here."""
        job = trip.task.job.job_id
        pattern = fill(wanted.pattern, values(trip.hands.who, job)) or wanted.pattern
        path = posixpath.normpath(f"{trip.folder}/out/{pattern}")
        plain = literal(path)
        source = path if plain is None else plain
        rows: dict[str, list[Any]] = {}
        if plain is not None and is_pattern(plain) and not _is_there(trip, plain):
            # A walk would take it for a pattern.
            return _Here(number, source, "", rows, single=False)
        walk = trip.hands.files.walk(source)
        while True:
            try:
                for row in next(walk).rows:
                    # Of a directory all that is in it goes, of a pattern what it names and no more.
                    if plain is None and row[0] not in ("d", "x"):
                        rows[str(row[1])] = row
                    elif plain is not None and row[1]:
                        rows.setdefault(str(row[1]).partition("/")[0], row)
                if len(rows) > output_journal.MOST_NAMES:
                    text = f"stage_out {printable(wanted.pattern)} names more than {output_journal.MOST_NAMES} files in"
                    remedy = "pack some of them into one archive there, or remove them, then: burstctl stage retry"
                    raise StageFailed(f"{text} {trip.folder}/out: {remedy} {job}", again=False)
            except StopIteration as end:
                single = bool(end.value)
                break
            except HandError as error:
                if error.errno != errno.ENOENT:
                    raise
                return _Here(number, source, "", {}, single=False)
        above = posixpath.dirname(source) if single else fixed_part(source) if plain is None else source
        return _Here(number, source, above.rstrip("/"), rows, single)

    def _journal(self, trip: _Trip) -> None:
        """Adds what earlier tries were about to take home, and notes all of it before anything moves.

        It lies in the job's folder, as its owner's: what he makes of it is his own manifest.
        """
        earlier: dict[int, tuple[bool, output_journal.Names]] = {}
        # Nothing was noted, or its owner has made it unreadable: what an earlier try took is not in the manifest then.
        with suppress(HandError, ValueError):
            (fd,) = trip.hands.files.open(trip.folder, [output_journal.NAME])
            with os.fdopen(fd, encoding="utf-8") as file:
                earlier = output_journal.read(file)
        for index, here in enumerate(trip.here):
            single, names = earlier.get(here.number, (False, {}))
            trip.here[index] = replace(here, single=here.single or (single and not here.rows), before=tuple(names))
        try:
            with _new(trip, trip.folder, output_journal.NAME) as out:
                noted = {h.number: (h.single, {**dict.fromkeys(h.rows), **dict.fromkeys(h.before)}) for h in trip.here}
                output_journal.write(out, noted)
        except (HandError, OSError):
            # A disk that the job has filled must not keep its output here: only a second try's manifest would miss it.
            return

    def _on_premises(self, trip: _Trip, here: _Here, destination: str, root: str) -> int:
        """Renames, or copies to another file system or where a later line names it too, what the job left here."""
        hand, job = trip.hands.files, trip.task.job.job_id
        shared = _shared(here, trip.here)
        names = [*here.rows, *(name for name in here.before if name not in here.rows)]
        for name in names:
            if trip.task.cancelled.is_set():
                raise Stopped("it was told to stop")
            target = posixpath.basename(destination) if here.single and root != destination.rstrip("/") else name
            row = here.rows.get(name)
            if row is None:
                # An earlier try has moved it.
                (there,) = hand.facts(root, [target])
                if there is not None:
                    trip.brought(root, "")(Brought(target, 0 if there.kind == "d" else there.size, "", skipped=False))
                continue
            hand.make(root, ["", *_above(target)])
            if name not in shared:
                moved = hand.move(here.above, name, root, target, job=job)
            elif row[0] == "l" and row[1] == name:
                hand.symlink(root, [(row[2], target, row[4])], job=job)
                moved = 0
            else:
                moved = hand.copy(f"{here.above}/{name}", root, target, job=job)
            trip.size += moved
            trip.brought(root, "")(Brought(target, moved, "", skipped=False))
        return len(names)

    def _put_objects(self, trip: _Trip, here: _Here, destination: str, root: str) -> int:
        """Puts what the job left in its folder here; how many objects."""
        source, single = here.source, here.single
        if not here.rows:
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
        complete = ended_well(job) and not ended.lost and not trip.missing
        seconds = time.monotonic() - trip.began
        head: dict[str, Any] = {
            "job": job.job_id, "user": job.user, "state": job.job_state, "exit_code": job.exit_code,
            "complete": complete, "nodes": list(job.nodes), "lost_nodes": list(ended.lost),
            "bytes": trip.size, "files_count": trip.files, "seconds": round(seconds, 3),
            "bytes_per_second": round(trip.size / seconds) if seconds > 0 else 0,
            "input_bytes": job.bytes_in, "input_bytes_sent": job.bytes_sent, "cost": ended.cost,
            "warnings": [*ended.warnings, *trip.missing, *trip.warnings],
        }  # fmt: skip
        text = json.dumps(head, indent=2)[:-2] + ',\n  "files": ['
        for root in trip.roots:
            trip.hands.at(root).make(root, [""])
            sweep(trip.hands.at(root), root, [""], job.job_id)
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
                how = f" ({job.job_state}, {job.exit_code})"
                ended_how = "ended" if ended_well(job) else f"did not end well{how}"
                out.write(f"Job {job.job_id} {ended_how}: what is here may be incomplete.{lost}\n")
                out.writelines(f"{sentence}\n" for sentence in trip.missing)


def _own_files(job: Staging) -> dict[str, str]:
    """Where the job's standard output and error go -> the first of its nodes that has the file."""
    found: dict[str, str] = {}
    for node in job.nodes:
        begin = f"{node}/{FILE}"
        for key in job.outputs:
            if key.startswith(begin):
                found.setdefault(key.removeprefix(begin), node)
    return found


def _is_directory(trip: _Trip, destination: str) -> bool:
    """Whether a single file goes into the destination, rather than becoming it."""
    if destination.endswith("/"):
        return True
    hand = trip.hands.at(destination)
    if scheme(destination):
        return hand.free(destination).there
    (there,) = hand.facts(posixpath.dirname(destination) or "/", [posixpath.basename(destination)])
    return there is not None and there.kind == "d"


def _is_there(trip: _Trip, path: str) -> bool:
    try:
        return trip.hands.files.facts(posixpath.dirname(path), [posixpath.basename(path)])[0] is not None
    except HandError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return False


def _shared(here: _Here, everything: Sequence[_Here]) -> set[str]:
    """The names of a line of which a later one names something too, be it above or below."""
    named: set[str] = set()
    above: set[str] = set()
    for later in everything:
        if later.number > here.number:
            for name in later.rows:
                path = f"{later.above}/{name}"
                named.add(path)
                above.update(_ways(path))
    return {
        name
        for name in here.rows
        if (path := f"{here.above}/{name}") in named or path in above or not named.isdisjoint(_ways(path))
    }


def _ways(path: str) -> list[str]:
    """The directories above an absolute path."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(2, len(parts))]


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
