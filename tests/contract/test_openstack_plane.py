"""The lab's OpenStack does what tests count on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openstack import exceptions

from tests.doubles.nova_machines import NovaMachines, meta_data
from tests.lab.openstack.plane import ControlPlane
from tests.lab.openstack.projects import Project
from tests.lab.openstack.world import Account

pytestmark = [pytest.mark.clouds, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
_PROJECT = Path(__file__).parents[2]
_PATIENCE_S = 90.0
_POLL_S = 0.5
"""A question costs OpenStack a tenth of a second of processor time."""


@pytest.fixture(scope="module")
def cloud(openstack_account: Account) -> ControlPlane:
    return openstack_account.cloud


@pytest.fixture(scope="module")
def project(cloud: ControlPlane) -> Project:
    return cloud.project("physics", router=True)


@pytest.fixture
def client(cloud: ControlPlane, project: Project) -> Iterator[Any]:
    """The user's; what it has made is gone at the end."""
    with cloud.reach(), project.connect() as connection:
        yield connection
        cloud.faults()
        for server in connection.compute.servers():
            connection.compute.delete_server(server)
        _wait(lambda: not list(connection.compute.servers()), "no server")


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {_PATIENCE_S:.0f} s: {what}"
        time.sleep(_POLL_S)


def _make(client: Any, project: Project, name: str, flavor: str = "cpu.small", **words: Any) -> Any:
    if "block_device_mapping" not in words:
        words["image_id"] = client.image.find_image("node").id
    flavor_id = client.compute.find_flavor(flavor).id
    networks = [{"uuid": project.network_id}]
    return client.compute.create_server(name=name, flavor_id=flavor_id, networks=networks, **words)


def _built(client: Any, server: Any) -> Any:
    def done() -> bool:
        return bool(client.compute.get_server(server.id).status != "BUILD")

    _wait(done, f"{server.name} built")
    return client.compute.get_server(server.id)


def test_machine_stands_behind_a_server(client: Any, project: Project, nova_machines: NovaMachines) -> None:
    words = {"user_data": "aGVsbG8=", "metadata": {"burstd-claim": "c1"}, "availability_zone": "az2"}
    server = _built(client, _make(client, project, "g1", "gpu.4", key_name="burst", **words))
    assert (server.status, server.availability_zone) == ("ACTIVE", "az2")
    address = server.addresses[project.network][0]["addr"]
    (spawned,) = (dict(told) for told in nova_machines.requests if told["uuid"] == server.id)
    drive = spawned.pop("drive")
    assert spawned == {"do": "spawn", "uuid": server.id, "address": address, "floating": [], "gpus": 4}
    assert drive["openstack/latest/user_data"] == words["user_data"]
    said = meta_data(drive)
    assert (said["name"], said["availability_zone"], said["meta"]) == ("g1", "az2", words["metadata"])
    assert client.compute.get_server_console_output(server)["output"] == f"hello from {server.id}"
    client.compute.delete_server(server)
    _wait(lambda: {"do": "destroy", "uuid": server.id} in nova_machines.requests, "its machine ended")


def test_host_without_room_for_the_machine_fails_the_build(client: Any, project: Project) -> None:
    server = _built(client, _make(client, project, "refused"))
    assert server.status == "ERROR"
    assert "there is no more room" in server.fault["message"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [("spawn_fail", "the lab was told to fail"), ("spawn_reschedule", "Exceeded maximum number of retries")],
)
def test_builds_fail_as_told(cloud: ControlPlane, client: Any, project: Project, fault: str, message: str) -> None:
    cloud.faults(**{fault: "bad.*"})
    bad, good = _make(client, project, "bad1"), _make(client, project, "good1")
    found = _built(client, bad)
    assert found.status == "ERROR"
    assert message in found.fault["message"]
    assert _built(client, good).status == "ACTIVE"


def test_server_that_no_host_holds_has_a_fault(client: Any, project: Project) -> None:
    found = _built(client, _make(client, project, "big", "toobig"))
    assert (found.status, found.fault["message"].strip()) == ("ERROR", "No valid host was found.")


