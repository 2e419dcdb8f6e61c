"""Requests -> batches, and for each batch its recipe: the one call that serves it, written down word for word.

Pure: the same requests and the same answers of the catalog give the same recipe, letter for letter. Sources:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateFleet.html and API_RunInstances.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

from burstd.domain.cloud.instance import TAG_BATCH, TAG_CLAIM, TAG_CLUSTER
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import OutcomeUnknown
from burstd.domain.plugins.provider import LaunchRequest
from providers.aws import tags
from providers.aws.catalog.catalog import NetworkAdapter
from providers.aws.launch import template
from providers.aws.launch.images import AwsImage
from providers.aws.launch.placement_groups import group_name
from providers.aws.settings import AwsSettings

_VERSION = 1
"""Of what a recipe's words mean. It grows where an older burstd would carry a recipe out in another way."""
FLEET = "create_fleet"
RUN = "run_instances"


class ReservationTarget(Protocol):
    """A capacity reservation, or a capacity block."""

    @property
    def id(self) -> str:
        """As Amazon names it."""
        ...

    @property
    def block(self) -> bool:
        """Whether it is a capacity block."""
        ...


@dataclass(frozen=True, slots=True)
class CapacityPool:
    """One offer that may be given: its type in its zone, by this subnet."""

    offer: Offer
    subnet: str


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A request, with all that was looked up for it."""

    request: LaunchRequest
    image: AwsImage
    pools: tuple[CapacityPool, ...]
    """Best first; the first is that of the request's own offer."""
    efa: tuple[NetworkAdapter, ...] = ()
    """Of each machine; empty: a common one."""
    reservation: ReservationTarget | None = None
    """What it must be launched in; then ``pools`` has one."""
    grouped: bool = True
    """A gang's machines go into its placement group: all of ``pools`` can."""


