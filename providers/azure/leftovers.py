"""What bears the cluster's tag and no machine has: found in a few pages, removed once it was looked at again."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial

from burstd.domain.cloud.instance import TAG_CLAIM, Leftover
from burstd.domain.errors import NotFound, ProviderError
from providers.azure.calls import AzureCalls, Resource
from providers.azure.resources import ADDRESSES, DISKS, INTERFACES, MACHINES, belongs_to_cluster, properties_of, tags_of
from providers.azure.settings import AzureSettings
from providers.batch_calls import BatchCall
from providers.leftovers import remove_leftovers

_KINDS: dict[str, tuple[str, Callable[[Resource], str]]] = {
    "network-interface": (INTERFACES, lambda said: (properties_of(said).get("virtualMachine") or {}).get("id", "")),
    # After what it is on.
    "public-ip-address": (ADDRESSES, lambda said: (properties_of(said).get("ipConfiguration") or {}).get("id", "")),
    "disk": (DISKS, lambda said: said.get("managedBy") or ""),
}
"""Type of resource, and the id of what one is on, or was; in the order in which they can be removed."""


class AzureLeftovers:
    """Of one cluster, in one resource group."""

    def __init__(self, name: str, cluster: str, settings: AzureSettings, calls: AzureCalls) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls

    def list_leftovers(self) -> Iterator[Leftover]:
        """What nothing uses: it may still name what is gone."""
        # What others are on is read after them, so that nothing new looks unused.
        held = {kind: list(self._list(kind)) for kind in reversed(_KINDS)}
        there = {said["id"].lower() for said in held["network-interface"]}
        there |= {said["id"].lower() for said in self._calls.pages(self._calls.in_group(MACHINES), "list machines")}
        for kind, (_, user_of) in _KINDS.items():
            for said in held[kind]:
                if belongs_to_cluster(said, self._cluster) and not self._in_use(user_of(said), there):
                    yield Leftover(kind, said["name"], self._name, tags_of(said).get(TAG_CLAIM, ""))

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks at all of them first. What is in use by now is an error.

        Raises BadRequest, and removes nothing, where one is not ours; else the first error when all were tried.
        """
        mark = f"tag of cluster {self._cluster}"
        remove_leftovers(leftovers, _KINDS, "Azure", mark, self._named, self._strange, self._delete_all)

    def _in_use(self, user: str, there: Container[str]) -> bool:
        """``user``: id of what it is on, if only of one of its parts; what is elsewhere is not looked for."""
        user = user.lower().partition("/ipconfigurations/")[0]
        ours = user.startswith(f"{self._calls.in_group('')}/".lower())
        return user in there if ours else bool(user)

    def _list(self, kind: str) -> Iterator[Resource]:
        return self._calls.pages(self._calls.in_group(_KINDS[kind][0]), f"list each {kind}")

    def _named(self, kind: str, wanted: Sequence[str]) -> Iterator[Resource]:
        return (said for said in self._list(kind) if said["name"] in wanted)

    def _strange(self, _: str, said: Resource) -> str:
        return "" if belongs_to_cluster(said, self._cluster) else str(said["name"])

    def _delete_all(self, kind: str, things: Sequence[Resource]) -> list[ProviderError | None]:
        names = [str(said["name"]) for said in things]
        return BatchCall(self._settings.side_by_side).call_each(partial(self._delete, kind), names)

    def _delete(self, kind: str, name: str) -> None:
        try:
            self._calls.mutate("DELETE", self._calls.in_group(_KINDS[kind][0], name), f"delete {kind} {name}")
        except NotFound:
            return
