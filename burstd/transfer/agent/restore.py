"""Inputs on a node, made with the rights that this process has: the child's part of placing."""

# Those who write and the targets they write to take what any of them needs.
# ruff: noqa: ARG002, PTH118

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from burstd.domain.staging import ObjectRange, Tree
from burstd.transfer.agent.changes import read_chunks
from burstd.transfer.agent.user_process import FAULT_STOPPED, AgentFault, JsonObject, PacketChannel, SharedBuffers
from burstd.transfer.content_store.manifest import ManifestDamaged, ManifestEntry, decode_manifest
from burstd.transfer.privsep.safe_directory import SafeDirectory, copy_data
from burstd.transfer.trees.admission import admitted_entries, input_entries
from burstd.transfer.trees.writer import PendingFile, TreeWriter, has_content

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEYS_AT_ONCE = 1000


class WindowObjects:
    """An ObjectSource: objects in slots, which the other half fetches, verifies and passes on."""

    def __init__(self, channel: PacketChannel, buffers: SharedBuffers) -> None:
        self._channel = channel
        self._buffers = buffers
        self._early: list[JsonObject] = []
        self.written = 0
        """Bytes of files that were written since the other half heard of it."""

    def request(self, number: int, keys: Sequence[str]) -> None:
        """As ObjectSource."""
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            self._channel.send({"need": keys[start : start + _KEYS_AT_ONCE], "window": number})

    def arrivals(self, number: int, keys: Sequence[str]) -> Iterator[tuple[str, memoryview]]:
        """As ObjectSource, each as it comes."""
        left = len(keys)
        waiting, self._early = self._early, []
        while left:
            message = waiting.pop() if waiting else self._channel.receive()[0]
            if "stop" in message:
                raise AgentFault(FAULT_STOPPED, "stopped")
            if message["window"] != number:
                self._early.append(message)
                continue
            yield message["have"], self._buffers.view(message["slot"], message["length"])
            self._channel.send({"free": message["slot"], "bytes": self.written})
            self.written = 0
            left -= 1


