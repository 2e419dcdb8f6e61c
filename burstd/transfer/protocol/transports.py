"""How an agent gets and puts objects: a folder that the node sees, URLs, or a storage node by ssh.

Objects by URLs that burstd signs: the node has no credentials of the store.
"""

from __future__ import annotations

import http.client

# ruff: noqa: PTH102, PTH116
import os
import random
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from burstd.domain.plugins.stager import (
    OBJECT_BYTES,
    NoSuchObject,
    StagerError,
    StoreBusy,
    StoreRefused,
    StoreSpaceGone,
    object_too_large,
)
from burstd.transfer.content_store.object_folder import ObjectFolder, write_all

QueryHead = Callable[[dict[str, Any]], dict[str, Any]]
"""Puts a question to whoever runs the agent, and returns the answer."""


class ObjectTransport(Protocol):
    """A store as the agent sees it. For several threads at once; raises StagerError kinds (NoSuchObject among them)."""

    def announce_gets(self, keys: Iterable[str]) -> None:
        """Says which keys will be got next, so that what is needed for that is asked for in one go."""
        ...

    def get_into(self, key: str, buffer: memoryview) -> int:
        """An object's content into ``buffer``; returns its length. Raises StoreRefused where it is larger."""
        ...

    def get(self, key: str) -> bytes:
        """An object's content."""
        ...

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object."""
        ...

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Those that are there, with their sizes in bytes."""
        ...

    def close(self) -> None:
        """Gives connections back."""
        ...


def open_transport(reach: Mapping[str, Any], query_head: QueryHead) -> ObjectTransport:
    """The transport of ``{"kind": "dir" | "http" | "ssh", "facts": {...}}`` (see NodeAccess)."""
    kind, facts = reach["kind"], reach.get("facts", {})
    if kind == "dir":
        return FolderObjectTransport(facts["path"], facts.get("mark", ""))
    if kind == "http":
        return HttpObjectTransport(query_head)
    if kind == "ssh":
        from burstd.transfer.protocol.ssh_objects import SshObjectTransport  # noqa: PLC0415 - see above

        return SshObjectTransport(facts)
    raise StoreRefused(f"the node's agent knows no way {kind!r} to a store: burstd and its stager differ in version")


class FolderObjectTransport:
    """Objects in a folder. What root writes there is its owner's, who may be burstd's user on the head.

    ``marker``: what it must bear (ObjectFolder); empty: it is made where it is missing.
    """

    def __init__(self, path: str, marker: str = "") -> None:
        self._path = path
        self._folder = ObjectFolder(path, marker=marker, must_exist=bool(marker))

    def announce_gets(self, keys: Iterable[str]) -> None:
        """Nothing to prepare."""

    def get_into(self, key: str, buffer: memoryview) -> int:
        """Reads an object's content into ``buffer``; returns its length."""
        with self._folder.open_for_reading(key) as (descriptor, size):
            if size > len(buffer):
                raise object_too_large(key)
            got = 0
            while got < size:
                count = os.preadv(descriptor, [buffer[got:size]], got)
                if not count:
                    break
                got += count
        if got != size:
            raise StoreBusy(f"the object {key} in {self._path} changed its size while it was read; ask again")
        return got

    def get(self, key: str) -> bytes:
        """Returns an object's content."""
        return self._folder.get(key)

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object."""
        self._folder.ensure_root()
        owner = os.stat(self._path)
        if os.geteuid() != 0 or owner.st_uid == 0:
            self._folder.put(key, body)
            return
        above = self._path
        for part in key.split("/")[:-1]:
            above = f"{above}/{part}"
            try:
                os.mkdir(above, 0o700)
                os.chown(above, owner.st_uid, owner.st_gid, follow_symlinks=False)
            except FileExistsError:
                continue
        with self._folder.open_for_writing(key) as descriptor:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
            write_all(descriptor, memoryview(body).cast("B"))

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Returns the sizes of those that are there."""
        return self._folder.present(keys)

    def close(self) -> None:
        """Nothing is held."""


_BATCH = 200
_URL_LIFETIME_S = 2700.0
"""URLs are good for an hour; one is used for less, so that it does not end under a slow transfer."""
_TRIES = 6
_TIMEOUT_S = 60.0
_ANSWER_LIMIT = 4096
_LONGEST_WAIT_S = 30.0


