"""A job's input on a node: fetched into the cache, given to the job as links or copies, and put away afterwards."""

# ruff: noqa: PTH116

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from burstd.domain.staging import WORKDIR_INPUT, ObjectRange
from burstd.domain.units import size_text
from burstd.transfer.agent.cache import CacheEntry, TreeCache
from burstd.transfer.agent.fetch import WindowFetcher, read_pieces
from burstd.transfer.agent.job_folder import JobFolder
from burstd.transfer.agent.user_process import FAULT_STOPPED, AgentFault, JsonObject, UserProcess
from burstd.transfer.agent.workdir import UNFINISHED_TREE, NodeWorkdir
from burstd.transfer.protocol.transports import ObjectTransport


@dataclass(frozen=True)
class JobInput:
    """One of the job's trees, as asked for."""

    name: str
    copy: bool
    prefix: str
    digest: str
    manifest: tuple[ObjectRange, ...]
    single: bool
    size: int
    folder: str = "in"
    """The directory in the job's folder in which it goes; empty: it is the working directory."""
    entries: int | None = None
    """How many a node told of, where a node made the tree: a checkpoint. None: burstd made it."""

    @property
    def cache_key(self) -> str:
        """Less of a manifest is admitted where a node made it: that is another tree."""
        return self.digest if self.entries is None else hashlib.sha256(f"told {self.digest}".encode()).hexdigest()

    @classmethod
    def from_request(cls, row: JsonObject) -> JobInput:
        """From the request. Raises AgentFault where its name is none."""
        name = row["name"]
        if not name or name in {".", ".."} or "/" in name or "\0" in name:
            raise AgentFault("agent", f"{name!r} is no name of an input")
        pieces = tuple(ObjectRange(*piece) for piece in row["manifest"])
        copy = row["access"] == "copy"
        return cls(name, copy, row["prefix"], row["digest"], pieces, row["single"], row["size"])

    @classmethod
    def from_checkpoint(cls, row: JsonObject) -> JobInput:
        """The checkpoint that is put back at ``path`` below the output folder. Raises AgentFault."""
        above, _, _ = row["path"].rpartition("/")
        if not {"", ".", ".."}.isdisjoint(row["path"].split("/")):
            raise AgentFault("agent", f"{row['path']!r} is no path below the output folder")
        tree = cls.from_request({**row, "name": row["path"].rpartition("/")[2], "access": "copy"})
        return replace(tree, folder=f"out/{above}" if above else "out", entries=row["entries"])


