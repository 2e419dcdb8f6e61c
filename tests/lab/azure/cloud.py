"""One subscription as Azure keeps it: its resources, their life by a clock that is given, and faults to order.

What is asked and what is answered is held against Microsoft's models (``schema``) and burstd's roles (``rights``).
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from azure.mgmt.compute import models as compute
from azure.mgmt.network import models as network

from tests.lab.azure import rights, schema
from tests.lab.azure.names import DEFINITION, GROUP, HERE, IDENTITY, MANAGED, MARKETPLACE, ROOT, SECURITY_GROUP, SUBNET
from tests.lab.azure.specs import LOCATION, SIZES

_MACHINES, _DISKS = "Microsoft.Compute/virtualMachines", "Microsoft.Compute/disks"
_INTERFACES, _ADDRESSES = "Microsoft.Network/networkInterfaces", "Microsoft.Network/publicIPAddresses"
_MODELS = {
    _MACHINES: compute.VirtualMachine, _DISKS: compute.Disk, _INTERFACES: network.NetworkInterface,
    _ADDRESSES: network.PublicIPAddress,
}  # fmt: skip
_VERSIONS = {
    "virtualMachines": "2026-04-01", "locations": "2026-04-01", "images": "2026-04-01", "disks": "2026-03-02",
    "galleries": "2026-03-03", "skus": "2021-07-01", "networkInterfaces": "2026-03-01",
    "publicIPAddresses": "2026-03-01", "virtualNetworks": "2026-03-01", "networkSecurityGroups": "2026-03-01",
    "permissions": "2022-04-01", "": "2021-04-01",
}  # fmt: skip
"""Of azure-mgmt-compute 39 and azure-mgmt-network 33, with which the models come."""
_OPTIONS = {"$skiptoken", "api-version"}
Json = dict[str, Any]


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
    skip: int = 0
    """Calls that fit and are served first."""
    then: Callable[[], None] = lambda: None
    """Called when it is answered so."""


@dataclass
class Machine:
    """A machine, and what Azure does not tell of it."""

    said: Json
    user_data: str
    born: float
    interface: str
    disk: str
    address: str
    until: float = 0.0
    """When the operation that is under way ends."""
    fails: tuple[str, str] | None = None
    """Code and text with which its creation ends."""
    failed: tuple[str, str] | None = None
    power: str = "starting"
    luns: dict[int, Json] = field(default_factory=dict)
    """Disks that were attached, by their logical unit numbers."""

    @property
    def state(self) -> str:
        found: str = self.said["properties"]["provisioningState"]
        return found


class Behind:
    """What stands behind the machines: nothing, but for a last line of a boot."""

    def running(self, machine: Machine, address: str) -> None:
        """It is to boot."""

    def ended(self, name: str) -> None:
        """It is gone once this returns."""

    def console(self, name: str) -> str:
        """Its output so far."""
        return f"{name} login: \n"

    def notice(self, name: str, deadline: float) -> None:
        """Its metadata is to announce an eviction."""


class AzureCloud:
    """Everything is done under one lock. ``clock``: seconds since 1970."""

    def __init__(self, clock: Callable[[], float], behind: Behind | None = None, network_prefix: str = "10.77") -> None:
        self._clock = clock
        self._behind = behind or Behind()
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._prefix = network_prefix
        self.url = ""
        """Of the endpoint, for links."""
        self._links: dict[str, str] = {}
        """Paths by those of next pages."""
        self.things: dict[str, dict[str, Json]] = {kind: {} for kind in _MODELS}
        """By kind and name in small letters; of machines what ``machines`` has beside."""
        self.machines: dict[str, Machine] = {}
        self.versions: dict[str, Json] = {}
        """Of the gallery's image, by id."""
        self.usages: dict[str, tuple[int, int]] = {}
        """In use and limit, by the name of the quota."""
        self.clients: dict[str, dict[str, frozenset[str]]] = {}
        """Roles by the token's client; see ``rights.allowed``."""
        self.tokens: dict[str, str] = {}
        """Client by token."""
        self.calls: Counter[str] = Counter()
        self.actions: set[str] = set()
        """Of the roles, that calls have needed."""
        self.violations: list[str] = []
        """What was asked or answered otherwise than the models have it."""
        self.page, self.other_page = 100, 100
        """Things to a page of machines, and of all else."""
        self.boot_s, self.stop_s, self.hide_s, self.skew_s = 1.0, 1.0, 0.0, 0.0
        self._later: list[tuple[float, Callable[[], object]]] = []
        """What is to happen to disks, and when."""
        self.refusals: list[Refusal] = []
        self.late: list[tuple[str, str]] = []
        """With what the next machines' creation fails."""
        self.lost = 0
        """How many of the next PUTs have no answer, or a 500 for one."""
        self.lost_as = "cut"
        self.status_lag_s = -1e9
        """How long after its operation's end a machine shows in the list of what has become of machines."""
        self.heeds_conditions = True
        """Of headers of requests; else a second PUT would change a machine."""
        self.endless = False
        """Lists have no last page."""
        self.leaks: list[str] = []
        """Kinds of what the next machine that ends leaves behind."""
        self.prices_down = False
        self.no_address = False
        """Network interfaces have none yet."""

    def refuse(self, method: str, path: str, status: int, code: str, text: str = "", **more: Any) -> None:
        """``path``: a part of those that are meant."""
        self.refusals.append(Refusal(method, path, status, code, text or code, **more))

    def publish(self, version: str, published: str = "", **more: Any) -> str:
        """A version of the gallery's image; its id."""
        found = f"{DEFINITION}/versions/{version}"
        profile = {
            "targetRegions": [{"name": "West Europe", "regionalReplicaCount": 1}], "excludeFromLatest": False,
            "publishedDate": published or datetime.fromtimestamp(self._clock() + len(self.versions), UTC).isoformat(),
            **more,
        }  # fmt: skip
        self.versions[found] = {
            "id": found, "name": version, "type": "Microsoft.Compute/galleries/images/versions", "location": LOCATION,
            "properties": {
                "publishingProfile": profile, "provisioningState": "Succeeded",
                "storageProfile": {"osDiskImage": {"sizeInGB": 30, "hostCaching": "ReadWrite"}},
            },
        }  # fmt: skip
        return found

    def handle(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """One request to Azure Resource Manager, its price list, or the storage of consoles."""
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        with self._lock:
            self._advance()
            try:
                if url.path.startswith("/console/"):
                    answer = self._console(url.path, query, headers)
                elif url.path == "/api/retail/prices":
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

    def evict(self, name: str, notice_s: float = 0.0) -> None:
        """Azure takes a spot machine back."""
        with self._lock:
            self._behind.notice(name, self._clock() + notice_s)
            self._end(self.machines[name.lower()], self._clock() + notice_s)

    def keep(self, kind: str, name: str, tags: Json) -> None:
        """Somebody has such a thing, and no machine uses it."""
        about = {"creationData": {"createOption": "Empty"}, "diskState": "Unattached"} if kind == _DISKS else {}
        with self._lock:
            self._keep(kind, name, tags, about)

    def switch_off(self, name: str, state: str = "deallocated") -> None:
        """Somebody does, or the machine itself."""
        with self._lock:
            self._advance()
            self.machines[name.lower()].power = state

    def _manage(
        self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:  # fmt: skip
        said: Json | None = json.loads(body) if body else None
        kind = path.rpartition("/providers/")[2].split("/")[1] if "/providers/" in path else ""
        assert query.get("api-version") == _VERSIONS.get(kind), f"no such version of {path}: {query}"
        client = self.tokens.get(headers.get("authorization", "").removeprefix("Bearer "))
        self.calls[f"{method} {kind}"] += 1
        if client is None:
            raise Refused(401, "ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than now.")
        for one in self.refusals:
            if one.method == method and one.path in f"{path}?{'paged' if '$skiptoken' in query else ''}":
                if one.skip:
                    one.skip -= 1
                    continue
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
        if kind_name in _MODELS and below.lower() == HERE.lower():
            return self._resource(method, kind_name, name, more, query, headers, said)
        assert method == "GET", f"nothing is to be changed at {path}"
        if kind_name == _MACHINES and below == ROOT:
            return self._statuses(query)
        if kind_name == "Microsoft.Compute/skus":
            assert query.keys() <= _OPTIONS | {"$filter"}
            assert "$skiptoken" in query or query.get("$filter") == f"location eq '{LOCATION}'"
            return self._list(path, query, compute.ResourceSku, [one.sku() for one in SIZES.values()])
        if rest == f"Microsoft.Compute/locations/{LOCATION}/usages":
            return self._list(path, query, compute.Usage, self._usages())
        if kind_name == "Microsoft.Authorization/permissions":
            roles = self.clients[client].items()
            actions = [one for at, some in roles if f"{below.lower()}/".startswith(f"{at}/") for one in some]
            return Answer(200, {"value": [{"actions": actions, "notActions": []}]})
        return self._shared(path, query)

    def _shared(self, path: str, query: dict[str, str]) -> Answer:
        """What is there without burstd's doing: images, the network."""
        if path == f"{DEFINITION}/versions":
            return self._list(path, query, compute.GalleryImageVersion, list(self.versions.values()))
        about: tuple[Any, Json] | None = None
        if path == DEFINITION:
            identifier = {"publisher": "site", "offer": "slurm", "sku": "node"}
            about = compute.GalleryImage, {
                "osType": "Linux", "osState": "Generalized", "identifier": identifier, "architecture": "x64"
            }  # fmt: skip
        elif path == MANAGED:
            about = compute.Image, {
                "provisioningState": "Succeeded", "hyperVGeneration": "V2",
                "storageProfile": {"osDisk": {"osType": "Linux", "osState": "Generalized"}},
            }  # fmt: skip
        elif path == SUBNET:
            about = network.Subnet, {"addressPrefix": "10.77.0.0/16", "provisioningState": "Succeeded"}
        elif path == SECURITY_GROUP:
            about = network.NetworkSecurityGroup, {"securityRules": [], "provisioningState": "Succeeded"}
        elif path.endswith(
            "/publishers/Debian/artifacttypes/vmimage/offers/debian-12/skus/12-gen2/versions/0.20260101.1"
        ):
            about = compute.VirtualMachineImage, {"architecture": "x64", "hyperVGeneration": "V2"}
        if about is None:
            raise Refused(404, "ResourceNotFound", f"The Resource '{path}' was not found.")
        model, properties = about
        found: Json = {"id": path, "name": path.rpartition("/")[2], "properties": properties}
        if model is not network.Subnet:
            found["location"] = LOCATION
        schema.hold(model, found)
        return Answer(200, found)

    def _resource(
        self, method: str, kind: str, name: str, more: str, query: dict[str, str], headers: Mapping[str, str],
        said: Json | None,
    ) -> Answer:  # fmt: skip
        held = self.things[kind]
        if not name:
            assert (method, more) == ("GET", "")
            assert query.keys() <= _OPTIONS
            rows = [self._shown(kind, one) for key, one in held.items() if self._visible(key)]
            return self._list(f"{HERE}/providers/{kind}", query, _MODELS[kind], rows)
        if method == "PUT":
            assert said is not None
            return self._put(name, headers, said) if kind == _MACHINES else self._put_disk(name, said)
        known = held.get(name.lower())
        if method == "DELETE":
            assert query.keys() <= {"api-version", "forceDeletion"}
            return self._delete(kind, name) if known else Answer(204)
        if known is None or (kind == _MACHINES and not self._visible(name.lower())):
            raise Refused(404, "ResourceNotFound", f"The Resource '{kind}/{name}' under '{GROUP}' was not found.")
        if (method, more) == ("GET", ""):
            return Answer(200, self._shown(kind, known))
        machine = self.machines[name.lower()]
        if (method, more) == ("GET", "instanceView"):
            view = self._view(machine)
            schema.hold(compute.VirtualMachineInstanceView, view)
            return Answer(200, view)
        if (method, more) == ("POST", "attachDetachDataDisks"):
            assert said is not None
            return self._change_disks(machine, said)
        assert (method, more) == ("POST", "retrieveBootDiagnosticsData")
        assert query.keys() <= {"api-version", "sasUriExpirationTimeInMinutes"}
        where = f"{self.url}/console/{name}"
        found = {
            "consoleScreenshotBlobUri": f"{where}.bmp?sig=SECRET",
            "serialConsoleLogBlobUri": f"{where}?sig=SECRET",
        }
        schema.hold(compute.RetrieveBootDiagnosticsDataResult, found)
        return Answer(200, found)

    def _put(self, name: str, headers: Mapping[str, str], said: Json) -> Answer:
        schema.hold(compute.VirtualMachine, said, request=True)
        assert headers.get("if-none-match") == "*", "a machine would be changed"
        if name.lower() in self.machines and self.heeds_conditions:
            raise Refused(412, "PreconditionFailed", f"The resource '{name}' exists.")
        if name.lower() in self.machines:
            raise Refused(409, "PropertyChangeNotAllowed", "Changing property 'osProfile.customData' is not allowed.")
        about = said["properties"]
        self._judge(said, about)
        interface, address, public = self._make_interface(name, about)
        disk = self._make_disk(name, said, about)
        made: Json = json.loads(json.dumps(said))
        made |= {"id": f"{HERE}/providers/{_MACHINES}/{name}", "name": name, "type": _MACHINES}
        properties = made["properties"]
        user_data = base64.b64decode(properties["osProfile"].pop("customData")).decode()
        del properties["networkProfile"]["networkInterfaceConfigurations"]
        properties["networkProfile"]["networkInterfaces"] = [
            {"id": interface, "properties": {"primary": True, "deleteOption": "Delete"}}
        ]
        properties["storageProfile"]["osDisk"]["managedDisk"]["id"] = disk
        properties |= {
            "provisioningState": "Creating",
            "timeCreated": self._stamp(),
            "vmId": f"{next(self._numbers):032x}",
        }
        machine = Machine(made, user_data, self._clock(), interface, disk, public, self._clock() + self.boot_s)
        machine.fails = self.late.pop(0) if self.late else None
        self.things[_MACHINES][name.lower()] = made
        self.machines[name.lower()] = machine
        if machine.fails is None:
            self._behind.running(machine, address)
        shown = self._shown(_MACHINES, made)
        lost = self.lost > 0
        self.lost -= lost
        if lost and self.lost_as == "500":
            raise Refused(500, "InternalServerError", "An internal error occurred.")
        operation = f"{self.url}{ROOT}/providers/Microsoft.Compute/locations/{LOCATION}/operations/1"
        return Answer(201, shown, {"Azure-AsyncOperation": operation}, cut=lost)

    def _put_disk(self, name: str, said: Json) -> Answer:
        schema.hold(compute.Disk, said, request=True)
        assert name.lower() not in self.things[_DISKS], "a disk would be changed"
        assert said["properties"]["creationData"]["createOption"] == "Empty"
        about = {**said["properties"], "diskState": "Unattached", "provisioningState": "Creating"}
        made = self._keep(_DISKS, name, said["tags"], about)
        made |= {key: said[key] for key in ("sku", "zones") if key in said}
        self._later.append((self._clock() + self.boot_s, lambda: about.update(provisioningState="Succeeded")))
        return Answer(202, self._shown(_DISKS, made))

    def _change_disks(self, machine: Machine, said: Json) -> Answer:
        """Done a moment later; until then the disk says whose it is to be, or was."""
        schema.hold(compute.AttachDetachDataDisksRequest, said, request=True)
        for wanted in said.get("dataDisksToAttach", ()):
            disk = self.things[_DISKS].get(_name(wanted["diskId"]))
            if disk is None:
                raise Refused(404, "NotFound", f"Disk {wanted['diskId']} is not found.")
            if disk.get("managedBy") or wanted["lun"] in machine.luns:
                raise Refused(409, "ConflictingUserInput", "The disk or the LUN is in use by another machine or disk.")
            if disk.get("zones", []) != machine.said.get("zones", []) and disk["sku"]["name"][-4:] != "_ZRS":
                raise Refused(400, "BadRequest", "Disk and machine are not in the same zone.")
            assert wanted["deleteOption"] == "Detach", "the machine's end would take the disk along"
            machine.luns[wanted["lun"]] = disk
            disk["managedBy"] = machine.said["id"]
            self._later.append((self._clock() + 1.0, partial(disk["properties"].update, diskState="Attached")))
        for wanted in said.get("dataDisksToDetach", ()):
            for lun, disk in list(machine.luns.items()):
                if _name(disk["id"]) == _name(wanted["diskId"]):
                    self._later.append((self._clock() + 1.0, partial(self._detach, machine, lun)))
        return Answer(202)

    def _detach(self, machine: Machine, lun: int) -> None:
        disk = machine.luns.pop(lun, None)
        if disk is not None:
            del disk["managedBy"]
            disk["properties"]["diskState"] = "Unattached"

    def _judge(self, said: Json, about: Json) -> None:
        """What Azure refuses at once."""
        size = SIZES.get(about["hardwareProfile"]["vmSize"])
        if said["location"] != LOCATION:
            raise Refused(400, "LocationNotAvailableForResourceType", "no such location")
        if size is None:
            raise Refused(400, "InvalidParameter", "The value provided for the VM size is not valid.")
        zones = said.get("zones", [])
        if size.withheld and (zones == [] or "everywhere" in size.withheld or zones[0] in size.withheld):
            raise Refused(409, "SkuNotAvailable", f"The requested VM size '{size.name}' is currently not available.")
        if zones and zones[0] not in size.zones:
            raise Refused(400, "InvalidParameter", f"The zone(s) '{zones[0]}' are not supported for {size.name}.")
        image = about["storageProfile"]["imageReference"]
        if "id" in image and image["id"] not in (*self.versions, MANAGED):
            raise Refused(404, "GalleryImageNotFound", f"The gallery image {image['id']} is not available.")
        if "id" not in image and ":".join(image.values()) != MARKETPLACE:
            raise Refused(404, "PlatformImageNotFound", "The platform image is not available.")
        if (about.get("priority") == "Spot") != ("evictionPolicy" in about):
            raise Refused(400, "InvalidParameter", "Eviction policy can be set only on Azure Spot Virtual Machines.")
        for identity in said.get("identity", {}).get("userAssignedIdentities", {}):
            if identity != IDENTITY:
                raise Refused(404, "FailedIdentityOperation", f"Identity {identity} not found.")
        users = about["osProfile"]["linuxConfiguration"]["ssh"]["publicKeys"]
        if not users or not all(one["keyData"].startswith("ssh-") for one in users):
            raise Refused(400, "InvalidParameter", "The value of parameter linuxConfiguration.ssh is invalid.")

    def _make_interface(self, name: str, about: Json) -> tuple[str, str, str]:
        """Id, private address, and id of the public address or nothing."""
        (wanted,) = about["networkProfile"]["networkInterfaceConfigurations"]
        (ip,) = wanted["properties"]["ipConfigurations"]
        if ip["properties"]["subnet"]["id"] != SUBNET:
            raise Refused(404, "NotFound", f"Resource {ip['properties']['subnet']['id']} not found.")
        number = next(self._numbers)
        full = f"{wanted['name']}-{number:08x}"
        address, public = f"{self._prefix}.{16 + number // 250}.{number % 250 + 2}", ""
        machine = {"id": f"{HERE}/providers/{_MACHINES}/{name}"}
        configuration: Json = {"subnet": {"id": SUBNET}, "primary": True, "privateIPAddress": address}
        if "publicIPAddressConfiguration" in ip["properties"]:
            given = ip["properties"]["publicIPAddressConfiguration"]
            made = self._keep(
                _ADDRESSES, f"{given['name']}-{number:08x}", given.get("tags"), {"provisioningState": "Succeeded"}
            )
            public = made["id"]
            configuration["publicIPAddress"] = {"id": public}
        made = self._keep(_INTERFACES, full, wanted.get("tags"), {
            "provisioningState": "Succeeded", "virtualMachine": machine,
            "ipConfigurations": [{"name": ip["name"], "properties": configuration}],
        })  # fmt: skip
        if public:
            where = {"id": f"{made['id']}/ipConfigurations/{ip['name']}"}
            self.things[_ADDRESSES][_name(public)]["properties"]["ipConfiguration"] = where
        return made["id"], address, public

    def _make_disk(self, name: str, said: Json, about: Json) -> str:
        """The disk gets the machine's tags, as Azure does it."""
        wanted = about["storageProfile"]["osDisk"]
        made = self._keep(_DISKS, wanted["name"], said.get("tags"), {
            "creationData": {"createOption": "FromImage"}, "diskState": "Attached", "provisioningState": "Succeeded",
        })  # fmt: skip
        made["managedBy"] = f"{HERE}/providers/{_MACHINES}/{name}"
        return str(made["id"])

    def _keep(self, kind: str, name: str, tags: Json | None, properties: Json) -> Json:
        made = {
            "id": f"{HERE}/providers/{kind}/{name}", "name": name, "type": kind, "location": LOCATION,
            "tags": dict(tags or {}), "properties": properties,
        }  # fmt: skip
        self.things[kind][name.lower()] = made
        return made

    def _delete(self, kind: str, name: str) -> Answer:
        if kind == _MACHINES:
            self._end(self.machines[name.lower()], self._clock())
            return Answer(202)
        held = self.things[kind][name.lower()]
        if (
            held.get("managedBy")
            or held["properties"].get("virtualMachine")
            or held["properties"].get("ipConfiguration")
        ):
            raise Refused(409, "OperationNotAllowed", f"{name} is attached to a machine.")
        del self.things[kind][name.lower()]
        return Answer(202)

    def _end(self, machine: Machine, begin: float) -> None:
        machine.said["properties"]["provisioningState"] = "Deleting"
        machine.fails, machine.until = None, begin + self.stop_s

    def _advance(self) -> None:
        due = [work for at, work in self._later if at <= self._clock()]
        self._later = [one for one in self._later if one[0] > self._clock()]
        for work in due:
            work()
        for name, machine in list(self.machines.items()):
            if machine.until > self._clock():
                continue
            if machine.state == "Deleting":
                self._gone(name, machine)
            elif machine.state == "Creating":
                machine.failed = machine.fails
                machine.said["properties"]["provisioningState"] = "Failed" if machine.fails else "Succeeded"
                provisioned = machine.fails is None or machine.fails[0].startswith(("OSProvisioning", "VMExtension"))
                machine.power = "running" if provisioned else "stopped"

    def _gone(self, name: str, machine: Machine) -> None:
        self._behind.ended(machine.said["name"])
        for lun in list(machine.luns):
            self._detach(machine, lun)
        del self.machines[name], self.things[_MACHINES][name]
        for kind, thing in ((_INTERFACES, machine.interface), (_ADDRESSES, machine.address), (_DISKS, machine.disk)):
            held = self.things[kind].get(_name(thing))
            if held is None:
                continue
            if kind not in self.leaks:
                del self.things[kind][_name(thing)]
                continue
            self.leaks.remove(kind)
            held.pop("managedBy", None)
            held["properties"].pop("virtualMachine", None)
            held["properties"].pop("ipConfiguration", None)
            if kind == _DISKS:
                held["properties"]["diskState"] = "Unattached"

    def _visible(self, name: str) -> bool:
        machine = self.machines.get(name)
        return machine is None or self._clock() >= machine.born + self.hide_s

    def _shown(self, kind: str, said: Json) -> Json:
        found: Json = json.loads(json.dumps(said))
        if kind == _INTERFACES and self.no_address:
            for one in found["properties"]["ipConfigurations"]:
                one["properties"].pop("privateIPAddress")
        schema.hold(_MODELS[kind], found)
        return found

    def _view(self, machine: Machine) -> Json:
        state = machine.state.lower()
        first: Json = {"code": f"ProvisioningState/{state}", "level": "Info", "displayStatus": f"Provisioning {state}"}
        if machine.failed and state == "failed":
            code, text = machine.failed
            first = {
                "code": f"ProvisioningState/failed/{code}",
                "level": "Error",
                "displayStatus": "Provisioning failed",
                "message": text,
            }
        power = {"code": f"PowerState/{machine.power}", "level": "Info", "displayStatus": f"VM {machine.power}"}
        return {"statuses": [{**first, "time": self._stamp()}, power]}

    def _statuses(self, query: dict[str, str]) -> Answer:
        assert query.keys() <= _OPTIONS | {"statusOnly"}
        assert query.get("statusOnly") == "true" or "$skiptoken" in query
        rows = []
        for name, machine in self.machines.items():
            if self._visible(name) and self._clock() >= machine.until + self.status_lag_s:
                about = {"vmId": machine.said["properties"]["vmId"], "instanceView": self._view(machine)}
                words = {key: machine.said[key] for key in ("id", "name", "type", "location")}
                rows.append({**words, "properties": about})
        return self._list(f"{ROOT}/providers/{_MACHINES}", query, compute.VirtualMachine, rows)

    def _usages(self) -> list[Json]:
        names = [
            "cores",
            "lowPriorityCores",
            "virtualMachines",
            *sorted({one.family for one in SIZES.values()}),
            "disks",
        ]
        return [
            {
                "unit": "Count",
                "currentValue": used,
                "limit": limit,
                "name": {"value": name, "localizedValue": f"{name} here"},
            }
            for name in names
            for used, limit in [self.usages.get(name, (4, 1000))]
        ]

    def _list(self, path: str, query: dict[str, str], model: Any, rows: list[Json]) -> Answer:
        for one in rows:
            schema.hold(model, one)
        start = int(query.get("$skiptoken", 0))
        end = start + (self.page if path == f"{HERE}/providers/{_MACHINES}" else self.other_page)
        found: Json = {"value": rows[start:end]}
        if self.endless:
            start = end = 0
        if self.endless or end < len(rows):
            # Its letters may be of another case than those that were asked for.
            self._links[path.lower()] = path
            version = query["api-version"]
            found["nextLink"] = f"{self.url}{quote(path.lower())}?api-version={version}&%24skiptoken={end}"
        return Answer(200, found)

    def _console(self, path: str, query: dict[str, str], headers: Mapping[str, str]) -> Answer:
        assert "authorization" not in headers, "our token went to a console's storage"
        machine = self.machines.get(path.rpartition("/")[2].lower())
        if query != {"sig": "SECRET"} or machine is None or machine.state == "Creating":
            return Answer(404, "<Error><Code>BlobNotFound</Code></Error>")
        return Answer(200, self._behind.console(machine.said["name"]))

    def _prices(self, query: dict[str, str]) -> Answer:
        self.calls["GET prices"] += 1
        if self.prices_down:
            return Answer(503, "<html>The service is unavailable</html>")
        assert query.keys() <= {"currencyCode", "$filter", "$skip"}, query
        wanted, currency = query["$filter"], query["currencyCode"]
        assert f"armRegionName eq '{LOCATION}'" in wanted
        assert "serviceName eq 'Virtual Machines'" in wanted
        named = set(re.findall(r"armSkuName eq '([^']*)'", wanted))
        rows = [row for one in SIZES.values() if one.name in named for row in one.prices(currency.strip("'"))]
        start = int(query.get("$skip", 0))
        end = start + 5
        more = f"currencyCode={quote(currency)}&%24filter={quote(wanted)}&%24skip={end}"
        found = {
            "BillingCurrency": "USD", "CustomerEntityId": "Default", "CustomerEntityType": "Retail",
            "Items": rows[start:end], "Count": len(rows[start:end]),
            "NextPageLink": f"{self.url}/api/retail/prices?{more}" if end < len(rows) else None,
        }  # fmt: skip
        return Answer(200, found)

    def _stamp(self) -> str:
        """With seven digits after the point, as Azure has it."""
        return f"{datetime.fromtimestamp(self._clock(), UTC):%Y-%m-%dT%H:%M:%S.%f}7+00:00"


def _name(resource_id: str) -> str:
    return resource_id.rpartition("/")[2].lower()
