"""Launch templates: what all machines of a kind have in common. The name is made of the content, which never changes.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RequestLaunchTemplateData.html
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from burstd.domain.errors import OutcomeUnknown
from providers.aws import tags
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import NetworkAdapter
from providers.aws.errors import AwsAlreadyExists
from providers.aws.launch.images import AwsImage
from providers.aws.settings import AwsSettings

VERSION = "1"
"""The only one that a template of ours ever has."""
USER_DATA_BYTES = 16384
"""Most that EC2 takes, before base64."""


def network_interfaces(settings: AwsSettings, efa: Sequence[NetworkAdapter] = ()) -> list[dict[str, Any]]:
    """``NetworkInterfaces``: the first of each of these adapters' network cards, or a common one where there are none.

    The first carries IP too; the others carry EFA only, and so take no addresses. Amazon gives no public address to a
    machine with several, so where the site wants one there is one adapter. Source:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
    """
    public = settings.public_address
    common = {"DeviceIndex": 0, "Groups": list(settings.security_groups), "DeleteOnTermination": True}
    cards = [{**common, "NetworkCardIndex": one.card, "InterfaceType": one.kind} for one in efa]
    if len(cards) > 1 and not public:
        return cards
    return [{**(cards[0] if cards else common), "AssociatePublicIpAddress": public}]


def template_data(
    settings: AwsSettings,
    image: AwsImage,
    *,
    network: Sequence[Mapping[str, Any]] = (),
    tagged: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """``LaunchTemplateData`` without the user data. ``tagged`` are TagSpecifications."""
    profile = settings.instance_profile
    found: dict[str, Any] = {
        "ImageId": image.id,
        "BlockDeviceMappings": [{"DeviceName": image.root_device, "Ebs": _root(settings, image)}],
        "MetadataOptions": {
            "HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        "InstanceInitiatedShutdownBehavior": "terminate",
    }  # fmt: skip
    if network:
        found["NetworkInterfaces"] = list(network)
    if profile:
        found["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
    if tagged:
        found["TagSpecifications"] = list(tagged)
    return found


def _root(settings: AwsSettings, image: AwsImage) -> dict[str, Any]:
    root = settings.root
    said = {
        "VolumeSize": max(root.gib, image.root_gib), "VolumeType": root.type, "Iops": root.iops,
        "Throughput": root.throughput_mib_s, "KmsKeyId": root.kms_key or None, "Encrypted": True,
        "DeleteOnTermination": True,
    }  # fmt: skip
    return {key: value for key, value in said.items() if value is not None}


def template_name(cluster: str, content: Mapping[str, Any], user_data: str) -> str:
    """``burstd-CLUSTER-`` and 64 bits of the content's SHA-256, the user data's included."""
    text = json.dumps([content, user_data], sort_keys=True, separators=(",", ":"))
    return f"burstd-{cluster}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class LaunchTemplates:
    """The launch templates of one cluster, as far as this process has made or used them."""

    def __init__(
        self, cluster: str, settings: AwsSettings, calls: AwsCalls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._lock = threading.Lock()
        """Held while one is made, so that batches side by side make it once."""
        self._used: dict[str, float] = {}

    def ensure(self, wanted: str, content: Mapping[str, Any], user_data: str) -> None:
        """Makes the template of this name, unless this process knows that it is there.

        Its name is token enough: of two that are made at once the second is refused, and has the same content. Raises
        OutcomeUnknown where the content is not that of the name: then the call is not the one that was made before.
        """
        with self._lock:
            if wanted not in self._used:
                with suppress(AwsAlreadyExists):
                    self._make(wanted, content, user_data)
            self._used[wanted] = self._clock()

    def forget(self, name: str) -> None:
        """It is not there after all."""
        self._used.pop(name, None)

    def used_lately(self, name: str) -> bool:
        """Whether this process used it within the settings' ``unused_s``. If not, anybody may remove it: the next
        launch makes sure that it is there.
        """
        used = self._used.get(name)
        if used is not None and self._clock() < used + self._settings.unused_s:
            return True
        self.forget(name)
        return False

    def _make(self, wanted: str, content: Mapping[str, Any], user_data: str) -> None:
        if template_name(self._cluster, content, user_data) != wanted:
            raise OutcomeUnknown(f"launch template {wanted} cannot be made again: the record of it has changed")
        coded = base64.b64encode(user_data.encode()).decode()
        template_tags = {**self._settings.tags, TAG_CLUSTER: self._cluster}
        self._calls.mutate(
            "ec2", "create_launch_template",
            LaunchTemplateName=wanted,
            LaunchTemplateData={**content, **({"UserData": coded} if coded else {})},
            TagSpecifications=tags.specifications(template_tags, "launch-template"),
        )  # fmt: skip
