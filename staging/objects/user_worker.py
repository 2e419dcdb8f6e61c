"""burstd-object-worker: a worker with a user's rights and own credentials, for objects of S3 and Swift.

It is started and asked as the other is; its roots and sources are URLs. What a walk finds are rows of objects; those
that burstd wants it fetches into files without names, whose descriptors it passes. New objects are such files too, and
put when they are finished: nothing of one that was not is left. Besides these it keeps nothing on the disk.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not __package__:  # python3 -I user_worker.py
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120

import errno
import ipaddress
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import urlsplit

from burstd.transfer.privsep import descriptor_channel, worker
from staging.objects.listing import find_object, no_objects_error, object_rows
from staging.objects.user_store import (
    MAX_SORTED,
    PART_BYTES,
    TRANSIENT_ERRNO,
    ByteCounter,
    FilePart,
    UserObject,
    UserStore,
    unsorted_error,
)

Request = dict[str, Any]
OpenStore = Callable[[str], UserStore]
_T = TypeVar("_T")
_SIDE_BY_SIDE = 8
_ROWS = 512
STALL_S = 300.0
STALL_BYTES = 1 << 20
"""A server that within STALL_S ends no call, and in all of them moves less than this, holds the disk for nothing."""
_MODULES = {"s3": ("user_s3", "boto3"), "swift": ("user_swift", "openstacksdk")}
_PROBE = ".burst-probe"
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16")))
"""Of clouds whose metadata is not at a link-local address."""
_PROGRAMS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"})
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
_REGULAR_FILE_MODE = 0o100644


def main(arguments: list[str] | None = None) -> int:
    """Serves one connection; returns an exit status."""
    return worker.run_worker(arguments, _prepare)


def _prepare(hello: Request) -> Callable[[socket.socket], None]:
    """While it can read all of burstd's own files: imports what it needs."""
    kind = str(hello["objects"])
    if kind not in _MODULES:
        raise OSError(errno.EINVAL, f"{kind}:// is not known to this burstd")
    for name in [*os.environ]:
        if not name.lower().endswith("_proxy"):
            del os.environ[name]
    try:
        opener = _opener(kind)
    except ImportError as error:
        raise OSError(
            errno.ENOSYS,
            f"{kind}:// needs {_MODULES[kind][1]} on this machine, which an administrator installs: "
            f"pip install 'burstd[{kind}]' ({error})",
        ) from None

    def serve(sock: socket.socket) -> None:
        # As an exception, so that an upload on its way is ended and nothing of it is left.
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
        sys.addaudithook(refuse_programs)
        if not hello.get("loopback"):
            sys.addaudithook(refuse_own_addresses)
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            ObjectWorkerServer(sock, kind, opener, pool).serve()

    return serve


def refuse_programs(event: str, words: tuple[Any, ...]) -> None:  # noqa: ARG001 - the interface has it
    """An audit hook that lets no program be run: what a user's configuration names (credential_process) may do here
    all that ``outside_only`` forbids, and users need not be able to log in to the head.
    """
    if event in _PROGRAMS:
        text = "names a program for its keys (credential_process), which burstd does not run: write down keys or tokens"
        raise PermissionError(errno.EACCES, text, "the configuration in the user's home")


def refuse_own_addresses(event: str, words: tuple[Any, ...]) -> None:
    """An audit hook that lets no connection be made to the head itself, nor to its cloud's metadata.

    A user's configuration names any server: from the head it would answer as it does nobody from outside. Names are
    resolved by then. The site's proxies are not the user's choice. Connecting for datagrams sends nothing.
    """
    if event != "socket.connect" or not isinstance(words[1], tuple):
        return
    if isinstance(words[0], socket.socket) and words[0].type == socket.SOCK_DGRAM:
        return
    where = str(words[1][0])
    try:
        address = ipaddress.ip_address(where.partition("%")[0])
    except ValueError:
        return  # A name: the C library resolves and connects by address, or it is none.
    address = getattr(address, "ipv4_mapped", None) or address
    inside = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    inside = inside or address in _METADATA or _is_own_address(address)
    if inside and words[1][:2] not in _proxies():
        # No OSError: that would read as a server which does not answer.
        raise ValueError(f"{where} is this machine's own or its cloud's, which users do not reach")


def _is_own_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether it is one of this machine's own addresses: it is reached from itself."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return False  # Nor is there a way for what comes next.
        return str(probe.getsockname()[0]) == str(address)


