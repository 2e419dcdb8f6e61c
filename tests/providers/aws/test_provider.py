from __future__ import annotations

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, Instance
from burstd.domain.errors import BadRequest, CloudUnavailable
from burstd.domain.plugins.provider import (
    ConsoleLog,
    LaunchPreparer,
    LaunchRequest,
    NoticeSource,
    NoticeWatch,
    QuotaReport,
    SelfCheck,
)
from providers.aws import tags
from providers.aws.launch.images import AwsImage
from providers.aws.provider import AwsProvider, plugin
from tests.providers.aws.ec2 import CLUSTER, FakeEc2, fleet, offer, request, settings
from tests.providers.aws.test_requirements import StubImages, lookups


def provider(ec2: FakeEc2) -> AwsProvider:
    made = AwsProvider("aws", CLUSTER, settings(), ec2)
    made._lookups = lookups()
    return made


def test_it_can_all_that_a_provider_may() -> None:
    made = plugin.make("aws", CLUSTER, settings())
    for ability in (LaunchPreparer, ConsoleLog, NoticeSource, NoticeWatch, QuotaReport, SelfCheck):
        assert isinstance(made, ability)


def test_without_a_queue_there_are_no_notices() -> None:
    ec2 = FakeEc2()
    assert list(provider(ec2).notices()) == []
    assert ec2.said == []


def test_each_request_is_answered_in_its_place() -> None:
    """Also one that comes twice, and one that can never be."""
    ec2 = FakeEc2(create_fleet=[fleet])
    asked = [request("c1"), request("c2", of=offer("zz.large")), request("c1")]
    first, bad, again = provider(ec2).prepare(asked)
    assert isinstance(bad, BadRequest)
    assert isinstance(first, LaunchRequest)
    assert (first.batch, first) == ("c1", again)


def test_what_was_not_prepared_is_prepared_on_the_spot() -> None:
    """Each by itself, so that its machine bears its claim; a gang together."""
    ec2 = FakeEc2(create_fleet=[fleet])
    gang = [request("g1", gang="7"), request("g2", gang="7")]
    asked = [request("c1"), request("c2", of=offer("zz.large")), request("c1"), request("c3"), *gang]
    outcomes = provider(ec2).launch(asked)
    assert [o.claim_id for o in outcomes] == ["c1", "c2", "c1", "c3", "g1", "g2"]
    assert [o.result.id if isinstance(o.result, Instance) else type(o.result) for o in outcomes] == [
        "i-000", BadRequest, "i-000", "i-000", "i-000", "i-001",
    ]  # fmt: skip
    borne = {}
    for operation, words in ec2.said:
        if operation == "create_fleet":
            borne[words["ClientToken"]] = tags.from_aws(words["TagSpecifications"][0]["Tags"]).get(TAG_CLAIM, "")
    assert borne == {"c1": "c1", "c3": "c3", "g1": ""}


def test_where_nothing_can_be_looked_up_what_is_prepared_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = provider(FakeEc2(create_fleet=[fleet]))
    (ready,) = made.prepare([request("c1")])
    assert isinstance(ready, LaunchRequest)

    def down(self: StubImages, word: str) -> AwsImage:
        raise CloudUnavailable("down")

    monkeypatch.setattr(StubImages, "find_image", down)
    with pytest.raises(CloudUnavailable):
        made.prepare([request("c2")])
    first, second = made.launch([request("c2"), ready])
    assert isinstance(first.result, CloudUnavailable)
    assert isinstance(second.result, Instance)
