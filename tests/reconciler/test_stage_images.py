"""Images of registries as inputs: what is asked of a registry, and what a worker is left to do."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from burstd.staging.controller.tasks import StageFailed
from burstd.staging.movement.images import ImageInputs, ImageRules
from burstd.transfer.content_store.upload_pool import UploadProgress
from burstd.transfer.images.client import ImageWorker
from burstd.transfer.images.reference import ResolvedImage
from burstd.transfer.privsep.client import UserWorkerError

IMAGE = ResolvedImage(f"sha256:{'0' * 64}", "amd64", 7)


class AskedWorker(ImageWorker):
    """Counts what it asks; a conversion is what the test makes of it."""

    asked = 0

    def __init__(self, convert: Callable[[], None]) -> None:
        super().__init__(socket.socket())
        self._convert = convert

    def resolve(self) -> ResolvedImage:
        AskedWorker.asked += 1
        return IMAGE

    def convert(self) -> int:
        self._convert()
        raise UserWorkerError("", 0, "it is not converted")


def test_a_job_that_waits_for_its_turn_does_not_ask_the_registry_again_and_again() -> None:
    waited: list[str] = []

    def wait() -> None:
        for _ in range(4):
            with pytest.raises(StageFailed, match="until other images are converted") as caught:
                bring(1002)
            assert caught.value.waits
            waited.append(str(caught.value))

    uploader: Any = SimpleNamespace(reuse=lambda *_: None)
    images = ImageInputs(uploader, lambda *_: AskedWorker(wait), lambda: ImageRules(("docker.io",)))

    def bring(uid: int) -> None:
        job, meter = SimpleNamespace(uid=uid, account="a"), SimpleNamespace(activity="")
        task: Any = SimpleNamespace(job=job, meter=meter, cancelled=threading.Event())
        who: Any = SimpleNamespace(who=SimpleNamespace(uid=uid), files=None)
        images.bring("docker://python", who, task, UploadProgress())

    with pytest.raises(UserWorkerError, match="it is not converted"):
        bring(1001)
    assert len(waited) == 4
    assert AskedWorker.asked == 2, "once for each user"


def test_a_worker_whose_request_is_cancelled_has_time_to_remove_its_folder(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    script = "cat >&2; sleep 2; : >removed"
    child: subprocess.Popen[bytes] = subprocess.Popen(
        ["sh", "-c", script], stdin=theirs.fileno(), stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    theirs.close()
    worker = ImageWorker(ours, child)
    cancelled = threading.Event()
    cancelled.set()
    worker.set_cancel_event(cancelled)
    with pytest.raises(UserWorkerError, match="the request was cancelled"), worker:
        worker.convert()
    assert (tmp_path / "removed").exists()
