"""One subscription as Azure keeps it: who may do what, in which version, and which room answers.

What is asked and answered of compute and network is held against Microsoft's models (``schema``), and what is asked
against burstd's roles (``rights``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.lab.azure import rights
from tests.lab.azure.answers import MACHINES, Answer, Json, Refusal, Refused
from tests.lab.azure.names import GROUP, HERE, ROOT
from tests.lab.azure.resource_group import MODELS, Behind, ResourceGroup
from tests.lab.azure.specs import LOCATION

_VERSIONS = {
    "virtualMachines": "2026-04-01", "locations": "2026-04-01", "images": "2026-04-01", "disks": "2026-03-02",
    "galleries": "2026-03-03", "skus": "2021-07-01", "networkInterfaces": "2026-03-01",
    "publicIPAddresses": "2026-03-01", "virtualNetworks": "2026-03-01", "networkSecurityGroups": "2026-03-01",
    "permissions": "2022-04-01", "": "2021-04-01",
}  # fmt: skip
"""Of azure-mgmt-compute 39 and azure-mgmt-network 33, with which the models come."""


class AzureCloud(ResourceGroup):
    """Everything is done under one lock. ``clock``: seconds since 1970."""

    def __init__(self, clock: Callable[[], float], behind: Behind | None = None) -> None:
        super().__init__(clock, behind or Behind())
        self.clients: dict[str, dict[str, frozenset[str]]] = {}
        """Roles by the token's client; see ``rights.allowed``."""
        self.tokens: dict[str, str] = {}
        """Client by token."""
        self.calls: Counter[str] = Counter()
        self.actions: set[str] = set()
        """Of the roles, that calls have needed."""
        self.violations: list[str] = []
        """What was asked or answered otherwise than the models have it."""
        self.refusals: list[Refusal] = []
        self.skew_s = 0.0
        self.asked: Callable[[str], object] = lambda _: None
        """Called with the path of each request to Azure Resource Manager."""

    def refuse(self, method: str, path: str, status: int, code: str, text: str = "", **more: Any) -> None:
        """``path``: a part of those that are meant."""
        self.refusals.append(Refusal(method, path, status, code, text or code, **more))

    def answer_request(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """One request to Azure Resource Manager, its price list, or the storage of consoles."""
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        with self._lock:
            self._advance()
            try:
                if url.path.startswith("/console/"):
                    answer = self._console(url.path, query, headers)
                elif url.path == "/api/retail/prices":
                    self.calls["GET prices"] += 1
                    answer = self._prices(query)
                else:
                    answer = self._manage(method, self._links.get(url.path, url.path), query, headers, body)
            except Refused as refused:
                answer = refused.answer
            except AssertionError as error:
                self.violations.append(f"{method} {url.path}: {error}")
                answer = Answer(400, {"error": {"code": "InvalidRequestContent", "message": str(error)}})
        answer.headers["Date"] = format_datetime(datetime.fromtimestamp(self._clock() + self.skew_s, UTC), usegmt=True)
        return answer

    def _manage(
        self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:  # fmt: skip
        said: Json | None = json.loads(body) if body else None
        kind = path.rpartition("/providers/")[2].split("/")[1] if "/providers/" in path else ""
        assert query.get("api-version") == _VERSIONS.get(kind), f"no such version of {path}: {query}"
        client = self.tokens.get(headers.get("authorization", "").removeprefix("Bearer "))
        self.calls[f"{method} {kind}"] += 1
        self.asked(path)
        if client is None:
            raise Refused(401, "ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than now.")
        for one in self.refusals:
            if one.method == method and one.path in path:
                one.times -= 1
                if not one.times:
                    self.refusals.remove(one)
                one.then()
                raise Refused(one.status, one.code, one.text, one.retry_after)
        assert path.startswith(f"{ROOT}/"), f"no such subscription: {path}"
        for action, scope in rights.needed(method, path, said):
            self.actions.add(action)
            if not rights.allowed(self.clients[client], action, scope):
                raise Refused(
                    403, "AuthorizationFailed",
                    f"The client '{client}' does not have authorization to perform action '{action}' over scope "
                    f"'{scope}' or the scope is invalid.",
                )  # fmt: skip
        return self._route(method, path, query, headers, said, client)

    def _route(
        self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str], said: Json | None, client: str
    ) -> Answer:  # fmt: skip
        below, _, rest = path.rpartition("/providers/")
        words = [*rest.split("/", 3), "", ""]
        kind_name, name, more = "/".join(words[:2]), words[2], words[3]
        if path == HERE and method == "GET":
            found = {"id": HERE, "name": GROUP, "location": LOCATION, "type": "Microsoft.Resources/resourceGroups"}
            return Answer(200, {**found, "properties": {"provisioningState": "Succeeded"}})
        if kind_name in MODELS and below.lower() == HERE.lower():
            return self._resource(method, kind_name, name, more, query, headers, said)
        assert method == "GET", f"nothing is to be changed at {path}"
        if kind_name == MACHINES and below == ROOT:
            return self._statuses(query)
        if kind_name == "Microsoft.Authorization/permissions":
            roles = self.clients[client].items()
            actions = [one for at, some in roles if f"{below.lower()}/".startswith(f"{at}/") for one in some]
            return Answer(200, {"value": [{"actions": actions, "notActions": []}]})
        return self._look_around(path, query)
