"""Google's interfaces on a project: each method that burstd calls, with the right that it takes and Google's refusals.

https://cloud.google.com/compute/docs/reference/rest/v1, https://cloud.google.com/iam/docs/permissions-reference
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.lab.google.cloud import (
    ACCELERATORS,
    HOST,
    MACHINE_TYPES,
    REGION,
    SUBNETWORK,
    ZONES,
    Disk,
    Instance,
    Operation,
    Project,
)

Json = dict[str, Any]
SMALLEST_DISK_GIB = 10
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[a-z0-9_-]{0,63}")
_COMPARISON = re.compile(r'([\w.-]+) = "([^"]*)"')


@dataclass(slots=True)
class RefusalError(Exception):
    """An answer that is an error."""

    status: int
    reason: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> Json:
        """As Google has it."""
        one = {"message": self.message, "domain": "global", "reason": self.reason}
        return {"error": {"code": self.status, "message": self.message, "errors": [one]}}


@dataclass(frozen=True, slots=True)
class Call:
    """Parameters of the path and the query, and the body."""

    path: Json
    query: Json
    body: Any


def not_found(what: str) -> RefusalError:
    """Google's word for what is not there."""
    return RefusalError(404, "notFound", f"The resource '{what}' was not found")


class Api:
    """One project's. ``call`` gives an answer's body, or raises RefusalError."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.methods: Mapping[str, tuple[Callable[[Call], Json], Sequence[str]]] = {
            "compute.instances.insert": (self._insert, ("compute.instances.create", "compute.disks.create")),
            "compute.instances.delete": (self._delete, ("compute.instances.delete",)),
            "compute.instances.get": (self._get, ("compute.instances.get",)),
            "compute.instances.list": (self._list, ("compute.instances.list",)),
            "compute.instances.getSerialPortOutput": (self._console, ("compute.instances.getSerialPortOutput",)),
            "compute.zoneOperations.list": (self._operations, ("compute.zoneOperations.list",)),
            "compute.disks.list": (self._disks, ("compute.disks.list",)),
            "compute.disks.get": (self._disk, ("compute.disks.get",)),
            "compute.disks.insert": (self._make_disk, ("compute.disks.create", "compute.disks.setLabels")),
            "compute.instances.attachDisk": (self._attach, ("compute.instances.attachDisk", "compute.disks.use")),
            "compute.instances.detachDisk": (self._detach, ("compute.instances.detachDisk",)),
            "compute.disks.delete": (self._delete_disk, ("compute.disks.delete",)),
            "compute.images.list": (self._images, ("compute.images.list",)),
            "compute.machineTypes.list": (self._machine_types, ("compute.machineTypes.list",)),
            "compute.acceleratorTypes.list": (self._accelerators, ("compute.acceleratorTypes.list",)),
            "compute.regions.get": (self._region, ("compute.regions.get",)),
            "compute.projects.get": (self._project, ("compute.projects.get",)),
            "compute.subnetworks.get": (self._subnetwork, ("compute.subnetworks.get",)),
            "compute.firewalls.list": (self._firewalls, ("compute.firewalls.list",)),
            "cloudbilling.services.skus.list": (self._skus, ()),
            "cloudresourcemanager.projects.testIamPermissions": (self._test, ()),
        }
        self.rights: frozenset[str] = frozenset()
        """Of whoever calls now."""
        self.skus = skus()
        self.used: set[str] = set()
        """Rights that calls have taken."""

    def call(self, method: str, call: Call, rights: frozenset[str]) -> Json:
        """What comes of it with these rights."""
        work, needed = self.methods[method]
        self.rights = rights
        for right in needed:
            self._need(right)
        path = call.path
        if "project" in path and path["project"] != self.project.name:
            raise not_found(f"projects/{path['project']}")
        if "zone" in path and path["zone"] not in ZONES:
            raise not_found(f"projects/{self.project.name}/zones/{path['zone']}")
        if call.query.get("filter") and call.query.get("orderBy"):
            raise RefusalError(400, "invalid", "Invalid value for field 'orderBy': Specifying both a list filter and "
                               "sort order is not currently supported")  # fmt: skip
        self.project.settle()
        return work(call)

    def _need(self, right: str) -> None:
        self.used.add(right)
        if right not in self.rights:
            raise RefusalError(403, "forbidden", f"Required '{right}' permission for 'projects/{self.project.name}'")

    def _insert(self, call: Call) -> Json:
        request, zone, project = call.query.get("requestId", ""), call.path["zone"], self.project
        if (known := project.repeated(request)) is not None:
            return self._operation(known)
        self._check_instance(zone, call.body)
        if project.find_instance(zone, call.body["name"]) is not None:
            raise RefusalError(409, "alreadyExists", f"The resource '{self._at(zone)}/instances/{call.body['name']}' "
                               "already exists")  # fmt: skip
        return self._operation(project.launch(zone, call.body, request))

    def _check_instance(self, zone: str, body: Json) -> None:
        """What Google refuses at once."""
        if not _NAME.fullmatch(body["name"]):
            raise RefusalError(400, "invalid", f"Invalid value for field 'resource.name': '{body['name']}'.")
        self._need("compute.instances.setMetadata")
        made, scheduling = body["disks"][0]["initializeParams"], body["scheduling"]
        for key, right in (("labels", "compute.instances.setLabels"), ("serviceAccounts",
                           "compute.instances.setServiceAccount")):  # fmt: skip
            if body.get(key):
                self._need(right)
        if body.get("tags", {}).get("items"):
            self._need("compute.instances.setTags")
        if made.get("labels"):
            self._need("compute.disks.setLabels")
        for key, value in [*body["labels"].items(), *made["labels"].items()]:
            if not _LABEL[0].fullmatch(key) or not _LABEL[1].fullmatch(value):
                raise RefusalError(400, "invalid", f"Invalid value for field 'resource.labels': '{key}={value}'.")
        if len(body["description"]) > 2048:
            raise RefusalError(400, "invalid", "Invalid value for field 'resource.description': too long")
        machine_type = body["machineType"].rpartition("/")[2]
        known = MACHINE_TYPES[zone].get(machine_type)
        if known is None:
            raise not_found(f"{self._at(zone)}/machineTypes/{machine_type}")
        self._need("compute.images.useReadOnly")
        self._find_image(made["sourceImage"])
        self._check_network(body["networkInterfaces"][0])
        gpus = bool(known.get("accelerators") or body.get("guestAccelerators"))
        for one in body.get("guestAccelerators", ()):
            if one["acceleratorType"].rpartition("/")[2] not in ACCELERATORS[zone]:
                raise not_found(one["acceleratorType"])
        self._check_scheduling(scheduling, gpus=gpus)

    def _check_network(self, card: Json) -> None:
        self._need("compute.subnetworks.use")
        if card.get("accessConfigs"):
            self._need("compute.subnetworks.useExternalIp")
        if card["subnetwork"] != f"projects/{self.project.name}/regions/{REGION}/subnetworks/{SUBNETWORK}":
            raise not_found(card["subnetwork"])

    @staticmethod
    def _check_scheduling(said: Json, *, gpus: bool) -> None:
        """https://cloud.google.com/compute/docs/instances/spot"""
        spot = said["provisioningModel"] == "SPOT"
        if (gpus or spot) and said["onHostMaintenance"] != "TERMINATE":
            raise RefusalError(400, "badRequest", "Instances with guest accelerators do not support live migration.")
        if spot and said.get("automaticRestart", True):
            raise RefusalError(400, "invalid", "Scheduling must have automaticRestart = false for Spot VMs.")
        if "instanceTerminationAction" in said and not (spot or "maxRunDuration" in said):
            raise RefusalError(400, "invalid", "You cannot specify a termination action for a VM instance that has "
                               "the standard provisioning model.")  # fmt: skip
        if "preemptionNoticeDuration" in said and not spot:
            raise RefusalError(400, "invalid", "preemptionNoticeDuration is for Spot VMs only.")

    def _find_image(self, url: str) -> None:
        _, project, _, _, *rest = url.split("/")
        images = self.project.images
        found = project == self.project.name and (
            rest[0] in images
            if len(rest) == 1
            else any(one.family == rest[1] and not one.state for one in images.values())
        )
        if not found:
            raise RefusalError(404, "notFound", f"The resource '{url}' was not found")

    def _delete(self, call: Call) -> Json:
        return self._operation(self.project.delete(self._instance_of(call.path)))

    def _get(self, call: Call) -> Json:
        return self._instance(self._instance_of(call.path))

    def _instance_of(self, path: Json) -> Instance:
        found = self.project.find_instance(path["zone"], path["instance"])
        if found is None:
            raise not_found(f"{self._at(path['zone'])}/instances/{path['instance']}")
        return found

    def _console(self, call: Call) -> Json:
        instance = self._instance_of(call.path)
        if instance.status == "PROVISIONING":
            raise RefusalError(400, "resourceNotReady", f"The resource '{instance.name}' is not ready")
        text = self.project.machines.console(instance)
        return {"kind": "compute#serialPortOutput", "contents": text, "start": "0", "next": str(len(text))}

    def _list(self, call: Call) -> Json:
        found = [self._instance(one) for one in self.project.listed() if one.zone == call.path["zone"]]
        return self._flat("instanceList", sorted(found, key=_name), call.query)

    def _disks(self, call: Call) -> Json:
        found = [self._disk_of(one) for one in self.project.disks.values() if one.zone == call.path["zone"]]
        return self._flat("diskList", sorted(found, key=_name), call.query)

    def _disk(self, call: Call) -> Json:
        return self._disk_of(self._find_disk(call.path))

    def _delete_disk(self, call: Call) -> Json:
        disk = self._find_disk(call.path)
        if disk.user:
            raise RefusalError(400, "resourceInUseByAnotherResource", f"The disk resource '{disk.name}' is already "
                               f"being used by '{disk.user}'")  # fmt: skip
        return self._operation(self.project.delete_disk(disk))

    def _make_disk(self, call: Call) -> Json:
        zone, body, request = call.path["zone"], call.body, call.query.get("requestId", "")
        if (known := self.project.repeated(request)) is not None:
            return self._operation(known)
        if not _NAME.fullmatch(body["name"]) or int(body["sizeGb"]) < SMALLEST_DISK_GIB:
            raise RefusalError(400, "invalid", "Invalid value for field 'resource': disk size or name")
        if self.project.find_disk(zone, body["name"]) is not None:
            raise RefusalError(409, "alreadyExists", f"The resource '{self._at(zone)}/disks/{body['name']}' already "
                               "exists")  # fmt: skip
        return self._operation(self.project.make_disk(zone, body, request))

    def _attach(self, call: Call) -> Json:
        instance, zone = self._instance_of(call.path), call.path["zone"]
        disk = self.project.find_disk(zone, call.body["source"].rpartition("/")[2])
        if disk is None or not call.body["source"].startswith(f"{self._at(zone)}/disks/"):
            raise not_found(call.body["source"])
        if disk.user:
            raise RefusalError(400, "resourceInUseByAnotherResource", f"The disk resource '{disk.name}' is in use")
        return self._operation(self.project.attach(instance, disk, call.body["deviceName"]))

    def _detach(self, call: Call) -> Json:
        instance, device = self._instance_of(call.path), call.query["deviceName"]
        disk = next((one for one in self.project.disks_of(instance) if one.device == device), None)
        if disk is None:
            raise RefusalError(400, "invalid", f"No attached disk found with device name '{device}'")
        return self._operation(self.project.detach(instance, disk))

    def _find_disk(self, path: Json) -> Disk:
        found = self.project.find_disk(path["zone"], path["disk"])
        if found is None:
            raise not_found(f"{self._at(path['zone'])}/disks/{path['disk']}")
        return found

    def _operations(self, call: Call) -> Json:
        assert call.query["orderBy"] == "creationTimestamp desc"
        found = [one for one in self.project.operations if one.zone == call.path["zone"]]
        return self._flat("operationList", map(self._operation, reversed(found)), call.query)

    def _images(self, call: Call) -> Json:
        found = []
        for one in sorted(self.project.images.values(), key=lambda one: one.name):
            said: Json = {
                "kind": "compute#image", "id": one.id, "name": one.name, "status": "READY",
                "creationTimestamp": self.project.stamp(one.made), "diskSizeGb": str(one.size),
            }  # fmt: skip
            said |= {"family": one.family} if one.family else {}
            said |= {"deprecated": {"state": one.state}} if one.state else {}
            found.append(said)
        return self._flat("imageList", found, call.query)

    def _machine_types(self, call: Call) -> Json:
        zone = call.path["zone"]
        found = [{"kind": "compute#machineType", "name": name, "zone": zone, **said}
                 for name, said in MACHINE_TYPES[zone].items()]  # fmt: skip
        return self._flat("machineTypeList", found, call.query)

    def _accelerators(self, call: Call) -> Json:
        found = [{"kind": "compute#acceleratorType", "name": name} for name in ACCELERATORS[call.path["zone"]]]
        return self._flat("acceleratorTypeList", found, call.query)

    def _region(self, call: Call) -> Json:
        if call.path["region"] != REGION:
            raise not_found(f"projects/{self.project.name}/regions/{call.path['region']}")
        return {
            "kind": "compute#region", "name": REGION, "status": "UP",
            "zones": [f"{HOST}{self._at(zone)}" for zone in ZONES], "quotas": self._quotas(self.project.limits),
        }  # fmt: skip

    def _project(self, _: Call) -> Json:
        quotas = self._quotas(self.project.limits_everywhere)
        return {"kind": "compute#project", "name": self.project.name, "quotas": quotas}

    def _quotas(self, limits: Mapping[str, float]) -> list[Json]:
        used = {"INSTANCES": float(len(self.project.instances))}
        return [{"metric": name, "limit": limit, "usage": used.get(name, 0.0)} for name, limit in limits.items()]

    def _subnetwork(self, call: Call) -> Json:
        project, region, name = (call.path[key] for key in ("project", "region", "subnetwork"))
        if name != SUBNETWORK:
            raise not_found(f"projects/{project}/regions/{region}/subnetworks/{name}")
        return {
            "kind": "compute#subnetwork", "name": SUBNETWORK, "ipCidrRange": "10.77.0.0/16", "purpose": "PRIVATE",
            "network": f"{HOST}projects/{self.project.name}/global/networks/burst", "privateIpGoogleAccess": True,
        }  # fmt: skip

    def _firewalls(self, call: Call) -> Json:
        network = f"{HOST}projects/{self.project.name}/global/networks/burst"
        found = [{"kind": "compute#firewall", "direction": "INGRESS", "network": network, **rule}
                 for rule in self.project.firewalls]  # fmt: skip
        return self._flat("firewallList", found, call.query)

    def _skus(self, call: Call) -> Json:
        size, start = int(call.query.get("pageSize", 5000)), int(call.query.get("pageToken", "0"))
        found: Json = {"skus": self.skus[start : start + size]}
        return found | ({"nextPageToken": str(start + size)} if start + size < len(self.skus) else {})

    def _test(self, call: Call) -> Json:
        if call.path["resource"] != self.project.name:
            raise RefusalError(403, "forbidden", "The caller does not have permission")
        return {"permissions": [one for one in call.body["permissions"] if one in self.rights]}

    def _instance(self, one: Instance) -> Json:
        project, said = self.project, one.said
        network = {**said["networkInterfaces"][0], "name": "nic0", "networkIP": one.address}
        found = {
            "kind": "compute#instance", "id": one.id, "name": one.name, "zone": f"{HOST}{self._at(one.zone)}",
            "status": one.status, "creationTimestamp": project.stamp(one.made), "networkInterfaces": [network],
            "machineType": HOST + said["machineType"], "selfLink": f"{HOST}{self._at(one.zone)}/instances/{one.name}",
        }  # fmt: skip
        found["disks"] = [
            {"source": f"{HOST}{self._at(disk.zone)}/disks/{disk.name}", "deviceName": disk.device}
            for disk in project.disks_of(one)
        ]
        for key in ("labels", "description", "scheduling", "metadata", "guestAccelerators", "tags", "serviceAccounts"):
            if key in said:
                found[key] = said[key]
        return found

    def _disk_of(self, one: Disk) -> Json:
        at = f"{HOST}{self._at(one.zone)}"
        users = {"users": [f"{at}/instances/{one.user}"]} if one.user else {}
        return {
            "kind": "compute#disk", "id": one.id, "name": one.name, "zone": at, "labels": one.labels,
            "description": one.description, "sizeGb": str(one.size),
            "status": "READY" if one.ready_at <= self.project.clock() else "CREATING", **users,
        }  # fmt: skip

    def _operation(self, one: Operation) -> Json:
        project, at = self.project, f"{HOST}{self._at(one.zone)}"
        done = one.done_at <= project.clock()
        found: Json = {
            "kind": "compute#operation", "id": one.id, "name": f"operation-{one.id}", "operationType": one.kind,
            "status": "DONE" if done else "RUNNING", "progress": 100 if done else 0, "zone": at,
            "targetId": one.target_id, "targetLink": f"{at}/{one.target}", "insertTime": project.stamp(one.made),
            "selfLink": f"{at}/operations/operation-{one.id}", "user": "burstd@example.com",
        }  # fmt: skip
        if one.client:
            found["clientOperationId"] = one.client
        if done and one.errors:
            found |= {
                "error": {"errors": one.errors},
                "httpErrorStatusCode": 503,
                "httpErrorMessage": "SERVICE UNAVAILABLE",
            }
        return found

    def _flat(self, kind: str, found: Iterable[Json], query: Json) -> Json:
        page, more = _page([one for one in found if fits(one, query.get("filter", ""))], query)
        empty = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results on this page."}}
        return {"kind": f"compute#{kind}", **({"items": page} if page else empty), **more}

    def _at(self, zone: str) -> str:
        return f"projects/{self.project.name}/zones/{zone}"


