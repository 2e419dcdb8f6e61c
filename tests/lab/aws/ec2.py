"""EC2's actions: moto's own, with ours over those that moto gets wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.core.utils import camelcase_to_underscores
from moto.ec2.models.tags import TagBackend
from moto.ec2.responses import EC2Response

from tests.lab.aws import extras, launches, lists, specs
from tests.lab.aws.faults import MockRefused
from tests.lab.aws.life import Life
from tests.lab.aws.rights import Rights
from tests.lab.aws.worlds import World

_USER = ("Client.UserInitiatedShutdown: User initiated shutdown", "Client.UserInitiatedShutdown")
here = threading.local()
"""Whose call the thread serves: ``world``, ``rights``, ``life``. Set by the server before moto is asked."""


class Ec2(EC2Response):
    """Made by moto's dispatcher for each call."""

    def call_action(self) -> tuple[int, dict[str, str], Any]:
        """One call, under the account's lock."""
        action, world = self._get_action(), here.world
        try:
            with world.lock:
                result = self._result(action, _plain(getattr(self, "params", {})), world)
                status, headers, body = self.serialized(ActionResult(result))
        except MockRefused as error:
            return error.status, {"Content-Type": "text/xml"}, error.xml()
        return status, headers, body

    def _result(self, action: str, words: Mapping[str, Any], world: World) -> Any:
        own = Actions.OURS.get(action)
        theirs: Callable[[], Any] | None = getattr(self, camelcase_to_underscores(action), None)
        if theirs is None and own is None:
            raise MockRefused("InvalidAction", f"The action {action} is not valid for this web service.")
        here.rights.check("ec2", action, words)
        if words.get("DryRun") and action != "RunInstances":  # whose rights show once its template is known
            raise launches.dry_run()
        if action == "CreateVolume" and words.get("AvailabilityZone") not in _zones(world):
            raise MockRefused("InvalidZone.NotFound", f"The zone '{words.get('AvailabilityZone')}' does not exist.")
        if own is not None:
            return own(Actions(world, here.life, here.rights), words)
        try:
            return _paged(action, words, theirs().result if theirs else None)
        except ServiceException as error:
            raise MockRefused(error.code, error.message) from error


def _zones(world: World) -> set[str]:
    return {zone.name for zone in world.backend.describe_availability_zones()}