class HttpObjectTransport:
    """Objects by signed URLs. Keeps one connection for each thread and host."""

    def __init__(self, query_head: QueryHead, *, wait_s: float = 0.5) -> None:
        """``wait_s``: before the second try, doubled for each that follows."""
        self._query_head = query_head
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._expected: OrderedDict[str, None] = OrderedDict()
        self._urls: dict[str, tuple[str, float]] = {}
        self._thread_local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self._tls: ssl.SSLContext | None = None

    def announce_gets(self, keys: Iterable[str]) -> None:
        """Remembers these keys, so that one request asks for their URLs."""
        with self._lock:
            for key in keys:
                self._expected[key] = None

    def get(self, key: str) -> bytes:
        """Returns an object's content."""
        buffer = memoryview(bytearray(OBJECT_BYTES))
        return bytes(buffer[: self.get_into(key, buffer)])

    def get_into(self, key: str, buffer: memoryview) -> int:
        """Reads an object's content into ``buffer``; returns its length."""
        return self._retry("GET", key, lambda url: self._get(key, url, buffer))

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object."""
        self._retry("PUT", key, lambda url: self._put(key, url, body))

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Only burstd can tell; the sizes are those of what it asked the store."""
        found = self._query_head({"present": list(keys)})["present"]
        return dict(found) if isinstance(found, Mapping) else dict.fromkeys(found, 0)

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            for connection in self._connections:
                connection.close()

    def _retry(self, method: str, key: str, one: Any) -> int:
        """Tries again where that makes sense; a URL that is refused is asked for anew once."""
        wait, anew = self._wait_s, False
        for turn in range(1, _TRIES + 1):
            try:
                done: int = one(self._url(method, key))
            except StoreRefused:
                with self._lock:
                    self._urls.pop(f"{method} {key}", None)
                if anew:
                    raise
                anew = True
            except StoreBusy as error:
                if turn == _TRIES:
                    raise
                # Not all nodes at the same moment.
                time.sleep(min(_LONGEST_WAIT_S, max(error.retry_after_s, wait * random.uniform(0.5, 1.0))))  # noqa: S311
                wait *= 2
            else:
                return done
        raise StoreBusy(f"the object {key} could not be had in {_TRIES} tries")

    def _url(self, method: str, key: str) -> str:
        with self._lock:
            known = self._urls.get(f"{method} {key}")
            now = time.monotonic()
            if known is not None and now - known[1] < _URL_LIFETIME_S:
                if method == "GET":
                    self._expected.pop(key, None)
                return known[0]
            keys = [key]
            if method == "GET":
                self._expected.pop(key, None)
                while self._expected and len(keys) < _BATCH:
                    keys.append(self._expected.popitem(last=False)[0])
            for old in [name for name, (_, since) in self._urls.items() if now - since >= _URL_LIFETIME_S]:
                del self._urls[old]
            # Under the lock: others who miss one wait for this answer, which may hold it.
            for name, url in self._query_head({"sign": {"method": method, "keys": keys}})["urls"].items():
                self._urls[f"{method} {name}"] = (url, now)
            signed = self._urls.get(f"{method} {key}")
        if signed is None:
            raise StoreRefused(f"burstd gave no URL for the object {key}")
        return signed[0]

    def _get(self, key: str, url: str, buffer: memoryview) -> int:
        answer = self._request("GET", key, url, None)
        length, got = answer.length, 0
        try:
            if length is not None and length > len(buffer):
                raise object_too_large(key)
            while got < len(buffer):
                count = answer.readinto(buffer[got:])
                if not count:
                    break
                got += count
            if answer.read(1):
                raise object_too_large(key)
        except (OSError, http.client.HTTPException) as error:
            self._drop_connection(url)
            raise StoreBusy(f"the connection broke while the object {key} came: {error}") from None
        except StoreRefused:
            self._drop_connection(url)
            raise
        if length is not None and got < length:
            self._drop_connection(url)
            raise StoreBusy(f"the connection ended after {got} of {length} bytes of the object {key}")
        with self._lock:
            self._urls.pop(f"GET {key}", None)
        return got

    def _put(self, key: str, url: str, body: bytes | memoryview) -> int:
        answer = self._request("PUT", key, url, body)
        try:
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop_connection(url)
            raise StoreBusy(f"the connection broke while the object {key} went: {error}") from None
        with self._lock:
            self._urls.pop(f"PUT {key}", None)
        return len(body)

    def _request(self, method: str, key: str, url: str, body: bytes | memoryview | None) -> http.client.HTTPResponse:
        """An answer that says yes; others are raised as what they mean."""
        where = urlsplit(url)
        path = where.path + (f"?{where.query}" if where.query else "")
        headers = {"Content-Length": str(len(body))} if body is not None else {}
        try:
            connection = self._connection(where)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            self._drop_connection(url)
            raise StoreRefused(
                f"the certificate of {where.netloc} is not to be trusted ({error.verify_message}): add its authority "
                "to the image of the node"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self._drop_connection(url)
            raise StoreBusy(
                f"{where.netloc} cannot be reached from the node: {error or type(error).__name__}"
            ) from None
        if 200 <= answer.status < 300:
            return answer
        try:
            said = answer.read(_ANSWER_LIMIT)
        except (OSError, http.client.HTTPException):
            said = b""
        self._drop_connection(url)
        raise _response_error(answer, method, key, where.netloc, said)

    def _connection(self, where: SplitResult) -> http.client.HTTPConnection:
        connections: dict[str, http.client.HTTPConnection] = self._thread_local.__dict__
        origin = f"{where.scheme}://{where.netloc}"
        if origin not in connections:
            if where.scheme == "https":
                with self._lock:
                    self._tls = self._tls or ssl.create_default_context()
                connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                    where.hostname or "", where.port, timeout=_TIMEOUT_S, context=self._tls
                )
            else:
                connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=_TIMEOUT_S)
            # Larger pieces than http.client's 16 KiB: a fifth less processor time.
            connection.blocksize = 1 << 20
            connections[origin] = connection
            with self._lock:
                self._connections.append(connection)
        return connections[origin]

    def _drop_connection(self, url: str) -> None:
        where = urlsplit(url)
        gone = self._thread_local.__dict__.pop(f"{where.scheme}://{where.netloc}", None)
        if gone is not None:
            gone.close()
            with self._lock:
                self._connections.remove(gone)


def _response_error(answer: http.client.HTTPResponse, method: str, key: str, host: str, said: bytes) -> StagerError:
    what = f"{host} answers {method} of the object {key} with {answer.status} {answer.reason}"
    # What a store says names its reason; a signature is never in it, but the URL may be.
    code = said.partition(b"<Code>")[2].partition(b"</Code>")[0].decode("ascii", "replace")
    what += f" ({code})" if code else ""
    after = answer.headers.get("Retry-After", "")
    if answer.status == 404:
        return NoSuchObject(what)
    if answer.status in {408, 425, 429} or (answer.status >= 500 and answer.status != 507):
        return StoreBusy(what, float(after) if after.isdigit() else 0.0)
    if answer.status in {413, 507} or code == "QuotaExceeded":
        return StoreSpaceGone(what)
    return StoreRefused(what)
