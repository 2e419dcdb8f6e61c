"""A job's shared scratch on a node: a directory on the first one, which the others mount from it by sshfs.

The first node runs an sshd for this job alone: as the job's user, in a process namespace of its own, so that all of it
ends with one process. It lets one key in, and for SFTP only. What runs for a job has its state directory among its
arguments; that is how ``end_sharing`` finds it, whoever has started it and whatever was cut short. The directory lies
beside the job's folder, where only root puts names: nobody can have root mount it elsewhere.
"""

# ruff: noqa: PTH101, PTH102, PTH108, PTH110, PTH116, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from burstd.domain.units import size_text
from burstd.transfer.agent.cache import remove_tree
from burstd.transfer.agent.job_folder import JobFolder
from burstd.transfer.agent.unmount import mount_points, unmount_tree
from burstd.transfer.agent.user_process import AgentFault, JsonObject, chown_to_user

STATE = "/run/burstd/shared"
PORTS = range(43000, 44000)
"""Of the sshd on a job's first node."""
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
_TRIES = 20
"""Ports."""
_TIMEOUT_S = 30.0
_SSHD_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {state}/host_key
AuthorizedKeysFile {state}/authorized_keys
AuthenticationMethods publickey
ForceCommand internal-sftp -u 0
Subsystem sftp internal-sftp
DisableForwarding yes
PermitTTY no
PermitUserRC no
PermitUserEnvironment no
UsePAM no
PidFile none
MaxStartups 1000
ClientAliveInterval 60
ClientAliveCountMax 5
LogLevel ERROR
"""
_SSH_CONFIG = """\
Host shared
HostName {address}
Port {port}
User "{user}"
HostKeyAlias shared
IdentityFile {state}/key
IdentitiesOnly yes
UserKnownHostsFile {state}/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
BatchMode yes
ConnectTimeout 15
ServerAliveInterval 15
ServerAliveCountMax 20
"""
_MOUNT_OPTIONS = "reconnect,allow_other,default_permissions,nosuid,nodev,auto_cache,dir_cache=no,fsname=burstd-shared"


_UNTRACEABLE = ("--no-new-privs", "--inh-caps", "+wake_alarm", "--ambient-caps", "+wake_alarm")
"""Words of setpriv. A process may trace only one that has no capability beyond its own (capabilities(7), ptrace(2)), so
one that is of no other use keeps the user's processes from running code in his sshd, which is not in the job's cgroup.
"""


def shared_path(folder: JobFolder) -> str:
    """Where the job finds it, on all of its nodes."""
    return f"{folder.path}.shared"


def serve_shared(folder: JobFolder, request: JsonObject) -> JsonObject:
    """Makes it on the first node, empty, and with ``server`` starts its sshd. The answer has its ``port``.

    ``server``: ``address`` to listen at, ``host_key`` (private) and ``client_key`` (public) in OpenSSH's form.
    ``bytes``: what must be free. Raises AgentFault, OSError.
    """
    server = request["server"]
    if server is not None:
        _require_tools("the first node of the job", ("sshd", "unshare", "setpriv"))
    _begin(folder, request["job"])
    path = shared_path(folder)
    os.mkdir(path, 0o700)
    os.chmod(path, 0o700)
    chown_to_user(path, request["uid"], request["gid"])
    about = os.statvfs(path)
    free = about.f_bavail * about.f_frsize
    if free < request["bytes"]:
        raise AgentFault(
            "space",
            f"the job asks for {size_text(request['bytes'])} of scratch in all, and {size_text(free)} are free below "
            f"{path}: ask for less, or submit to a partition whose machines have larger disks",
        )
    return {"port": 0 if server is None else _start_sshd(folder, request, server)}


def mount_shared(folder: JobFolder, request: JsonObject) -> JsonObject:
    """Mounts it on another node. ``server``: ``address``, ``port``, ``host_key`` (public), ``client_key`` (private).

    Raises AgentFault, OSError.
    """
    _require_tools("each node of the job", ("sshfs", "ssh"))
    if not os.path.exists("/dev/fuse"):
        subprocess.run(["modprobe", "fuse"], capture_output=True, check=False)
    if not os.path.exists("/dev/fuse"):
        raise AgentFault(
            "rights", "'scratch shared' needs /dev/fuse on the node: load the kernel module fuse in the image"
        )
    _begin(folder, request["job"])
    path, state, server = shared_path(folder), _state(folder), request["server"]
    os.mkdir(path, 0o700)
    config = _SSH_CONFIG.format(address=server["address"], port=int(server["port"]), user=request["user"], state=state)
    _write(f"{state}/ssh_config", config, 0o600)
    _write(f"{state}/known_hosts", f"shared {server['host_key']}\n", 0o600)
    _write(f"{state}/key", server["client_key"], 0o600)
    options = _MOUNT_OPTIONS
    told = subprocess.run(["sshfs", "-h"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if b"no_contain_symlinks" in told.stdout + told.stderr:
        options += ",no_contain_symlinks"
    argv = ["sshfs", "-F", f"{state}/ssh_config", "-o", options, f"shared:{path}", path]
    with open(f"{state}/log", "wb") as log:
        # Not a pipe: sshfs stays behind, and would keep it open.
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        try:
            process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if not mount_points(path):
        raise AgentFault(
            "agent",
            f"the shared scratch of the job's first node, {server['address']} port {server['port']}, cannot be "
            f"mounted: {_last_line(state)}. Nodes must reach each other on the ports {PORTS.start} to {PORTS.stop - 1}",
        )
    return {}


def end_sharing(folder: JobFolder, job: str) -> bool:
    """Ends all that runs for it on this node, and unmounts it; returns whether it was there. May be repeated.

    What the job has mounted in it, and has left, is unmounted too. Raises AgentFault, OSError.
    """
    record = folder.read_record()
    if record is None or record["job"] != job or not record.get("shared"):
        return False
    # Its processes first: what is mounted from a node that is gone answers then, with an error.
    _kill_all(_state(folder), record["uid"])
    if os.geteuid() == 0 and not unmount_tree(shared_path(folder)):
        raise AgentFault("agent", f"{mount_points(shared_path(folder))[0]} cannot be unmounted on the node")
    return True


def remove_shared(folder: JobFolder, job: str) -> None:
    """Ends it, and removes it from this node. May be repeated. Raises AgentFault, OSError."""
    if end_sharing(folder, job):
        remove_tree(shared_path(folder))
        remove_tree(_state(folder))
        folder.write_record({**(folder.read_record() or {}), "shared": False})


def _begin(folder: JobFolder, job: str) -> None:
    """Nothing of an attempt before is left, and what is begun now is on record."""
    remove_shared(folder, job)
    record = folder.read_record()
    if record is None:
        raise AgentFault("agent", f"{folder.record} is gone: somebody cleared the job")
    path = shared_path(folder)
    if os.path.lexists(path):
        raise AgentFault("agent", f"{path} is there already, and burstd has not made it: move it away")
    folder.write_record({**record, "shared": True})
    if os.geteuid() == 0:
        for directory, mode in ((os.path.dirname(STATE), 0o755), (STATE, 0o711), (_state(folder), 0o711)):
            with suppress(FileExistsError):
                os.mkdir(directory)
            os.chmod(directory, mode)


def _state(folder: JobFolder) -> str:
    return f"{STATE}/{os.path.basename(folder.path)}"


def _require_tools(where: str, tools: Sequence[str]) -> None:
    if os.geteuid() != 0:
        raise AgentFault(
            "rights",
            "'scratch shared' for several nodes needs root on them, and the machines of this pool have none: submit to "
            "a partition of virtual machines, or for one node",
        )
    if missing := [tool for tool in tools if shutil.which(tool, path=_SYSTEM_PATH) is None]:
        raise AgentFault(
            "rights",
            f"'scratch shared' for several nodes needs {' and '.join(missing)} on {where}: submit to a partition whose "
            "image has OpenSSH's server and sshfs, or for one node",
        )


def _start_sshd(folder: JobFolder, request: JsonObject, server: JsonObject) -> int:
    """Its port."""
    state, uid, gid = _state(folder), request["uid"], request["gid"]
    _write(f"{state}/authorized_keys", f"restrict {server['client_key']}\n", 0o644)
    _write(f"{state}/host_key", server["host_key"], 0o600)
    os.chown(f"{state}/host_key", uid, gid)
    for port in random.sample(PORTS, _TRIES):
        config = _SSHD_CONFIG.format(port=port, address=server["address"], state=state)
        _write(f"{state}/sshd_config", config, 0o644)
        sshd = str(shutil.which("sshd", path=_SYSTEM_PATH))
        groups = ",".join(str(group) for group in request["groups"] or [gid])
        user = ["setpriv", "--reuid", str(uid), "--regid", str(gid), "--groups", groups, *_UNTRACEABLE]
        with open(f"{state}/log", "wb") as log:
            process = subprocess.Popen(
                ["unshare", "--pid", "--fork", *user, "--", sshd, "-D", "-e", "-f", f"{state}/sshd_config"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
                env={"PATH": _SYSTEM_PATH},
            )  # fmt: skip
        if _listens(server["address"], port, process):
            return port
        _kill_all(state, uid)
    raise AgentFault("agent", f"sshd does not start on the job's first node: {_last_line(state)}")


def _listens(address: str, port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((address, port), 1.0) as wire:
            wire.settimeout(5.0)
            if wire.recv(4) == b"SSH-" and process.poll() is None:
                return True
        time.sleep(0.05)
    return False


def _kill_all(state: str, uid: int) -> None:
    """Ends root's and the user's processes that have this state directory among their arguments. Raises AgentFault."""
    deadline = time.monotonic() + 10.0
    while found := _processes(state, uid):
        if time.monotonic() > deadline:
            raise AgentFault("agent", f"process {found[0]} of the job's shared scratch does not end on the node")
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _processes(state: str, uid: int) -> list[int]:
    found = []
    mark = f"{state}/".encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                if mark in file.read() and os.stat(f"/proc/{name}").st_uid in {0, uid}:
                    found.append(int(name))
    return found


def _last_line(state: str) -> str:
    with open(f"{state}/log", "rb") as file:
        lines = file.read(65536).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else "no word of why"


def _write(path: str, text: str, mode: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.chmod(path, mode)
        file.write(text)
