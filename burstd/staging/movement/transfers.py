"""The bytes of jobs, moved: with hands on this machine, through a store, by agents on nodes. In worker threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import ENOENT, ENOTDIR, EPERM
from functools import partial
from itertools import islice
from typing import Any

from burstd.domain.claim import Claim
from burstd.domain.errors import NodeNotReady, NodeRefused
from burstd.domain.plugins.stager import Reach, Stager, StagerError, StoreBusy, StoreSpaceGone
from burstd.domain.staging import Access, StageIn, Staging, Tree
from burstd.domain.units import size_text
from burstd.node.agent import AgentError, AgentStopped, NodeAgent
from burstd.planner.staging.transfer_schedule import MOST_BYTES
from burstd.slurm.commands.job_facts import JobFacts, job_facts
from burstd.slurm.commands.run import Commands
from burstd.staging.controller.tasks import Cancelled, Collected, Ended, Looked, Sent, StageFailed, Task
from burstd.staging.directives.lexer import fill
from burstd.staging.movement.agent_requests import answer, collected, repair
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.output_delivery import Homeward, applies
from burstd.staging.movement.user_workers import Objects, UserHands
from burstd.staging.submission.locations import DatasetSource, in_place, source, values
from burstd.transfer.content_store.manifest import ManifestDamaged
from burstd.transfer.privsep.client import Account, Hand, HandError, account, printable
from burstd.transfer.privsep.object_workers import scheme
from burstd.transfer.privsep.relayed_copy import carry
from burstd.transfer.trees.progress import Progress
from burstd.transfer.trees.restore import Stopped
from burstd.transfer.trees.upload import Owner, Sender, TransferCancelled
from burstd.transfer.trees.walk import fixed_part, is_pattern

LOOK_S = 60.0
LOOK_ENTRIES = 2_000_000
AT_ONCE = 1000
_LOOKS_BY_ITSELF = (23, 11, 0)
KEEP_FREE = 1 << 30
"""Bytes that the caches of nodes leave free."""


class HeadTransfers:
    """Implements ``burstd.staging.controller.tasks.Transfers``."""

    def __init__(
        self,
        *,
        commands: Commands,
        stager: Stager,
        sender: Sender,
        agent: NodeAgent,
        homeward: Homeward,
        hand: Callable[[Account], Hand],
        objects: Objects,
        folders: JobFolders,
        cache_dir: str,
        datasets: DatasetSource,
    ) -> None:
        self._commands = commands
        self._stager = stager
        self._sender = sender
        self._agent = agent
        self._homeward = homeward
        self._hand = hand
        self._objects = objects
        self._folders = folders
        self._cache_dir = cache_dir
        self._datasets = datasets

    def facts(self, job_id: str) -> JobFacts | None:
        """See Transfers. Raises SchedulerUnavailable."""
        return job_facts(self._commands, job_id)

    def nudge(self, job_id: str) -> None:
        """See Transfers. Before 23.11 slurmctld does not look at a job again by itself when its input is there."""
        if self._commands.version() < _LOOKS_BY_ITSELF:
            self._commands("scontrol", "update", f"JobId={job_id}", "AdminComment=burstd: its input is staged")

    def release(self, job_id: str) -> None:
        """See Transfers."""
        self._commands("scontrol", "release", job_id)

    def look(self, task: Task) -> Looked:
        """See Transfers."""
        size = entries = 0
        whole = True
        sources: list[str] = []
        with self._as_owner(task) as hands:
            for asked in task.job.directives.stage_in:
                origin = self._source(asked, task.job, hands.who)
                if in_place(self._stager, asked, origin):
                    continue
                sources.append(origin)
                found = hands.at(origin).look(origin, seconds=LOOK_S, entries=LOOK_ENTRIES)
                size, entries, whole = size + found.size, entries + found.entries, whole and found.whole
                _bounded(size)
        return Looked(size, entries, whole, tuple(sources))

    def send(self, task: Task) -> Sent:
        """See Transfers."""
        began = time.monotonic()
        trees: dict[str, Tree] = {}
        size = sent = hits = 0
        with self._as_owner(task) as hands:
            for asked in task.job.directives.stage_in:
                origin = self._source(asked, task.job, hands.who)
                if there := in_place(self._stager, asked, origin):
                    trees[asked.name] = Tree("", "", (), 0, 0, place=there)
                    continue
                progress = Progress()
                before = (size, sent, hits)

                def so_far(p: Progress = progress, b: tuple[int, int, int] = before) -> tuple[int, int, int]:
                    return b[0] + p.bytes_done, b[1] + p.bytes_sent, b[2] + p.bytes_hits

                task.meter.follow(so_far)
                trees[asked.name] = tree = self._sender.send(
                    hands.at(origin), origin, owner=Owner(hands.who.uid, task.job.account), progress=progress,
                    cancelled=task.cancelled,
                )  # fmt: skip
                size, sent, hits = size + tree.size, sent + progress.bytes_sent, hits + progress.bytes_hits
                _bounded(size)
        return Sent(trees, size, sent, time.monotonic() - began)

    def place(self, task: Task, claim: Claim) -> None:
        """See Transfers."""
        job = task.job
        task.meter.expect(sum(tree.size for tree in job.trees.values()))
        trees = [
            {
                "name": asked.name, "access": asked.access.value, "prefix": tree.prefix, "digest": tree.digest,
                "manifest": _plain(tree), "single": tree.single, "size": tree.size,
            }
            for asked in job.directives.stage_in
            if (tree := job.trees.get(asked.name)) is not None and not tree.place
        ]  # fmt: skip
        links = [{"name": name, "target": tree.place} for name, tree in job.trees.items() if tree.place]
        cache = {"dir": self._cache_dir, "keep_free": KEEP_FREE}
        with self._told(task):
            who = _owner(job)
        room = job.directives.scratch_bytes
        self._ask(task, claim, "place", who, trees=trees, links=links, scratch=room, cache=cache)

    def link(self, task: Task) -> None:
        """See Transfers."""
        job = task.job.job_id
        with self._as_owner(task) as hands:
            files = hands.files
            folder = self._folders.there(files, hands.who.uid, job)
            try:
                files.make_own(folder, ["", "in", "out", "scratch"])
            except HandError as error:
                if error.errno in (EPERM, ENOTDIR):
                    raise
                above = folder.rpartition("/")[0]
                text = f"{error}; the administrator makes {above} once, for all users, with install -d -m 1733 {above}"
                raise StageFailed(text, again=True) from None
            for asked in task.job.directives.stage_in:
                origin = self._source(asked, task.job, hands.who)
                if scheme(origin):
                    there, name = hands.at(origin), asked.name
                    carry(there, origin, files, f"{folder}/in", name, job=job, cancelled=task.cancelled)
                elif asked.access is Access.READ_ONLY and is_pattern(origin):
                    _link_each(files, origin, f"{folder}/in", asked.name, job)
                elif asked.access is Access.READ_ONLY:
                    if in_place(self._stager, asked, origin):
                        # Nobody has looked whether it is on premises too.
                        files.look(origin, seconds=LOOK_S, entries=1)
                    files.symlink(f"{folder}/in", [(origin, asked.name, None)], job=job)
                else:
                    files.copy(origin, f"{folder}/in", asked.name, job=job)

    def collect(self, task: Task, claim: Claim, files: Sequence[str]) -> Collected:
        """See Transfers."""
        job = task.job
        with self._told(task):
            who = _owner(job)
        known = values(who, job.job_id)
        lines = [(n, wanted) for n, wanted in enumerate(job.directives.stage_out) if applies(wanted, job)]
        patterns = [fill(wanted.pattern, known) or wanted.pattern for _, wanted in lines]
        node = claim.slot
        prefix = f"out/{job.job_id}/{node}"
        paths = [path for path in files if path.startswith("/")]
        done = self._ask(task, claim, "collect", who, patterns=patterns, files=paths, prefix=prefix)
        return collected(node, prefix, [number for number, _ in lines], paths, done)

    def bring(self, task: Task, ended: Ended) -> int:
        """See Transfers."""
        with self._as_owner(task) as hands:
            return self._homeward.bring(task, hands, ended)

    def clear(self, task: Task, claims: Sequence[Claim]) -> None:
        """See Transfers."""
        job = task.job
        with self._told(task):
            objects = self._stager.objects(f"out/{job.job_id}/")
            while some := [stored.key for stored in islice(objects, AT_ONCE)]:
                self._stager.delete(some)
        # His account may be gone by now, or another's: what is left belongs to a number.
        who = Account("", job.uid, job.gid, (job.gid,), "/")
        for claim in claims:
            self._ask(task, claim, "clear", who)
        with self._told(task), self._hand(who) as hand:
            try:
                folder, _, name = self._folders.there(hand, who.uid, job.job_id).rpartition("/")
                hand.remove_tree(folder, [name])
            except HandError as error:
                # Where no job runs on premises there is no such folder.
                if error.errno != ENOENT:
                    raise

    # Below: what all of them need.

    def _source(self, asked: StageIn, job: Staging, who: Account) -> str:
        try:
            path = source(asked, values(who, job.job_id), job.work_dir, self._datasets)
        except ValueError as error:
            raise StageFailed(f"stage_in of {asked.name}: {error}", again=False) from None
        if path is None:
            raise StageFailed(
                f"stage_in {printable(asked.source)}: there is no such place on this machine", again=False
            )
        return path

    @contextmanager
    def _as_owner(self, task: Task) -> Iterator[UserHands]:
        with self._told(task):
            who = _owner(task.job)
            with UserHands(who, self._hand(who), self._objects, task.cancelled) as hands:
                yield hands

    @contextmanager
    def _told(self, task: Task) -> Iterator[None]:
        """Every error as one of Transfers'."""
        try:
            yield
        except (Stopped, TransferCancelled):
            raise Cancelled("it was told to stop") from None
        except HandError as error:
            if task.cancelled.is_set():
                raise Cancelled("it was told to stop") from None
            # A file that is not there or not readable needs its owner; a hand that died does not.
            raise StageFailed(str(error), again=error.errno == 0 or error.errno in _PASSING) from None
        except StagerError as error:
            if task.cancelled.is_set():
                raise Cancelled("it was told to stop") from None
            raise StageFailed(
                str(error), again=True, retry_after_s=error.retry_after_s if isinstance(error, StoreBusy) else 0.0,
                full=isinstance(error, StoreSpaceGone),
            ) from None  # fmt: skip
        except ManifestDamaged as error:
            raise StageFailed(f"{self._stager.name}: {error}", again=True) from None

    def _ask(self, task: Task, claim: Claim, do: str, who: Account, **more: Any) -> dict[str, Any]:
        """Has the agent of one node do something with the rights of ``who``."""
        job = task.job
        bounds = (("GET",), "in") if do == "place" else (("GET", "PUT"), f"out/{job.job_id}/{claim.slot}")
        with self._told(task):
            # What needs no object must not wait for a store that is not there.
            reach = self._stager.reach() if do == "collect" or more.get("trees") else Reach("dir", {"path": "/"})
            request: dict[str, Any] = {
                "do": do, "job": job.job_id, "user": job.user, "uid": job.uid, "gid": job.gid,
                "groups": list(who.groups), "dir": self._folders.path(job.job_id),
                "dir_before": self._folders.before(job.job_id),
                "reach": {"kind": reach.kind, "facts": dict(reach.facts)}, **more,
            }  # fmt: skip
            try:
                return self._agent.run(
                    claim, request, answer=partial(answer, self._stager, claim.slot, *bounds),
                    progress=lambda done, of: task.meter.at(done=done, sent=done, hits=0, total=of),
                    cancelled=task.cancelled,
                )  # fmt: skip
            except AgentError as error:
                again, resend = error.kind in ("store", "full", "agent", "damaged"), False
                if error.kind == "damaged" and do == "place":
                    index, trees = self._sender.index, [tree for tree in job.trees.values() if not tree.place]
                    resend = repair(self._stager, index, trees, error.keys, task.cancelled)
                raise StageFailed(
                    f"{claim.slot}: {error}", again=again, resend=resend, full=error.kind == "full"
                ) from None
            except AgentStopped:
                raise Cancelled("it was told to stop") from None
            except (NodeNotReady, NodeRefused) as error:
                if task.cancelled.is_set():
                    raise Cancelled("it was told to stop") from None
                raise StageFailed(f"{claim.slot}: {error}", again=True) from None


