"""burstd-image-worker: asks a registry for one image with one user's credentials, and converts it to a file.

It has an account of its own: neither burstd's, whose secrets an image must not reach, nor the user's, who could change
what others get by the image's digest. The first message says which image, and where and within which limits it is
converted; with it come descriptors of the user's files of credentials, which burstd passes unread. Skopeo asks and
fetches, and checks every digest; Apptainer converts. Each runs in a process group of its own, which is killed when a
limit is reached or burstd is gone; the temporary folder goes with it. The file that is made has no name by the time
that its descriptor is passed.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not __package__:  # python3 -I worker.py
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))  # noqa: PTH100, PTH120

import ctypes
import errno
import fcntl
import json
import pwd
import re
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from burstd.domain.units import size_text
from burstd.transfer.images import reference
from burstd.transfer.images.reference import ResolvedImage
from burstd.transfer.privsep import descriptor_channel, worker
from burstd.transfer.privsep.descriptor_channel import ConnectionEnded

KEEP_FREE_BYTES = 1 << 30
KEEP_FREE_INODES = 10_000
"""Of the file system of the temporary folder."""
_MAX_CREDENTIALS_BYTES = 1 << 20
_MAX_ERROR_BYTES = 8192
_MAX_ERROR_CHARS = 400
_PIPE_BYTES = 1 << 16
"""All that a pipe holds."""
_SKOPEO_BYTES = 1 << 30
"""Of memory: Skopeo before 1.10 keeps all that a registry says of an error."""
_POLL_S = 0.2
_ASK_S = 120.0
"""A registry that has not answered a question by then is asked again later."""
_PROGRESS_S = 5.0
_PREFIX = "burstd-image-"
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where Skopeo and Apptainer are looked for."""
_PR_SET_PDEATHSIG = 1
_TRANSIENT_ERRNO = errno.EAGAIN
_LIBC = ctypes.CDLL(None, use_errno=True)

_REFUSALS = (
    (re.compile(r"unauthorized|denied|forbidden|authentication required|\b40[13]\b", re.IGNORECASE), errno.EACCES),
    (re.compile(r"manifest unknown|name unknown|not found|\b404\b", re.IGNORECASE), errno.ENOENT),
    (re.compile(r"no space left|disk quota exceeded", re.IGNORECASE), errno.ENOSPC),
    (re.compile(r"rejected by policy|policy\.json", re.IGNORECASE), errno.EINVAL),
)
"""What Skopeo says where trying again does not help, and the errno of that. The first that fits counts."""


def main(arguments: list[str] | None = None) -> int:
    """Serves one connection; returns an exit status."""
    return worker.serve_connection(arguments, _serve, "burstd-image-worker", memory_bytes=None)


def _serve(sock: socket.socket, min_uid: int, *, accounts: bool) -> None:  # noqa: ARG001 - see ServeConnection
    hello, fds = descriptor_channel.receive(sock)
    try:
        _become_account(str(hello["account"]))
        with _folder(str(hello["folder"])) as folder:
            texts = [_read(fd) for fd in fds]
            _close(fds)
            server = ImageServer(sock, folder, hello, texts)
            descriptor_channel.send(sock, {"ready": os.getpid()})
            server.serve()
    except (KeyError, TypeError, ValueError, OSError) as error:
        worker.refuse(sock, error)
    finally:
        _close(fds)