@cache
def _proxies() -> frozenset[tuple[str, int]]:
    """Addresses and ports of the proxies in the environment, which is burstd's."""
    found: set[tuple[str, int]] = set()
    for name, value in os.environ.items():
        if name.lower() in _PROXIES:
            proxy = urlsplit(value if "://" in value else f"http://{value}")
            with suppress(OSError, ValueError):
                port = proxy.port or 80
                found.update(
                    (str(one[4][0]), port) for one in socket.getaddrinfo(proxy.hostname, port, type=socket.SOCK_STREAM)
                )
    return frozenset(found)


def _opener(kind: str) -> OpenStore:
    if kind == "s3":
        from staging.objects import user_s3  # noqa: PLC0415 - late: one of the two is needed, and sites may have neither

        return user_s3.prepare()
    from staging.objects import user_swift  # noqa: PLC0415

    return user_swift.prepare()


class ObjectWorkerServer:
    """One user's worker for one kind of store."""

    def __init__(self, sock: socket.socket, kind: str, opener: OpenStore, pool: ThreadPoolExecutor) -> None:
        self.sock = sock
        self._scheme = f"{kind}://"
        self._opener = opener
        self._pool = pool
        self._stores: dict[str, UserStore] = {}
        self._transferred = ByteCounter()
        self._new_files: dict[str, int] = {}
        self._handlers: dict[str, Callable[[Request], None]] = {
            "walk": self._walk,
            "look": self._summarize,
            "fetch": self._fetch,
            "free": self._check_destination,
            "make": lambda r: self._answer([True for _ in r["items"]]),
            "settle": lambda r: self._answer([None for _ in r["items"]]),
            "sweep": lambda r: self._answer([0 for _ in r["items"]]),
            "facts": lambda r: self._answer_each(r, self._stat_object),
            "remove": lambda r: self._answer_each(r, self._remove),
            "hardlink": lambda r: self._answer_each(r, self._copy),
            "create": self._create,
            "finish": self._finish,
        }

    def serve(self) -> None:
        """Until the connection ends."""
        while True:
            request, fds = descriptor_channel.receive(self.sock)
            _close(fds)
            self._handle_request(request)

    def _handle_request(self, request: Request) -> None:
        try:
            self._handlers.get(request["do"], _unknown)(request)
        except OSError as error:
            name = error.filename if isinstance(error.filename, str) else ""
            self._send({"error": error.strerror or str(error), "errno": error.errno or 0, "path": name})
        except (KeyError, TypeError, ValueError) as error:
            self._send({"error": f"the request cannot be carried out: {error!r}", "errno": errno.EINVAL, "path": ""})

    def _send(self, message: object, fds: list[int] | None = None) -> None:
        descriptor_channel.send(self.sock, message, fds)

    def _answer(self, items: list[Any]) -> None:
        self._send({"items": items})

    def _store_and_key(self, url: str) -> tuple[UserStore, str]:
        """The bucket or container of a URL, and the key."""
        name, _, key = url.removeprefix(self._scheme).partition("/")
        if not url.startswith(self._scheme) or not name:
            raise OSError(errno.EINVAL, f"is no {self._scheme}BUCKET/KEY", url)
        if name not in self._stores:
            self._stores[name] = self._opener(name)
        return self._stores[name], key

    def _store_and_key_of(self, request: Request, path: str) -> tuple[UserStore, str]:
        store, key = self._store_and_key(request["root"])
        key = key.strip("/")
        return store, f"{key}/{path}" if key and path else key or path

    def _answer_each(self, request: Request, act: Callable[[Request, Any], object]) -> None:
        """Side by side; the first failure is reported."""
        self._store_and_key(request["root"])
        self._answer(self._results([self._pool.submit(act, request, item) for item in request["items"]]))

    def _walk(self, request: Request) -> None:
        store, key = self._store_and_key(request["source"])
        found = object_rows(store, key)
        while part := list(islice(found, _ROWS)):
            self._send(part)
            if not self._serve_until_next():
                break
        self._send({"end": True, "single": bool(key) and not key.endswith("/")})

    def _serve_until_next(self) -> bool:
        """Fetches what is wanted of the last rows, until more shall come. False: no more."""
        while True:
            answer, fds = descriptor_channel.receive(self.sock)
            _close(fds)
            if "do" not in answer:
                return not answer.get("stop")
            self._handle_request(answer)

    def _summarize(self, request: Request) -> None:
        store, key = self._store_and_key(request["source"])
        until, limit = time.monotonic() + float(request["seconds"]), int(request["entries"])
        size = entries = 0
        tried = disorder = False
        whole = True
        last = ""
        single = bool(key) and not key.endswith("/")
        objects = iter([find_object(store, key)]) if single else store.list_unsorted(key)
        for found in objects:
            entries += 1
            size += found.size
            disorder, last = disorder or found.key < last, found.key
            if found.size and not tried:
                # That an object is in a list does not say that it may be read.
                tried = True
                next(_blocks(store, found, 0, 1))
            if entries >= min(limit, MAX_SORTED) or time.monotonic() > until:
                whole = next(objects, None) is None
                break
        if not entries:
            raise no_objects_error(store, key)
        if entries >= MAX_SORTED and disorder and not whole:
            raise unsorted_error(last)
        self._send({"size": size, "entries": entries, "whole": whole, "single": single, "unreadable": []})

    def _fetch(self, request: Request) -> None:
        """Rows of a walk: the objects' content in files without names."""
        source = request["source"]
        store, _ = self._store_and_key(source)
        wanted = [_object_of_row(source, row) for row in request["items"][: descriptor_channel.FDS_AT_ONCE]]
        fds: list[int] = []
        try:
            fds += _anonymous_files([found.size for found in wanted])
            work = [
                self._pool.submit(_download, store, found, fd, offset, self._transferred)
                for found, fd in zip(wanted, fds, strict=True)
                for offset in range(0, found.size, PART_BYTES)
            ]
            self._results(work)
            for found, fd in zip(wanted, fds, strict=True):
                os.fchmod(fd, 0o644)
                os.utime(fd, ns=(found.mtime_ns, found.mtime_ns))
            self._send({"items": [None] * len(fds)}, fds)
        finally:
            _close(fds)

    def _check_destination(self, request: Request) -> None:
        url = request["path"]
        store, key = self._store_and_key(url)
        key = key.strip("/")
        store.check_writable(f"{key}/{_PROBE}" if key else _PROBE)
        there = not key or next(store.list_unsorted(f"{key}/"), None) is not None
        self._send({"free": (1 << 63) - 1, "inodes": -1, "writable": True, "there": there, "nearest": url})

    def _stat_object(self, request: Request, path: str) -> list[int] | None:
        store, key = self._store_and_key_of(request, path)
        there = store.head(key) if key else None
        return None if there is None else [_REGULAR_FILE_MODE, there.object.size, there.mtime_ns, 1, 0, 0, os.getuid()]

    def _remove(self, request: Request, path: str) -> None:
        if path in self._new_files:
            os.close(self._new_files.pop(path))
            return
        store, key = self._store_and_key_of(request, path)
        # The right to remove is needed only where there is something.
        if store.head(key) is not None:
            store.delete(key)

    def _copy(self, request: Request, row: list[str]) -> None:
        store, origin = self._store_and_key_of(request, row[0])
        there = store.head(origin)
        if there is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", store.url(origin))
        store.copy(there.object, self._store_and_key_of(request, row[1])[1])

    def _create(self, request: Request) -> None:
        items = request["items"][: descriptor_channel.FDS_AT_ONCE]
        self._store_and_key(request["root"])
        fds = _anonymous_files([0] * len(items))
        names = [f".burst-{request['job']}-{os.urandom(6).hex()}" for _ in items]
        self._new_files.update(zip(names, map(os.dup, fds), strict=True))
        try:
            self._send({"items": names}, fds)
        finally:
            _close(fds)

    def _finish(self, request: Request) -> None:
        """Small ones side by side, large ones one after the other with their parts side by side."""
        single_part: list[Future[None]] = []
        multipart: list[tuple[UserStore, str, int, int]] = []
        fds: list[int] = []
        try:
            for new, path, _mode, mtime_ns in request["items"]:
                fd = self._new_files.pop(new)
                fds.append(fd)
                store, key = self._store_and_key_of(request, path)
                size = os.fstat(fd).st_size
                if len(store.part_ranges(size)) > 1:
                    multipart.append((store, key, fd, mtime_ns))
                else:
                    single_part.append(
                        self._pool.submit(store.put, key, FilePart(fd, 0, size, self._transferred.add), mtime_ns)
                    )
            self._results(single_part)
            for store, key, fd, mtime_ns in multipart:
                self._upload(store, key, fd, mtime_ns)
        finally:
            _wait(single_part)
            _close(fds)
        self._answer([None for _ in request["items"]])

    def _upload(self, store: UserStore, key: str, fd: int, mtime_ns: int) -> None:
        [upload] = self._results([self._pool.submit(store.begin_upload, key, mtime_ns)])
        work: list[Future[None]] = []
        try:
            for number, (offset, length) in enumerate(store.part_ranges(os.fstat(fd).st_size)):
                work.append(
                    self._pool.submit(upload.put_part, number, FilePart(fd, offset, length, self._transferred.add))
                )
            self._results(work)
            self._results([self._pool.submit(upload.complete)])
        except BaseException:
            # A part that comes after the end of its upload would be left.
            _wait(work)
            upload.abort()
            raise

    def _results(self, work: list[Future[_T]]) -> list[_T]:
        """Of all, in order; raises what the first raised that failed. Ends this process where nothing moves."""
        try:
            left, moved, until = set(work), self._transferred.total, time.monotonic() + STALL_S
            while left:
                done, left = wait(left, until - time.monotonic(), FIRST_COMPLETED)
                if done or self._transferred.total - moved >= STALL_BYTES:
                    moved, until = self._transferred.total, time.monotonic() + STALL_S
                elif time.monotonic() >= until:
                    self._end_stalled()
                if any(not one.cancelled() and one.exception() for one in done):
                    for one in left:
                        one.cancel()
            return [one.result() for one in work]
        finally:
            _wait(work)

    def _end_stalled(self) -> None:
        """Threads that wait for a server end with their process alone, and so does the space of its files."""
        text = f"the server moves less than {STALL_BYTES} bytes in {STALL_S:.0f} s, which is not waited for"
        self._send({"error": text, "errno": TRANSIENT_ERRNO, "path": ""})
        os._exit(0)


