"""Which rights burstd's user has, as far as Amazon tells without anything being made.

EC2 answers a call with ``DryRun`` by ``DryRunOperation`` where it would have been carried out, and by
``UnauthorizedOperation`` where a right is missing; any other error says nothing of rights. A plain answer means that
the call was carried out: so calls that only look come first.
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/CommonParameters.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER
from burstd.domain.errors import AuthFailed, BadRequest, NotFound, ProviderError
from providers.aws import tags
from providers.aws.calls import AwsCalls
from providers.aws.checks.account import POLICY, denied, error_code
from providers.checks import Verdict, bad, good, unclear

_READ_OPERATIONS = (
    "describe_capacity_reservations", "describe_images", "describe_instance_type_offerings", "describe_instance_types",
    "describe_instances", "describe_launch_templates", "describe_network_interfaces", "describe_placement_groups",
    "describe_security_groups", "describe_spot_instance_requests", "describe_spot_price_history", "describe_subnets",
    "describe_volumes",
)  # fmt: skip
_READ_REMEDY = f"give burstd's user the statement Look of {POLICY}"


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

    def check_rights(self, sample: SampleLaunch) -> Iterator[Verdict]:
        """Rights to look, to make and to end. An endpoint that does not heed ``DryRun`` is asked nothing more."""
        try:
            yield from self._check_reading()
            if self._dry_run_heeded:
                yield from self._check_creating(sample)
                yield from self._check_terminating()
            else:
                yield unclear(
                    "not tried: no call that only looks has shown that DryRun is heeded",
                    subject="rights to make and end",
                )
        except _CarriedOutError as carried_out:
            yield bad(
                f"{carried_out} was carried out in spite of DryRun: rights cannot be tried here",
                "set endpoint_url to an endpoint of Amazon's, or leave it out, and look in the account for what the "
                f"call has made or ended (tag {TAG_CLUSTER}={self._cluster})", "dry runs",
            )  # fmt: skip

    def _check_reading(self) -> Iterator[Verdict]:
        """Rights to look at things, those alike in one finding."""
        tried = [self._dry_run(operation) for operation in _READ_OPERATIONS]
        for ok, word in ((True, "allowed"), (False, "not allowed")):
            names = ", ".join(verdict.subject for verdict in tried if verdict.ok is ok)
            if names:
                yield Verdict(ok, f"{word}: {names}", "" if ok else _READ_REMEDY, "rights to look")
        yield from (verdict for verdict in tried if verdict.ok is None)

    def _check_creating(self, sample: SampleLaunch) -> Iterator[Verdict]:
        """Rights to start machines, and to make what that needs."""
        self._template = self._first_owned(_TEMPLATES)
        if sample.image and sample.instance_type and sample.subnet and sample.groups:
            yield self._dry_run("run_instances", **self._launch_arguments(sample))
            if sample.spot:
                spot = self._launch_arguments(sample, "spot-instances-request")
                options = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
                yield self._dry_run("run_instances", "on the spot market", **spot, InstanceMarketOptions=options)
        else:
            text = "it takes an image, a type, a subnet and a group to try it with"
            yield unclear(text, subject="ec2:RunInstances")
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

    def _check_terminating(self) -> Iterator[Verdict]:
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
            yield unclear(
                f"{', '.join(untried)}: burstd has nothing in the account now to try them on",
                f"compare the user's policy with the statement EndTheClustersOwn of {POLICY}, or check again with a "
                "machine running", "rights not tried",
            )  # fmt: skip

    def _check_fleet(self) -> Verdict:
        name = self._template or f"burstd-{self._cluster}-check"
        template = {"LaunchTemplateName": name, "Version": "1"}
        verdict = self._dry_run(
            "create_fleet", Type="instant", LaunchTemplateConfigs=[{"LaunchTemplateSpecification": template}],
            TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
            TagSpecifications=tags.specifications(self._tags, "fleet", "instance", "volume"),
        )  # fmt: skip
        if verdict.ok or self._template or (verdict.ok is False and "launch-template" not in verdict.text):
            return verdict
        text = "it can be told once burstd has made its first launch template, at the first launch"
        return unclear(text, subject=verdict.subject)

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

    def _dry_run(self, operation: str, how: str = "", **words: Any) -> Verdict:
        subject = f"{action_of(operation)} {how}".strip()
        try:
            self._calls.query("ec2", operation, DryRun=True, **words)
        except ProviderError as error:
            self._dry_run_heeded = self._dry_run_heeded or error_code(error) == "DryRunOperation"
            return replace(dry_run_verdict(action_of(operation), error), subject=subject)
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
        for found in self._calls.pages("ec2", kind.list_operation, kind.result_key, limit=5, Filters=filters):
            yield from found["Instances"] if kind.result_key == "Reservations" else (found,)


def dry_run_verdict(action: str, error: ProviderError) -> Verdict:
    """What the answer to a call that was to show a right tells."""
    if error_code(error) == "DryRunOperation":
        return good("allowed")
    if isinstance(error, AuthFailed):
        return denied(error, action)
    if isinstance(error, BadRequest | NotFound) and "iaminstanceprofile" in str(error).lower():
        remedy = "set instance_profile to one of 'aws iam list-instance-profiles', or leave it out"
        return bad(str(error), remedy)
    return unclear(f"it could not be tried: {error}")


def action_of(operation: str) -> str:
    """``ec2:RunInstances`` of ``run_instances``."""
    return "ec2:" + "".join(part.capitalize() for part in operation.split("_"))
