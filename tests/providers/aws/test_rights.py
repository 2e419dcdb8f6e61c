"""What is tried where an endpoint does not heed DryRun."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from burstd.domain.errors import AuthFailed, ProviderError
from providers.aws.calls import AwsCalls
from providers.aws.checks.rights import IamRights, SampleLaunch

SAMPLE = SampleLaunch("ami-1", "c5.large", "subnet-1", ("sg-1",))
FIRST = "describe_capacity_reservations"


class Endpoint:
    """Carries out these operations, heeds DryRun with the others or refuses them."""

    def __init__(self, carried_out: Collection[str], code: str) -> None:
        self._carried_out = carried_out
        self._code = code
        self.tried: list[str] = []

    def query(self, service: str, operation: str, **words: Any) -> dict[str, Any]:
        assert (service, words["DryRun"]) == ("ec2", True)
        self.tried.append(operation)
        if operation in self._carried_out:
            return {}
        kind = ProviderError if self._code == "DryRunOperation" else AuthFailed
        raise kind(self._code) from ClientError({"Error": {"Code": self._code}}, operation)

    def pages(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        """There is no right to look, or nothing is there."""
        return iter(())


@pytest.mark.parametrize(
    ("carried_out", "last"), [({FIRST, "run_instances"}, FIRST), ({"run_instances"}, "run_instances")]
)
def test_an_endpoint_that_carries_out_a_trial_is_asked_nothing_more(carried_out: set[str], last: str) -> None:
    endpoint = Endpoint(carried_out, "DryRunOperation")
    told = list(IamRights("ada", cast("AwsCalls", endpoint), {}).check_rights(SAMPLE))[-1]
    assert (told.subject, told.ok) == ("dry runs", False)
    assert "was carried out" in told.text
    assert "burstd-cluster=ada" in told.remedy
    assert endpoint.tried[-1] == last
    assert endpoint.tried.count(last) == 1


def test_nothing_is_made_or_ended_before_a_look_has_shown_that_dry_runs_are_heeded() -> None:
    endpoint = Endpoint((), "UnauthorizedOperation")
    told = list(IamRights("ada", cast("AwsCalls", endpoint), {}).check_rights(SAMPLE))
    assert [f.ok for f in told] == [False, None]
    assert all(operation.startswith("describe_") for operation in endpoint.tried)
