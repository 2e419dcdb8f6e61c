from __future__ import annotations

from typing import Any

import pytest

from burstd.domain.errors import BadRequest
from providers.openstack.launch.networks import Networks
from tests.providers.openstack.project import Project, settings, thing

UUID = "0b4a6a4e-3f0e-4b7e-9a8a-1f5f2d1c9e77"


def networks(*more: dict[str, Any], **words: Any) -> tuple[Networks, Project]:
    of = settings(**words)
    project = Project(of)
    project.networks += [thing(UUID, "other"), *more]
    return Networks(of, project), project


def test_ids_in_the_order_of_the_settings() -> None:
    room, project = networks(
        networks=["back", UUID, "front", "back"], security_groups=["nodes"], floating_network="out"
    )
    assert room.networks() == ("n-back", UUID, "n-front")
    assert (room.security_groups(), room.floating()) == (("sg-1",), "n-out")
    assert len(project.said) == 4, "one call for names, one for ids"
    room.networks()
    assert len(project.said) == 4


def test_what_is_not_named_is_not_asked_for() -> None:
    room, project = networks()
    assert (room.security_groups(), room.floating()) == ((), "")
    assert project.said == []


@pytest.mark.parametrize("key", ["networks", "security_groups", "floating_network"])
def test_what_is_not_there(key: str) -> None:
    room, _ = networks(**{key: "none" if key == "floating_network" else ["none"]})
    look = {"networks": room.networks, "security_groups": room.security_groups, "floating_network": room.floating}
    with pytest.raises(BadRequest, match=f"'none' of the settings' {key}"):
        look[key]()


def test_the_projects_own_before_what_others_share(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connection:
        current_project_id = "p1"

    monkeypatch.setattr(Project, "connection", Connection())
    shared = {**thing("n-shared", "front"), "project_id": "p2"}
    assert networks(shared)[0].networks() == ("n-front",)
    with pytest.raises(BadRequest, match="write an id"):
        networks(shared, thing("n-second", "front"))[0].networks()
