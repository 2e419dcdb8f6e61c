from __future__ import annotations

from burstd.domain.cloud.instance import Instance
from burstd.domain.errors import BadRequest
from burstd.domain.plugins.provider import (
    ConsoleLog,
    Idempotency,
    LaunchPreparer,
    NoticeSource,
    NoticeWatch,
    QuotaReport,
    SelfCheck,
)
from providers.openstack.provider import OpenStackProvider, plugin
from tests.providers.openstack.project import CLUSTER, FakeProject, request, settings
from tests.providers.openstack.test_launch import StubFlavorCatalog


def test_it_can_what_nova_can() -> None:
    """Nova announces no end of a machine, and serves one server by a call that may be repeated."""
    made = plugin.make("openstack", CLUSTER, settings(settle_s=7))
    for ability in (ConsoleLog, QuotaReport, SelfCheck):
        assert isinstance(made, ability)
    for other in (NoticeSource, NoticeWatch, LaunchPreparer):
        assert not isinstance(made, other)
    assert (made.idempotency, made.settle_s) == (Idempotency.SETTLE, 7)


def test_each_request_is_answered_in_its_place() -> None:
    """Also one that comes twice, and one that can never be."""
    project = FakeProject()
    made = OpenStackProvider("openstack", CLUSTER, settings(), project)
    made._launcher._catalog = StubFlavorCatalog()  # type: ignore[assignment]
    asked = [request("c1"), request("c2", flavor="none"), request("c1")]
    first, bad, again = made.launch(asked)
    assert [o.claim_id for o in (first, bad, again)] == ["c1", "c2", "c1"]
    assert isinstance(bad.result, BadRequest)
    assert isinstance(first.result, Instance)
    assert (first, project.names("servers")) == (again, ["ours-c1"])
    assert made.launch([]) == []
