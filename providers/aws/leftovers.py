"""What bears the cluster's tag and is no machine: found in a few pages, removed once it was looked at again.

Nothing is removed that does not bear exactly the cluster's tag when it is asked for by its id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from burstd.domain.cloud.instance import TAG_CLAIM, Leftover
from burstd.domain.errors import AuthFailed, BadRequest, NotFound, ProviderError
from providers.aws import tags
from providers.aws.calls import AwsCalls
from providers.aws.launch.placement_groups import TAG_MADE
from providers.aws.settings import AwsSettings
from providers.leftovers import remove_leftovers

_VALUES = 200
"""Most values of all filters of a call."""
_LIVE = ("pending", "running", "shutting-down", "stopping", "stopped")


@dataclass(frozen=True, slots=True)
class _ResourceKind:
    """How things of a kind are listed, told apart and removed."""

    name: str
    list_operation: str
    result_key: str
    """Of the answer."""
    id: str
    id_filter: str
    state: tuple[str, str, tuple[str, ...]] | None
    """Filter, field, and its values of things that nobody uses."""
    page: int
    """Most to a page; 0: there are no pages."""
    delete_operation: str
    delete_argument: str
    deletes_many: bool = False
    """Whether one call ends many."""
    tags_key: str = "Tags"


_VOLUMES = _ResourceKind(
    "volume", "describe_volumes", "Volumes", "VolumeId", "volume-id", ("status", "State", ("available", "error")), 500,
    "delete_volume", "VolumeId",
)  # fmt: skip
_INTERFACES = _ResourceKind(
    "network-interface", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId",
    "network-interface-id", ("status", "Status", ("available",)), 1000,
    "delete_network_interface", "NetworkInterfaceId", tags_key="TagSet",
)  # fmt: skip
_REQUESTS = _ResourceKind(
    "spot-instances-request", "describe_spot_instance_requests", "SpotInstanceRequests", "SpotInstanceRequestId",
    "spot-instance-request-id", ("state", "State", ("open", "active")), 1000,
    "cancel_spot_instance_requests", "SpotInstanceRequestIds", deletes_many=True,
)  # fmt: skip
_TEMPLATES = _ResourceKind(
    "launch-template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateName", "launch-template-name",
    None, 200, "delete_launch_template", "LaunchTemplateName",
)  # fmt: skip
_GROUPS = _ResourceKind(
    "placement-group", "describe_placement_groups", "PlacementGroups", "GroupName", "group-name",
    ("state", "State", ("available",)), 0, "delete_placement_group", "GroupName",
)  # fmt: skip
_KINDS = {kind.name: kind for kind in (_VOLUMES, _INTERFACES, _REQUESTS, _TEMPLATES, _GROUPS)}
AwsResource = Mapping[str, Any]


class AwsLeftovers:
    """Of one cluster. ``used_lately`` tells of a launch template's name whether this process needs it still."""

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: AwsSettings,
        calls: AwsCalls,
        used_lately: Callable[[str], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._used_lately = used_lately
        self._clock = clock

    def list_leftovers(self) -> Iterator[Leftover]:
        """What nobody uses, page by page. Templates and placement groups only when they have been of no use for the
        settings' ``unused_s``; spot requests only when their machine is gone.
        """
        for kind, things in (
            (_VOLUMES, self._idle(_VOLUMES)),
            (_INTERFACES, self._idle(_INTERFACES)),
            (_REQUESTS, self._requests()),
            (_TEMPLATES, filter(self._spare_template, self._idle(_TEMPLATES))),
            (_GROUPS, self._groups()),
        ):
            for thing in things:
                yield Leftover(kind.name, thing[kind.id], self._name, _tags(kind, thing).get(TAG_CLAIM, ""))

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks at all of them first. What is in use by now is an error, what a launch may need again is left alone.

        Raises BadRequest, and removes nothing, where one is not ours; else the first error when all were tried. Where
        Amazon cannot be reached, or finds the calls too many, no more of that kind are tried.
        """
        remove_leftovers(
            leftovers, _KINDS, "EC2", f"tag of cluster {self._cluster}", self._named, self._strange, self._delete_spare
        )

    def _strange(self, name: str, thing: AwsResource) -> str:
        kind = _KINDS[name]
        return "" if tags.belongs_to_cluster(_tags(kind, thing), self._cluster) else str(thing[kind.id])

    def _delete_spare(self, name: str, things: Sequence[AwsResource]) -> list[ProviderError]:
        kind = _KINDS[name]
        spare = filter(self._spare_template, things) if kind is _TEMPLATES else things
        return self._delete(kind, [thing[kind.id] for thing in spare])

    def _requests(self) -> Iterator[AwsResource]:
        """Those whose machine is not there. A request that was fulfilled ends with its machine, as a rule."""
        requests = list(self._idle(_REQUESTS))
        spot = {"Name": "instance-lifecycle", "Values": ["spot"]}
        alive = (
            {one["InstanceId"] for one in self._alive([*tags.cluster_filters(self._cluster), spot])}
            if requests
            else set()
        )
        return (one for one in requests if one.get("InstanceId") not in alive)

    def _groups(self) -> Iterator[AwsResource]:
        """Those that are old, with no machine in them, be it ours or anybody's.

        One whose tag does not say when it was made, or says a time far ahead, is old too: else it stayed for ever.
        Where the site uses no groups any more, it need not give the right to look for them.
        """
        try:
            found = list(self._idle(_GROUPS))
        except AuthFailed:
            if self._settings.placement_groups:
                raise
            return iter(())
        now, unused_s = self._clock(), self._settings.unused_s
        old = [one for one in found if abs(now - _creation_time(one)) >= unused_s]
        busy: set[str] = set()
        for start in range(0, len(old), _VALUES - len(_LIVE)):
            names = [one["GroupName"] for one in old[start : start + _VALUES - len(_LIVE)]]
            inside = self._alive([{"Name": "placement-group-name", "Values": names}])
            busy.update(one.get("Placement", {}).get("GroupName", "") for one in inside)
        return (one for one in old if one["GroupName"] not in busy)

    def _spare_template(self, thing: AwsResource) -> bool:
        """One that does not say when it was made is left alone."""
        made = thing.get("CreateTime")
        if not isinstance(made, datetime) or self._clock() - made.timestamp() < self._settings.unused_s:
            return False
        return not self._used_lately(thing["LaunchTemplateName"])

    def _idle(self, kind: _ResourceKind) -> Iterator[AwsResource]:
        """Ours that are in no use by their state."""
        filters = tags.cluster_filters(self._cluster)
        if kind.state is not None:
            name, _, values = kind.state
            filters.append({"Name": name, "Values": list(values)})
        for thing in self._pages(kind, filters):
            idle = kind.state is None or thing.get(kind.state[1]) in kind.state[2]
            if idle and tags.belongs_to_cluster(_tags(kind, thing), self._cluster):
                yield thing

    def _named(self, name: str, wanted: Sequence[str]) -> Iterator[AwsResource]:
        """Those that are there, whoever's they are. A filter, unlike a list of ids, is no error where one is gone."""
        kind = _KINDS[name]
        for start in range(0, len(wanted), _VALUES):
            found = self._pages(kind, [{"Name": kind.id_filter, "Values": wanted[start : start + _VALUES]}])
            yield from (thing for thing in found if thing[kind.id] in wanted)

    def _alive(self, filters: Sequence[Mapping[str, Any]]) -> Iterator[AwsResource]:
        state = {"Name": "instance-state-name", "Values": list(_LIVE)}
        pages = self._calls.pages(
            "ec2", "describe_instances", "Reservations", limit=self._settings.instances_page, Filters=[*filters, state]
        )
        return chain.from_iterable(reservation.get("Instances", ()) for reservation in pages)

    def _pages(self, kind: _ResourceKind, filters: Sequence[Mapping[str, Any]]) -> Iterator[AwsResource]:
        if not kind.page:
            return iter(self._calls.query("ec2", kind.list_operation, Filters=filters).get(kind.result_key, ()))
        limit = min(self._settings.page, kind.page)
        return self._calls.pages("ec2", kind.list_operation, kind.result_key, limit=limit, Filters=filters)

    def _delete(self, kind: _ResourceKind, ids: Sequence[str]) -> list[ProviderError]:
        errors: list[ProviderError] = []
        size = _VALUES if kind.deletes_many else 1
        for start in range(0, len(ids), size):
            some = list(ids[start : start + size])
            try:
                self._calls.mutate(
                    "ec2", kind.delete_operation, **{kind.delete_argument: some if kind.deletes_many else some[0]}
                )
            except NotFound:
                continue
            except BadRequest as error:
                errors.append(error)
            except ProviderError as error:
                errors.append(error)
                break
        return errors


def _tags(kind: _ResourceKind, thing: AwsResource) -> dict[str, str]:
    return tags.from_aws(thing.get(kind.tags_key))


def _creation_time(group: AwsResource) -> float:
    """Seconds since 1970; 0: its tag does not say."""
    said = _tags(_GROUPS, group).get(TAG_MADE, "")
    return float(said) if said.isdecimal() else 0.0
