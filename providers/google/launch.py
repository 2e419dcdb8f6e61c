"""Makes instances: one call each, which makes the boot disk and the address too, and both go with the machine.

Google takes a launch and refuses it later: listing.py reads that from its operations.
https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.errors import BadRequest, NotFound, OutcomeUnknown, ProviderError
from burstd.domain.plugins.provider import LaunchOutcome, LaunchRequest
from providers.batch_calls import BatchCall
from providers.google import labels
from providers.google.calls import GoogleCalls
from providers.google.errors import GoogleAlreadyExists, never_found, operation_error
from providers.google.images import image_url
from providers.google.settings import GoogleSettings

USER_DATA_BYTES = 256 << 10
"""Most that a value of the metadata holds."""
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_LAUNCH = "create instance {}"


class InstanceLauncher:
    """The launches of one provider. ``launched`` hears of the zone of each."""

    def __init__(
        self, name: str, cluster: str, settings: GoogleSettings, calls: GoogleCalls, launched: Callable[[str], None]
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._launched = launched

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """Some side by side; the outcome of each request, in their order."""
        wanted = {request.claim_id: request for request in requests}
        results = BatchCall(self._settings.side_by_side).call_each(self._create, list(wanted.values()))
        done = dict(zip(wanted, results, strict=True))
        return [LaunchOutcome(request.claim_id, done[request.claim_id]) for request in requests]

    def _create(self, request: LaunchRequest) -> Instance:
        name, zone = labels.instance_name(request.claim_id), request.offer.zone
        body = self._body(request, name)
        # Before: the answer may be lost, and the operation fail then.
        self._launched(zone)
        try:
            operation = self._calls.mutate(
                "compute.instances.insert", _LAUNCH.format(name), project=self._settings.project, zone=zone,
                requestId=labels.request_id(self._cluster, request.claim_id), body=body,
            )  # fmt: skip
        except GoogleAlreadyExists:
            return self._existing(request, name)
        except (BadRequest, NotFound) as error:
            raise never_found(str(error))(str(error)) from error
        if operation.get("error"):
            raise operation_error(operation)
        return self._instance(request, str(operation["targetId"]), operation.get("insertTime", ""))

    def _existing(self, request: LaunchRequest, name: str) -> Instance:
        """The machine of that name, which is ours. Google may have forgotten the request's id."""
        zone = request.offer.zone
        try:
            said = self._calls.query(
                "compute.instances.get", f"read instance {name}", project=self._settings.project, zone=zone,
                instance=name, fields="id,labels,creationTimestamp",
            )  # fmt: skip
        except ProviderError as error:
            raise OutcomeUnknown(f"instance {name} exists in {zone}, and cannot be read: {error}") from error
        if not labels.belongs_to_cluster(said, self._cluster):
            raise BadRequest(f"instance {name} in {zone} does not bear the label of cluster {self._cluster}: delete it")
        return self._instance(request, str(said["id"]), said.get("creationTimestamp", ""))

    def _instance(self, request: LaunchRequest, number: str, made: str) -> Instance:
        offer = request.offer
        return Instance(
            id=f"{offer.zone}/{number}", provider=self._name, state=InstanceState.PENDING, claim_id=request.claim_id,
            tags=request.tags, name=request.name, zone=offer.zone, instance_type=offer.instance_type, spot=offer.spot,
            launched=seconds(made),
        )  # fmt: skip

    def _body(self, request: LaunchRequest, name: str) -> dict[str, Any]:
        settings, offer = self._settings, request.offer
        if len(request.user_data.encode()) > USER_DATA_BYTES:
            raise BadRequest(f"the user data is longer than Google takes: {USER_DATA_BYTES} bytes")
        machine_type, _, accelerator = offer.instance_type.partition("+")
        own = labels.labels(self._cluster, request.claim_id, settings.labels)
        described = labels.description(request.tags, request.name)
        at = f"projects/{settings.project}/zones/{offer.zone}"
        body: dict[str, Any] = {
            "name": name,
            "description": described,
            "labels": own,
            "machineType": f"{at}/machineTypes/{machine_type}",
            "disks": [self._disk(request, name, own, described, at)],
            "networkInterfaces": [self._network()],
            "scheduling": self._scheduling(request),
            "metadata": {
                "items": [
                    {"key": "user-data", "value": request.user_data},
                    {"key": "block-project-ssh-keys", "value": "TRUE"},
                ]
            },
            "tags": {"items": list(settings.network_tags)},
        }
        if accelerator:
            kind, _, count = accelerator.partition(":")
            body["guestAccelerators"] = [
                {"acceleratorType": f"{at}/acceleratorTypes/{kind}", "acceleratorCount": int(count or 1)}
            ]
        if settings.service_account:
            body["serviceAccounts"] = [{"email": settings.service_account, "scopes": list(_SCOPES)}]
        return body

    def _disk(self, request: LaunchRequest, name: str, own: dict[str, str], described: str, at: str) -> dict[str, Any]:
        disk = self._settings.disk
        made: dict[str, Any] = {
            "diskName": name,
            "diskType": f"{at}/diskTypes/{disk.type}",
            "sourceImage": image_url(self._settings, request.image),
            "labels": own,
            "description": described,
        }
        if disk.gib is not None:
            made["diskSizeGb"] = str(disk.gib)
        found: dict[str, Any] = {"boot": True, "autoDelete": True, "initializeParams": made}
        if disk.kms_key:
            found["diskEncryptionKey"] = {"kmsKeyName": disk.kms_key}
        return found

    def _network(self) -> dict[str, Any]:
        card: dict[str, Any] = {"subnetwork": subnetwork_path(self._settings)}
        if self._settings.public_address:
            card["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
        return card

    def _scheduling(self, request: LaunchRequest) -> dict[str, Any]:
        settings, spot = self._settings, request.offer.spot
        moves = settings.live_migration and not spot and not request.offer.shape.gpus()
        found: dict[str, Any] = {
            "provisioningModel": "SPOT" if spot else "STANDARD",
            "onHostMaintenance": "MIGRATE" if moves else "TERMINATE",
            "automaticRestart": False,
        }
        if spot or settings.max_run_h is not None:
            found["instanceTerminationAction"] = "DELETE"
        if settings.max_run_h is not None:
            found["maxRunDuration"] = {"seconds": str(settings.max_run_h * 3600)}
        if spot and settings.preemption_notice_s:
            found["preemptionNoticeDuration"] = {"seconds": str(settings.preemption_notice_s)}
        return found


def subnetwork_path(settings: GoogleSettings) -> str:
    """Of the project's own where the settings name no host project's."""
    name = settings.subnetwork
    own = f"projects/{settings.project}/regions/{settings.region}/subnetworks/{name}"
    return name if "/" in name else own


def seconds(text: str) -> float:
    """Since 1970, of a time as Google writes it; 0: it says none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0