def _become_account(name: str) -> None:
    """For good. Raises OSError."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        text = f"docker:// needs an account {name} on the head: useradd --system --shell /usr/sbin/nologin {name}"
        raise OSError(errno.ENOSYS, text) from None
    worker.take_rights(worker.WorkerUser(entry.pw_uid, entry.pw_gid, [entry.pw_gid], "/"))
    os.umask(0o077)


@contextmanager
def _folder(above: str) -> Iterator[Path]:
    """A folder of this conversion's, removed whatever happens; first those that killed workers have left."""
    for left in Path(above).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            _remove_unlocked(left)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=above))
    except OSError as error:
        text = f"images are converted in {above} (staging.images.dir), and cannot be: {error.strerror}"
        raise OSError(errno.ENOSYS, text) from None
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def _remove_unlocked(folder: Path) -> None:
    """Removes the folder of a worker that has ended. Raises OSError where it has not, or it is another's."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # One that was just made is not locked yet.
        facts = os.fstat(lock)
        if facts.st_uid == os.getuid() and time.time() - facts.st_mtime > 60.0:
            _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """All of it that can be: an image may hold directories that not even their owner may read."""
    for above, directories, _ in os.walk(folder):
        for name in directories:
            path = Path(above, name)
            with suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        sys.stderr.write(f"burstd-image-worker: {folder} cannot be removed whole: remove it\n")


def _read(fd: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        text = file.read(_MAX_CREDENTIALS_BYTES + 1)
    if len(text) > _MAX_CREDENTIALS_BYTES:
        raise OSError(errno.EINVAL, "a file of credentials is larger than 1 MiB")
    return text


class ImageServer:
    """Serves one connection: one image."""

    def __init__(
        self, sock: socket.socket, folder: Path, hello: worker.WorkerRequest, credentials: Sequence[bytes]
    ) -> None:
        """Raises KeyError, ValueError, TypeError for a message that burstd does not send."""
        self._sock = sock
        self._folder = folder
        self._reference = reference.parse_reference(str(hello["image"]))
        self._apptainer = str(hello["apptainer"])
        self._max_bytes = int(hello["max_bytes"])
        self._seconds = float(hello["seconds"])
        self._until = float("inf")
        self._architecture = reference.image_architecture(os.uname().machine)
        try:
            self._credentials = reference.registry_credentials(credentials, self._reference.registry)
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error)) from None
        self._image: ResolvedImage | None = None
        self._file: int | None = None
        self._checked_at, self._reported_at = time.monotonic(), float("inf")
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._max_bytes, self._max_bytes))
        passwords = folder / "auth.json"
        passwords.write_text(json.dumps({"auths": dict(self._credentials.auths)}), encoding="utf-8")
        self._auth = ["--authfile", str(passwords)]
        self._handlers: dict[str, Callable[[], None]] = {
            "resolve": self._resolve, "convert": self._convert, "walk": self._walk,
        }  # fmt: skip

    def serve(self) -> None:
        """Until the connection ends."""
        try:
            while True:
                request, fds = descriptor_channel.receive(self._sock)
                _close(fds)
                try:
                    self._handlers.get(request.get("do"), _unknown)()
                except OSError as error:
                    message = {"error": error.strerror or str(error), "errno": error.errno or 0, "path": ""}
                    descriptor_channel.send(self._sock, message)
        finally:
            if self._file is not None:
                os.close(self._file)

    def _resolve(self) -> None:
        """The manifest of this machine's platform: who gets it may read the image."""
        name = str(self._reference)
        try:
            manifest = self._inspect(name, "--raw")
            chosen = reference.platform_digest(manifest, self._architecture)
            if chosen is not None:
                # Skopeo before 1.10 does not look.
                reference.checked_manifest(manifest, self._reference.digest)
                name = self._reference.at_digest(chosen)
                manifest = self._inspect(name, "--raw")
            size = reference.layers_size(manifest)
            digest = reference.checked_manifest(manifest, chosen or self._reference.digest)
            if chosen is None:
                config = self._inspect(self._reference.at_digest(digest), "--config", "--raw")
                reference.check_architecture(config, self._architecture)
        except ValueError as error:
            raise OSError(errno.EINVAL, f"{self._reference} {error}") from None
        if size > self._max_bytes:
            self._refuse_size(f"has {size_text(size)} of layers")
        self._image = ResolvedImage(digest, self._architecture, size)
        descriptor_channel.send(
            self._sock, {"digest": digest, "architecture": self._image.architecture, "size": self._image.size}
        )

    def _inspect(self, name: str, *options: str) -> bytes:
        return self._run("skopeo", "inspect", *self._auth, *options, name, seconds=_ASK_S)

    def _convert(self) -> None:
        if self._image is None:
            raise OSError(errno.EINVAL, "no image is known yet")
        self._reported_at = time.monotonic()
        self._until = self._reported_at + self._seconds
        name = self._reference.at_digest(self._image.digest)
        # Signatures are the site's to check (policy.json); a layout has no room for them.
        copy = ["copy", "--quiet", "--remove-signatures", *self._auth, name, "oci:layout"]
        self._run("skopeo", "--tmpdir", str(self._folder), *copy)
        (self._folder / "auth.json").unlink()
        self._run(self._apptainer, "-q", "build", "--disable-cache", "image.sif", "oci:layout")
        made = self._folder / "image.sif"
        self._file = os.open(made, os.O_RDONLY | os.O_NOFOLLOW)
        os.fchmod(self._file, 0o644)
        _remove(self._folder)
        descriptor_channel.send(self._sock, {"items": [os.fstat(self._file).st_size]})

    def _walk(self) -> None:
        """As a worker of files walks a single one."""
        if self._file is None:
            raise OSError(errno.EINVAL, "no image is converted yet")
        descriptor_channel.send(self._sock, [["f", "image.sif"]], [self._file])
        descriptor_channel.send(self._sock, {"end": True, "single": True})
        _, fds = descriptor_channel.receive(self._sock)
        _close(fds)

    def _run(self, program: str, *arguments: str, seconds: float = float("inf")) -> bytes:
        """What the program writes. Raises OSError where it fails or reaches a limit; ConnectionEnded."""
        home = str(self._folder)
        env = {
            "PATH": PROGRAM_PATH, "HOME": home, "TMPDIR": home, "XDG_RUNTIME_DIR": home, "LC_ALL": "C",
            "APPTAINER_TMPDIR": home, "APPTAINER_CACHEDIR": f"{home}/cache", "APPTAINER_CONFIGDIR": f"{home}/config",
            "SINGULARITY_TMPDIR": home, "SINGULARITY_CACHEDIR": f"{home}/cache",
            **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
        }  # fmt: skip
        output, said = bytearray(), bytearray()
        try:
            process = subprocess.Popen(
                [program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                cwd=home, env=env, start_new_session=True,
                preexec_fn=partial(_restrict, program),  # noqa: PLW1509 - there are no threads
            )  # fmt: skip
        except OSError as error:
            name = "Skopeo" if program == "skopeo" else "Apptainer"
            text = f"docker:// needs {name} ({program}) on the head, which an administrator installs: {error.strerror}"
            raise OSError(errno.ENOSYS, text) from None
        try:
            self._follow(process, output, said, time.monotonic() + seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        if process.returncode:
            self._check_limits(at_end=True)
            self._explain_failure(program, said.decode("utf-8", "replace"))
        return bytes(output)

    def _follow(self, process: subprocess.Popen[bytes], output: bytearray, said: bytearray, until: float) -> None:
        """Until the program has ended, and no longer than a limit allows."""
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - pipes were asked for
        with selectors.DefaultSelector() as ready:
            ready.register(self._sock, selectors.EVENT_READ, None)
            for pipe, kept in ((process.stdout, output), (process.stderr, said)):
                ready.register(pipe, selectors.EVENT_READ, kept)
            ended = False
            while not ended:
                ended = process.poll() is not None
                for key, _ in ready.select(0 if ended else _POLL_S):
                    if key.data is None:
                        # burstd says nothing before it has its answer: it is gone, or has cancelled.
                        raise ConnectionEnded("nobody waits for the image any more")
                    part = os.read(key.fd, _PIPE_BYTES)
                    if not part:
                        ready.unregister(key.fileobj)
                    key.data.extend(part)
                    del said[:-_MAX_ERROR_BYTES]
                    if len(output) > reference.MAX_MANIFEST_BYTES:
                        raise OSError(errno.EINVAL, f"{self._reference} has a manifest of more than 4 MiB")
                if time.monotonic() > until:
                    text = f"{self._reference.registry} does not answer"
                    raise OSError(_TRANSIENT_ERRNO, f"{self._reference}: {text}")
                self._check_limits()

    def _check_limits(self, *, at_end: bool = False) -> None:
        """Raises OSError where one is reached."""
        now = time.monotonic()
        if now > self._until:
            text = f"{self._reference} is not converted after {self._seconds:.0f} s, and burstd waits no longer"
            raise OSError(errno.ETIMEDOUT, f"{text}: convert it with 'apptainer pull' and name the file")
        filesystem = os.statvfs(self._folder)
        if filesystem.f_bavail * filesystem.f_frsize < KEEP_FREE_BYTES or (
            filesystem.f_files and filesystem.f_favail < KEEP_FREE_INODES
        ):
            text = f"the file system of {self._folder.parent} is almost full, and {self._reference} is converted there"
            raise OSError(errno.ENOSPC, text)
        if now < self._checked_at and not at_end:
            return
        used = _used_bytes(self._folder)
        # The more there is to count, the less often.
        self._checked_at = now + max(0.5, 10 * (time.monotonic() - now))
        if used >= self._max_bytes:
            self._refuse_size(f"takes up {size_text(used)} and more while it is converted")
        if now - self._reported_at > _PROGRESS_S:
            self._reported_at = now
            descriptor_channel.send(self._sock, {"progress": used})

    def _refuse_size(self, what: str) -> NoReturn:
        text = f"{self._reference} {what}; the most is {size_text(self._max_bytes)} (staging.images.max_size)"
        raise OSError(errno.EFBIG, text)

    def _explain_failure(self, program: str, said: str) -> NoReturn:
        """Raises OSError with what the program said last, without the queries of URLs, which may be keys."""
        lines = [line for line in said.splitlines() if line.strip()] or ["it says nothing"]
        found = re.search(r'msg="((?:[^"\\]|\\.)*)"', lines[-1])
        text = (found[1].replace('\\"', '"') if found else lines[-1]).strip()
        text = re.sub(r'^Error parsing image name "[^"]*": ', "", text)
        text = re.sub(r"\?[^\s\"']*", "?...", text)[-_MAX_ERROR_CHARS:]
        if "file too large" in text.lower():
            self._refuse_size("has a file that is larger than all of it may be")
        if program != "skopeo":
            number = errno.ENOSPC if "no space left" in text.lower() else errno.EINVAL
            raise OSError(number, f"{self._reference} cannot be converted: {text}")
        # An image may be called "denied", or its tag 403.
        image = f"{self._reference.registry}/{self._reference.repository}"
        reason = text.replace(f"manifest {self._reference.tag} in {image}", "").replace(image, "")
        number = next((number for words, number in _REFUSALS if words.search(reason)), _TRANSIENT_ERRNO)
        remedy = ""
        if number == errno.EACCES:
            remedy = f"; log in with 'apptainer registry login {reference.SCHEME}{self._reference.registry}'"
            if self._credentials.needs_helper:
                remedy += ", for burstd does not run the programs that your config.json names for passwords"
        raise OSError(number, f"{self._reference}: {text}{remedy}")


def _unknown() -> None:
    raise OSError(errno.ENOSYS, "unknown request: burstd and its image worker have different versions")


def _restrict(program: str) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if program == "skopeo":
        resource.setrlimit(resource.RLIMIT_DATA, (_SKOPEO_BYTES, _SKOPEO_BYTES))


def _used_bytes(folder: Path) -> int:
    """Of the disk, as far as it can be seen while programs write there."""
    total, waiting = 0, [str(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as rows:
            for row in rows:
                with suppress(OSError):
                    total += row.stat(follow_symlinks=False).st_blocks * 512
                    if row.is_dir(follow_symlinks=False):
                        waiting.append(row.path)
    return total


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


if __name__ == "__main__":
    sys.exit(main())
