"""The store that is a PersistentVolumeClaim which burst pods mount, and the head does not.

The head gets at it by a pod of its own, the mover, in which burstd's program is run through pods/exec for each session.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from burstd.domain.errors import CloudUnavailable, NotFound, ProviderError
from burstd.domain.plugins.stager import NodeAccess, StagerError, StagerPlugin, StoreBusy, StoreRefused
from burstd.transfer.protocol.client import ObjectServerClient
from staging.names import cluster_prefix, store_marker
from staging.pvc.exec_pipe import ExecPipe
from staging.pvc.mover_pod import CONTAINER, FIRST_SESSION_WAIT_S, MoverPod
from staging.pvc.settings import PvcSettings
from staging.roots import SharedRoots
from staging.served import ServerStager, server_zipapp

if TYPE_CHECKING:
    from providers.openshift.client.calls import OpenShiftCalls
    from providers.openshift.client.websocket import Channels

_STDERR_WAIT_S = 2.0
_MOVER_EXIT_S = 15.0
"""A mover that ends has ended after so long, as a rule."""
_START = """\
import os, sys
left, file = int(sys.argv[1]), os.memfd_create("burstd-serve", 0)
while left:
    part = os.read(0, min(left, 65536))
    if not part:
        sys.exit(66)
    os.write(file, part)
    left -= len(part)
os.execv(sys.executable, [sys.executable, "-I", "/proc/self/fd/%d" % file, *sys.argv[2:]])
"""


class PvcStager(ServerStager):
    """Objects as files of a claim."""

    starts_server = True

    def __init__(self, name: str, cluster: str, settings: PvcSettings) -> None:
        self._calls_lock = threading.Lock()
        self._calls: OpenShiftCalls | None = None
        self._mover = MoverPod(name, cluster, settings, self._api)
        super().__init__(name, self._mover.where, settings.connections)
        self._settings = settings
        self._root = f"{settings.path}/{cluster_prefix(cluster)}"
        self._program = server_zipapp()
        self._marker = store_marker(
            settings.kubeconfig, settings.context, settings.namespace, settings.claim, settings.sub_path
        )
        self._marker_checked = False
        options = [*["--sync"][: settings.sync], "--idle", str(settings.idle_s), "--mark", self._marker]
        self._argv = [settings.python, "-I", "-c", _START, str(len(self._program)), *options, self._root]
        self._roots = SharedRoots(settings.roots)
        self._cleanup_timer: threading.Timer | None = None

    def node_access(self) -> NodeAccess:
        """The folder as burst pods see it, which bears the claim's mark: each session of the mover sees to that."""
        if not self._marker_checked:
            self.free_bytes()
            self._marker_checked = True
        return NodeAccess("dir", {"path": self._root, "mark": self._marker})

    def sign(self, method: Literal["GET", "PUT"], keys: Sequence[str]) -> Mapping[str, str]:
        """There are no URLs."""
        raise StoreRefused(f"{self._where} is a folder: there is no URL to {method} {len(keys)} objects")

    @property
    def awake(self) -> bool:
        """Whether there is a session."""
        return any(not link.broken for link in self._clients)

    def in_place(self, path: str) -> str | None:
        """Returns the path by which nodes see this path of the head; None: they do not."""
        return self._roots.node_path(path)

    def close(self) -> None:
        """Ends the sessions; the mover ends by itself when nobody else has one."""
        super().close()
        with self._calls_lock:
            if self._cleanup_timer is not None:
                self._cleanup_timer.cancel()
            calls, self._calls = self._calls, None
        if calls is not None:
            calls.close()

    def _prepare_server(self) -> None:
        self._mover.ensure_running(self._closed)

    def _connect(self) -> ObjectServerClient:
        pipe = ExecPipe(self._exec, self._program)
        return ObjectServerClient(
            pipe.read, pipe.write, name=self._where, timeout_s=self._settings.timeout_s,
            error_for=lambda reason: self._connection_error(pipe, reason),
        )  # fmt: skip

    def _exec(self) -> Channels:
        return self._api().exec_socket(self._mover.name, self._argv, container=CONTAINER)

    def _connection_error(self, pipe: ExecPipe, reason: str) -> StagerError:
        """Why a session is no more. The mover is looked for before the next one."""
        self._prepared = False
        if not self._closed.is_set():
            self._schedule_cleanup()
        pipe.wait(_STDERR_WAIT_S if reason == "it hung up" or "broke" in reason else 0.0)
        if isinstance(pipe.error, NotFound):
            return StoreBusy(f"{self._where}: the mover pod {self._mover.name} is gone")
        if isinstance(pipe.error, ProviderError):
            return self._mover.stager_error(pipe.error)
        return StoreBusy(f"{self._where}: {pipe.error_text or reason}")

    def _schedule_cleanup(self) -> None:
        """When the mover has ended for want of work, its pod is removed; one of a dead burstd, at the next need."""
        with self._calls_lock:
            if self._cleanup_timer is not None:
                self._cleanup_timer.cancel()
            self._cleanup_timer = threading.Timer(
                min(self._settings.idle_s, FIRST_SESSION_WAIT_S) + _MOVER_EXIT_S, self._clean_up
            )
            self._cleanup_timer.daemon = True
            self._cleanup_timer.start()

    def _clean_up(self) -> None:
        try:
            left = self._mover.delete_if_ended()
        except StagerError:
            left = True
        # Somebody else may have a session there.
        if left and not self._prepared and not self._closed.is_set():
            self._schedule_cleanup()

    def _api(self) -> OpenShiftCalls:
        from providers.openshift.client.calls import OpenShiftCalls  # noqa: PLC0415 - slow to import

        with self._calls_lock:
            if self._closed.is_set():
                raise CloudUnavailable("the store was closed")
            if self._calls is None:
                self._calls = OpenShiftCalls(self._settings)
            return self._calls


def _make(name: str, cluster: str, settings: PvcSettings) -> PvcStager:
    return PvcStager(name, cluster, settings)


plugin = StagerPlugin(name="pvc", settings=PvcSettings, make=_make)
