"""What the agent has done with the user's rights: each of these runs in the child."""

# ruff: noqa: PTH114, PTH118

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress

from burstd.transfer.agent.packing import gather
from burstd.transfer.agent.restore import Filler
from burstd.transfer.agent.user_process import AgentFault, Line, Message, Slots, Work
from burstd.transfer.agent.window import Objects
from burstd.transfer.content_store.manifest import ManifestDamaged

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


def _folders(line: Line, slots: Slots, request: Message, descriptors: list[int]) -> Message:  # noqa: ARG001 - a Work
    """The job's folders, in the folder ``dir`` that is the user's already."""
    top = os.open(request["dir"], _DIRECTORY)
    try:
        for name in ("in", "out", "scratch"):
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=top)
    finally:
        os.close(top)
    return {}


def _fill(line: Line, slots: Slots, request: Message, descriptors: list[int]) -> Message:
    """A read-only tree from objects. Descriptors: the directory, the manifest, the journal of what is done already."""
    base, manifest, journal = descriptors
    try:
        with open(journal, "rb", closefd=False) as rows:
            objects = Objects(line, slots, rows)
        filler = Filler(base, "tree", single=request["single"], read_only=True, again=request["again"])
        filler.run(_chunks(manifest), objects)
    except ManifestDamaged as error:
        raise AgentFault("damaged", f"the input {request['name']} cannot be made: {error}") from None
    return {}


def _copy(line: Line, slots: Slots, request: Message, descriptors: list[int]) -> Message:  # noqa: ARG001 - a Work
    """The job's own copy of a tree in the cache. Descriptors: the manifest."""
    name, unfinished = request["name"], f".{request['name']}.unfinished"
    folder = os.open(os.path.join(request["dir"], "in"), _DIRECTORY)
    try:
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            return {"made": False}
        _remove(folder, unfinished)
        flags = os.O_RDONLY | os.O_NOFOLLOW | (0 if request["single"] else os.O_DIRECTORY)
        if request["single"] and os.path.islink(request["tree"]):
            # Nothing of it is read: the manifest says where it leads.
            tree = os.open(os.devnull, os.O_RDONLY)
        else:
            tree = os.open(request["tree"], flags)
        try:
            filler = Filler(folder, unfinished, single=request["single"], read_only=False, again=False)
            filler.copy(_chunks(descriptors[0]), tree)
        except ManifestDamaged as error:
            raise AgentFault("damaged", f"the input {name} cannot be copied: {error}") from None
        finally:
            os.close(tree)
        os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
    return {"made": True}


def _remove(folder: int, name: str) -> None:
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


def _link(line: Line, slots: Slots, request: Message, descriptors: list[int]) -> Message:  # noqa: ARG001 - a Work
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


def _unchanged(line: Line, slots: Slots, request: Message, descriptors: list[int]) -> Message:  # noqa: ARG001 - a Work
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


def _chunks(descriptor: int) -> Iterator[bytes]:
    """A file from its beginning, without moving its position, which is shared with the other half."""
    at = 0
    while data := os.pread(descriptor, _CHUNK, at):
        yield data
        at += len(data)


WORKS: dict[str, Work] = {
    "folders": _folders,
    "fill": _fill,
    "copy": _copy,
    "link": _link,
    "unchanged": _unchanged,
    "gather": gather,
}