class InputTarget:
    """A WriteTarget that nobody uses yet: files are made in place. ``resumed``: an earlier try may have left some."""

    def __init__(self, root: str, *, resumed: bool) -> None:
        self.directory = SafeDirectory(root)
        self.resumed = resumed

    def make_directories(self, root: str, items: Sequence[str]) -> None:
        """Makes directories."""
        for path in items:
            with self._made_once(path):
                if not self.directory.make_directory(path):
                    if not self.resumed:
                        raise FileExistsError
                    # It may have its mode already.
                    self.directory.finalize_directory(path, 0o700, 0)

    def symlink(self, root: str, items: Sequence[tuple[str, str, int | None]], *, job: str) -> None:
        """Makes symbolic links."""
        for target, path, mtime_ns in items:
            with self._made_once(path):
                self._refuse_existing(path)
                self.directory.symlink(target, path, mtime_ns, job)

    def hardlink(self, root: str, items: Sequence[tuple[str, str]], *, job: str) -> None:
        """Makes second names of files."""
        for earlier, path in items:
            with self._made_once(path):
                self._refuse_existing(path)
                self.directory.hardlink(earlier, path, job)

    def create_files(self, root: str, items: Sequence[str], *, job: str) -> list[tuple[str, int]]:
        """Makes files."""
        made: list[tuple[str, int]] = []
        try:
            for path in items:
                with self._made_once(path):
                    made.append((path, self.directory.create_in_place(path, resumed=self.resumed)))
        except BaseException:
            for _, fd in made:
                os.close(fd)
            raise
        return made

    def commit_files(self, root: str, items: Sequence[tuple[str, str, int, int]]) -> None:
        """They are what they are to be already."""

    def remove_files(self, root: str, items: Sequence[str]) -> None:
        """They stay, for the next try."""

    def finalize_directories(self, root: str, items: Sequence[tuple[str, int, int]]) -> None:
        """Gives directories their mode and time."""
        for row in items:
            self.directory.finalize_directory(*row)

    def _refuse_existing(self, path: str) -> None:
        if not self.resumed and self.directory.lstat(path) is not None:
            raise FileExistsError

    @contextmanager
    def _made_once(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            name = os.fsencode(path.rpartition("/")[2])
            raise ManifestDamaged(f"a manifest names {name!r} twice") from None
        except FileNotFoundError:
            raise ManifestDamaged(
                f"a manifest has an entry without its directory or its file: {os.fsencode(path)!r}"
            ) from None


class _InputWriter(TreeWriter):
    """Makes one tree as ``name`` in the directory ``base``, all of whose parts its user may read."""

    MAKES_ROOT = True
    COMMITS_AT_ONCE = 1
    _target: InputTarget

    def __init__(self, base: int, name: str, *, single: bool, resumed: bool, told: Sequence[int] | None) -> None:
        """``told``: entries and bytes that a node told of, where a node made the tree: it may lie."""
        root = f"/proc/self/fd/{base}"
        super().__init__(InputTarget(root, resumed=resumed), root, name=name, scratch=root)
        self._single = single
        self._told = told

    def restore(self, manifest: int, objects: WindowObjects) -> None:
        """Makes it from its manifest. Raises OSError, ManifestDamaged, AgentFault."""
        self._objects = objects
        try:
            self.write(self._admitted(decode_manifest(read_chunks(manifest))), objects)
        finally:
            self._target.directory.close()

    def _admitted(self, entries: Iterable[ManifestEntry]) -> Iterator[ManifestEntry]:
        if self._told is None:
            return input_entries(entries, single=self._single)
        count, size = self._told
        return admitted_entries(entries, Tree("", "", (), count, size, self._single), single_file_name=self._single)

    def _path(self, path: bytes) -> str:
        return self._name if self._single or not path else f"{self._name}/{os.fsdecode(path)}"

    def _piece_written(self, file: PendingFile, number: int, view: memoryview) -> None:
        self._objects.written += len(view)

    def _before_close(self, file: PendingFile) -> None:
        os.fchmod(file.fd, self._mode(file.entry))
        os.utime(file.fd, ns=(file.entry.mtime_ns, file.entry.mtime_ns))


class _CacheWriter(_InputWriter):
    """Nobody writes what several jobs read; its user reads all of it, as he could at its source."""

    def _mode(self, entry: ManifestEntry) -> int:
        return entry.mode & ~0o222 | (0o500 if entry.kind == "d" else 0o400)

    def _prepare(self, paths: Iterable[str]) -> None:
        if self._target.resumed:
            for folder in {path.rpartition("/")[0] for path in paths}:
                self._target.directory.remove_unfinished(folder, self._job)

    def _incomplete(self, files: list[PendingFile]) -> list[PendingFile]:
        return [file for file in files if not self._is_complete(file)] if self._target.resumed else files

    def _is_complete(self, file: PendingFile) -> bool:
        facts, entry = self._target.directory.lstat(file.path), file.entry
        if facts is None or not stat.S_ISREG(facts.st_mode):
            return False
        if facts.st_size and len(entry.pieces) > 1 and facts.st_mtime_ns != entry.mtime_ns:
            self._create([file])
        attributes = (facts.st_size, facts.st_mtime_ns, stat.S_IMODE(facts.st_mode))
        return attributes == (entry.size, entry.mtime_ns, self._mode(entry))

    def _is_there(self, file: PendingFile, piece: ObjectRange, at: int) -> bool:
        return file.fd >= 0 and has_content(file.fd, piece, at)


class _CopyWriter(_InputWriter):
    """Copies from a tree in the cache: ``origin`` is in the directory that has it as ``tree``."""

    origin: SafeDirectory

    def remove_leftover(self) -> None:
        """Removes what a try that was killed left."""
        self._target.directory.remove_tree(self._name)

    def _is_there(self, file: PendingFile, piece: ObjectRange, at: int) -> bool:
        return True

    def _before_close(self, file: PendingFile) -> None:
        path = "tree" if self._single else f"tree/{os.fsdecode(file.entry.path)}"
        source = self.origin.open_file(path)
        try:
            for _ in copy_data(source, file.fd, file.entry.size):
                pass
            # What is not there was copied as a hole.
            if os.fstat(source).st_size != file.entry.size:
                raise AgentFault("agent", f"{path} has another length in the node's cache. Stage the job's data again")
        finally:
            os.close(source)
        super()._before_close(file)


def restore_input(
    channel: PacketChannel, buffers: SharedBuffers, request: JsonObject, descriptors: list[int]
) -> JsonObject:
    """A read-only tree from objects. Descriptors: the directory, the manifest."""
    base, manifest = descriptors
    writer = _CacheWriter(base, "tree", single=request["single"], resumed=request["again"], told=request.get("told"))
    try:
        writer.restore(manifest, WindowObjects(channel, buffers))
    except ManifestDamaged as error:
        raise AgentFault("damaged", f"the input {request['name']} cannot be made: {error}") from None
    return {}


def copy_input(
    channel: PacketChannel, buffers: SharedBuffers, request: JsonObject, descriptors: list[int]
) -> JsonObject:
    """The job's own copy of a tree in the cache. Descriptors: the manifest."""
    name, unfinished = request["name"], f".{request['name']}.unfinished"
    above = SafeDirectory(request["dir"])
    parts = request.get("folder", "in").split("/")
    for depth in range(1, len(parts)):
        above.make_directory("/".join(parts[: depth + 1]))
    folder = os.open(os.path.join(request["dir"], *parts), _DIRECTORY)
    try:
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            return {"made": False}
        writer = _CopyWriter(folder, unfinished, single=request["single"], resumed=False, told=request.get("told"))
        writer.remove_leftover()
        writer.origin = SafeDirectory(request["tree"].rpartition("/")[0])
        try:
            writer.restore(descriptors[0], WindowObjects(channel, buffers))
        except ManifestDamaged as error:
            raise AgentFault("damaged", f"the input {name} cannot be copied: {error}") from None
        finally:
            writer.origin.close()
        os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        above.close()
        os.close(folder)
    return {"made": True}
