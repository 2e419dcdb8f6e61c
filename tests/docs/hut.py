"""Hut, the cloud of docs/provider-authors.md: a REST interface in this process, that can be told to break."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from burstd.domain.plugins.provider import Provider
from burstd.testing.cloud_world import Breakage, FaultWorld

TOKEN = "s3cret"
ZONES, TYPES = ("a", "b"), {"small": (2, 2000, 0), "gpu4": (8, 60000, 4)}
_REFUSALS = {
    Breakage.CAPACITY: (409, "no_capacity"), Breakage.QUOTA: (403, "quota"), Breakage.RATE: (429, "slow_down"),
    Breakage.AUTH: (401, "forbidden"), Breakage.IMAGE: (422, "invalid"), Breakage.DOWN: (503, "maintenance"),
}  # fmt: skip
Thing = dict[str, Any]


@dataclass
class Cloud:
    """Servers come on at the second look, and go at the second look."""

    servers: dict[str, Thing] = field(default_factory=dict)
    disks: dict[str, Thing] = field(default_factory=dict)
    orders: list[Breakage] = field(default_factory=list)
    calls: int = 0
    made: int = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        """One call."""
        self.calls += 1
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            return _no(401, "forbidden")
        kind, _, name = request.url.path.strip("/").partition("/")
        things = self.servers if kind == "servers" else self.disks
        if request.method == "POST":
            return self._launch(json.loads(request.content))
        if kind == "offers":
            return httpx.Response(200, json={"items": [_offer(z, t) for z in ZONES for t in TYPES]})
        if not name:
            return self._page(things, dict(request.url.params))
        thing = things.get(name.removesuffix("/console"))
        if thing is None:
            return _no(404, "not_found")
        if request.method == "DELETE":
            return self._delete(kind, thing)
        return httpx.Response(200, json={"text": "has booted"} if name.endswith("/console") else thing)

    def _launch(self, asked: Thing) -> httpx.Response:
        order = self._ordered({*_REFUSALS, Breakage.LOST})
        if order in _REFUSALS:
            return _no(*_REFUSALS[order])
        if asked["zone"] not in ZONES or asked["type"] not in TYPES or asked["image"] != "debian":
            return _no(422, "invalid")
        there = next((s for s in self.servers.values() if s["name"] == asked["name"]), None)
        if there is not None:
            return httpx.Response(409, json={"error": "name_taken", "server": there})
        self.made += 1
        made = {**asked, "id": f"s{self.made:04}", "state": "building", "address": None, "problem": ""}
        made |= {"created": 1_800_000_000.0 + self.made, "looks": 0}
        self.servers[made["id"]] = made
        disk = {"id": f"d{self.made:04}", "tags": asked["tags"], "server": made["id"]}
        self.disks[str(disk["id"])] = disk
        if order is Breakage.LOST:
            raise httpx.ReadTimeout("the answer was lost")
        return httpx.Response(201, json=made)

    def _page(self, things: dict[str, Thing], query: dict[str, str]) -> httpx.Response:
        if things is self.servers and self._ordered({Breakage.LIST_DOWN}):
            return httpx.Response(500, text="internal error")
        ours = [t for i, t in sorted(things.items()) if t["tags"].get("burstd-cluster") == query["cluster"]]
        limit = int(query["limit"])
        page = [t for t in ours if t["id"] > query["after"]][: limit + 1]
        return httpx.Response(
            200, json={"items": page[:limit], "next": page[limit - 1]["id"] if len(page) > limit else ""}
        )

    def _delete(self, kind: str, thing: Thing) -> httpx.Response:
        if kind == "disks":
            del self.disks[thing["id"]]
            return httpx.Response(204)
        if self._ordered({Breakage.TERMINATE}):
            return httpx.Response(500, text="internal error")
        if thing["state"] != "deleting":
            thing["state"] = "deleting"
            thing["leaks"] = self._ordered({Breakage.LEAK}) is not None
        return httpx.Response(204)

    def _ordered(self, kinds: set[Breakage]) -> Breakage | None:
        found = next((order for order in self.orders if order in kinds), None)
        if found is not None:
            self.orders.remove(found)
        return found

    def work(self) -> None:
        """Time passes: what is building comes on, what is deleting is gone."""
        for server in list(self.servers.values()):
            if server["state"] == "building":
                server |= {"state": "on", "address": f"10.0.0.{server['id'][1:].lstrip('0')}"}
            elif server["state"] == "deleting":
                del self.servers[server["id"]]
                for disk in [d for d in self.disks.values() if d["server"] == server["id"]]:
                    if server["leaks"]:
                        disk["server"] = ""
                    else:
                        del self.disks[disk["id"]]


class HutWorld(FaultWorld):
    """One account. ``make`` makes the provider of the document."""

    image = "debian"
    page = 2

    def __init__(self, make: Callable[[str, httpx.BaseTransport], Provider]) -> None:
        self._make = make
        self.cloud = Cloud()

    def provider(self, cluster: str) -> Provider:
        return self._make(cluster, httpx.MockTransport(self.cloud.answer))

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(5):
            if condition():
                return
            self.cloud.work()
        raise AssertionError("it never came to be")

    def calls(self) -> int:
        return self.cloud.calls

    def user_data(self, instance_id: str) -> str:
        return str(self.cloud.servers[instance_id]["user_data"])

    def inject_fault(self, how: Breakage) -> None:
        self.cloud.orders.append(how)


def token_file(folder: Path) -> Path:
    """The token, where only its owner may read it."""
    file = folder / "hut.token"
    file.touch(mode=0o600)
    file.write_text(TOKEN + "\n", encoding="utf-8")
    return file


def _offer(zone: str, kind: str) -> Thing:
    cpus, memory, gpus = TYPES[kind]
    price = {"price": "0.10", "spot": False, "gpu": "v100"}
    return {"region": "r", "zone": zone, "type": kind, "cpus": cpus, "memory_mib": memory, "gpus": gpus, **price}


def _no(status: int, error: str) -> httpx.Response:
    return httpx.Response(status, json={"error": error, "text": f"no: {error}"})
