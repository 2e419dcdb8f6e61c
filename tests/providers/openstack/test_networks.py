from __future__ import annotations

from typing import Any

import pytest

from burstd.domain.errors import BadRequest
from providers.openstack.launch.networks import ProjectNetworks
from tests.providers.openstack.project import FakeProject, settings, thing

UUID = "0b4a6a4e-3f0e-4b7e-9a8a-1f5f2d1c9e77"


def networks(*more: dict[str, Any], **words: Any) -> tuple[ProjectNetworks, FakeProject]:
    of = settings(**words)
    project = FakeProject(of)
    project.networks += [thing(UUID, "other"), *more]
    return ProjectNetworks(of, project), project


def test_ids_in_the_order_of_the_settings() -> None:
    project_networks, project = networks(
        networks=["back", UUID, "front", "back"], security_groups=["nodes"], floating_network="out"
    )
    assert project_networks.network_ids() == ("n-back", UUID, "n-front")
    assert (project_networks.security_group_ids(), project_networks.floating_network_id()) == (("sg-1",), "n-out")
    assert len(project.said) == 4, "one call for names, one for ids"
    project_networks.network_ids()
    assert len(project.said) == 4


def test_what_is_not_named_is_not_asked_for() -> None:
    project_networks, project = networks()
    assert (project_networks.security_group_ids(), project_networks.floating_network_id()) == ((), "")
    assert project.said == []


@pytest.mark.parametrize("key", ["networks", "security_groups", "floating_network"])
def test_what_is_not_there(key: str) -> None:
    project_networks, _ = networks(**{key: "none" if key == "floating_network" else ["none"]})
    look = {
        "networks": project_networks.network_ids,
        "security_groups": project_networks.security_group_ids,
        "floating_network": project_networks.floating_network_id,
    }
    with pytest.raises(BadRequest, match=f"'none' of the settings' {key}"):
        look[key]()


def test_the_projects_own_before_what_others_share(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connection:
        current_project_id = "p1"

    monkeypatch.setattr(FakeProject, "connection", Connection())
    shared = {**thing("n-shared", "front"), "project_id": "p2"}
    assert networks(shared)[0].network_ids() == ("n-front",)
    with pytest.raises(BadRequest, match="write an id"):
        networks(shared, thing("n-second", "front"))[0].network_ids()
