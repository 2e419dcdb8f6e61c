"""Announcements as EventBridge words them, and a queue that hides what was received until it is deleted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from burstd.domain.errors import BadRequest, CloudUnavailable, ProviderError
from burstd.domain.plugins.provider import Notice, NoticeKind
from providers.aws.calls import AwsCalls
from providers.aws.notices import SqsNotices, read_event
from tests.providers.aws.ec2 import settings

QUEUE = "https://sqs.eu-central-1.amazonaws.com/111122223333/burstd-ours-notices"
AT = 1767225600.0
WARNING, REBALANCE = "EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation"


def event(title: str = WARNING, instance: Any = "i-1", **more: Any) -> str:
    said = {
        "version": "0", "detail-type": title, "source": "aws.ec2", "time": "2026-01-01T00:00:00Z",
        "detail": {"instance-id": instance, "instance-action": "terminate"}, **more,
    }  # fmt: skip
    return json.dumps(said)


class FakeSqs(AwsCalls):
    """Gives each message once, until it is told to show them all again. ``errors``: of the calls of these numbers."""

    def __init__(self, *bodies: str) -> None:
        super().__init__(settings())
        self.messages = {f"r{number}": body for number, body in enumerate(bodies)}
        self.hidden: set[str] = set()
        self.said: list[str] = []
        self.errors: dict[int, ProviderError] = {}
        self.failing: set[str] = set()

    def _call(self, service: str, operation: str, words: Mapping[str, Any], *, changes: bool) -> Mapping[str, Any]:
        assert (service, changes) == ("sqs", operation == "delete_message_batch")
        model = botocore.session.get_session().get_service_model("sqs")
        name = "".join(part.capitalize() for part in operation.split("_"))
        assert not ParamValidator().validate(words, model.operation_model(name).input_shape).has_errors()
        assert words["QueueUrl"] == QUEUE
        self.said.append(operation)
        if error := self.errors.pop(len(self.said), None):
            raise error
        if not changes:
            assert words["WaitTimeSeconds"] == 0
            assert 0 < words["VisibilityTimeout"] <= 60
            found = [one for one in self.messages if one not in self.hidden][: words["MaxNumberOfMessages"]]
            self.hidden.update(found)
            return {"Messages": [{"ReceiptHandle": one, "Body": self.messages[one]} for one in found]} if found else {}
        assert 1 <= len(words["Entries"]) <= 10
        assert len({one["Id"] for one in words["Entries"]}) == len(words["Entries"])
        asked = {one["ReceiptHandle"]: one["Id"] for one in words["Entries"]}
        for one in asked.keys() - self.failing:
            del self.messages[one]
        failed = [{"Id": asked[one], "SenderFault": False, "Code": "Busy"} for one in asked if one in self.failing]
        return {"Failed": failed} if failed else {}


def notices(queue: FakeSqs, url: str = QUEUE) -> SqsNotices:
    return SqsNotices(settings(notices_queue=url), queue)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (event(), Notice("i-1", NoticeKind.INTERRUPTION, AT + 120)),
        (event(REBALANCE), Notice("i-1", NoticeKind.REBALANCE)),
        (event(time="2026-01-01T01:00:00+01:00"), Notice("i-1", NoticeKind.INTERRUPTION, AT + 120)),
        (event(time="soon"), Notice("i-1", NoticeKind.INTERRUPTION)),
        (event(time=None), Notice("i-1", NoticeKind.INTERRUPTION)),
        (event("EC2 Instance State-change Notification"), None),
        (event(instance=7), None),
        (event(detail={}), None),
        (event(detail="i-1"), None),
        (json.dumps({"detail-type": [WARNING], "detail": {"instance-id": "i-1"}}), None),
        (json.dumps([event()]), None),
        ("null", None),
        ("no event at all", None),
        ("", None),
    ],
)
def test_events(body: str, told: Notice | None) -> None:
    assert read_event(body) == told


def test_what_waits_is_told_until_it_is_acknowledged_and_the_rest_is_deleted() -> None:
    queue = FakeSqs(*(event(instance=f"i-{number}") if number % 3 else "garbage" for number in range(24)))
    poller = notices(queue)
    found = poller.notices()
    assert {one.instance_id for one in found} == {f"i-{number}" for number in range(24) if number % 3}
    assert queue.said == ["receive_message"] * 3 + ["delete_message_batch"]
    assert len(queue.messages) == 16
    queue.hidden.clear()
    assert list(poller.notices()) == list(found)
    poller.acknowledge(found)
    assert queue.messages == {}


def test_a_flood_is_read_in_ten_calls() -> None:
    queue = FakeSqs(*[event()] * 150)
    assert len(notices(queue).notices()) == 100
    assert len(queue.said) == 10


def test_what_was_heard_is_told_though_a_later_call_fails() -> None:
    queue = FakeSqs(*[event()] * 9, "garbage", *[event()] * 5)
    queue.errors = {2: CloudUnavailable("down"), 3: CloudUnavailable("still down")}
    assert len(notices(queue).notices()) == 9


def test_a_queue_that_cannot_be_read_is_no_empty_one() -> None:
    queue = FakeSqs(event())
    queue.errors = {1: CloudUnavailable("down"), 2: BadRequest("there is no such queue")}
    with pytest.raises(CloudUnavailable):
        notices(queue).notices()
    with pytest.raises(BadRequest, match="notices_queue"):
        notices(queue).notices()


def test_what_was_not_deleted_is_an_error() -> None:
    queue = FakeSqs(*[event()] * 12)
    queue.failing = {"r3"}
    with pytest.raises(ProviderError, match="Busy"):
        notices(queue).acknowledge(notices(queue).notices())
    assert set(queue.messages) == {"r3"}


def test_without_a_queue_nothing_is_asked() -> None:
    queue = FakeSqs(event())
    assert list(notices(queue, "").notices()) == []
    assert queue.said == []