def test_delete_fails_as_told(cloud: ControlPlane, client: Any, project: Project) -> None:
    server = _built(client, _make(client, project, "stays"))
    cloud.faults(destroy_fail="stays")
    client.compute.delete_server(server)
    _wait(lambda: bool(client.compute.get_server(server.id).status == "ERROR"), "the delete failed")


def test_frozen_api_has_the_request_and_carries_it_out(cloud: ControlPlane, client: Any, project: Project) -> None:
    words = {
        "name": "late", "flavorRef": client.compute.find_flavor("cpu.small").id,
        "imageRef": client.image.find_image("node").id, "networks": [{"uuid": project.network_id}],
    }  # fmt: skip
    with cloud.frozen("nova-api"), pytest.raises(Exception, match="timed out"):
        client.compute.post("/servers", json={"server": words}, timeout=1.5, connect_retries=0)
    _wait(lambda: [s.status for s in client.compute.servers(name="late")] == ["ACTIVE"], "the server is there")


def test_quotas_are_real(cloud: ControlPlane, client: Any, project: Project) -> None:
    try:
        cloud.quota(project, instances=0)
        with pytest.raises(exceptions.ForbiddenException, match="Quota exceeded for instances"):
            _make(client, project, "over")
        cloud.quota(project, ports=1)
        with pytest.raises(exceptions.ConflictException, match="Quota exceeded for resources"):
            client.network.create_port(network_id=project.network_id)
    finally:
        cloud.quota(project, instances=250, ports=500)


def test_volumes_and_floating_ips(client: Any, project: Project) -> None:
    image = client.image.find_image("node")
    volume = client.block_storage.create_volume(size=10, image_id=image.id, metadata={"burstd-claim": "c1"})
    _wait(lambda: bool(client.block_storage.get_volume(volume.id).status == "available"), "the volume")
    disk = {
        "boot_index": 0, "uuid": volume.id, "source_type": "volume", "destination_type": "volume",
        "delete_on_termination": True,
    }  # fmt: skip
    server = _built(client, _make(client, project, "rooted", block_device_mapping=[disk]))
    assert server.status == "ACTIVE"
    port = next(iter(client.network.ports(device_id=server.id)))
    outside = client.network.find_network("floating")
    floating = client.network.create_ip(floating_network_id=outside.id, port_id=port.id)
    assert floating.fixed_ip_address == server.addresses[project.network][0]["addr"]
    client.compute.delete_server(server)
    _wait(lambda: not list(client.block_storage.volumes()), "the volume is gone with the server")
    assert client.network.get_ip(floating.id).port_id is None
    client.network.delete_ip(floating)


_UP = """import sys
from tests.lab.openstack.plane import ControlPlane
with ControlPlane(token_ttl_s=600) as cloud:
    with cloud.admin() as admin:
        token = admin.session.auth.get_access(admin.session)
        life = token._data["token"]["expires_at"][:19], token._data["token"]["issued_at"][:19]
    print(cloud.state, cloud.lab.network.hub, *life, flush=True)
    sys.stdin.read()
"""


def test_second_one_stands_beside_and_nothing_is_left_of_one_whose_test_was_killed(client: Any) -> None:
    words = [sys.executable, "-c", _UP]
    process = subprocess.Popen(
        words,
        cwd=_PROJECT,
        env={**os.environ, "PYTHONPATH": "."},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        state, hub, expires, issued = process.stdout.readline().split()
        ends, begins = (time.mktime(time.strptime(t, "%Y-%m-%dT%H:%M:%S")) for t in (expires, issued))
        assert ends - begins == pytest.approx(600, abs=2)
        assert len(_of(state)) > 12
        process.kill()
    _wait(lambda: not Path(state).exists() and not _of(state), "no process, no folder")
    beside = Path(f"/run/netns/{hub}"), Path(f"{state}-lab")
    _wait(lambda: not any(path.exists() for path in beside), "no network, and no folder of its own")
    assert list(client.compute.servers()) == []


def _of(state: str) -> list[str]:
    """Processes that were told of this folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [line] if state in line else []
    return found