def _unknown(request: Request) -> None:
    raise OSError(errno.ENOSYS, f"objects have no such thing as {request['do']}")


def _object_of_row(source: str, row: list[Any]) -> UserObject:
    """The object of a row."""
    _, path, size, mtime_ns, tag, _ = row
    key = source.partition("://")[2].partition("/")[2]
    return UserObject(f"{key}{path}" if not key or key.endswith("/") else key, int(size), int(mtime_ns), tag)


def _download(store: UserStore, found: UserObject, fd: int, offset: int, moved: ByteCounter) -> None:
    length = min(PART_BYTES, found.size - offset)
    at = offset
    for block in _blocks(store, found, offset, length):
        moved.add(len(block))
        view = memoryview(block)
        while view:
            count = os.pwrite(fd, view, at)
            view, at = view[count:], at + count


def _blocks(store: UserStore, found: UserObject, offset: int, length: int) -> Iterator[bytes]:
    """What was asked for of an object, and no other number of bytes. Raises OSError."""
    came = 0
    for block in store.read_range(found, offset, length):
        came += len(block)
        if came > length:
            break
        yield block
    if came != length:
        text = f"{'more than' if came > length else f'only {came} of'} {length} bytes came from the server"
        raise OSError(TRANSIENT_ERRNO, text, store.url(found.key))