class Actions:
    """Each method is an action: words in, the answer in the API's own words out."""

    def __init__(self, world: World, life: Life, rights: Rights) -> None:
        self._world, self._life, self._rights = world, life, rights

    def run_instances(self, words: Mapping[str, Any]) -> Any:
        """RunInstances. Asked again, the instances show their state of now."""
        kinds = ("instance", "volume", "network-interface", "spot-instances-request")
        specs.tag_words(words.get("TagSpecifications"), *kinds)
        world = self._world
        made = self._once(
            "RunInstances", words, lambda: launches.run_instances(world, self._life, words, self._rights.launch)
        )
        reservation = made[0].reservation.id
        shown = [lists.shown(world, one) for one in made]
        return {"ReservationId": reservation, "OwnerId": world.number, "Groups": [], "Instances": shown}

    def create_fleet(self, words: Mapping[str, Any]) -> Any:
        """CreateFleet."""
        world = self._world
        return self._once(
            "CreateFleet", words, lambda: launches.create_fleet(world, self._life, words, self._rights.launch)
        )

    def create_launch_template(self, words: Mapping[str, Any]) -> Any:
        """CreateLaunchTemplate."""
        return self._once("CreateLaunchTemplate", words, lambda: self._template(words))

    def delete_launch_template(self, words: Mapping[str, Any]) -> Any:
        """DeleteLaunchTemplate, with EC2's error for one that is not there."""
        found, _, _ = specs.template(self._world, {**words, "Version": "$Default"})
        self._world.backend.delete_launch_template(found.name, None)
        return {"LaunchTemplate": _template(self._world, found)}

    def describe_launch_templates(self, words: Mapping[str, Any]) -> Any:
        """DescribeLaunchTemplates."""
        world = self._world
        named = [{"LaunchTemplateName": one} for one in words.get("LaunchTemplateNames") or ()]
        named += [{"LaunchTemplateId": one} for one in words.get("LaunchTemplateIds") or ()]
        found = [specs.template(world, one)[0] for one in named] or list(world.backend.launch_templates.values())
        for name, patterns in lists.filters(words).items():
            if name == "launch-template-name":
                found = [one for one in found if lists.fits([one.name], patterns)]
            else:
                found = [one for one in found if lists.tags_fit(world.tags(one.id), name, patterns)]
        shown, more = lists.page("DescribeLaunchTemplates", words, found)
        return {"LaunchTemplates": [_template(world, one) for one in shown], "NextToken": more}

    def describe_instances(self, words: Mapping[str, Any]) -> Any:
        """DescribeInstances."""
        return lists.instances(self._world, words)

    def terminate_instances(self, words: Mapping[str, Any]) -> Any:
        """TerminateInstances: all of them or none."""
        world, ids = self._world, list(words.get("InstanceIds") or ())
        found = lists.known(world, ids)
        world.faults.forbids_end(ids)
        said = []
        for made in found:
            before = {"Code": made.instance.state_code, "Name": made.instance.state}
            self._life.ends(world, made, *_USER)
            after = {"Code": made.instance.state_code, "Name": made.instance.state}
            said.append({"InstanceId": made.id, "CurrentState": after, "PreviousState": before})
        return {"TerminatingInstances": said}

    def get_console_output(self, words: Mapping[str, Any]) -> Any:
        """GetConsoleOutput."""
        (made,) = lists.known(self._world, [words.get("InstanceId", "")])
        text = self._life.console(made.id) if made.instance.state in ("running", "shutting-down") else ""
        answer = {"InstanceId": made.id, "Timestamp": made.instance.launch_time}
        return {**answer, "Output": specs.base64_text(text)} if text else answer

    def delete_network_interface(self, words: Mapping[str, Any]) -> None:
        """DeleteNetworkInterface, not of one that is in use."""
        one = words.get("NetworkInterfaceId", "")
        eni = self._world.backend.enis.get(one)
        if eni is None:
            raise MockRefused("InvalidNetworkInterfaceID.NotFound", f"The networkInterface ID '{one}' does not exist")
        if eni.instance is not None:
            raise MockRefused("InvalidParameterValue", f"Network interface '{one}' is currently in use.")
        del self._world.backend.enis[one]

    def create_placement_group(self, words: Mapping[str, Any]) -> Any:
        """CreatePlacementGroup."""
        return extras.create_placement_group(self._world, words)

    def describe_placement_groups(self, words: Mapping[str, Any]) -> Any:
        """DescribePlacementGroups."""
        return extras.describe_placement_groups(self._world, words)

    def delete_placement_group(self, words: Mapping[str, Any]) -> None:
        """DeletePlacementGroup."""
        extras.delete_placement_group(self._world, words)

    def describe_capacity_reservations(self, words: Mapping[str, Any]) -> Any:
        """DescribeCapacityReservations."""
        found = extras.describe_capacity_reservations(self._world, words)
        return _paged("DescribeCapacityReservations", words, {"CapacityReservations": found})

    def describe_instance_type_offerings(self, words: Mapping[str, Any]) -> Any:
        """DescribeInstanceTypeOfferings."""
        found = extras.describe_instance_type_offerings(self._world, words)
        return _paged("DescribeInstanceTypeOfferings", words, {"InstanceTypeOfferings": found})

    def describe_spot_instance_requests(self, words: Mapping[str, Any]) -> Any:
        """DescribeSpotInstanceRequests."""
        found = extras.describe_spot_instance_requests(self._world, words)
        return _paged("DescribeSpotInstanceRequests", words, {"SpotInstanceRequests": found})

    def cancel_spot_instance_requests(self, words: Mapping[str, Any]) -> Any:
        """CancelSpotInstanceRequests."""
        return extras.cancel_spot_instance_requests(self._world, words)

    def describe_spot_price_history(self, words: Mapping[str, Any]) -> Any:
        """DescribeSpotPriceHistory."""
        found = extras.describe_spot_price_history(self._world, words)
        return _paged("DescribeSpotPriceHistory", words, {"SpotPriceHistory": found})

    def _once(self, action: str, words: Mapping[str, Any], work: Callable[[], Any]) -> Any:
        """The answer that the token already has, or a new one. A call that was refused spends no token.

        https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
        """
        token = words.get("ClientToken")
        if not token:
            return work()
        if len(token) > 64 or not token.isascii():
            raise MockRefused("InvalidParameterValue", "The client token is longer than 64 ASCII characters.")
        asked = json.dumps(
            {key: value for key, value in words.items() if key != "ClientToken"}, sort_keys=True, default=str
        )
        known = self._world.tokens.get((action, token))
        if known is None:
            known = self._world.tokens[action, token] = (asked, work())
        elif known[0] != asked:
            text = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
            raise MockRefused("IdempotentParameterMismatch", text)
        return known[1]

    def _template(self, words: Mapping[str, Any]) -> Any:
        world, name = self._world, words.get("LaunchTemplateName", "")
        tags = specs.tag_words(words.get("TagSpecifications"), "launch-template")
        if name in world.backend.launch_template_name_to_ids:
            text = f"Launch template name already in use: {name}"
            raise MockRefused("InvalidLaunchTemplateName.AlreadyExistsException", text)
        if not 3 <= len(name) <= 128 or not specs.TEMPLATE_NAME.fullmatch(name):
            raise MockRefused(
                "InvalidLaunchTemplateName.MalformedException", f"Launch template name is malformed: {name}"
            )
        data = dict(words.get("LaunchTemplateData") or {})
        kinds = ("instance", "volume", "network-interface", "spot-instances-request", "elastic-gpu")
        specs.tag_words(data.get("TagSpecifications"), *kinds)
        specs.user_data_of(data)
        found = world.backend.create_launch_template(name, words.get("VersionDescription"), data, tags)
        return {"LaunchTemplate": _template(world, found)}

    OURS: ClassVar[dict[str, Callable[[Actions, Mapping[str, Any]], Any]]] = {}