def _owner(job: Staging) -> Account:
    """Raises HandError, StageFailed."""
    who = account(job.user)
    if who.uid != job.uid:
        text = f"{who.user} is user {who.uid} on this machine and {job.uid} in Slurm"
        raise StageFailed(f"{text}: nothing is staged for him", again=False)
    return who


_PASSING = (5, 11, 12, 23, 24, 28, 30, 116, 122)
"""EIO, EAGAIN, ENOMEM, ENFILE, EMFILE, ENOSPC, EROFS, ESTALE, EDQUOT: what may be otherwise in a while."""


def _bounded(size: int) -> None:
    if size > MOST_BYTES:
        text = (
            f"its input is {size_text(size)} and more, by the sizes of its files; the most is {size_text(MOST_BYTES)}"
        )
        raise StageFailed(f"{text}: are there sparse files among them?", again=False)


def _plain(tree: Tree) -> list[list[Any]]:
    return [[piece.key, piece.offset, piece.length] for piece in tree.manifest]


def _link_each(hand: Hand, pattern: str, root: str, name: str, job: str) -> None:
    """A directory of links to what a pattern names."""
    hand.make(root, [name])
    base = fixed_part(pattern)
    for rows in hand.walk(pattern):
        made = [row for row in rows.rows if row[0] in ("f", "h", "l")]
        parents = dict.fromkeys(f"{name}/{row[1]}".rpartition("/")[0] for row in made)
        hand.make(root, [path for path in parents if path != name])
        hand.symlink(root, [(f"{base}/{row[1]}", f"{name}/{row[1]}", None) for row in made], job=job)
