"""``#BURST container docker://...``: images of registries, converted once for all who may read them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from burstd.domain.staging import Tree
from burstd.staging.controller.tasks import StageFailed, StagingTask
from burstd.staging.movement.user_workers import UserWorkers
from burstd.transfer.content_store.upload_pool import UploadProgress
from burstd.transfer.images.client import ConversionLimits, ImageWorker
from burstd.transfer.images.reference import SCHEME, ResolvedImage, parse_reference
from burstd.transfer.privsep.client import UserWorker
from burstd.transfer.trees.upload import StagedFor, TreeUploader

OpenImageWorker = Callable[[str, UserWorker, ConversionLimits], ImageWorker]
"""Takes a reference, the worker that opens its user's credentials, and limits. Raises UserWorkerError."""
READ_S = 60.0
"""For so long it counts that a user was let read an image."""
_TURN_S = 10.0
"""After so long it is looked again whether it is an image's turn."""


@dataclass(frozen=True, slots=True)
class ImageRules:
    """What ``docker://`` may name, and how it is converted."""

    registries: tuple[str, ...] = ()
    limits: ConversionLimits = field(default_factory=ConversionLimits)
    conversions: int = 1
    """So many at once."""


def is_image(location: str) -> bool:
    """Whether a source lies in a registry."""
    return location.startswith(SCHEME)


def image_fault(source: str, rules: ImageRules) -> str:
    """Why an image of a registry is not taken, by the site's rules; empty: it is."""
    registry = parse_reference(source).registry
    if registry in rules.registries:
        return ""
    allowed = f"this site allows {', '.join(rules.registries)}" if rules.registries else "this site allows none"
    convert = f"convert the image with 'apptainer pull IMAGE.sif {source}' and name the file"
    return f"registry {registry} is not allowed: {allowed} (staging.images.registries); {convert}"


class ImageInputs:
    """Images of registries as inputs of jobs, for all threads.

    Raises UserWorkerError, StagerError, StageFailed, TransferCancelled.

    The registry is asked with the credentials of the job's owner: its manifest is the proof that he may have the image,
    for READ_S, and its digest the name by which the store is looked through.
    """

    def __init__(
        self,
        uploader: TreeUploader,
        open_image_worker: OpenImageWorker,
        rules: Callable[[], ImageRules],
    ) -> None:
        self._uploader = uploader
        self._open_image_worker = open_image_worker
        self._rules = rules
        self._lock = threading.Lock()
        self._read: dict[tuple[int, str], tuple[ResolvedImage, float]] = {}
        """What a user may read by a reference, and until when (time.monotonic) that counts."""
        self._converting: set[str] = set()

    def measure(self, location: str, user_workers: UserWorkers, cancelled: threading.Event) -> ResolvedImage:
        """The image as the registry has it."""
        if (known := self._just_read(location, user_workers)) is not None:
            return known
        with self._resolved(location, user_workers, cancelled) as (_, image):
            return image

    def bring(self, location: str, user_workers: UserWorkers, task: StagingTask, progress: UploadProgress) -> Tree:
        """The image in the store, converted where nobody has brought it there yet."""
        owner = StagedFor(task.job.uid, task.job.account)

        def reuse(image: ResolvedImage) -> Tree | None:
            tree = self._uploader.reuse(image.source, owner, task.cancelled)
            if tree is not None:
                progress.add_walked(1, tree.size)
                progress.add_done(tree.size, hit=True)
            return tree

        known = self._just_read(location, user_workers)
        if known is not None:
            if (tree := reuse(known)) is not None:
                return tree
            with self._lock:
                self._require_turn(known.source, location)
        with self._resolved(location, user_workers, task.cancelled) as (worker, image):
            if (tree := reuse(image)) is not None:
                return tree
            with self._turn(image.source, location):
                # Whoever had the turn before may have brought it.
                if (tree := reuse(image)) is not None:
                    return tree
                task.meter.activity = f"its image {location} is being converted"
                try:
                    worker.convert()
                finally:
                    task.meter.activity = ""
                return self._uploader.upload(
                    worker, image.source, owner=owner, progress=progress, cancelled=task.cancelled
                )

    def _just_read(self, location: str, user_workers: UserWorkers) -> ResolvedImage | None:
        """What the registry has let this user read a moment ago: tasks of an array ask once."""
        if image_fault(location, self._rules()):
            return None
        now = time.monotonic()
        with self._lock:
            self._read = {key: row for key, row in self._read.items() if row[1] > now}
            found = self._read.get((user_workers.who.uid, location))
        return found[0] if found is not None else None

    @contextmanager
    def _resolved(
        self, location: str, user_workers: UserWorkers, cancelled: threading.Event
    ) -> Iterator[tuple[ImageWorker, ResolvedImage]]:
        rules = self._rules()
        if fault := image_fault(location, rules):
            raise StageFailed(f"container {location}: {fault}", retryable=False)
        with self._open_image_worker(location, user_workers.files, rules.limits) as worker:
            worker.set_cancel_event(cancelled)
            image = worker.resolve()
            with self._lock:
                self._read[user_workers.who.uid, location] = (image, time.monotonic() + READ_S)
            yield worker, image

    @contextmanager
    def _turn(self, source: str, location: str) -> Iterator[None]:
        """One conversion of an image at a time, few in all. Without a turn the thread is left to other transfers."""
        with self._lock:
            self._require_turn(source, location)
            self._converting.add(source)
        try:
            yield
        finally:
            with self._lock:
                self._converting.discard(source)

    def _require_turn(self, source: str, location: str) -> None:
        """Raises StageFailed where others are converted. The caller has the lock."""
        if source in self._converting or len(self._converting) >= self._rules().conversions:
            text = f"its image {location} waits until other images are converted"
            raise StageFailed(text, retryable=True, retry_after_s=_TURN_S, waits=True)
