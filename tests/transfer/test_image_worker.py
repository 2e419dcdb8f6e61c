"""What an image worker answers to questions, whatever Skopeo says. A shell script is Skopeo here."""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from burstd.transfer.images import worker
from burstd.transfer.images.client import ImageWorker
from burstd.transfer.images.reference import ResolvedImage
from burstd.transfer.privsep.client import UserWorkerError
from burstd.transfer.privsep.descriptor_channel import ConnectionEnded

BUSY = "reading manifest 403 in ghcr.io/lab/denied: received unexpected HTTP status: {}"


def resolve(place: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> ResolvedImage:
    """What burstd is told of an image when Skopeo is this script, and progress is told at every look."""
    program = place / "skopeo"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setattr(worker, "PROGRAM_PATH", f"{place}:/usr/bin:/bin")
    monkeypatch.setattr(worker, "_PROGRESS_S", -1.0)
    monkeypatch.setattr(worker, "KEEP_FREE_BYTES", 0)
    image = {"image": "docker://ghcr.io/lab/denied:403", "apptainer": "no", "max_bytes": 1 << 50, "seconds": 60}
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs, suppress(ConnectionEnded):
            worker.ImageServer(theirs, place, image, []).serve()

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        with ImageWorker(ours) as asking:
            return asking.resolve()
    finally:
        serving.join()


def test_progress_is_no_answer_to_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = """echo '{"schemaVersion": 2, "layers": [{"size": 7}]}'"""
    assert resolve(tmp_path, monkeypatch, manifest).size == 7


@pytest.mark.parametrize(("status", "number"), [("503", errno.EAGAIN), ("401", errno.EACCES), ("404", errno.ENOENT)])
def test_the_name_of_an_image_says_nothing_of_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, number: int
) -> None:
    with pytest.raises(UserWorkerError, match=status) as caught:
        resolve(tmp_path, monkeypatch, f"echo '{BUSY.format(status)}' >&2; exit 1")
    assert caught.value.errno == number
