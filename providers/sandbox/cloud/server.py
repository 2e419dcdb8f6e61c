"""The cloud server: ``python -m providers.sandbox.cloud.server --config FILE``. Its boxes outlive it."""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from providers.sandbox.boxes.errors import NetworkFailed, SandboxError
from providers.sandbox.boxes.images import rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from providers.sandbox.boxes.processes import Process
from providers.sandbox.cloud.app import make_app
from providers.sandbox.cloud.box_backend import BoxBackend
from providers.sandbox.cloud.cloud import SandboxCloud
from providers.sandbox.cloud.inventory.resources import SandboxInstanceState, SandboxMachine
from providers.sandbox.cloud.settings import ImageSettings, ServerSettings

_CLONE_NEWNET = 0x40000000
_WATCH_S = 0.2
_SOCKET_PATH_MAX = 107


@contextmanager
def inside_network(network: LabNetwork) -> Iterator[None]:
    """The calling thread is on the hub's network meanwhile; a socket made there stays there."""
    if network.hub is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)

    def move(descriptor: int) -> None:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise NetworkFailed(f"the hub cannot be entered: {os.strerror(ctypes.get_errno())}", "start the lab again")

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    hub = os.open(network.path_of(network.namespace or ""), os.O_RDONLY | os.O_CLOEXEC)
    try:
        move(hub)
        try:
            yield
        finally:
            move(home)
    finally:
        os.close(home)
        os.close(hub)


def open_sockets(settings: ServerSettings, network: LabNetwork) -> list[socket.socket]:
    """Sockets for the lab (unix, for root only) and for clients (TCP, on the hub). Raises NetworkFailed."""
    path = str(settings.socket)
    if len(path) > _SOCKET_PATH_MAX:
        raise NetworkFailed(f"{path} is too long for a socket", "choose a state directory with a shorter name")
    settings.socket.unlink(missing_ok=True)  # of a server that was killed: the lock is ours
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        unix.bind(path)
    finally:
        os.umask(mask)
    with inside_network(network):
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        tcp.bind((network.gateway, settings.port))
    except OSError as error:
        where = f"{network.gateway}:{settings.port}"
        raise NetworkFailed(f"the cloud cannot listen at {where}: {error.strerror}", "choose another port") from error
    return [unix, tcp]


def layers_of(image: ImageSettings, cache: Path | None) -> list[Path]:
    """An image's layers; its root file system is built when it is missing."""
    base = [] if image.suite is None else [rootfs.ensure_rootfs(image.suite, cache, _say).path]
    return [*image.layers, *base]


class StateKeeper:
    """Keeps the cloud's state in a file, and does what is due when it is due."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._wake = threading.Event()
        self._end = False
        self.cloud: SandboxCloud | None = None

    def save(self) -> None:
        """Writes the state, whole or not at all."""
        if self.cloud is None:
            return
        unfinished = self._file.with_name(self._file.name + ".new")
        unfinished.touch(mode=0o600)
        unfinished.write_text(json.dumps(self.cloud.to_json()), encoding="utf-8")
        unfinished.rename(self._file)
        self._wake.set()

    def watch(self, cloud: SandboxCloud, backend: BoxBackend) -> None:
        """Runs until ``end``."""
        while not self._end:
            self._wake.clear()
            due = cloud.advance()
            for machine in cloud.machines():
                if machine.state is SandboxInstanceState.RUNNING and not machine.lies:
                    self._check_machine(machine, cloud, backend)
            self._wake.wait(_WATCH_S if due is None else min(_WATCH_S, max(0.0, due - time.time())))

    @staticmethod
    def _check_machine(machine: SandboxMachine, cloud: SandboxCloud, backend: BoxBackend) -> None:
        try:
            why = backend.death_reason(machine)
        except OSError as error:  # its files are going just now, or the disk is bad: look again next time
            _say(f"{machine.id} cannot be looked at: {error}")
            return
        if why:
            cloud.report_death(machine.id, why)

    def stop(self) -> None:
        """Makes ``watch`` return."""
        self._end = True
        self._wake.set()


def serve_cloud(settings: ServerSettings) -> None:
    """Serves until SIGTERM. Raises SandboxError."""
    lab = Lab(settings.state, settings.lab.network())
    lab.up()
    lock = os.open(settings.state / "cloud.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SandboxError("the cloud of this lab is served already", "stop that server first") from None
    lab.record("cloud", Process.current())
    token = settings.token_file.read_text(encoding="utf-8").strip()
    if not token:
        raise SandboxError(f"{settings.token_file} is empty", "write a token into it")
    sockets = open_sockets(settings, lab.network)
    backend = BoxBackend(lab, {name: layers_of(image, settings.cache) for name, image in settings.images.items()})
    state_keeper = StateKeeper(settings.state / "cloud.json")
    cloud = SandboxCloud(
        settings.catalog(), time.time, backend, pause=time.sleep, changed=state_keeper.save,
        image_fault=backend.image_fault,
    )  # fmt: skip
    state_file = settings.state / "cloud.json"
    if state_file.exists():
        cloud.restore(json.loads(state_file.read_text(encoding="utf-8")))
        backend.resume_machines(cloud.machines())
    state_keeper.cloud = cloud
    watcher = threading.Thread(target=state_keeper.watch, args=(cloud, backend), name="watcher", daemon=True)
    watcher.start()
    config = uvicorn.Config(
        make_app(cloud, token), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2
    )
    try:
        uvicorn.Server(config).run(sockets)
    finally:
        state_keeper.stop()
        watcher.join()
        backend.close()


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m providers.sandbox.cloud.server", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="TOML file: see server_settings.py")
    arguments = parser.parse_args()
    try:
        serve_cloud(ServerSettings.load(arguments.config))
    except SandboxError as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
