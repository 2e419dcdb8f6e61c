"""An account that sells things: answers to questions, in pages of three, held against Amazon's own models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import botocore.session
from botocore.validate import ParamValidator
from moto.utilities.utils import load_resource

from burstd.domain.errors import BadRequest, ProviderError
from providers.aws.calls import AwsCalls
from providers.aws.settings import AwsSettings
from tests.providers.aws.ec2 import settings

INSTANCE_TYPES: dict[str, Any] = load_resource("ec2/resources/instance_types.json")
"""As moto has them: importing its EC2 takes a second."""

_PAGE = 3


class FakeCatalogApi(AwsCalls):
    """``broken``: operation -> the error that it answers. Types are Amazon's own, sold in ``zones`` all."""

    def __init__(self, of: AwsSettings | None = None) -> None:
        super().__init__(of or settings())
        self.said: list[tuple[str, Mapping[str, Any]]] = []
        self.broken: dict[str, ProviderError] = {}
        self.subnets = {"subnet-a": "zone-a", "subnet-b": "zone-b"}
        self.zones = ["zone-a", "zone-b", "zone-c"]
        self.not_sold: set[tuple[str, str]] = set()
        self.reservations: dict[str, Mapping[str, Any]] = {}
        self.history: list[tuple[str, str, str, float]] = []
        self.list: list[str] = []
        self.quotas: Mapping[str, float] = {}
        self.instances: list[Mapping[str, Any]] = []

    def count(self, operation: str) -> int:
        return sum(one == operation for one, _ in self.said)

    def _call(self, service: str, operation: str, words: Mapping[str, Any], *, changes: bool) -> Mapping[str, Any]:
        assert not changes
        model = _model(service, operation)
        _validate(words, model.input_shape)
        self.said.append((operation, words))
        if operation in self.broken:
            raise self.broken[operation]
        answer: Mapping[str, Any] = getattr(self, f"_{operation}")(words)
        _validate(answer, model.output_shape)
        return answer

    def _describe_instance_types(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = words.get("InstanceTypes")
        assert asked is None or "MaxResults" not in words
        found = [one for name, one in INSTANCE_TYPES.items() if (name in asked if asked else _fits(words, name))]
        return _page("InstanceTypes", found, words)

    def _describe_instance_type_offerings(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        found = [
            {"InstanceType": name, "LocationType": words["LocationType"], "Location": zone}
            for name in INSTANCE_TYPES for zone in self.zones
            if _fits(words, name) and _fits(words, zone, "location") and (name, zone) not in self.not_sold
        ]  # fmt: skip
        return _page("InstanceTypeOfferings", found, words)

    def _describe_subnets(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        found = {name: zone for name, zone in self.subnets.items() if _fits(words, name, "subnet-id")}
        return {"Subnets": [{"SubnetId": name, "AvailabilityZone": zone} for name, zone in found.items()]}

    def _describe_capacity_reservations(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        (name,) = words["CapacityReservationIds"]
        if name not in self.reservations:
            raise BadRequest(f"The capacity reservation '{name}' does not exist")
        return {"CapacityReservations": [{"CapacityReservationId": name, **self.reservations[name]}]}

    def _describe_spot_price_history(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        found = [
            {"InstanceType": name, "AvailabilityZone": zone, "SpotPrice": price, "ProductDescription": "Linux/UNIX",
             "Timestamp": datetime.fromtimestamp(at, UTC)}
            for name, zone, price, at in self.history
            if name in words["InstanceTypes"] and _fits(words, zone, "availability-zone")
        ]  # fmt: skip
        return _page("SpotPriceHistory", found, words)

    def _get_products(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = {one["Field"]: one["Value"] for one in words["Filters"]}.get("instanceType", "")
        return _page("PriceList", [one for one in self.list if f'"instanceType": "{asked}' in one], words)

    def _list_service_quotas(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        return _page("Quotas", [{"QuotaName": name, "Value": value} for name, value in self.quotas.items()], words)

    def _describe_instances(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        return _page("Reservations", [{"Instances": [one]} for one in self.instances], words)


def _page(key: str, things: Sequence[Any], words: Mapping[str, Any]) -> Mapping[str, Any]:
    start = int(words.get("NextToken", 0))
    end = start + min(words.get("MaxResults", len(things) or 1), _PAGE if len(things) < 100 else 1000)
    return {key: things[start:end], **({"NextToken": str(end)} if end < len(things) else {})}


def _fits(words: Mapping[str, Any], value: str, name: str = "instance-type") -> bool:
    """EC2's filters: ``*`` is any number of characters, ``?`` one or none."""
    given = {one["Name"]: one["Values"] for one in words.get("Filters", ())}
    patterns = [re.escape(one).replace(r"\*", ".*").replace(r"\?", ".?") for one in given.get(name, "*")]
    return any(re.fullmatch(pattern, value) for pattern in patterns)


@cache
def _model(service: str, operation: str) -> Any:
    name = "".join(part.capitalize() for part in operation.split("_"))
    return botocore.session.get_session().get_service_model(service).operation_model(name)


def _validate(said: Mapping[str, Any], shape: Any) -> None:
    report = ParamValidator().validate(said, shape)
    assert not report.has_errors(), report.generate_report()
