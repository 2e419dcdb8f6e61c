"""A namespace in memory, as far as its things are made, listed, looked at and deleted; every call is on record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burstd.domain.errors import NotFound, ProviderError
from providers.openshift.client.calls import KubeObject, OpenShiftCalls, Query
from providers.openshift.errors import KubernetesConflict, NoSuchApi
from providers.openshift.settings import OpenShiftSettings
from tests.providers.openshift.things import BORN_S

PODS, VOLUMES, SERVICES, ROUTES = "pods", "persistentvolumeclaims", "services", "routes"


class FakeObjectStore(OpenShiftCalls):
    """``fails``: by ``METHOD kind/name``, what is raised once instead."""

    def __init__(self, settings: OpenShiftSettings, kinds: Sequence[str] = (PODS, VOLUMES, SERVICES, ROUTES)) -> None:
        super().__init__(settings)
        self.time = BORN_S
        self.things: dict[str, dict[str, KubeObject]] = {kind: {} for kind in kinds}
        self.sent: list[tuple[str, Any]] = []
        self.fails: dict[str, ProviderError] = {}

    def has(self, kind: str, *things: KubeObject) -> None:
        for one in things:
            self.things[kind][one["metadata"]["name"]] = one

    def names(self, kind: str) -> list[str]:
        return sorted(self.things[kind])

    def deleted(self) -> list[str]:
        return sorted(said.removeprefix("DELETE ") for said, _ in self.sent if said.startswith("DELETE"))

    def server_time(self) -> float:
        return self.time

    def request_json(self, method: str, path: str, body: Any = None, *_: Any, **__: Any) -> KubeObject:
        kind, name = path.split("/")[-2:]
        self.sent.append((f"{method} {kind}/{name}", body))
        if error := self.fails.pop(f"{method} {kind}/{name}", None):
            raise error
        there = self._kind(kind)
        if name not in there:
            raise NotFound(f"{kind} {name} not found")
        if method == "DELETE":
            if body["preconditions"]["uid"] != there[name]["metadata"]["uid"]:
                raise KubernetesConflict("the UID in the precondition is another")
            return there.pop(name)
        return there[name]

    def list_objects(self, path: str, query: Query | None = None, *, what: str) -> tuple[list[KubeObject], str]:  # noqa: ARG002
        kind = path.rsplit("/", 1)[-1]
        self.sent.append((f"LIST {kind}", query))
        if error := self.fails.pop(f"LIST {kind}", None):
            raise error
        return list(self._kind(kind).values()), "99"

    def _kind(self, kind: str) -> dict[str, KubeObject]:
        if kind not in self.things:
            raise NoSuchApi(f"there are no {kind}")
        return self.things[kind]
