"""The only maker of connections: credentials, time limits, one try for each call, errors as the interface has them.

Nothing is repeated here: what is tried again, and when, is burstd's business. There is one exception: after a 401,
which says that nothing was done, keystoneauth asks for a new token and then once more.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from burstd.model.errors import AuthFailed, BadRequest, CloudUnavailable, OutcomeUnknown, ProviderError
from providers.openstack.errors import Answer, of_answer, of_login, of_silence
from providers.openstack.settings import OpenStackSettings


class Calls:
    """One project of one cloud. Used from many threads; makes no call before the first that is asked for."""

    def __init__(self, settings: OpenStackSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._connection: Any = None
        self._here = threading.local()
        """``sent``: whether the request that this thread sent last would change something."""
        self.made: Counter[str] = Counter()
        """Requests so far, by method and kind of path: ``GET /servers/detail``, ``DELETE /ports/ID``."""

    @property
    def connection(self) -> Any:
        """openstacksdk's, for use within ``told``. Raises AuthFailed where the credentials cannot be read."""
        raise NotImplementedError

    @contextmanager
    def told(self, *, changes: bool, what: str) -> Iterator[None]:
        """Turns all that openstacksdk raises within into ProviderErrors. ``what``, in the infinitive, is for people.

        Has one call in it, where ``changes``.
        """
        raise NotImplementedError
        yield

    def ask(self, service: str, path: str, what: str, *, version: str = "", **query: Any) -> Any:
        """One GET; the JSON that it answers. ``service``: an attribute of the connection, ``compute``, ``network``,
        ``block_storage``, ``image``, ``identity``. ``version``: microversion, or the newest older one that there is.
        """
        raise NotImplementedError

    def tell(self, service: str, method: str, path: str, what: str, *, body: Any = None, version: str = "") -> Any:
        """One call that changes something, sent once; the JSON that it answers, or None."""
        raise NotImplementedError

    def pages(
        self, service: str, path: str, key: str, what: str, *, version: str = "", **query: Any
    ) -> Iterator[Mapping[str, Any]]:
        """The things under ``key`` of every page, each page asked for when it is needed; ends early only by raising."""
        raise NotImplementedError

    def has(self, service_type: str) -> bool:
        """Whether the project's service catalogue has it: ``block-storage``, ``network`` ..."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives connections back."""
