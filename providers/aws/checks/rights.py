"""Which rights burstd's user has, as far as Amazon tells without anything being made.

EC2 answers a call with ``DryRun`` by ``DryRunOperation`` where it would have been carried out, and by
``UnauthorizedOperation`` where a right is missing; any other error says nothing of rights. A plain answer means that
the call was carried out: so calls that only look come first.
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonParameters.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from burstd.domain.errors import AuthFailed, BadRequest, CloudUnavailable, NotFound, ProviderError
from burstd.domain.plugins.provider import Finding
from providers.aws import tags
from providers.aws.calls import AwsCalls

_PAGE = 5
POLICY = "config/aws/iam-policy.json"
_READ_OPERATIONS = (
    "describe_capacity_reservations", "describe_images", "describe_instance_type_offerings", "describe_instance_types",
    "describe_instances", "describe_launch_templates", "describe_network_interfaces", "describe_placement_groups",
    "describe_security_groups", "describe_spot_instance_requests", "describe_spot_price_history", "describe_subnets",
    "describe_volumes",
)  # fmt: skip
_READ_REMEDY = f"give burstd's user the statement Look of {POLICY}"
_DENIED = re.compile(r"not authorized to perform: (?P<action>[\w-]+:\w+)(?: on resource: (?P<resource>\S+))?")
_OWN = re.compile(r":(launch-template|placement-group)/")
_MADE = re.compile(r":(fleet|instance|network-interface|spot-instances-request|volume)/")

_STATEMENTS = {
    "ec2:RunInstances": "MakeWithTheClustersTagOnly",
    "ec2:CreateFleet": "MakeWithTheClustersTagOnly",
    "ec2:CreateLaunchTemplate": "MakeTemplatesWithTheClustersTagOnly",
    "ec2:CreatePlacementGroup": "MakePlacementGroupsWithTheClustersTagOnly",
    "ec2:CreateTags": "TagWhatIsBeingMade",
    **dict.fromkeys(
        (
            "ec2:CancelSpotInstanceRequests", "ec2:DeleteLaunchTemplate", "ec2:DeleteNetworkInterface",
            "ec2:DeletePlacementGroup", "ec2:DeleteVolume", "ec2:GetConsoleOutput", "ec2:TerminateInstances",
        ),
        "EndTheClustersOwn",
    ),
    "iam:PassRole": "GiveMachinesTheirRole",
    "ssm:GetParameter": "ReadParametersThatNameImages",
    "sqs:DeleteMessage": "ReadNotices",
    "sqs:GetQueueAttributes": "ReadNotices",
    "sqs:ReceiveMessage": "ReadNotices",
}  # fmt: skip
_TAGGED = ", with this cluster's name in its Condition"
_REMEDY_DETAILS = {
    "MakeWithTheClustersTagOnly": _TAGGED,
    "MakeFromTheClustersOwn": _TAGGED,
    "MakeTemplatesWithTheClustersTagOnly": _TAGGED,
    "MakePlacementGroupsWithTheClustersTagOnly": _TAGGED,
    "TagWhatIsBeingMade": _TAGGED,
    "EndTheClustersOwn": _TAGGED,
    "GiveMachinesTheirRole": ", with the role of instance_profile as its Resource",
    "ReadNotices": ", with the queue of notices_queue as its Resource",
}


@dataclass(frozen=True, slots=True)
class SampleLaunch:
    """What a launch of ours would name; empty where it was not found."""

    image: str = ""
    instance_type: str = ""
    subnet: str = ""
    groups: tuple[str, ...] = ()
    profile: str = ""
    spot: bool = False
    """Whether machines of the spot market are offered."""
    placement_groups: bool = False


@dataclass(frozen=True, slots=True)
class _CheckedResource:
    """Things of ours: how they are listed, and what ends them. ``many``: the call takes a list of ids."""

    list_operation: str
    result_key: str
    id: str
    end_operations: tuple[tuple[str, str, bool], ...]
    filters: tuple[dict[str, Any], ...] = ()


_TEMPLATES = _CheckedResource(
    "describe_launch_templates", "LaunchTemplates", "LaunchTemplateName",
    (("delete_launch_template", "LaunchTemplateName", False),),
)  # fmt: skip
_KINDS = (
    _CheckedResource("describe_instances", "Reservations", "InstanceId",
          (("terminate_instances", "InstanceIds", True), ("get_console_output", "InstanceId", False)),
          ({"Name": "instance-state-name", "Values": ["pending", "running"]},)),
    _CheckedResource("describe_volumes", "Volumes", "VolumeId", (("delete_volume", "VolumeId", False),)),
    _CheckedResource("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId",
          (("delete_network_interface", "NetworkInterfaceId", False),)),
    _TEMPLATES,
    _CheckedResource("describe_placement_groups", "PlacementGroups", "GroupName",
          (("delete_placement_group", "GroupName", False),)),
    _CheckedResource("describe_spot_instance_requests", "SpotInstanceRequests", "SpotInstanceRequestId",
          (("cancel_spot_instance_requests", "SpotInstanceRequestIds", True),)),
)  # fmt: skip


class _CarriedOutError(Exception):
    """The call that it names was carried out, though it bore ``DryRun``."""


class IamRights:
    """Those of burstd's user in one account and region."""

    def __init__(self, cluster: str, calls: AwsCalls, more_tags: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._calls = calls
        self._tags = {**more_tags, TAG_CLUSTER: cluster}
        self._template = ""
        self._dry_run_heeded = False
        """Whether a call that only looks has shown that ``DryRun`` is heeded here."""

    def check_rights(self, sample: SampleLaunch) -> Iterator[Finding]:
        """Rights to look, to make and to end. An endpoint that does not heed ``DryRun`` is asked nothing more."""
        try:
            yield from self._check_reading()
            if self._dry_run_heeded:
                yield from self._check_creating(sample)
                yield from self._check_terminating()
            else:
                yield Finding(
                    "rights to make and end", None, "not tried: no call that only looks has shown that DryRun is heeded"
                )  # fmt: skip
        except _CarriedOutError as carried_out:
            yield Finding(
                "dry runs", False, f"{carried_out} was carried out in spite of DryRun: rights cannot be tried here",
                "set endpoint_url to an endpoint of Amazon's, or leave it out, and look in the account for what the "
                f"call has made or ended (tag {TAG_CLUSTER}={self._cluster})",
            )  # fmt: skip

    def _check_reading(self) -> Iterator[Finding]:
        """Rights to look at things, those alike in one finding."""
        tried = [self._dry_run(operation) for operation in _READ_OPERATIONS]
        for ok, word in ((True, "allowed"), (False, "not allowed")):
            names = ", ".join(finding.subject for finding in tried if finding.ok is ok)
            if names:
                yield Finding("rights to look", ok, f"{word}: {names}", "" if ok else _READ_REMEDY)
        yield from (finding for finding in tried if finding.ok is None)

    def _check_creating(self, sample: SampleLaunch) -> Iterator[Finding]:
        """Rights to start machines, and to make what that needs."""
        self._template = self._first_owned(_TEMPLATES)
        if sample.image and sample.instance_type and sample.subnet and sample.groups:
            yield self._dry_run("run_instances", **self._launch_arguments(sample))
            if sample.spot:
                spot = self._launch_arguments(sample, "spot-instances-request")
                options = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
                yield self._dry_run("run_instances", "on the spot market", **spot, InstanceMarketOptions=options)
        else:
            yield Finding("ec2:RunInstances", None, "it takes an image, a type, a subnet and a group to try it with")
        yield self._dry_run(
            "create_launch_template", LaunchTemplateName=f"burstd-{self._cluster}-check",
            LaunchTemplateData={"ImageId": sample.image or "ami-00000000000000000"},
            TagSpecifications=tags.specifications(self._tags, "launch-template"),
        )  # fmt: skip
        yield self._check_fleet()
        if sample.placement_groups:
            yield self._dry_run(
                "create_placement_group", GroupName=f"burstd-{self._cluster}-check", Strategy="cluster",
                TagSpecifications=tags.specifications(self._tags, "placement-group"),
            )  # fmt: skip

    def _check_terminating(self) -> Iterator[Finding]:
        """Rights to end what is ours, each tried on a thing that is."""
        untried = []
        for kind in _KINDS:
            found = self._first_owned(kind)
            for operation, word, many in kind.end_operations:
                if found:
                    thing: dict[str, Any] = {word: [found] if many else found}
                    yield self._dry_run(operation, **thing)
                else:
                    untried.append(action_of(operation))
        if untried:
            yield Finding(
                "rights not tried", None, f"{', '.join(untried)}: burstd has nothing in the account now to try them on",
                f"compare the user's policy with the statement EndTheClustersOwn of {POLICY}, or check again with a "
                "machine running",
            )  # fmt: skip

    def _check_fleet(self) -> Finding:
        name = self._template or f"burstd-{self._cluster}-check"
        template = {"LaunchTemplateName": name, "Version": "1"}
        finding = self._dry_run(
            "create_fleet", Type="instant", LaunchTemplateConfigs=[{"LaunchTemplateSpecification": template}],
            TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
            TagSpecifications=tags.specifications(self._tags, "fleet", "instance", "volume"),
        )  # fmt: skip
        if finding.ok or self._template or (finding.ok is False and "launch-template" not in finding.text):
            return finding
        text = "it can be told once burstd has made its first launch template, at the first launch"
        return Finding(finding.subject, None, text)

    def _launch_arguments(self, sample: SampleLaunch, *more: str) -> dict[str, Any]:
        profile = sample.profile
        words: dict[str, Any] = {
            "ImageId": sample.image, "InstanceType": sample.instance_type, "MinCount": 1, "MaxCount": 1,
            "NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": sample.subnet, "Groups": list(sample.groups)}],
            "MetadataOptions": {"HttpTokens": "required"},
            "TagSpecifications": tags.specifications(self._tags, "instance", "volume", "network-interface", *more),
        }  # fmt: skip
        if profile:
            words["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
        return words

    def _dry_run(self, operation: str, how: str = "", **words: Any) -> Finding:
        subject = f"{action_of(operation)} {how}".strip()
        try:
            self._calls.query("ec2", operation, DryRun=True, **words)
        except ProviderError as error:
            self._dry_run_heeded = self._dry_run_heeded or error_code(error) == "DryRunOperation"
            return finding_for_dry_run(subject, error)
        raise _CarriedOutError(subject)

    def _first_owned(self, kind: _CheckedResource) -> str:
        """The id of one thing of ours; empty: there is none, or the right to look is missing, which was told before."""
        filters = [*tags.cluster_filters(self._cluster), *kind.filters]
        try:
            return next((one[kind.id] for one in self._listed(kind, filters)), "")
        except ProviderError:
            return ""

    def _listed(self, kind: _CheckedResource, filters: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        if kind.result_key == "PlacementGroups":  # Amazon has no pages of them.
            yield from self._calls.query("ec2", kind.list_operation, Filters=filters).get(kind.result_key, ())
            return
        for found in self._calls.pages("ec2", kind.list_operation, kind.result_key, limit=_PAGE, Filters=filters):
            yield from found["Instances"] if kind.result_key == "Reservations" else (found,)


def finding_for_dry_run(subject: str, error: ProviderError) -> Finding:
    """What the answer to a call that was to show a right tells."""
    if error_code(error) == "DryRunOperation":
        return Finding(subject, True, "allowed")
    if isinstance(error, AuthFailed):
        return _missing(subject, error, subject.partition(" ")[0])
    if isinstance(error, BadRequest | NotFound) and "iaminstanceprofile" in str(error).lower():
        return Finding(
            subject, False, str(error),
            "set instance_profile to one of 'aws iam list-instance-profiles', or leave it out",
        )  # fmt: skip
    return Finding(subject, None, f"it could not be tried: {error}")


def finding_for_error(subject: str, error: ProviderError, otherwise: str) -> Finding:
    """Where a thing could not be looked at: a missing right, a wrong word, or an Amazon that does not answer."""
    if isinstance(error, AuthFailed):
        return _missing(subject, error, "")
    if isinstance(error, CloudUnavailable):
        return Finding(subject, None, str(error))
    return Finding(subject, False, str(error), otherwise)


def _missing(subject: str, error: ProviderError, action: str) -> Finding:
    """Amazon's words are long, and tell little more than what was refused."""
    found = _DENIED.search(str(error))
    text = str(error)
    if found:
        text = f"not allowed: {found['action']}" + (f" on {found['resource']}" if found["resource"] else "")
    return Finding(subject, False, text, remedy_for_denied(action, str(error)))


def remedy_for_denied(action: str, text: str) -> str:
    """Which statement of the policy gives what was refused, going by Amazon's own words where it says what that was."""
    found = _DENIED.search(text)
    action, resource = (found["action"], found["resource"] or "") if found else (action, "")
    sid = policy_statement(action, resource)
    where = f"statement {sid} of {POLICY}" if sid else f"policy {POLICY}"
    return f"give burstd's user {action} as in {where}{_REMEDY_DETAILS.get(sid, '')}"


def policy_statement(action: str, resource: str = "") -> str:
    """The ``Sid`` under which the policy allows it; empty: it does not."""
    if action in ("ec2:RunInstances", "ec2:CreateFleet") and resource:
        if _OWN.search(resource):
            return "MakeFromTheClustersOwn"
        return "MakeWithTheClustersTagOnly" if _MADE.search(resource) else "MakeFromAndIn"
    if action in ("pricing:GetProducts", "servicequotas:ListServiceQuotas") or action.startswith("ec2:Describe"):
        return "Look"
    return _STATEMENTS.get(action, "")


def error_code(error: ProviderError) -> str:
    """Amazon's code behind an error; empty: none."""
    response: Mapping[str, Any] = getattr(error.__cause__, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


def action_of(operation: str) -> str:
    """``ec2:RunInstances`` of ``run_instances``."""
    return "ec2:" + "".join(part.capitalize() for part in operation.split("_"))
