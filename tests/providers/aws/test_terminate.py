"""Ends many machines by few calls, whichever of them Amazon does not know or does not let go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from burstd.domain.errors import BadRequest, CloudUnavailable, NotAllowed, OutcomeUnknown, ProviderError, RateLimited
from providers.aws.errors import error_for_code
from providers.aws.terminate import MAX_IDS, InstanceTerminator
from tests.providers.aws.ec2 import FakeEc2


def ids(count: int) -> list[str]:
    return [f"i-{number:017x}" for number in range(count)]


class TerminatingEc2(FakeEc2):
    """Ends all that are named, or none of them. ``shy``: its refusals name nobody."""

    def __init__(self, *, gone: list[str] = [], held: list[str] = [], shy: bool = False) -> None:  # noqa: B006
        super().__init__(terminate_instances=[self._terminate])
        self.gone, self.undeletable, self.shy = gone, held, shy
        self.code = "OperationNotPermitted"
        self.ended: list[str] = []

    def _terminate(self, words: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = words["InstanceIds"]
        assert len(asked) == len(set(asked)) <= MAX_IDS
        if missing := [one for one in asked if one in self.gone]:
            self._refuse("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(missing)}' do not exist")
        if held := [one for one in asked if one in self.undeletable]:
            self._refuse(self.code, f"No right to arn:aws:ec2:eu-central-1:1:instance/{held[0]} of yours")
        self.ended += asked
        return {}

    def _refuse(self, code: str, text: str) -> None:
        text = "No." if self.shy else text
        said = {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": 400}}
        raise error_for_code(code, text, 400, OutcomeUnknown) from ClientError(said, "TerminateInstances")

    def calls(self) -> int:
        return self.count("terminate_instances")


def end(cloud: TerminatingEc2, asked: list[str]) -> ProviderError | None:
    try:
        InstanceTerminator(cloud).terminate(asked)
    except ProviderError as error:
        return error
    return None


def test_batches() -> None:
    cloud, many = TerminatingEc2(), ids(2 * MAX_IDS + 1)
    assert end(cloud, [*many, *many]) is None
    assert (cloud.ended, cloud.calls()) == (many, 3)
    assert end(cloud, []) is None
    assert cloud.calls() == 3


def test_those_that_are_gone_are_left_out_however_long_the_answer() -> None:
    many = ids(MAX_IDS)
    cloud = TerminatingEc2(gone=many[::2])
    assert end(cloud, many) is None
    assert (cloud.ended, cloud.calls()) == (many[1::2], 2)
    assert end(TerminatingEc2(gone=many), many) is None


@pytest.mark.parametrize("shy", [False, True])
@pytest.mark.parametrize(
    ("code", "kind"), [("OperationNotPermitted", BadRequest), ("UnauthorizedOperation", NotAllowed)]
)
def test_one_that_may_not_be_ended_keeps_no_other_alive(shy: bool, code: str, kind: type[ProviderError]) -> None:
    many = ids(MAX_IDS)
    cloud = TerminatingEc2(gone=[] if shy else many[:3], held=[many[77]], shy=shy)
    cloud.code = code
    assert type(end(cloud, many)) is kind
    assert set(cloud.ended) == set(many) - {*cloud.gone, many[77]}
    assert cloud.calls() <= 20


def test_gone_ones_that_nobody_names_are_found_by_halves() -> None:
    many = ids(8)
    cloud = TerminatingEc2(gone=[many[5]], shy=True)
    assert end(cloud, many) is None
    assert set(cloud.ended) == set(many) - {many[5]}


def test_no_right_at_all_is_no_storm() -> None:
    many = ids(MAX_IDS)
    cloud = TerminatingEc2(held=many, shy=True)
    cloud.code = "UnauthorizedOperation"
    assert type(end(cloud, many)) is NotAllowed
    assert cloud.calls() <= 16


@pytest.mark.parametrize("error", [RateLimited("slow down"), CloudUnavailable("down"), OutcomeUnknown("lost")])
def test_other_errors_are_told_at_the_end_and_not_tried_again(error: ProviderError) -> None:
    cloud = FakeEc2(terminate_instances=[error, {}])
    with pytest.raises(type(error)):
        InstanceTerminator(cloud).terminate(ids(MAX_IDS + 1))
    assert cloud.count("terminate_instances") == 2


@pytest.mark.parametrize("strange", ["", "i-", "i-00000000000000000,i-1", "vol-00000000", "ours-c1", "I-00000000"])
def test_what_is_no_id_is_never_sent(strange: str) -> None:
    cloud, (good,) = TerminatingEc2(), ids(1)
    assert type(end(cloud, [strange, good, "i-0123abcd"])) is BadRequest
    assert cloud.ended == [good, "i-0123abcd"]
