"""A stand-in for Amazon: what is said is checked by botocore against EC2's own model; the answers are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any

import botocore.session
from botocore.validate import ParamValidator

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.slurm.shape import Shape
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import NetworkAdapter
from providers.aws.launch.images import AwsImage
from providers.aws.launch.recipe import CapacityPool, LaunchSpec, batch_requests
from providers.aws.settings import AwsSettings

CLUSTER = "ours"
IMAGE = AwsImage("ami-1", "/dev/xvda", 8, "x86_64")
Answer = Mapping[str, Any] | ProviderError | Callable[[Mapping[str, Any]], Mapping[str, Any]]


def settings(**more: Any) -> AwsSettings:
    words = {"region": "eu-central-1", "subnets": ["subnet-a", "subnet-b"], "security_groups": ["sg-1"]}
    return AwsSettings(**{**words, "instance_types": ["*"], **more})


def offer(instance_type: str = "c5.large", zone: str = "a", *, spot: bool = False) -> Offer:
    return Offer("aws", "eu-central-1", zone, instance_type, spot, Shape(2, 3800), Decimal(1))


def request(claim: str, *, of: Offer | None = None, **more: Any) -> LaunchRequest:
    tags = {TAG_CLUSTER: CLUSTER, TAG_CLAIM: claim, "burstd-slot": f"slot-{claim}", "burstd-pool": "cpu"}
    return LaunchRequest(
        claim, f"ours-{claim}", of or offer(), "", more.pop("user_data", "#cloud-config\n"), tags, **more
    )


def adapters(cards: int, first: str = "efa") -> tuple[NetworkAdapter, ...]:
    """Of a type with so many cards that have EFA, of which the first may be an exception."""
    return tuple(NetworkAdapter(card, "efa-only" if card else first) for card in range(cards))


def launch_spec(asked: LaunchRequest, **more: Any) -> LaunchSpec:
    pools = tuple(CapacityPool(one, f"subnet-{one.zone}") for one in (asked.offer, *asked.others))
    return LaunchSpec(asked, IMAGE, pools, **more)


def prepared(*asked: LaunchRequest, of: AwsSettings | None = None, **more: Any) -> list[LaunchRequest]:
    return batch_requests(CLUSTER, of or settings(), [launch_spec(one, **more) for one in asked])


def many(count: int, **more: Any) -> list[LaunchRequest]:
    return [request(f"c{number:03}", **more) for number in range(count)]


class FakeEc2(AwsCalls):
    """Gives the answers of an operation one after the other, the last one for ever; keeps what was said."""

    def __init__(self, **answers: list[Answer]) -> None:
        super().__init__(settings())
        self.said: list[tuple[str, Mapping[str, Any]]] = []
        self._responses: dict[str, list[Answer]] = {
            "create_launch_template": [{}], "create_placement_group": [{}], "describe_instances": [{}]
        }  # fmt: skip
        self._responses.update(answers)

    def _call(self, service: str, operation: str, words: Mapping[str, Any], *, changes: bool) -> Mapping[str, Any]:
        assert service == "ec2"
        assert operation.startswith(("describe", "get")) is not changes
        validate(operation, words)
        self.said.append((operation, words))
        answers = self._responses[operation]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, ProviderError):
            raise answer
        return answer(words) if callable(answer) else answer

    def count(self, operation: str) -> int:
        return sum(one == operation for one, _ in self.said)


@cache
def _model() -> Any:
    return botocore.session.get_session().get_service_model("ec2")


def validate(operation: str, words: Mapping[str, Any]) -> None:
    """Raises where EC2 knows no such parameter, or not of such a type."""
    name = "".join(part.capitalize() for part in operation.split("_"))
    report = ParamValidator().validate(words, _model().operation_model(name).input_shape)
    assert not report.has_errors(), report.generate_report()


def fleet(words: Mapping[str, Any], *, of: int | None = None, place: int = 0) -> Mapping[str, Any]:
    """The answer to CreateFleet that gives machines of one override, in no order."""
    count = words["TargetCapacitySpecification"]["TotalTargetCapacity"] if of is None else of
    override = words["LaunchTemplateConfigs"][0]["Overrides"][place]
    ids = [f"i-{number:03}" for number in reversed(range(count))]
    return {"Instances": [{"LaunchTemplateAndOverrides": {"Overrides": override}, "InstanceIds": ids}], "Errors": []}


def refusal(code: str, instance_type: str = "c5.large", zone: str = "a") -> Mapping[str, Any]:
    override = {"InstanceType": instance_type, "SubnetId": f"subnet-{zone}"}
    return {"ErrorCode": code, "ErrorMessage": "so it is", "LaunchTemplateAndOverrides": {"Overrides": override}}
