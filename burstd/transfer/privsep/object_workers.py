"""Object workers: a process with a user's rights that reaches S3 and Swift with that user's own credentials.

The program is one of the extras (staging.objects.user_worker); it answers as the worker for files does, and to URLs.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burstd.transfer.privsep.client import Account, UserWorker, UserWorkerError, listening_socket, start_worker_process

SCHEMES = ("s3", "swift")
_PROGRAM = "staging.objects.user_worker"


def object_scheme(location: str) -> str:
    """``s3`` or ``swift`` where a source or destination lies there; empty: a path."""
    name, separator, _ = location.partition("://")
    return name if separator and name in SCHEMES else ""


class ObjectWorker(UserWorker):
    """A UserWorker with URLs for absolute paths: what is no object is left out, and what a store does not keep is lost.

    Directories and their times are nothing; files keep their times where rclone looks for them.
    """

    def __init__(self, sock: socket.socket, child: subprocess.Popen[bytes] | None = None) -> None:
        super().__init__(sock, child)
        self._kill_on_close = sock.gettimeout() is not None
        self.left_out: list[str] = []
        """Paths of what was to be written and is no object."""
        self.bytes_fetched = 0

    def close(self) -> None:
        """Ends it, at once where answers have a time limit."""
        if self._kill_on_close and self._child is not None:
            self._child.kill()
        super().close()

    def fetch_objects(self, source: str, rows: Sequence[list[Any]]) -> list[int]:
        """Fetches the objects and counts their bytes."""
        fds = super().fetch_objects(source, rows)
        self.bytes_fetched += sum(row[2] for row in rows)
        return fds

    def symlink(
        self,
        root: str,
        items: Sequence[tuple[str, str, int | None]],
        *,
        job: str,  # noqa: ARG002 - see UserWorker
    ) -> None:
        """Leaves them out."""
        self.left_out += [f"{root.rstrip('/')}/{path}" for _, path, _ in items]

    def hardlink(self, root: str, items: Sequence[tuple[str, str]], *, job: str) -> None:
        """Copies the objects, within their store; leaves out what is too large for that."""
        for earlier, path in items:
            try:
                super().hardlink(root, [(earlier, path)], job=job)
            except UserWorkerError as error:
                if error.errno != errno.EFBIG:
                    raise
                self.left_out.append(f"{root.rstrip('/')}/{path}")


def object_worker_for(
    who: Account,
    kind: str,
    *,
    socket_path: Path | None = None,
    min_uid: int = 1000,
    timeout_s: float | None = None,
    loopback: bool = False,
) -> ObjectWorker:
    """An object worker of an account for ``s3`` or ``swift``, as user_worker_for; ``timeout_s`` for each answer.

    Raises UserWorkerError.

    ``loopback``: it may also reach servers on this machine, which a user's configuration could name otherwise in order
    to be answered as nobody from outside is.
    """
    found = importlib.util.find_spec(_PROGRAM)
    if found is None or found.origin is None:
        raise UserWorkerError("", errno.ENOSYS, f"burstd was installed without {_PROGRAM}: install it whole")
    hello = {"uid": who.uid, "gid": who.gid, "groups": list(who.groups or (who.gid,)), "home": who.home}

    def make_client(sock: socket.socket, child: subprocess.Popen[bytes] | None) -> ObjectWorker:
        sock.settimeout(timeout_s)
        return ObjectWorker(sock, child)

    # The site's way out, if it has one; nothing else of burstd's.
    env = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    if socket_path is not None and not listening_socket(socket_path).exists():
        text = f"{kind}:// cannot be reached: start burstd-object-worker.socket, which is {socket_path}"
        raise UserWorkerError("", errno.ENOENT, text)
    return start_worker_process(
        make_client, [found.origin], {**hello, "objects": kind, "loopback": loopback}, socket_path, min_uid, env
    )