Actions.OURS = {
    "".join(part.capitalize() for part in name.split("_")): method
    for name, method in vars(Actions).items()
    if not name.startswith("_") and callable(method)
}


def _template(world: World, found: Any) -> dict[str, Any]:
    return {
        "LaunchTemplateId": found.id, "LaunchTemplateName": found.name, "CreateTime": found.create_time,
        "CreatedBy": f"arn:aws:iam::{world.number}:root", "DefaultVersionNumber": found.default_version_number,
        "LatestVersionNumber": len(found.versions),
        "Tags": [{"Key": key, "Value": value} for key, value in world.tags(found.id).items()],
    }  # fmt: skip


def _paged(action: str, words: Mapping[str, Any], result: Any) -> Any:
    """Cuts a page out of what moto gives whole."""
    rule = lists.PAGES.get(action)
    if rule is None or not isinstance(result, dict):
        return result
    shown, more = lists.page(action, words, list(result[rule.key]))
    return {**result, rule.key: shown, "NextToken": more}


def _plain(words: Any) -> Any:
    if isinstance(words, Mapping):
        return {key: _plain(value) for key, value in words.items() if value is not None}
    if isinstance(words, (list, tuple)):
        return [_plain(one) for one in words]
    return words


_moto_tags = TagBackend.describe_tags


def _tags_by_index(self: Any, filters: dict[str, list[str]] | None = None) -> list[dict[str, str]]:
    """Moto looks through the tags of everything for those of one thing; its dictionary knows them at once."""
    if (
        filters is None
        or set(filters) != {"resource-id"}
        or any(c in one for one in filters["resource-id"] for c in "*?[")
    ):
        found: list[dict[str, str]] = _moto_tags(self, filters)
        return found
    return [
        {"resource_id": one, "key": key, "value": value, "resource_type": specs.kind_of(one)}
        for one in filters["resource-id"]
        for key, value in dict(self.tags.get(one, {})).items()
    ]


def install() -> None:
    """Puts these in the place of moto's, for this process."""
    from moto.ec2 import urls

    TagBackend.describe_tags = _tags_by_index  # type: ignore[method-assign]
    urls.url_paths["{0}/"] = Ec2.dispatch
