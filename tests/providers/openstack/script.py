"""Calls whose answers a test writes down, one request after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from burstd.domain.errors import ProviderError
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.settings import OpenStackSettings
from tests.providers.openstack.project import PROJECT, settings

SERVICES = {
    "servers": "compute", "os-server-groups": "compute", "ports": "network", "floatingips": "network",
    "volumes": "block_storage", "attachments": "block_storage",
}  # fmt: skip
Answer = Callable[[dict[str, Any]], Any] | ProviderError | Any


class ScriptedCalls(OpenStackCalls):
    """``answers``: by method and path; of a list one a call, the last for ever. A function takes query or body."""

    def __init__(
        self, answers: dict[str, Answer], of: OpenStackSettings | None = None, *, volumes: bool = False
    ) -> None:
        super().__init__(of or settings())
        self.answers = answers
        self.volumes = volumes
        self.said: list[str] = []
        self.queries: list[dict[str, Any]] = []

    def query(self, service: str, path: str, what: str, *, version: str = "", **query: Any) -> Any:
        if path.startswith("/servers"):
            assert version == "2.69", "older ones say nothing of cells that are down"
        _of_cinder(path, version)
        return self._answer(service, f"GET {path}", what, query)

    def mutate(self, service: str, method: str, path: str, what: str, *, body: Any = None, version: str = "") -> Any:
        assert not version or service == "block_storage"
        _of_cinder(path, version)
        return self._answer(service, f"{method} {path}", what, body)

    def has_service(self, service_type: str) -> bool:
        assert service_type == "block-storage"
        return self.volumes

    def project_id(self) -> str:
        return PROJECT

    def changed(self) -> list[str]:
        return sorted(one for one in self.said if not one.startswith("GET "))

    def _answer(self, service: str, what: str, purpose: str, words: Any) -> Any:
        assert purpose
        assert SERVICES[what.split("/")[1]] == service
        self.said.append(what)
        self.queries.append(words)
        found = self.answers.get(what)
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if callable(found):
            found = found(words)
        if isinstance(found, ProviderError):
            raise found
        return found


def _of_cinder(path: str, version: str) -> None:
    assert path.startswith("/attachments") == (version == "3.27"), "older ones have no attachments"
