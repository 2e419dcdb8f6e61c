"""Objects on a storage node, by the ssh program: its ciphers are many times as fast as Python's."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, TypeVar

from burstd.domain.plugins.stager import StagerError, StoreBusy, StoreRefused
from burstd.transfer.protocol.client import ObjectServerClient
from burstd.transfer.protocol.ssh_program import ssh_argv

_T = TypeVar("_T")
_ALIAS = "burst-storage"
_TRIES = 5
_PIPE_BYTES = 256 << 10
_WAIT_S = 1.0
_REFUSALS = ("Permission denied", "Host key verification failed", "REMOTE HOST IDENTIFICATION", "no matching")


class SshObjectTransport:
    """Objects of a server over one SSH connection, made anew when it breaks."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._client: ObjectServerClient | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        keys = "".join(f"{_ALIAS} {line}\n" for line in _lines(facts["host_keys"]))
        self._known = _memory_file("known_hosts", keys)
        self._key = _memory_file("key", str(facts["key"]))

    def announce_gets(self, keys: Iterable[str]) -> None:
        """Nothing to prepare."""

    def get(self, key: str) -> bytes:
        """Returns an object's content."""
        return self._retry(lambda client: client.get(key))

    def get_into(self, key: str, buffer: memoryview) -> int:
        """Reads an object's content into ``buffer``; returns its length."""
        return self._retry(lambda client: client.get_into(key, buffer))

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object."""
        self._retry(lambda client: client.put(key, body))

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Returns the sizes of those that are there."""
        return self._retry(lambda client: client.present(keys))

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            self._end()
            for descriptor in (self._known, self._key):
                os.close(descriptor)

    def _retry(self, one: Callable[[ObjectServerClient], _T]) -> _T:
        wait = _WAIT_S
        for turn in range(1, _TRIES + 1):
            try:
                return one(self._connected_client())
            except StoreBusy:
                if turn == _TRIES:
                    raise
                time.sleep(wait)
                wait *= 2
        raise StoreBusy(f"{self._facts['host']} could not be reached in {_TRIES} tries")

    def _connected_client(self) -> ObjectServerClient:
        with self._lock:
            if self._client is None or self._client.broken:
                self._end()
                self._start()
            assert self._client is not None  # noqa: S101 - _start made it
            return self._client

    def _start(self) -> None:
        facts, own = self._facts, f"/proc/{os.getpid()}/fd"
        # ssh closes all descriptors but the first three when it starts: it opens ours anew, through this process.
        argv = ssh_argv(
            str(facts["host"]), str(facts["command"]), user=str(facts["user"]), port=int(facts["port"]),
            key_file=f"{own}/{self._key}", known_hosts_file=f"{own}/{self._known}", alias=_ALIAS,
        )  # fmt: skip
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        try:
            self._program = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr)
        except FileNotFoundError:
            raise StoreRefused("the node has no program ssh: install openssh-client in its image") from None
        program = self._program
        assert program.stdin is not None  # noqa: S101 - PIPE
        assert program.stdout is not None  # noqa: S101 - PIPE
        # Where a user's pipes may hold less in all, it keeps its size.
        with contextlib.suppress(OSError):
            fcntl.fcntl(program.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        name = f"the storage node {facts['host']}"
        self._client = ObjectServerClient(program.stdout, program.stdin, name=name, error_for=self._connection_error)

    def _connection_error(self, reason: str) -> StagerError:
        """What ssh complained of says more than that its stream ended."""
        said = ""
        if self._stderr is not None and self._program is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._program.wait(2.0)
            size = os.fstat(self._stderr.fileno()).st_size
            tail = os.pread(self._stderr.fileno(), 2000, max(0, size - 2000)).decode("utf-8", "replace")
            said = " ".join(tail.split())
        sentence = f"the storage node {self._facts['host']}: {reason}{f' ({said})' if said else ''}"
        return StoreRefused(sentence) if any(word in said for word in _REFUSALS) else StoreBusy(sentence)

    def _end(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._program is not None:
            self._program.kill()
            self._program.wait()
        if self._stderr is not None:
            self._stderr.close()
        self._client = self._program = self._stderr = None


def _lines(host_keys: str | Sequence[str]) -> Sequence[str]:
    return host_keys.splitlines() if isinstance(host_keys, str) else host_keys


def _memory_file(name: str, content: str) -> int:
    """A file without a name on any disk, for root only."""
    descriptor = os.memfd_create(name)
    os.fchmod(descriptor, 0o600)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content.encode() if content.endswith("\n") else f"{content}\n".encode())
    return descriptor
