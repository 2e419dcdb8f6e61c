"""The client of an image worker (burstd.transfer.images.worker): one image of a registry, as a file for the store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from errno import ENOENT, ENOTDIR
from pathlib import Path

from burstd.transfer.images import worker as program
from burstd.transfer.images.reference import ResolvedImage, checked_digest
from burstd.transfer.privsep import descriptor_channel, worker_answers
from burstd.transfer.privsep.client import SILENCE_TIMEOUT_S, UserWorker, UserWorkerError, connect_worker

CREDENTIAL_FILES = (".apptainer/docker-config.json", ".docker/config.json", ".config/containers/auth.json")
"""In a user's home: those of Apptainer, Docker, and Podman. The first that has any for the registry counts."""
ACCOUNT = "burstd-image"
_REMOVE_TIMEOUT_S = 600.0
"""An unpacked image may be a million files."""


@dataclass(frozen=True, slots=True)
class ConversionLimits:
    """Where and how images are converted."""

    folder: str = "/var/tmp"  # noqa: S108 - a folder of its own is made in it
    max_bytes: int = 64 << 30
    """Of layers, unpacked files and the finished image together."""
    apptainer: str = "apptainer"
    seconds: float = 3600.0
    """For all that is fetched and converted."""
    account: str = ACCOUNT
    """Whose rights it is done with."""


class ImageWorker(UserWorker):
    """The worker of one image. What it converts is read as a single file of a UserWorker; its source means nothing."""

    def begin(self, image: str, credentials: Sequence[int], limits: ConversionLimits) -> None:
        """Says once what it is for; ``credentials``: descriptors of files."""
        hello = {
            "image": image, "folder": limits.folder, "max_bytes": limits.max_bytes, "apptainer": limits.apptainer,
            "seconds": limits.seconds, "account": limits.account,
        }  # fmt: skip
        try:
            descriptor_channel.send(self._sock, hello, list(credentials))
        except (descriptor_channel.ConnectionEnded, OSError) as error:
            raise UserWorkerError("", 0, f"the image worker is gone: {error}; see its journal") from None
        self._receive_answer()

    def close(self) -> None:
        """Ends it. A child that is killed leaves its folder until the next one comes, so it has time to remove that."""
        self._exit_timeout_s = _REMOVE_TIMEOUT_S
        super().close()

    def resolve(self) -> ResolvedImage:
        """Asks the registry; UserWorkerError: the user may not read it, or it cannot be had."""
        self._send({"do": "resolve"})
        answer = self._receive_answer(cancellable=True)
        with self._rejecting_malformed():
            architecture = worker_answers.text(answer["architecture"])
            return ResolvedImage(checked_digest(answer["digest"]), architecture, worker_answers.number(answer["size"]))

    def convert(self) -> int:
        """Fetches and converts it; bytes of the file."""
        return self._request_copy({"do": "convert"})


def image_socket(worker_socket: Path | None) -> Path | None:
    """Where systemd starts image workers: beside the socket of user workers; None: burstd starts them."""
    return worker_socket.with_name("image-worker.sock") if worker_socket else None


def open_image_worker(
    image: str, home: UserWorker, limits: ConversionLimits, *, socket_path: Path | None = None
) -> ImageWorker:
    """A worker for an image, with the credentials that ``home`` opens with its user's rights.

    At ``socket_path`` where systemd starts them, else a child of this process (which is root). Raises UserWorkerError.
    """
    fds: list[int] = []
    try:
        for path in CREDENTIAL_FILES:
            try:
                # The directory may be a link, as in small homes.
                directory, _, name = path.rpartition("/")
                fds += home.open_files(f"~/{directory}", [name])
            except UserWorkerError as error:
                if error.errno not in (ENOENT, ENOTDIR):
                    raise
        return _start(image, fds, limits, socket_path)
    finally:
        for fd in fds:
            os.close(fd)


def _start(image: str, fds: Sequence[int], limits: ConversionLimits, socket_path: Path | None) -> ImageWorker:
    if socket_path is not None and not socket_path.exists():
        text = f"docker:// is not set up: start burstd-image-worker.socket, which is {socket_path}"
        raise UserWorkerError("", ENOENT, text)
    env = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    sock, child = connect_worker([str(program.__file__)], socket_path, 0, env)
    sock.settimeout(SILENCE_TIMEOUT_S)
    worker = ImageWorker(sock, child)
    try:
        worker.begin(image, fds, limits)
    except BaseException:
        worker.close()
        raise
    return worker
