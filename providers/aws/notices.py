"""Announcements of interruptions, from the SQS queue that EventBridge fills (config/aws has its rule and policy).

The queue is this cluster's own. What is not understood, or is another event, is deleted: it would stay for ever.
Events: spot-instance-termination-notices.html and rebalance-recommendations.html in
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from burstd.domain.errors import BadRequest, ProviderError
from burstd.domain.plugins.provider import Notice, NoticeKind
from providers.aws.calls import AwsCalls
from providers.aws.settings import AwsSettings

_AT_ONCE = 10
"""Messages to one call of SQS, whether to receive or to delete."""
_ROUNDS = 10
_HIDDEN_S = 30
"""How long a message is hidden once it was received: whatever the queue's own setting, it must come again in time."""
_WARNING_S = 120.0
"""From the event to the end of the instance."""
_KINDS = {
    "EC2 Spot Instance Interruption Warning": NoticeKind.INTERRUPTION,
    "EC2 Instance Rebalance Recommendation": NoticeKind.REBALANCE,
}


class SqsNotices:
    """Of one queue; without one there are none."""

    def __init__(self, settings: AwsSettings, calls: AwsCalls) -> None:
        self._queue = settings.notices_queue
        self._calls = calls

    @property
    def has_queue(self) -> bool:
        """Whether the settings name one."""
        return bool(self._queue)

    def notices(self) -> Sequence[Notice]:
        """Those that wait, a hundred at most, in at most ten calls; the queue gives them again half a minute later."""
        found: list[Notice] = []
        strange: list[str] = []
        for _ in range(_ROUNDS if self._queue else 0):
            try:
                messages = self._receive()
            except ProviderError:
                if not found:
                    raise
                break
            for message in messages:
                receipt, notice = message["ReceiptHandle"], read_event(message.get("Body", ""))
                if notice is None:
                    strange.append(receipt)
                else:
                    found.append(replace(notice, receipt=receipt))
            if len(messages) < _AT_ONCE:
                break
        with suppress(ProviderError):  # They come again, and are deleted then.
            self._delete(strange)
        return found

    def _receive(self) -> Sequence[Mapping[str, Any]]:
        try:
            answer = self._calls.query(
                "sqs", "receive_message", QueueUrl=self._queue,
                MaxNumberOfMessages=_AT_ONCE, WaitTimeSeconds=0, VisibilityTimeout=_HIDDEN_S,
            )  # fmt: skip
        except BadRequest as error:
            raise BadRequest(f"queue {self._queue} cannot be read, look at notices_queue: {error}") from error
        messages: Sequence[Mapping[str, Any]] = answer.get("Messages", ())
        return messages

    def acknowledge(self, notices: Sequence[Notice]) -> None:
        """Deletes them from the queue. One that was not deleted is told again."""
        self._delete([notice.receipt for notice in notices if notice.receipt])

    def _delete(self, receipts: Sequence[str]) -> None:
        failed = ""
        for start in range(0, len(receipts), _AT_ONCE):
            entries = [
                {"Id": str(place), "ReceiptHandle": receipt}
                for place, receipt in enumerate(receipts[start : start + _AT_ONCE])
            ]
            answer = self._calls.mutate("sqs", "delete_message_batch", QueueUrl=self._queue, Entries=entries)
            for said in answer.get("Failed", ()):
                failed = said.get("Message") or said.get("Code", "")
        if failed:
            raise ProviderError(f"SQS did not delete notices that are done: {failed}")


def read_event(body: str) -> Notice | None:
    """The notice in a message's body, without its receipt; None: it is something else."""
    try:
        event = json.loads(body)
        kind, instance_id = _KINDS[event["detail-type"]], event["detail"]["instance-id"]
    except (ValueError, TypeError, KeyError):
        return None
    if not isinstance(instance_id, str):
        return None
    return Notice(instance_id, kind, _deadline(event.get("time")) if kind is NoticeKind.INTERRUPTION else None)


def _deadline(at: object) -> float | None:
    try:
        return datetime.fromisoformat(str(at)).timestamp() + _WARNING_S
    except ValueError:
        return None