def _name(said: Json) -> str:
    return str(said["name"])


def _page(found: Sequence[Any], query: Json) -> tuple[Sequence[Any], Json]:
    size, start = int(query.get("maxResults", 500)), int(query.get("pageToken", "0"))
    more = {"nextPageToken": str(start + size)} if start + size < len(found) else {}
    return found[start : start + size], more


def fits(thing: Json, text: str) -> bool:
    """Google's filters, as far as they are one comparison for equality."""
    if not text:
        return True
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise RefusalError(
            400, "invalid", f"Invalid value for field 'filter': '{text}'. Invalid list filter expression."
        )
    return bool(_field(thing, found[1]) == found[2])


def _field(thing: Json, name: str) -> Any:
    first, _, rest = name.partition(".")
    found = thing.get(first)
    return _field(found, rest) if rest and isinstance(found, dict) else found


def skus() -> list[Json]:
    """A price list: for each family a processor and a GiB, on demand and as Spot VM; and what is of no machine."""
    found: list[Json] = []

    def sku(text: str, usage: str, nanos: int, unit: str, region: str = REGION) -> None:
        number = f"{len(found):04X}-0000-0000"
        rate = {"startUsageAmount": 0.0, "unitPrice": {"currencyCode": "USD", "units": "0", "nanos": nanos}}
        found.append({
            "name": f"services/6F81-5844-456A/skus/{number}", "skuId": number, "description": text,
            "category": {"serviceDisplayName": "Compute Engine", "resourceFamily": "Compute",
                         "resourceGroup": "CPU", "usageType": usage},
            "serviceRegions": [region], "serviceProviderName": "Google",
            "pricingInfo": [{"summary": "", "pricingExpression": {"usageUnit": unit, "tieredRates": [rate]}}],
        })  # fmt: skip

    for family, core, ram in (("N1 Predefined", 34_806_000, 4_664_000), ("N2", 34_806_000, 4_664_000),
                              ("T2A Arm", 42_400_000, 5_300_000), ("G2", 27_517_000, 3_224_000),
                              ("A2", 34_806_000, 4_664_000)):  # fmt: skip
        for prefix, usage, part in (("", "OnDemand", 1), ("Spot Preemptible ", "Preemptible", 4)):
            sku(f"{prefix}{family} Instance Core running in Netherlands", usage, core // part, "h")
            sku(f"{prefix}{family} Instance Ram running in Netherlands", usage, ram // part, "GiBy.h")
    for gpu, price in (("Nvidia Tesla T4", 350_000_000), ("Nvidia L4", 616_000_000),
                       ("Nvidia Tesla A100 80GB", 1_571_000_000)):  # fmt: skip
        sku(f"{gpu} GPU running in Netherlands", "OnDemand", price, "h")
        sku(f"{gpu} GPU attached to Spot Preemptible VMs running in Netherlands", "Preemptible", price // 4, "h")
    sku("N2 Instance Core running in Sydney", "OnDemand", 1, "h", "australia-southeast1")
    sku("Commitment v1: N2 Cpu in Netherlands for 1 Year", "Commit1Yr", 1, "h")
    sku("Storage PD Capacity in Netherlands", "OnDemand", 1, "GiBy.mo")
    return found
