from __future__ import annotations

import threading
from pathlib import Path

import pytest

from burstd.domain.plugins.provider import (
    ConsoleLog,
    Idempotency,
    LaunchPreparer,
    NoticeSource,
    NoticeWatch,
    QuotaReport,
    RouteProvider,
    SelfCheck,
    ShellProvider,
    VersionedImages,
)
from providers.openshift.provider import OpenShiftProvider, plugin
from tests.providers.openshift.server import Said, serving
from tests.providers.openshift.things import CLUSTER, running, settings


def test_it_can_what_kubernetes_can() -> None:
    """Its machines have no ssh, so that nothing is learned from a console; what watches over them is in the pod."""
    made = plugin.make("openshift", CLUSTER, settings(settle_s=7))
    assert isinstance(made, OpenShiftProvider)
    for ability in (VersionedImages, NoticeSource, QuotaReport, RouteProvider, SelfCheck, ShellProvider):
        assert isinstance(made, ability)
    for other in (ConsoleLog, NoticeWatch, LaunchPreparer):
        assert not isinstance(made, other)
    assert (made.idempotency, made.settle_s) == (Idempotency.NAME, 7)
    assert set(made.notice_markets) == {"on-demand"}
    made.close()


@pytest.mark.parametrize("relist_s", [0, 300])
def test_nothing_is_left_of_it_once_it_is_closed(tmp_path: Path, relist_s: float) -> None:
    with serving() as server:
        listed = {"metadata": {"resourceVersion": "20"}, "items": [running("a")]}
        server.says(Said(200, listed), Said(503, ""))
        said = settings(kubeconfig=server.kubeconfig(tmp_path / "kubeconfig", token="t0"), relist_s=relist_s)
        made = plugin.make("openshift", CLUSTER, said)
        assert [one.id for one in made.instances()] == ["a"]
        made.close()
        made.close()
    assert "burstd-watch-pods" not in [one.name for one in threading.enumerate()]