@dataclass(frozen=True, slots=True)
class LaunchRecipe:
    """All that is said to Amazon for one batch, but for the user data, which is in the requests."""

    claims: tuple[str, ...]
    """A claim's place is its machine's place among the ids of the answer, in their order."""
    operation: str
    """``create_fleet`` or ``run_instances``."""
    words: Mapping[str, Any]
    """What the call says."""
    template: str
    """Name of the launch template."""
    content: Mapping[str, Any]
    """Its data, from which it is made anew where it is gone."""
    gang: str = ""
    """Whose placement group must be there; empty: none is needed."""
    zones: Mapping[str, str] = field(default_factory=dict)
    """Zone of each subnet."""

    def to_text(self) -> str:
        """For ``LaunchRequest.recipe``."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> LaunchRecipe:
        """The inverse of ``text``, which an older burstd may have written, or a newer one that adds fields.

        Raises OutcomeUnknown where it cannot be read: the call that it stands for may have been made.
        """
        try:
            said = json.loads(text)
            if said.get("version", _VERSION) > _VERSION:
                raise OutcomeUnknown(f"a launch was written down by a newer burstd (version {said['version']})")
            known = {one.name: said[one.name] for one in fields(cls) if one.name in said}
            return cls(**{**known, "claims": tuple(said["claims"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OutcomeUnknown(f"the record of a launch cannot be read: {error}") from error


def batch_requests(cluster: str, settings: AwsSettings, specs: Sequence[LaunchSpec]) -> list[LaunchRequest]:
    """The requests of the specs, in their order, with ``batch`` and ``recipe``.

    A gang is one batch, whatever its size, as far as its members are alike: it is all of them or none.
    """
    alike: dict[Any, list[LaunchSpec]] = {}
    for spec in {spec.request.claim_id: spec for spec in specs}.values():
        asked = spec.request
        key = (asked.gang, asked.user_data, spec.image, spec.pools, spec.efa, spec.reservation and spec.reservation.id)
        alike.setdefault(key, []).append(spec)
    ready: dict[str, LaunchRequest] = {}
    for group in alike.values():
        size = len(group) if group[0].request.gang else settings.batch
        for start in range(0, len(group), size):
            batch = group[start : start + size]
            text = _recipe(cluster, settings, batch).to_text()
            token = batch[0].request.claim_id
            ready.update((w.request.claim_id, replace(w.request, batch=token, recipe=text)) for w in batch)
    return [ready[spec.request.claim_id] for spec in specs]


def _recipe(cluster: str, settings: AwsSettings, batch: Sequence[LaunchSpec]) -> LaunchRecipe:
    first = batch[0]
    gang, reserved = first.request.gang, first.reservation
    grouped = gang if gang and settings.placement_groups and first.grouped and reserved is None else ""
    network = template.network_interfaces(settings, first.efa)
    if reserved is None:
        # What the call itself cannot tag. Alike for all batches, so that they share the template.
        kinds = ("network-interface", *(("spot-instances-request",) if first.request.offer.spot else ()))
        tagged = tags.specifications({**settings.tags, TAG_CLUSTER: cluster}, *kinds)
        content = template.template_data(settings, first.image, network=network, tagged=tagged)
    else:
        content = template.template_data(settings, first.image)
    name = template.template_name(cluster, content, first.request.user_data)
    machine_tags = _tags(cluster, settings, batch)
    if reserved is None:
        group = group_name(cluster, grouped) if grouped else ""
        words = _fleet(settings, batch, name, group, tags.specifications(machine_tags, "instance", "volume", "fleet"))
    else:
        words = _run(
            batch, name, tags.specifications(machine_tags, "instance", "volume", "network-interface"), reserved
        )
        words["NetworkInterfaces"] = [{**one, "SubnetId": first.pools[0].subnet} for one in network]
    return LaunchRecipe(
        claims=tuple(spec.request.claim_id for spec in batch), operation=FLEET if reserved is None else RUN,
        words=words, template=name, content=content, gang=grouped,
        zones={pool.subnet: pool.offer.zone for pool in first.pools},
    )  # fmt: skip


def _tags(cluster: str, settings: AwsSettings, batch: Sequence[LaunchSpec]) -> dict[str, str]:
    """A machine alone bears its claim; of several nothing is said that is not true of all."""
    first = batch[0].request
    common = tags.common_tags([spec.request.tags for spec in batch])
    name = first.name if len(batch) == 1 else f"burstd-{cluster}"
    machine_tags = {**settings.tags, tags.NAME: name, **common, TAG_CLUSTER: cluster, TAG_BATCH: first.claim_id}
    return {**machine_tags, TAG_CLAIM: first.claim_id} if len(batch) == 1 else machine_tags


def _fleet(
    settings: AwsSettings, batch: Sequence[LaunchSpec], name: str, group: str, tagged: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    first, count = batch[0], len(batch)
    spot = first.request.offer.spot
    strategy = settings.spot_strategy if spot else settings.on_demand_strategy
    options: dict[str, Any] = {"AllocationStrategy": strategy}
    if spot:
        options["InstanceInterruptionBehavior"] = "terminate"
    if first.request.gang:
        # All or nothing; nodes of one job are alike and near each other.
        options |= {"MinTargetCapacity": count, "SingleAvailabilityZone": True, "SingleInstanceType": True}
    market = "spot" if spot else "on-demand"
    return {
        "Type": "instant",
        "ClientToken": first.request.claim_id,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": name, "Version": template.VERSION},
                "Overrides": _overrides(first.pools, group, ranked="prioritized" in strategy),
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": count,
            "OnDemandTargetCapacity": 0 if spot else count,
            "SpotTargetCapacity": count if spot else 0,
            "DefaultTargetCapacityType": market,
        },
        "SpotOptions" if spot else "OnDemandOptions": options,
        "TagSpecifications": list(tagged),
    }


def _overrides(pools: Sequence[CapacityPool], group: str, *, ranked: bool) -> list[dict[str, Any]]:
    """The zone says nothing that the subnet does not, but comes back in errors. ``group``: a placement group's name,
    which stands here and not in the template, so that all gangs share that; empty: none.
    """
    more = {"Placement": {"GroupName": group}} if group else {}
    found: list[dict[str, Any]] = []
    for rank, pool in enumerate(pools):
        offer = pool.offer
        one: dict[str, Any] = {
            "InstanceType": offer.instance_type, "SubnetId": pool.subnet, "AvailabilityZone": offer.zone, **more
        }  # fmt: skip
        found.append({**one, "Priority": float(rank)} if ranked else one)
    return found


def _run(
    batch: Sequence[LaunchSpec], name: str, tagged: Sequence[Mapping[str, Any]], reserved: ReservationTarget
) -> dict[str, Any]:
    first, count = batch[0], len(batch)
    words: dict[str, Any] = {
        "ClientToken": first.request.claim_id,
        "LaunchTemplate": {"LaunchTemplateName": name, "Version": template.VERSION},
        "InstanceType": first.pools[0].offer.instance_type,
        "MinCount": count if first.request.gang else 1,
        "MaxCount": count,
        "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": reserved.id}},
        "TagSpecifications": list(tagged),
    }
    if reserved.block:
        words["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    return words
