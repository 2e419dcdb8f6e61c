"""Output that came home becomes input in the store, so that the job that works on with it has nothing sent again."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from burstd.domain.plugins.stager import Stager, StagerError
from burstd.domain.staging import ObjectRange
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.manifest import object_key

log = structlog.get_logger(__name__)

INPUT_PREFIX = "in"


class OutputReuse:
    """Takes objects that were verified on their way home. No tree names them: they stay as long as the sweep lets them.

    The store copies them by itself. Where it fails, nothing is lost: the next job's input is sent as any other.
    """

    def __init__(self, stager: Stager, index: ContentIndex) -> None:
        self._stager = stager
        self._index = index

    def __call__(
        self, prefix: str, objects: Mapping[str, int], contents: Mapping[bytes, tuple[ObjectRange, ...]]
    ) -> None:
        """Objects under ``prefix`` (key -> bytes), and which small contents (SHA-256) lie in them."""
        present = self._index.present_objects(self._stager.name, INPUT_PREFIX, list(objects))
        try:
            for key, size in objects.items():
                if key not in present:
                    self._index.record_put_begun(self._stager.name, INPUT_PREFIX, key, size)
                    self._stager.copy(object_key(prefix, key), object_key(INPUT_PREFIX, key))
        except StagerError as error:
            log.warning("output was not kept as input for jobs that follow", store=self._stager.name, error=str(error))
            return
        # Content keeps its key: trees that name it stay the same.
        known = self._index.content_pieces(self._stager.name, INPUT_PREFIX, list(contents))
        new_contents = {content: pieces for content, pieces in contents.items() if content not in known}
        self._index.record_put(self._stager.name, INPUT_PREFIX, objects, new_contents)
