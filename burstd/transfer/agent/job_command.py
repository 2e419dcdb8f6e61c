"""A command in a running job: as its user, in its cgroup, with its environment, directory and standard output."""

# ruff: noqa: PTH116, PTH123, PTH208

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from typing import BinaryIO

from burstd.transfer.agent.user_process import AgentFault, JsonObject, PacketChannel, SharedBuffers, UserProcess

_SIGNALLED = 128
_UMASK = re.compile(r"^Umask:\s*([0-7]+)$", re.MULTILINE)


def run_job_command(request: JsonObject, user: UserProcess) -> JsonObject:
    """Runs ``command`` by ``sh -c`` for ``limit_s`` seconds at most. Raises AgentFault.

    The answer has ``exit_code`` (None: it was killed when its time was over) and ``seconds``.
    """
    pid = _process_of_job(request["job"], request["uid"])
    user.join_job(pid, request["job"])
    user.drop_privileges(request["uid"], request["gid"], request["groups"])
    what = {name: request[name] for name in ("command", "limit_s")}
    answer: JsonObject = user.call_operation({"do": "command", "pid": pid, **what})
    return answer


def run_command(
    channel: PacketChannel, buffers: SharedBuffers, request: JsonObject, descriptors: list[int]
) -> JsonObject:
    """The half with the user's rights."""
    job = f"/proc/{request['pid']}"
    with open(f"{job}/environ", "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
        environment = {name: value for name, equals, value in pairs if name and equals}
    with open(f"{job}/status", encoding="utf-8") as file:
        umask = _UMASK.search(file.read())
    began = time.monotonic()
    # Slurm appends to a job's output file, so the lines of both are there.
    with _output_of(job) as output:
        process = subprocess.Popen(
            [b"/bin/sh", b"-c", os.fsencode(request["command"])], stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, cwd=_directory_of(job, environment), env=environment,
            umask=int(umask[1], 8) if umask else 0o022, start_new_session=True,
        )  # fmt: skip
    exit_code: int | None = None
    try:
        status = process.wait(request["limit_s"])
        exit_code = status if status >= 0 else _SIGNALLED - status
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return {"exit_code": exit_code, "seconds": round(time.monotonic() - began, 3)}


def _output_of(job: str) -> BinaryIO:
    """The standard output of the job's process. None where there is none to open, a socket's for one, or to read it."""
    try:
        # A pipe that nobody reads would not be opened otherwise, without end.
        fd = os.open(f"{job}/fd/1", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        os.set_blocking(fd, True)
    except OSError:
        fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    return open(fd, "wb", buffering=0)


def _directory_of(job: str, environment: dict[bytes, bytes]) -> bytes:
    """The working directory of the job's process, else the user's home directory, else the root directory."""
    for path in (os.fsencode(f"{job}/cwd"), environment.get(b"HOME", b"")):
        # One that was removed can still be entered here, and then has no name that the command could use.
        with suppress(OSError):
            if os.stat(path).st_nlink > 0 and os.access(path, os.X_OK):
                return path
    return b"/"


def _process_of_job(job: str, uid: int) -> int:
    """The first process of the user's in the job: its batch script, where that runs here. Raises AgentFault."""
    mark = f"SLURM_JOB_ID={job}".encode()
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        return pid
    raise AgentFault("agent", f"job {job} has no process on the node")
