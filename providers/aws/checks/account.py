"""The account that is checked, with what the questions so far have found of it, and its errors as verdicts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import AuthFailed, CloudUnavailable, ProviderError
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import AwsCatalog, Ec2InstanceType
from providers.aws.catalog.quotas import AwsQuotas
from providers.aws.launch.images import AwsImage, AwsImages
from providers.aws.settings import AwsSettings
from providers.checks import Verdict, bad, unclear

DOC = "docs/providers/aws.md"
POLICY = "config/aws/iam-policy.json"
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
    "ssm:GetParameterHistory": "ReadParametersThatNameImages",
    "sqs:DeleteMessage": "ReadNotices",
    "sqs:GetQueueAttributes": "ReadNotices",
    "sqs:ReceiveMessage": "ReadNotices",
}  # fmt: skip
_REMEDY_DETAILS = {
    "GiveMachinesTheirRole": ", with the role of instance_profile as its Resource",
    "ReadNotices": ", with the queue of notices_queue as its Resource",
    **dict.fromkeys(
        (
            "MakeWithTheClustersTagOnly", "MakeFromTheClustersOwn", "MakeTemplatesWithTheClustersTagOnly",
            "MakePlacementGroupsWithTheClustersTagOnly", "TagWhatIsBeingMade", "EndTheClustersOwn",
        ),
        ", with this cluster's name in its Condition",
    ),
}  # fmt: skip


@dataclass(slots=True)
class CheckedAccount:
    """One account and region. ``words`` are the images that pools name."""

    settings: AwsSettings
    calls: AwsCalls
    catalog: AwsCatalog
    known_images: AwsImages
    quotas: AwsQuotas
    cluster: str
    words: Sequence[str]
    images: dict[str, AwsImage] = field(default_factory=dict)
    """Those that were found, by their words."""
    subnets: dict[str, str] = field(default_factory=dict)
    """Those that are used, by zone."""
    vpcs: set[str] = field(default_factory=set)
    rules: list[Mapping[str, Any]] = field(default_factory=list)
    """Of the security groups that were found."""
    groups_read: int = 0
    offers: Sequence[Offer] = ()
    """Cheapest first."""

    @property
    def types(self) -> list[Ec2InstanceType]:
        """Those that are offered, cheapest first."""
        names = dict.fromkeys(offer.instance_type for offer in self.offers)
        return [kind for name in names if (kind := self.catalog.type(name))]


def error_verdict(error: ProviderError, otherwise: str) -> Verdict:
    """A missing right, a wrong word, or an Amazon that does not answer."""
    if isinstance(error, AuthFailed):
        return denied(error)
    return unclear(str(error)) if isinstance(error, CloudUnavailable) else bad(str(error), otherwise)


def denied(error: ProviderError, action: str = "") -> Verdict:
    """A missing right. Amazon's words are long, and tell little more than what was refused."""
    text = str(error)
    remedy = remedy_for_denied(action, text)
    if found := _DENIED.search(text):
        text = f"not allowed: {found['action']}" + (f" on {found['resource']}" if found["resource"] else "")
    return bad(text, remedy)


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
