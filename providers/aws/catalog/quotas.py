"""Limits of the account, in vCPUs by families of instance types, and what of them is used.

Quotas: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from burstd.domain.plugins.provider import Quota
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import AwsCatalog
from providers.aws.settings import AwsSettings

_ON_DEMAND = re.compile(r"Running On-Demand (?P<families>.+) instances", re.IGNORECASE)
_SPOT = re.compile(r"All (?P<families>.+) Spot Instance Requests", re.IGNORECASE)
_FAMILY = re.compile(r"(?P<letters>[a-z]+)-?(?P<generation>\d*)")
_ALIASES = {"gr": "g", "im": "i", "is": "i", "u": "high memory"}
"""Letters of a type -> those by which a quota has them."""
_QUOTAS_PAGE = 100
_NAMES = 100
_OUTSIDE = ("capacity-block", "scheduled")
"""Lifecycles that count for no quota."""


class AwsQuotas:
    """Those that bear on the types that the settings allow."""

    def __init__(self, settings: AwsSettings, calls: AwsCalls, catalog: AwsCatalog) -> None:
        self._settings = settings
        self._calls = calls
        self._catalog = catalog

    def read_quotas(self) -> Sequence[Quota]:
        """Three lists page by page: limits, all instances of the account that run or begin to, their types."""
        kinds = self._catalog.types().values()
        offered_markets = {(kind.name, spot) for kind in kinds for spot in (False, True) if not spot or kind.spot}
        limits = [
            (one["QuotaName"], int(one["Value"]), *said)
            for one in self._calls.pages(
                "service-quotas", "list_service_quotas", "Quotas", limit=_QUOTAS_PAGE, ServiceCode="ec2"
            )
            if (said := parse_quota_name(one["QuotaName"])) is not None
        ]
        bearing = [
            limit
            for limit in limits
            if any(spot == limit[3] and quota_covers(limit[2], name) for name, spot in offered_markets)
        ]
        used = self._used() if bearing else Counter()
        return [
            Quota(
                name,
                limit,
                sum(
                    vcpus for (kind, on_spot), vcpus in used.items() if on_spot == spot and quota_covers(families, kind)
                ),
                unit="vCPUs",
            )
            for name, limit, families, spot in sorted(bearing, key=lambda limit: limit[0])
        ]

    def _used(self) -> Counter[tuple[str, bool]]:
        """vCPUs by type and whether spot. Amazon counts room in capacity reservations that nobody uses as well."""
        used: Counter[tuple[str, bool]] = Counter()
        whole: Counter[tuple[str, bool]] = Counter()
        for reservation in self._calls.pages(
            "ec2", "describe_instances", "Reservations", limit=self._settings.instances_page,
            Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}],
        ):  # fmt: skip
            for one in reservation["Instances"]:
                lifecycle = one.get("InstanceLifecycle", "")
                if lifecycle in _OUTSIDE or one.get("Placement", {}).get("Tenancy") == "host":
                    continue
                market = one["InstanceType"], lifecycle == "spot"
                cpus = one.get("CpuOptions", {})
                if "CoreCount" in cpus and "ThreadsPerCore" in cpus:
                    used[market] += cpus["CoreCount"] * cpus["ThreadsPerCore"]
                else:
                    whole[market] += 1
        vcpus = self._vcpus({name for name, _ in whole})
        for market, count in whole.items():
            used[market] += count * vcpus[market[0]]
        return used

    def _vcpus(self, names: Collection[str]) -> Mapping[str, int]:
        known = {name: kind.vcpus for name, kind in self._catalog.types().items()}
        others = sorted(set(names) - known.keys())
        for start in range(0, len(others), _NAMES):
            found: Sequence[Mapping[str, Any]] = self._calls.query(
                "ec2", "describe_instance_types", InstanceTypes=others[start : start + _NAMES]
            )["InstanceTypes"]
            known.update({one["InstanceType"]: one["VCpuInfo"]["DefaultVCpus"] for one in found})
        return known


def parse_quota_name(name: str) -> tuple[frozenset[str], bool] | None:
    """Families, in small letters, and whether spot; None for quotas of other things."""
    for pattern, spot in ((_ON_DEMAND, False), (_SPOT, True)):
        found = pattern.fullmatch(name.strip())
        if found:
            _, bracket, inside = found["families"].partition("(")
            words = inside.rstrip(") ") if bracket else found["families"]
            return frozenset(re.split(r"\s*,\s*|\s+and\s+", words.lower())), spot
    return None


def quota_covers(families: Collection[str], instance_type: str) -> bool:
    """Whether a quota of these families (``g``, ``p5``, ``high memory``) counts this type."""
    found = _FAMILY.match(instance_type)
    if found is None:
        return False
    letters = _ALIASES.get(found["letters"], found["letters"])
    return letters in families or letters + found["generation"] in families
