"""The cloud server with real boxes: over HTTP, on the hub's network, through its own death."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from providers.sandbox.boxes.box import Box
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.rootfs import Rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.processes import Process
from providers.sandbox.cloud.control import CloudServerClient, start_server, stop_server
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.lab.patience import patience_s

pytestmark = pytest.mark.boxes

CONFIG = """\
state = "{lab.state}"
token_file = "{token}"
[lab]
name = "{lab.network.name}"
[cloud]
boot_seconds = 0.2
capacity = {{ a = {{ small = 3 }} }}
[[cloud.types]]
name = "small"
cpus = 2
memory_mib = 1000
price = "0.10"
gpu_type = "v100"
gpus = 2
[images.debian]
layers = ["{root}"]
"""


@pytest.fixture
def config(lab: Lab, bookworm: Rootfs, tmp_path: Path) -> Path:
    token = tmp_path / "token"
    token.write_text("s3cret\n", encoding="utf-8")
    file = tmp_path / "cloud.toml"
    file.write_text(CONFIG.format(lab=lab, token=token, root=bookworm.path), encoding="utf-8")
    return file


@pytest.fixture
def control(lab: Lab, config: Path) -> Iterator[CloudServerClient]:
    start_server(config, 30)
    made = CloudServerClient(lab.state)
    yield made
    made.close()
    stop_server(lab.state)


BODY = {
    "token": "t1",
    "name": "slot1",
    "zone": "a",
    "type": "small",
    "image": "debian",
    "user_data": "#cloud-config\nruncmd: [[sh, -c, 'hostname > /etc/ran']]\n",
    "tags": {"cluster": "ours"},
}


def launch(control: CloudServerClient, **changes: object) -> str:
    made: str = control._call("POST", "/instances", json={**BODY, **changes}).json()["id"]
    return made


def until(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def box_of(lab: Lab, instance: str) -> Box:
    until((lab.boxes_directory / instance / "process.json").exists)
    return lab.box(instance)


def test_an_instance_is_a_box(lab: Lab, control: CloudServerClient) -> None:
    before = time.monotonic()
    instance = launch(control)
    box = box_of(lab, instance)
    box.wait_ssh()
    assert time.monotonic() - before < patience_s(5)
    box.wait_booted()
    assert box.run(["cat", "/etc/ran"]).stdout == "slot1\n"
    assert box.run(["sh", "-c", "ls /dev/nvidia*"]).stdout.split() == ["/dev/nvidia0", "/dev/nvidia1"]
    (shown,) = control.instances()
    assert (shown.state, shown.address) == ("running", box.address)
    assert "SSH HOST KEY" in control._call("GET", f"/instances/{instance}/console").text
    control._call("DELETE", f"/instances/{instance}")
    until(lambda: not box.directory.exists())
    assert control.instances()[0].state == "terminated"
    assert control.bill().rows[0].cost > 0
    assert control.calls().launches[0].outcome == instance


def test_clients_come_by_the_hub_with_a_token(lab: Lab, control: CloudServerClient) -> None:
    script = """
import sys, httpx
http = httpx.Client(base_url="http://10.77.0.1:8470/v1")
print(http.get("/offers").status_code)
http.headers["Authorization"] = "Bearer s3cret"
print(http.get("/offers").json()[0]["type"], http.put("/faults", json={"kind": "auth"}).status_code)
"""
    done = subprocess.run(
        [*lab.network.enter(), sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["401", "small", "404"]


def test_faults_over_http(lab: Lab, control: CloudServerClient) -> None:
    control.inject_fault(SandboxFault(FaultKind.RATE_LIMIT, count=1, seconds=7))
    with pytest.raises(httpx.HTTPStatusError) as no:
        launch(control)
    assert no.value.response.status_code == 429
    assert no.value.response.headers["retry-after"] == "7"
    assert no.value.response.json()["error"]["code"] == "RateLimited"
    control.inject_fault(SandboxFault(FaultKind.LOSE_ANSWER, count=1))
    with pytest.raises(httpx.RemoteProtocolError):
        launch(control)
    control.inject_fault(SandboxFault(FaultKind.LOSE_ANSWER, count=1, seconds=60))
    with pytest.raises(httpx.ReadTimeout):
        CloudServerClient(lab.state, timeout_s=0.3)._call("POST", "/instances", json={**BODY, "token": "t2"})
    assert len(control.instances()) == 2
    assert launch(control) == "i-0000001"
    control.inject_fault(SandboxFault(FaultKind.DELAY, calls=("list",), count=1, seconds=0.3))
    before = time.monotonic()
    control.instances()
    assert time.monotonic() - before >= 0.3
    assert control._call("GET", "/faults").json() == []


def test_boxes_that_hang_die_and_lie(lab: Lab, control: CloudServerClient) -> None:
    control.inject_fault(SandboxFault(FaultKind.BOOT_HANG, names="hang", count=1))
    control.inject_fault(SandboxFault(FaultKind.LIE, names="lie", count=1, seconds=0.3))
    hang = launch(control, token="h", name="hang")
    lie = launch(control, token="l", name="lie")
    dies = launch(control, token="d", name="dies")
    box_of(lab, hang).wait_booted()
    assert not box_of(lab, hang).listening(22)
    box_of(lab, dies).wait_booted()
    box_of(lab, dies).run(["kill", "-TERM", "1"], check=False)
    until(lambda: {i.id: i.state for i in control.instances()}[dies] == "error")
    until(lambda: not (lab.boxes_directory / lie).exists())
    assert {i.name: i.state for i in control.instances()} == {"hang": "running", "lie": "running", "dies": "error"}
    for instance in (hang, lie, dies):
        control._call("DELETE", f"/instances/{instance}")
    until(lambda: lab.boxes() == [])


@pytest.mark.parametrize("kindly", [True, False])
def test_a_restarted_server_finds_its_boxes(
    lab: Lab, control: CloudServerClient, config: Path, *, kindly: bool
) -> None:
    instance = launch(control)
    box = box_of(lab, instance)
    box.wait_booted()
    server = Process.load(lab.processes_directory / "cloud.json")
    assert server is not None
    if kindly:
        stop_server(lab.state)
    else:
        server.kill()
    assert box.alive
    start_server(config, 30)
    (shown,) = control.instances()
    assert (shown.id, shown.state) == (instance, "running")
    assert launch(control) == instance
    control._call("DELETE", f"/instances/{instance}")
    until(lambda: not box.alive)


def test_only_one_server_serves_a_lab(lab: Lab, control: CloudServerClient, config: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "providers.sandbox.cloud.server", "--config", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "served already" in done.stderr


def test_the_lab_takes_its_server_down(lab: Lab, control: CloudServerClient) -> None:
    box_of(lab, launch(control)).wait_ssh()
    server = Process.load(lab.processes_directory / "cloud.json")
    lab.down()
    assert server is not None
    assert not server.alive
    assert [p.name for p in lab.state.iterdir() if p.name != "cloud.log"] == []


def test_a_wrong_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "cloud.toml"
    file.write_text("[lab]\nname='x'\nnmae='y'\n", encoding="utf-8")
    with pytest.raises(SandboxError, match="nmae"):
        start_server(file)
