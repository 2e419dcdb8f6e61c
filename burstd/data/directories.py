"""Open directories of a tree that is being made or read, so that no path is looked up through a link."""

from __future__ import annotations

import os
from collections import OrderedDict

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = 200


class Directories:
    """Open directories below one, by path: each is opened from the one above, never through a link."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def at(self, path: bytes) -> int:
        """A descriptor that is good until the next call. Raises OSError."""
        if not path:
            return self._root
        known = self._open.get(path)
        if known is not None:
            self._open.move_to_end(path)
            return known
        above, _, name = path.rpartition(b"/")
        descriptor = os.open(name, _DIRECTORY, dir_fd=self._from(above))
        self._open[path] = descriptor
        while len(self._open) > _OPEN:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    def _from(self, path: bytes) -> int:
        """As ``at``, without recursion: a tree may be thousands deep."""
        nearest = path
        while nearest and nearest not in self._open:
            nearest = nearest.rpartition(b"/")[0]
        here = self._open[nearest] if nearest else self._root
        if nearest == path:
            return here
        rest = path[len(nearest) :].lstrip(b"/").split(b"/")
        mine = -1
        for name in rest:
            following = os.open(name, _DIRECTORY, dir_fd=here)
            if mine >= 0:
                os.close(mine)
            here = mine = following
        # Kept, as its neighbours will want it too.
        self._open[path] = here
        return here

    def close(self) -> None:
        """Closes all but the root."""
        while self._open:
            os.close(self._open.popitem()[1])