class InputDelivery:
    """One request to place."""

    def __init__(
        self, request: JsonObject, user: UserProcess, transport: ObjectTransport, progress: Callable[[int, int], None]
    ) -> None:
        """``progress`` takes bytes there and bytes in all."""
        self._request = request
        self._user = user
        self._transport = transport
        self._inputs = [JobInput.from_request(row) for row in request["trees"]]
        self._inputs += [JobInput.from_checkpoint(row) for row in request.get("checkpoints", [])]
        self._links: list[JsonObject] = request.get("links", [])
        self._progress = progress
        self._total_bytes = sum(tree.size for tree in self._inputs)
        self._delivered_bytes = 0
        self._fetched_bytes = 0
        self._hits = 0
        self._folder = JobFolder(request["dir"])
        self._workdir: NodeWorkdir | None = None
        if (asked := request.get("workdir")) is not None:
            self._workdir = NodeWorkdir(self._folder, request["job"], asked["path"])
            row = {**asked["tree"], "name": WORKDIR_INPUT, "access": "copy"}
            self._inputs.append(replace(JobInput.from_request(row), folder=""))

    def deliver(self) -> JsonObject:
        """Places all of it. Raises AgentFault, OSError."""
        began = time.monotonic()
        request = self._request
        uid, gid = request["uid"], request["gid"]
        _check_program(request.get("program"))
        cache = TreeCache(request["cache"]["dir"], request["cache"]["keep_free"])
        self._folder.ensure_created(request["job"], uid, gid)
        self._user.drop_privileges(uid, gid, request["groups"])
        self._user.call_operation({"do": "folders", "dir": self._folder.path})
        for link in self._links:
            self._user.call_operation({"do": "link", "dir": self._folder.path, "there": True, **link})
        cache.remove_leftovers()
        self._progress(0, self._total_bytes)
        if self._workdir is not None and not self._workdir.is_filled:
            asked = request["workdir"]
            self._workdir.prepare(uid, gid, asked["home"], asked["ignore"])
        for tree in self._inputs:
            entry = cache.entry(uid, tree.cache_key)
            with entry.lock():
                if self._is_intact(entry):
                    self._hits += 1
                else:
                    cache.evict_until_free(tree.size, f"the input {tree.name}", reserved=self._reserved_bytes(cache))
                    self._restore_tree(tree, entry, uid, gid)
                entry.add_reference(request["job"], self._folder.record)
                self._folder.record_cache_entry(entry.path)
            self._link_or_copy(tree, entry)
        if request["scratch"]:
            self._check_scratch_space(request["scratch"])
        seconds = round(time.monotonic() - began, 3)
        return {"fetched": self._fetched_bytes, "hits": self._hits, "seconds": seconds}

    def _is_intact(self, entry: CacheEntry) -> bool:
        sealed = entry.read_seal()
        if sealed is None:
            return False
        answer = self._user.call_operation({"do": "unchanged", "path": f"{entry.path}/own", "sealed": sealed.sealed_ns})
        return bool(answer["unchanged"])

    def _reserved_bytes(self, cache: TreeCache) -> int:
        """Bytes of the cache's file system that the job is to have otherwise: scratch, and copies still to come."""
        if os.stat(self._folder.path).st_dev != cache.device:
            return 0
        copies = [
            t.size
            for t in self._inputs
            if t.copy and (not t.folder or not os.path.lexists(f"{self._folder.path}/{t.folder}/{t.name}"))
        ]
        return int(self._request["scratch"]) + sum(copies)

    def _check_scratch_space(self, size: int) -> None:
        about = os.statvfs(self._folder.path)
        free = about.f_bavail * about.f_frsize
        if free < size:
            raise AgentFault(
                "space",
                f"the job asks for {size_text(size)} of scratch, and {size_text(free)} are free below "
                f"{self._folder.path} when its input is there: ask for less, or submit to a partition whose machines "
                "have larger disks",
            )

    def _restore_tree(self, tree: JobInput, entry: CacheEntry, uid: int, gid: int) -> None:
        resumed = entry.prepare(uid, gid)
        own = os.open(f"{entry.unfinished}/own", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        manifest = os.open(
            f"{entry.unfinished}/manifest", os.O_RDWR | os.O_TRUNC | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            self._fetch_manifest(tree, manifest)
            self._fetch_tree(tree, own, manifest, resumed=resumed)
        finally:
            for descriptor in (own, manifest):
                os.close(descriptor)
        entry.seal(tree.size)

    def _fetch_manifest(self, tree: JobInput, descriptor: int) -> None:
        """Fetches the manifest into a file that both halves read."""
        self._transport.announce_gets(f"{tree.prefix}/{p.key[:2]}/{p.key}" for p in tree.manifest)
        digest = hashlib.sha256()
        for part in read_pieces(self._transport, tree.prefix, tree.manifest, self._user.buffers.view(0)):
            digest.update(part)
            os.writev(descriptor, [part])
        if digest.hexdigest() != tree.digest:
            raise AgentFault(
                "damaged", f"the manifest of the input {tree.name} is not what its digest says: stage it anew",
                tuple(dict.fromkeys(piece.key for piece in tree.manifest)),
            )  # fmt: skip

    def _fetch_tree(self, tree: JobInput, own: int, manifest: int, *, resumed: bool) -> None:
        fetcher = WindowFetcher(self._transport, tree.prefix, self._user.buffers, self._user.channel)
        before, there = self._delivered_bytes, 0

        def on_message(message: JsonObject) -> None:
            nonlocal there
            if "need" in message:
                fetcher.request_objects(message["window"], message["need"])
            else:
                fetcher.release_buffer(message["free"])
                there += message["bytes"]
                self._progress(min(before + there, self._total_bytes), self._total_bytes)

        try:
            self._user.call_operation(
                {"do": "fill", "name": tree.name, "single": tree.single, "again": resumed, "told": _told(tree)},
                own, manifest, on_message=on_message,
            )  # fmt: skip
        except AgentFault as fault:
            fetcher.close()
            raise (fetcher.fault or fault) if fault.kind == FAULT_STOPPED else fault from None
        finally:
            fetcher.close()
            self._fetched_bytes += fetcher.fetched_bytes
        self._delivered_bytes = before + tree.size

    def _link_or_copy(self, tree: JobInput, entry: CacheEntry) -> None:
        """Puts it where the job looks for it."""
        if not tree.folder:
            self._fill_workdir(tree, entry)
            return
        what: dict[str, Any] = {"dir": self._folder.path, "name": tree.name, "folder": tree.folder}
        if not tree.copy:
            self._user.call_operation({"do": "link", "target": entry.tree, **what})
            return
        self._copy_tree(tree, entry, what)

    def _copy_tree(self, tree: JobInput, entry: CacheEntry, where: JsonObject) -> None:
        manifest = os.open(f"{entry.path}/manifest", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            what = {"do": "copy", "tree": entry.tree, "single": tree.single, "told": _told(tree), **where}
            self._user.call_operation(what, manifest)
        finally:
            os.close(manifest)

    def _fill_workdir(self, tree: JobInput, entry: CacheEntry) -> None:
        """The job's copy of its working directory; one that is there is the job's already."""
        workdir = self._workdir
        if workdir is not None and not workdir.is_filled:
            if not workdir.is_renamed:
                self._copy_tree(tree, entry, {"dir": workdir.unfinished, "name": UNFINISHED_TREE, "folder": "."})
            workdir.finish(entry.path, self._user, self._request["workdir"]["directories"])


def _check_program(wanted: list[str] | None) -> None:
    """``wanted``: name, and folders to look in. Raises AgentFault where the node has no such program."""
    if wanted is not None and shutil.which(wanted[0], path=wanted[1]) is None:
        raise AgentFault(
            "software",
            f"the node has no {wanted[0]}, which #BURST container needs: ask for nodes that have it, or have your "
            "administrator install it in their image",
        )


def _told(tree: JobInput) -> list[int] | None:
    """Entries and bytes that a node told of, where it made the tree."""
    return None if tree.entries is None else [tree.entries, tree.size]
