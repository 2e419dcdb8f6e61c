"""What the lab's Cinder does not do by itself: the contract runs there."""

from __future__ import annotations

from typing import Any

import pytest

from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER
from burstd.domain.errors import NotFound
from providers.openstack.volumes import OpenStackVolumes
from tests.providers.openstack.project import settings
from tests.providers.openstack.script import Answer, ScriptedCalls

VOLUME = {
    "id": "d-1", "status": "in-use", "size": 1, "metadata": {TAG_VOLUME_CLUSTER: "ours", TAG_VOLUME: "v1"},
    "attachments": [{"server_id": "s-1", "attachment_id": "a-1"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("server", "force", "expected"),
    [
        ({"server": {"id": "s-1", "metadata": {}}}, True, []),
        (NotFound("no such server"), False, []),
        (NotFound("no such server"), True, ["DELETE /attachments/a-1"]),
    ],
)
def test_cinder_is_told_of_the_end_of_servers_that_are_gone_only(
    server: Answer, force: bool, expected: list[str]
) -> None:
    """That Nova does not know the attachment says nothing of the server."""
    detach = "DELETE /servers/s-1/os-volume_attachments/d-1"
    script = ScriptedCalls(
        {"GET /volumes/d-1": {"volume": VOLUME}, detach: NotFound("not attached"), "GET /servers/s-1": server}
    )
    OpenStackVolumes("ours", settings(), script).detach_disk("d-1", "s-1", force=force)
    assert script.changed() == sorted([detach, *expected])


@pytest.mark.parametrize(
    ("status", "ready", "attached_to", "error"),
    [
        ("in-use", True, "s-1", ""),
        ("reserved", False, "?", ""),
        ("error_detaching", False, "s-1", "it is in state 'error_detaching'"),
    ],
)
def test_the_state_of_a_disk(status: str, ready: bool, attached_to: str, error: str) -> None:
    held: Any = VOLUME["attachments"] if attached_to == "s-1" else []
    listed = {"volumes": [{**VOLUME, "status": status, "attachments": held}]}
    (disk,) = OpenStackVolumes("ours", settings(), ScriptedCalls({"GET /volumes/detail": listed})).disks()
    assert (disk.ready, disk.attached_to, disk.error, disk.status) == (ready, attached_to, error, status)
