"""What the agent has done with the user's rights: each of these runs in the child."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from burstd.transfer.agent.checkpoint import read_checkpoint
from burstd.transfer.agent.job_command import run_command
from burstd.transfer.agent.packing import pack_output
from burstd.transfer.agent.restore import copy_input, restore_input
from burstd.transfer.agent.user_process import AgentFault, JsonObject, Operation, PacketChannel, SharedBuffers
from burstd.transfer.privsep.safe_directory import SafeDirectory


def _make_job_folders(
    channel: PacketChannel, buffers: SharedBuffers, request: JsonObject, descriptors: list[int]
) -> JsonObject:
    """The job's folders, in the folder ``dir`` that is the user's already."""
    directory = SafeDirectory(request["dir"])
    for name in ("in", "out", "scratch"):
        # A job that ran here before may have put something else in its place.
        with suppress(NotADirectoryError):
            directory.make_directory(name)
    directory.close()
    return {}


def _link_input(
    channel: PacketChannel, buffers: SharedBuffers, request: JsonObject, descriptors: list[int]
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
    folder, name = SafeDirectory(f"{request['dir']}/in"), request["name"]
    facts = folder.lstat(name)
    if facts is not None and not stat.S_ISLNK(facts.st_mode):
        raise AgentFault("agent", f"the input {name} is there already, and is no link of burstd's")
    folder.symlink(request["target"], name, None, "")
    folder.close()
    return {}


def _check_unchanged(
    channel: PacketChannel, buffers: SharedBuffers, request: JsonObject, descriptors: list[int]
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


def _make_directories(
    channel: PacketChannel, buffers: SharedBuffers, request: JsonObject, descriptors: list[int]
) -> JsonObject:
    """Directories in ``path``, for what the job is to write there. Files that have such a name stay."""
    top = SafeDirectory(request["path"])
    for directory in request["directories"]:
        parts = directory.split("/")
        with suppress(NotADirectoryError):
            for depth in range(len(parts)):
                name = "/".join(parts[: depth + 1])
                if top.make_directory(name):
                    top.finalize_directory(name, 0o755, 0)
    top.close()
    return {}


OPERATIONS: dict[str, Operation] = {
    "folders": _make_job_folders,
    "fill": restore_input,
    "copy": copy_input,
    "link": _link_input,
    "unchanged": _check_unchanged,
    "gather": pack_output,
    "directories": _make_directories,
    "checkpoint": read_checkpoint,
    "command": run_command,
}
