"""One resource group: its machines with all that they are made with, their life, and faults to order."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from azure.mgmt.compute import models as compute
from azure.mgmt.network import models as network

from tests.lab.azure import schema
from tests.lab.azure.answers import MACHINES, OPTIONS, Answer, Json, Refused
from tests.lab.azure.names import GROUP, HERE, IDENTITY, MANAGED, MARKETPLACE, ROOT, SUBNET
from tests.lab.azure.specs import LOCATION, SIZES, Size
from tests.lab.azure.surroundings import Surroundings

_DISKS = "Microsoft.Compute/disks"
_INTERFACES, _ADDRESSES = "Microsoft.Network/networkInterfaces", "Microsoft.Network/publicIPAddresses"
_USERS = ("virtualMachine", "ipConfiguration")
MODELS = {
    MACHINES: compute.VirtualMachine, _DISKS: compute.Disk, _INTERFACES: network.NetworkInterface,
    _ADDRESSES: network.PublicIPAddress,
}  # fmt: skip


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


class ResourceGroup(Surroundings):
    """Its resources are Azure's JSON, by kind and name."""

    def __init__(self, clock: Callable[[], float], behind: Behind) -> None:
        super().__init__(clock)
        self._behind = behind
        self._numbers = itertools.count(1)
        self.things: dict[str, dict[str, Json]] = {kind: {} for kind in MODELS}
        """By kind and name in small letters; of machines what ``machines`` has beside."""
        self.machines: dict[str, Machine] = {}
        self.boot_s, self.stop_s, self.hide_s = 1.0, 1.0, 0.0
        self._later: list[tuple[float, Callable[[], object]]] = []
        """What is to happen to disks, and when."""
        self.late: list[tuple[str, str]] = []
        """With what the next machines' creation fails."""
        self.lost = 0
        """How many of the next PUTs have no answer, or a 500 for one."""
        self.lost_as = "cut"
        self.status_lag_s = -1e9
        """How long after its operation's end a machine shows in the list of what has become of machines."""
        self.heeds_conditions = True
        """Of headers of requests; else a second PUT would change a machine."""
        self.leaks: list[str] = []
        """Kinds of what the next machine that ends leaves behind."""
        self.stale = False
        """What a machine leaves behind still names it, and can be deleted all the same."""
        self.console_key = "SECRET"
        """Which the storage of consoles takes."""
        self.no_address = False
        """Network interfaces have none yet."""

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

    def fail(self, name: str, code: str, text: str) -> None:
        """Somebody's operation on a machine fails; it runs, or is off, as before."""
        with self._lock:
            self._advance()
            machine = self.machines[name.lower()]
            machine.failed, machine.said["properties"]["provisioningState"] = (code, text), "Failed"

    def _resource(
        self, method: str, kind: str, name: str, more: str, query: dict[str, str], headers: Mapping[str, str],
        said: Json | None,
    ) -> Answer:  # fmt: skip
        held = self.things[kind]
        if not name:
            assert (method, more) == ("GET", "")
            assert query.keys() <= OPTIONS
            rows = [self._shown(kind, one) for key, one in held.items() if self._visible(key)]
            return self._list(f"{HERE}/providers/{kind}", query, MODELS[kind], rows)
        if method == "PUT":
            assert said is not None
            return self._put(name, headers, said) if kind == MACHINES else self._put_disk(name, said)
        known = held.get(name.lower())
        if method == "DELETE":
            assert query.keys() <= {"api-version", "forceDeletion"}
            return self._delete(kind, name) if known else Answer(204)
        if known is None or (kind == MACHINES and not self._visible(name.lower())):
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
        found: Json = {
            "consoleScreenshotBlobUri": f"{where}.bmp?sig=SECRET",
            "serialConsoleLogBlobUri": f"{where}?sig={self.console_key}",
        }
        if machine.state == "Creating":
            found = dict.fromkeys(found, None)
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
        made |= {"id": f"{HERE}/providers/{MACHINES}/{name}", "name": name, "type": MACHINES}
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
        self.things[MACHINES][name.lower()] = made
        self.machines[name.lower()] = machine
        if machine.fails is None:
            self._behind.running(machine, address)
        shown = self._shown(MACHINES, made)
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
        if {"everywhere", *zones} & set(size.withheld):
            raise Refused(409, "SkuNotAvailable", f"The requested VM size '{size.name}' is currently not available.")
        if zones and zones[0] not in size.zones:
            raise Refused(400, "InvalidParameter", f"The zone(s) '{zones[0]}' are not supported for {size.name}.")
        image = about["storageProfile"]["imageReference"]
        if "id" in image and image["id"] not in (*self.versions, MANAGED):
            raise Refused(404, "GalleryImageNotFound", f"The gallery image {image['id']} is not available.")
        if "id" not in image and ":".join(image.values()) != MARKETPLACE:
            raise Refused(404, "PlatformImageNotFound", "The platform image is not available.")
        self._judge_boot(size, about, self.features if image.get("id") in self.versions else {})
        if (about.get("priority") == "Spot") != ("evictionPolicy" in about):
            raise Refused(400, "InvalidParameter", "Eviction policy can be set only on Azure Spot Virtual Machines.")
        for identity in said.get("identity", {}).get("userAssignedIdentities", {}):
            if identity != IDENTITY:
                raise Refused(404, "FailedIdentityOperation", f"Identity {identity} not found.")
        users = about["osProfile"]["linuxConfiguration"]["ssh"]["publicKeys"]
        if not users or not all(one["keyData"].startswith("ssh-") for one in users):
            raise Refused(400, "InvalidParameter", "The value of parameter linuxConfiguration.ssh is invalid.")

    def _judge_boot(self, size: Size, about: Json, features: Mapping[str, str]) -> None:
        """What Azure refuses where a size cannot boot an image."""
        storage, wanted = about["storageProfile"], about.get("securityProfile", {}).get("securityType", "")
        controller = storage.get("diskControllerType", "SCSI")
        if controller not in size.more.get("DiskControllerTypes", "SCSI").split(","):
            text = f"The VM size '{size.name}' cannot boot with OS image or disk: diskControllerType '{controller}'."
            raise Refused(400, "InvalidParameter", text)
        if controller == "NVMe" and "NVMe" not in features.get("DiskControllerTypes", ""):
            raise Refused(400, "InvalidParameter", "The image does not support the disk controller type NVMe.")
        secure = features.get("SecurityType", "")
        if "TrustedLaunch" in (secure, wanted) and not (wanted and secure.startswith(wanted)):
            raise Refused(400, "BadRequest", "The image does not support the security type of the machine.")

    def _make_interface(self, name: str, about: Json) -> tuple[str, str, str]:
        """Id, private address, and id of the public address or nothing."""
        (wanted,) = about["networkProfile"]["networkInterfaceConfigurations"]
        (ip,) = wanted["properties"]["ipConfigurations"]
        if ip["properties"]["subnet"]["id"] != SUBNET:
            raise Refused(404, "NotFound", f"Resource {ip['properties']['subnet']['id']} not found.")
        number = next(self._numbers)
        full = f"{wanted['name']}-{number:08x}"
        address, public = f"10.77.{16 + number // 250}.{number % 250 + 2}", ""
        machine = {"id": f"{HERE}/providers/{MACHINES}/{name}"}
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
        made["managedBy"] = f"{HERE}/providers/{MACHINES}/{name}"
        return str(made["id"])

    def _keep(self, kind: str, name: str, tags: Json | None, properties: Json) -> Json:
        made = {
            "id": f"{HERE}/providers/{kind}/{name}", "name": name, "type": kind, "location": LOCATION,
            "tags": dict(tags or {}), "properties": properties,
        }  # fmt: skip
        self.things[kind][name.lower()] = made
        return made

    def _delete(self, kind: str, name: str) -> Answer:
        if kind == MACHINES:
            self._end(self.machines[name.lower()], self._clock())
            return Answer(202)
        held = self.things[kind][name.lower()]
        about = held["properties"]
        users = [held.get("managedBy", ""), *(about.get(key, {}).get("id", "") for key in _USERS)]
        there = {one["id"] for things in self.things.values() for one in things.values()}
        if any(one.partition("/ipConfigurations/")[0] in there for one in users):
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
        del self.machines[name], self.things[MACHINES][name]
        for kind, thing in ((_INTERFACES, machine.interface), (_ADDRESSES, machine.address), (_DISKS, machine.disk)):
            held = self.things[kind].get(_name(thing))
            if held is None:
                continue
            if kind not in self.leaks:
                del self.things[kind][_name(thing)]
                continue
            self.leaks.remove(kind)
            if self.stale:
                continue
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
        schema.hold(MODELS[kind], found)
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
        assert query.keys() <= OPTIONS | {"statusOnly"}
        assert query.get("statusOnly") == "true" or "$skiptoken" in query
        rows = []
        for name, machine in self.machines.items():
            if self._visible(name) and self._clock() >= machine.until + self.status_lag_s:
                about = {"vmId": machine.said["properties"]["vmId"], "instanceView": self._view(machine)}
                words = {key: machine.said[key] for key in ("id", "name", "type", "location")}
                rows.append({**words, "properties": about})
        return self._list(f"{ROOT}/providers/{MACHINES}", query, compute.VirtualMachine, rows)

    def _console(self, path: str, query: dict[str, str], headers: Mapping[str, str]) -> Answer:
        assert "authorization" not in headers, "our token went to a console's storage"
        machine = self.machines.get(path.rpartition("/")[2].lower())
        if query != {"sig": self.console_key}:
            return Answer(403, "<Error><Code>AuthenticationFailed</Code></Error>")
        if machine is None or machine.state == "Creating":
            return Answer(404, "<Error><Code>BlobNotFound</Code></Error>")
        return Answer(200, self._behind.console(machine.said["name"]))


def _name(resource_id: str) -> str:
    return resource_id.rpartition("/")[2].lower()
