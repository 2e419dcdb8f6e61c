"""What the cloud answers: in HTTP, in refusals, and in pages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from tests.lab.azure import schema
from tests.lab.azure.names import HERE

Json = dict[str, Any]
MACHINES = "Microsoft.Compute/virtualMachines"
OPTIONS = frozenset({"$skiptoken", "api-version"})
"""Of the query of any list."""
_TOKEN = "+/=%2B&#"
"""Of a page: what all tokens end with, so that one that was not quoted, or twice, is known."""


@dataclass
class Answer:
    """Of HTTP. ``cut``: the connection ends instead, after all was done."""

    status: int
    body: Json | str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


class Refused(Exception):
    """Azure's way to say no."""

    def __init__(self, status: int, code: str, text: str, retry_after: int | None = None) -> None:
        super().__init__(code)
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self.answer = Answer(status, {"error": {"code": code, "message": text}}, headers)


@dataclass
class Refusal:
    """The next call of a method whose path fits is answered so, and nothing is done."""

    method: str
    path: str
    status: int
    code: str
    text: str
    times: int = 1
    retry_after: int | None = None
    then: Callable[[], None] = lambda: None
    """Called when it is answered so."""


class Pages:
    """Of lists, by a clock of seconds since 1970."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self.url = ""
        """Of the endpoint, for links."""
        self._links: dict[str, str] = {}
        """Paths by those of next pages."""
        self.page, self.other_page = 100, 100
        """Things to a page of our machines, and of all else."""
        self.endless = False
        """Lists have no last page."""

    def _list(self, path: str, query: dict[str, str], model: Any, rows: list[Json]) -> Answer:
        for one in rows:
            schema.hold(model, one)
        token = query.get("$skiptoken", f"0{_TOKEN}")
        if not token.endswith(_TOKEN):
            raise Refused(400, "InvalidSkipToken", f"The skip token '{token}' is invalid.")
        start = int(token.removesuffix(_TOKEN))
        end = start + (self.page if path == f"{HERE}/providers/{MACHINES}" else self.other_page)
        found: Json = {"value": rows[start:end]}
        if self.endless:
            start = end = 0
        if self.endless or end < len(rows):
            # Its letters may be of another case than those that were asked for.
            self._links[path.lower()] = path
            version = query["api-version"]
            token = quote(f"{end}{_TOKEN}", safe="").replace("%2B", "%2b")
            # Azure names the port, even if it is that of all.
            port = "" if urlsplit(self.url).port else ":443"
            found["nextLink"] = f"{self.url}{port}{quote(path.lower())}?api-version={version}&%24skiptoken={token}"
        return Answer(200, found)

    def _stamp(self) -> str:
        """With seven digits after the point, as Azure has it."""
        return f"{datetime.fromtimestamp(self._clock(), UTC):%Y-%m-%dT%H:%M:%S.%f}7+00:00"
