"""What a call must be allowed to do, for the policy.

Which resources an action touches, and its condition keys:
https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html. Amazon does not say all of it:
here RunInstances needs a right on everything that it makes or uses, CreateFleet on the fleet and the launch template,
and then all that RunInstances needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.lab.aws import specs
from tests.lab.aws.faults import MockRefused
from tests.lab.aws.iam import Context, Need, Policy
from tests.lab.aws.specs import Spec
from tests.lab.aws.worlds import World

_LISTS = ("Describe", "List")
_ON_THINGS = {
    "TerminateInstances": ("instance", "InstanceIds"),
    "GetConsoleOutput": ("instance", "InstanceId"),
    "DeleteVolume": ("volume", "VolumeId"),
    "DeleteNetworkInterface": ("network-interface", "NetworkInterfaceId"),
    "CancelSpotInstanceRequests": ("spot-instances-request", "SpotInstanceRequestIds"),
}
_KINDS = {
    "i": "instance", "vol": "volume", "eni": "network-interface", "lt": "launch-template", "pg": "placement-group",
    "sir": "spot-instances-request", "fleet": "fleet", "subnet": "subnet", "sg": "security-group", "ami": "image",
}  # fmt: skip


class Rights:
    """Of one user of an account. Without a policy everything is allowed."""

    def __init__(self, world: World, user: str, policy: Policy | None) -> None:
        self._world, self._user, self._policy = world, user, policy

    def check(self, service: str, action: str, words: Mapping[str, Any]) -> None:
        """Raises Refused where the call is not allowed as a whole."""
        for need in self._needs(service, action, words):
            self._must(need)

    def launch(self, spec: Spec, spot: bool) -> None:
        """Raises Refused where what RunInstances makes and uses is not allowed."""
        for need in self._launch_needs(spec, spot):
            self._must(need)

    def _must(self, need: Need) -> None:
        if self._policy is None or self._policy.allows(need):
            return
        who = f"arn:aws:iam::{self._world.number}:user/{self._user}"
        text = (
            f"You are not authorized to perform this operation. User: {who} is not authorized to perform: {need.action}"
            f" on resource: {need.resource} because no identity-based policy allows the {need.action} action"
        )
        code = "UnauthorizedOperation" if need.action.startswith(("ec2:", "iam:PassRole")) else "AccessDeniedException"
        raise MockRefused(code, text, 403 if code == "UnauthorizedOperation" else 400)

    def _needs(self, service: str, action: str, words: Mapping[str, Any]) -> Iterator[Need]:
        if service == "ec2":
            yield from self._ec2(action, words)
        elif service == "ssm":
            for name in (*(words.get("Names") or ()), words.get("Name", "")):
                if name:
                    yield self._need(f"ssm:{action}", self._arn("ssm", f"parameter/{name.lstrip('/')}"))
        elif service == "sqs":
            one = action.removesuffix("Batch")
            yield self._need(f"sqs:{one}", self._arn("sqs", str(words.get("QueueUrl", "")).rpartition("/")[2]))
        elif service != "sts":
            yield self._need(f"{service}:{action}", "*")

    def _ec2(self, action: str, words: Mapping[str, Any]) -> Iterator[Need]:
        if action.startswith(_LISTS):
            yield self._need(f"ec2:{action}", "*")
        elif action in _ON_THINGS:
            kind, key = _ON_THINGS[action]
            for one in words[key] if isinstance(words.get(key), list) else [words.get(key, "")]:
                if self._there(kind, one):
                    yield self._on(action, f"{kind}/{one}", one)
        elif action == "DeleteLaunchTemplate":
            backend = self._world.backend
            name = words.get("LaunchTemplateName")
            one = words.get("LaunchTemplateId") or backend.launch_template_name_to_ids.get(name, "")
            if one in backend.launch_templates:
                yield self._on(action, f"launch-template/{one}", one)
        elif action == "DeletePlacementGroup":
            group = self._world.groups.get(words.get("GroupName", ""))
            if group is not None:
                yield self._on(action, f"placement-group/{group.name}", group.id)
        elif action in ("CreateLaunchTemplate", "CreatePlacementGroup"):
            kind = {"CreateLaunchTemplate": "launch-template", "CreatePlacementGroup": "placement-group"}[action]
            name = f"{kind}/{words.get('GroupName', '*')}"
            yield from self._making(action, name, _tags(words, kind), action)
        elif action == "CreateFleet":
            yield from self._making(action, "fleet/*", _tags(words, "fleet"), action)
            for one in words.get("LaunchTemplateConfigs") or ():
                yield self._template(action, one["LaunchTemplateSpecification"])
        elif action == "RunInstances":
            if words.get("LaunchTemplate"):
                yield self._template(action, words["LaunchTemplate"])
        elif action == "CreateVolume":
            yield from self._making(action, "volume/*", _tags(words, "volume"), action)
        elif action in ("AttachVolume", "DetachVolume"):
            for kind, one in (("volume", words.get("VolumeId", "")), ("instance", words.get("InstanceId", ""))):
                if self._there(kind, one):
                    yield self._on(action, f"{kind}/{one}", one)
        elif action in ("CreateTags", "DeleteTags"):
            tags = {one["Key"]: one.get("Value", "") for one in words.get("Tags") or ()}
            for one in words.get("Resources") or ():
                kind = _KINDS.get(one.partition("-")[0], "unknown")
                yield self._need(f"ec2:{action}", self._arn("ec2", f"{kind}/{one}"), self._context(one, tags))
        else:
            yield self._need(f"ec2:{action}", self._arn("ec2", "*"))

    def _there(self, kind: str, one: str) -> bool:
        """Of what is not there, EC2 says just that."""
        world = self._world
        known: dict[str, Mapping[str, Any]] = {
            "instance": world.made, "volume": world.backend.volumes, "network-interface": world.backend.enis,
            "spot-instances-request": world.spots,
        }  # fmt: skip
        return one in known[kind]

    def _launch_needs(self, spec: Spec, spot: bool) -> Iterator[Need]:
        world, action = self._world, "RunInstances"
        kinds = ["instance", "volume", "network-interface", *(["spot-instances-request"] if spot else [])]
        for kind in kinds:
            yield from self._making(action, f"{kind}/*", spec["Tags"].get(kind, {}), action)
        if "Template" in spec:
            one = spec["Template"][0]
            yield self._on(action, f"launch-template/{one}", one)
        image = spec.get("ImageId", "")
        yield self._need("ec2:RunInstances", f"arn:aws:ec2:{world.region}::image/{image}", self._context(image, {}))
        interfaces = spec.get("NetworkInterfaces") or ()
        subnets = {one for one in (spec.get("SubnetId"), *(n.get("SubnetId") for n in interfaces)) if one}
        for one in sorted(subnets):
            yield self._on(action, f"subnet/{one}", one)
        for one in specs.groups_of(spec):
            yield self._on(action, f"security-group/{one}", one)
        name = spec.get("Placement", {}).get("GroupName")
        if name:
            group = world.groups.get(name)
            yield self._on(action, f"placement-group/{name}", group.id if group else "")
        target = spec.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
        if target.get("CapacityReservationId"):
            one = target["CapacityReservationId"]
            yield self._on(action, f"capacity-reservation/{one}", one)
        profile = specs.profile_of(world, spec)
        for role in profile.roles if profile else ():
            yield self._need("iam:PassRole", role.arn, {"iam:PassedToService": ["ec2.amazonaws.com"]})

    def _making(self, action: str, name: str, tags: Mapping[str, str], create: str) -> Iterator[Need]:
        """A new thing, and its tags."""
        resource, context = self._arn("ec2", name), self._context("", tags)
        yield self._need(f"ec2:{action}", resource, context)
        if tags:
            yield self._need("ec2:CreateTags", resource, {**context, "ec2:CreateAction": [create]})

    def _template(self, action: str, words: Mapping[str, Any]) -> Need:
        found, _, _ = specs.template(self._world, words)
        return self._on(action, f"launch-template/{found.id}", found.id)

    def _on(self, action: str, name: str, resource: str) -> Need:
        return self._need(f"ec2:{action}", self._arn("ec2", name), self._context(resource, {}))

    def _need(self, action: str, resource: str, context: Context | None = None) -> Need:
        more = {"aws:RequestedRegion": [self._world.region], "ec2:Region": [self._world.region]}
        return Need(action, resource, {**more, **(context or {})})

    def _arn(self, service: str, name: str) -> str:
        return f"arn:aws:{service}:{self._world.region}:{self._world.number}:{name}"

    def _context(self, resource: str, asked: Mapping[str, str]) -> Context:
        context: dict[str, list[str]] = {}
        for key, value in self._world.tags(resource).items():
            context[f"ec2:ResourceTag/{key}"] = context[f"aws:ResourceTag/{key}"] = [value]
        for key, value in asked.items():
            context[f"aws:RequestTag/{key}"] = [value]
        if asked:
            context["aws:TagKeys"] = list(asked)
        return context


def _tags(words: Mapping[str, Any], kind: str) -> Mapping[str, str]:
    given = words.get("TagSpecifications") or words.get("TagSpecification")
    return specs.tag_words(given, kind, "instance", "volume").get(kind, {})
