"""A project in memory that answers as Nova, Neutron, Cinder and Glance do, as far as a launch speaks to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import BadRequest, NotFound, ProviderError, QuotaExceeded
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.slurm.shape import Shape
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.settings import OpenStackSettings

CLUSTER = "ours"
PROJECT = "p1"
Thing = dict[str, Any]
Errors = dict[str, list[ProviderError | None]]


class Killed(BaseException):
    """What kill -9 is to a process."""


def settings(**more: Any) -> OpenStackSettings:
    return OpenStackSettings(**{"networks": ["front"], "flavors": ["*"], "image": "debian", **more})


def request(claim: str, *, zone: str = "z1", flavor: str = "small", **more: Any) -> LaunchRequest:
    tags = {TAG_CLUSTER: CLUSTER, TAG_CLAIM: claim, "burstd-slot": f"slot-{claim}"}
    offer = Offer("openstack", "region", zone, flavor, False, Shape(2, 3800), Decimal(1))
    return LaunchRequest(claim, f"ours-{claim}", offer, more.pop("image", ""), "#cloud-config\n# é\n", tags, **more)


def many(count: int, **more: Any) -> list[LaunchRequest]:
    return [request(f"c{number:03}", **more) for number in range(count)]


class FakeProject(OpenStackCalls):
    """``refuses`` and ``loses``: the errors of coming changes, by method and kind (``POST /ports``), before they are
    carried out and after. ``dies_at`` (from 1 on) ends the process at that change, before it or, with ``done``, after.
    """

    def __init__(self, of: OpenStackSettings | None = None) -> None:
        super().__init__(of or settings())
        self.things: dict[str, dict[str, Thing]] = {
            kind: {} for kind in ("ports", "floatingips", "volumes", "servers", "os-server-groups")
        }
        self.images: list[Thing] = [image("debian")]
        self.networks = [thing("n-front", "front"), thing("n-back", "back"), thing("n-out", "out")]
        self.groups = [thing("sg-1", "nodes")]
        self.said: list[tuple[str, Any]] = []
        self.refuses: Errors = {}
        self.loses: Errors = {}
        self.lists: Errors = {}
        """Errors of coming lists, by path."""
        self.dies_at = 0
        self.done = False
        self.changes = 0
        self.most_ports = 1000
        self.volume_states: list[str] = ["available"]
        """States of new volumes, one for each list; the last for ever."""
        self._next = 0
        self._lock = threading.Lock()

    def count(self, what: str) -> int:
        return sum(said == what for said, _ in self.said)

    def names(self, kind: str) -> list[str]:
        return sorted(one["name"] for one in self.things[kind].values())

    def query(self, service: str, path: str, what: str, *, version: str = "", **query: Any) -> Any:
        _fits(service, path, what, version)
        with self._lock:
            self.said.append((f"GET {path}", query))
            _next(self.lists, path)
            if path == "/os-availability-zone":
                return {"availabilityZoneInfo": [{"zoneName": "z1", "zoneState": {"available": True}}]}
            if path == "/os-server-groups":
                return {"server_groups": list(self.things["os-server-groups"].values())}
            if path == "/images":
                return self._glance(**{key: said[0] if isinstance(said, list) else said for key, said in query.items()})
            assert path.startswith("/images/"), path
            found = next((one for one in self.images if path == f"/images/{one['id']}"), None)
            if found is None:
                raise NotFound("no such image")
            return found

    def pages(
        self, service: str, path: str, key: str, what: str, *, version: str = "", **query: Any
    ) -> Iterator[Mapping[str, Any]]:
        if path == "/images":
            return super().pages(service, path, key, what, version=version, **query)
        _fits(service, path, what, version)
        with self._lock:
            self.said.append((f"GET {path}", query))
            _next(self.lists, path)
            if path == "/volumes/detail":
                state = self.volume_states.pop(0) if len(self.volume_states) > 1 else self.volume_states[0]
                for one in self.things["volumes"].values():
                    one["status"] = state if one["status"] in ("creating", "downloading") else one["status"]
            tables = {"networks": self.networks, "security_groups": self.groups}
            kind = path.strip("/").partition("/")[0]
            listed = list(self.things[kind].values()) if kind in self.things else tables[key]
            assert kind != "servers" or query.keys() <= {"limit"}, (
                "what Nova finds by a filter is not all that there is"
            )
            wanted = {name: value for name, value in query.items() if name not in ("fields", "limit", "metadata")}
            found = [one for one in listed if all(one.get(name) in value for name, value in wanted.items())]
        return iter([dict(one) for one in found])

    def project_id(self) -> str:
        return PROJECT

    def _glance(self, status: str, limit: str, name: str = "", sort: str = "", marker: str = "") -> Any:
        said = {
            "status": status,
            "limit": limit,
            **({"name": name} if name else {}),
            **({"sort": sort} if sort else {}),
        }
        assert sort in ("", "created_at:desc,id:desc")
        found = [one for one in self.images if one["status"] == status and name in ("", one["name"])]
        if sort:
            found.sort(key=lambda one: (one["created_at"], one["id"]), reverse=True)
        start = next((place + 1 for place, one in enumerate(found) if one["id"] == marker), 0)
        page = found[start : start + int(limit)]
        if len(found) <= start + int(limit):
            return {"images": page}
        return {"images": page, "next": f"/v2/images?{urlencode({**said, 'marker': page[-1]['id']})}"}

    def mutate(self, service: str, method: str, path: str, what: str, *, body: Any = None, version: str = "") -> Any:
        kind, _, one = path.strip("/").partition("/")
        name = f"{method} /{kind}"
        _fits(service, path, what, version if method == "POST" else "x")
        with self._lock:
            self.said.append((name, body if method == "POST" else one))
            self.changes += 1
            dies = self.dies_at == self.changes
            dead = 0 < self.dies_at < self.changes
            if dead or (dies and not self.done):
                raise Killed
            _next(self.refuses, name)
            answer = None
            if method == "PUT":
                self.things[kind][one].update(next(iter(body.values())))
            elif method == "POST":
                answer = self._make(kind, body)
            else:
                self._end(kind, one)
            if dies:
                raise Killed
            _next(self.loses, name)
        return answer

    def _end(self, kind: str, one: str) -> None:
        if one not in self.things[kind]:
            raise NotFound(f"no {kind} {one}")
        if kind == "volumes" and self.things[kind][one]["status"] not in ("available", "error"):
            raise BadRequest("Volume status must be available or error")
        del self.things[kind][one]
        for floating in self.things["floatingips"].values():
            floating["port_id"] = None if floating["port_id"] == one else floating["port_id"]

    def _make(self, kind: str, body: Any) -> Any:
        if kind == "ports":
            if len(self.things[kind]) + len(body["ports"]) > self.most_ports:
                raise QuotaExceeded("Quota exceeded for resources: ['port'].")
            return {"ports": [self._keep(kind, {"device_id": "", **one}) for one in body["ports"]]}
        if kind == "floatingips":
            return {"floatingip": self._keep(kind, {"name": "", **body["floatingip"]})}
        if kind == "volumes":
            return {"volume": self._keep(kind, {"status": "creating", **body["volume"]})}
        if kind == "os-server-groups":
            return {"server_group": self._keep(kind, {"members": [], **body["server_group"]})}
        return {"server": {"id": self._server(body["server"])}}

    def _server(self, body: Thing) -> str:
        ports = [self.things["ports"].get(one["port"]) for one in body["networks"]]
        disks = [self.things["volumes"].get(one["uuid"]) for one in body.get("block_device_mapping_v2", ())]
        for port in ports:
            if port is None:
                raise BadRequest("Port id p could not be found.")
            if port["device_id"]:
                raise BadRequest(f"Port {port['id']} is still in use.")
        made = self._keep("servers", body)
        for port in ports:
            assert port is not None
            port["device_id"] = made["id"]
        for disk in disks:
            assert disk is not None
            assert disk["status"] == "available"
            disk["status"] = "in-use"
        return str(made["id"])

    def _keep(self, kind: str, body: Thing) -> Thing:
        self._next += 1
        made = {
            "id": f"{kind}-{self._next:04}", "created_at": f"2030-01-01T00:{self._next:04}", "project_id": PROJECT,
            **body,
        }  # fmt: skip
        self.things[kind][made["id"]] = made
        return dict(made)


def _fits(service: str, path: str, what: str, version: str) -> None:
    """Each thing is asked for where it is; Nova is told which of its versions."""
    kind = path.strip("/").partition("/")[0]
    homes = {"images": "image", "volumes": "block_storage", "os-availability-zone": "block_storage"}
    assert service == homes.get(kind, "compute" if kind in ("servers", "os-server-groups") else "network")
    assert what
    assert version or (service, kind) != ("compute", "servers")
    assert path != "/servers/detail" or version == "2.69"


def image(name: str, of: str = "", **more: Any) -> Thing:
    return {
        "id": of or f"i-{name}", "name": name, "status": "active", "min_disk": 0, "size": 3 << 30,
        "created_at": "2030-01-01T00:00:00Z", "owner": PROJECT, "visibility": "private", **more,
    }  # fmt: skip


def thing(of: str, name: str) -> Thing:
    return {"id": of, "name": name, "project_id": PROJECT}


def _next(errors: Errors, what: str) -> None:
    waiting = errors.get(what)
    error = waiting.pop(0) if waiting else None
    if error is not None:
        raise error
