"""The lab's OpenStack does what the provider's tests count on and would not notice."""

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


_UP = """import sys
from tests.lab.openstack.plane import ControlPlane
with ControlPlane() as cloud:
    print(cloud.state, cloud.lab.network.hub, flush=True)
    sys.stdin.read()
"""


@pytest.mark.thorough
def test_second_one_stands_beside_and_nothing_is_left_of_one_whose_test_was_killed(client: Any) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _UP],
        cwd=_PROJECT,
        env={**os.environ, "PYTHONPATH": "."},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        state, hub = process.stdout.readline().split()
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
