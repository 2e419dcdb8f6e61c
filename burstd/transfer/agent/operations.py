"""What the agent has done with the user's rights: each of these runs in the child."""

# ruff: noqa: PTH114, PTH118

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress

from burstd.transfer.agent.packing import pack_output
from burstd.transfer.agent.restore import InputRestorer
from burstd.transfer.agent.user_process import AgentFault, JsonObject, Operation, PacketChannel, SharedBuffers
from burstd.transfer.agent.window import WindowObjects
from burstd.transfer.content_store.manifest import ManifestDamaged

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


def _make_job_folders(
    channel: PacketChannel,
    buffers: SharedBuffers,
    request: JsonObject,
    descriptors: list[int],
) -> JsonObject:
    """The job's folders, in the folder ``dir`` that is the user's already."""
    top = os.open(request["dir"], _DIRECTORY)
    try:
        for name in ("in", "out", "scratch"):
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=top)
    finally:
        os.close(top)
    return {}


def _restore_tree(
    channel: PacketChannel, buffers: SharedBuffers, request: JsonObject, descriptors: list[int]
) -> JsonObject:
    """A read-only tree from objects. Descriptors: the directory, the manifest, the journal of what is done already."""
    base, manifest, journal = descriptors
    try:
        with open(journal, "rb", closefd=False) as rows:
            objects = WindowObjects(channel, buffers, rows)
        restorer = InputRestorer(base, "tree", single=request["single"], read_only=True, resumed=request["again"])
        restorer.restore_from_objects(_read_chunks(manifest), objects)
    except ManifestDamaged as error:
        raise AgentFault("damaged", f"the input {request['name']} cannot be made: {error}") from None
    return {}


def _copy_tree(
    channel: PacketChannel,
    buffers: SharedBuffers,
    request: JsonObject,
    descriptors: list[int],
) -> JsonObject:
    """The job's own copy of a tree in the cache. Descriptors: the manifest."""
    name, unfinished = request["name"], f".{request['name']}.unfinished"
    folder = os.open(os.path.join(request["dir"], "in"), _DIRECTORY)
    try:
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            return {"made": False}
        _remove_leftover(folder, unfinished)
        flags = os.O_RDONLY | os.O_NOFOLLOW | (0 if request["single"] else os.O_DIRECTORY)
        if request["single"] and os.path.islink(request["tree"]):
            # Nothing of it is read: the manifest says where it leads.
            tree = os.open(os.devnull, os.O_RDONLY)
        else:
            tree = os.open(request["tree"], flags)
        try:
            restorer = InputRestorer(folder, unfinished, single=request["single"], read_only=False, resumed=False)
            restorer.restore_from_tree(_read_chunks(descriptors[0]), tree)
        except ManifestDamaged as error:
            raise AgentFault("damaged", f"the input {name} cannot be copied: {error}") from None
        finally:
            os.close(tree)
        os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
    return {"made": True}


def _remove_leftover(folder: int, name: str) -> None:
    """What a try that was killed left; directories in it may have been closed already."""
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(about.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    os.chmod(name, 0o700, dir_fd=folder)
    for _, directories, _, above in os.fwalk(name, dir_fd=folder):
        for each in directories:
            if stat.S_ISDIR(os.stat(each, dir_fd=above, follow_symlinks=False).st_mode):
                os.chmod(each, 0o700, dir_fd=above)
    shutil.rmtree(name, dir_fd=folder)


def _link_input(
    channel: PacketChannel,
    buffers: SharedBuffers,
    request: JsonObject,
    descriptors: list[int],
) -> JsonObject:
    """The job's way to a tree in the cache, or, ``there``, to what the node has anyway."""
    if request.get("there"):
        try:
            os.stat(request["target"])  # noqa: PTH116 - as above
        except OSError as error:
            raise AgentFault(
                "rights",
                f"the input {request['name']} is to be used where it is, at {request['target']} on the node, and that "
                f"is not there for the job: {error.strerror}; look at what is mounted there, and whose it is",
            ) from None
    folder = os.open(os.path.join(request["dir"], "in"), _DIRECTORY)
    try:
        name, target = request["name"], request["target"]
        try:
            os.symlink(target, name, dir_fd=folder)
        except FileExistsError:
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISLNK(about.st_mode):
                raise AgentFault("agent", f"the input {name} is there already, and is no link of burstd's") from None
            if os.readlink(name, dir_fd=folder) != target:
                os.unlink(name, dir_fd=folder)
                os.symlink(target, name, dir_fd=folder)
    finally:
        os.close(folder)
    return {}


def _check_unchanged(
    channel: PacketChannel,
    buffers: SharedBuffers,
    request: JsonObject,
    descriptors: list[int],
) -> JsonObject:
    """Whether nothing in a tree of the cache was touched since it was made. Its owner can do so if he insists."""
    sealed = request["sealed"]
    stack = [request["path"]]
    try:
        if os.lstat(stack[0]).st_ctime_ns > sealed:
            return {"unchanged": False}
        while stack:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    if entry.stat(follow_symlinks=False).st_ctime_ns > sealed:
                        return {"unchanged": False}
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
    except OSError:
        return {"unchanged": False}
    return {"unchanged": True}


def _read_chunks(descriptor: int) -> Iterator[bytes]:
    """A file from its beginning, without moving its position, which is shared with the other half."""
    at = 0
    while data := os.pread(descriptor, _CHUNK, at):
        yield data
        at += len(data)


OPERATIONS: dict[str, Operation] = {
    "folders": _make_job_folders,
    "fill": _restore_tree,
    "copy": _copy_tree,
    "link": _link_input,
    "unchanged": _check_unchanged,
    "gather": pack_output,
}