def _anonymous_files(sizes: Iterable[int]) -> list[int]:
    """Files without names, where so many bytes fit. Raises OSError."""
    sizes = list(sizes)
    folders = ["/var/tmp", os.path.expanduser("~")]  # noqa: S108, PTH111
    need, most = sum(sizes), 0
    for folder in folders:
        try:
            filesystem = os.statvfs(folder)
            most = max(most, filesystem.f_bavail * filesystem.f_frsize)
            if filesystem.f_bavail * filesystem.f_frsize <= need:
                continue
            return _open_anonymous_files(folder, len(sizes))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
    text = f"{need} bytes are needed for a while in {' or '.join(folders)}, where {most} are free and may be written"
    raise OSError(errno.ENOSPC, text)


def _open_anonymous_files(folder: str, count: int) -> list[int]:
    fds: list[int] = []
    try:
        for _ in range(count):
            with tempfile.TemporaryFile(dir=folder) as file:
                fds.append(os.dup(file.fileno()))
    except BaseException:
        _close(fds)
        raise
    return fds


def _wait(work: list[Future[Any]]) -> None:
    """None of it goes on: what has not begun never does."""
    for one in work:
        one.cancel()
    for one in work:
        if not one.cancelled():
            one.exception()


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


if __name__ == "__main__":
    sys.exit(main())
