"""The sandbox provider keeps the contract: in virtual time without boxes, and over HTTP with real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.domain.cloud.instance import Instance
from burstd.domain.errors import AuthFailed, CloudUnavailable, OutcomeUnknown
from burstd.domain.plugins.provider import Provider
from burstd.testing.cloud_world import CLUSTER, Breakage, FaultWorld, launch_outcome, launch_request, live_instances
from burstd.testing.provider_contract import FaultContract, ProviderContract
from burstd.testing.volume_contract import VolumeContract
from providers.sandbox.boxes.images import rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from providers.sandbox.client import DirectApi, HttpApi
from providers.sandbox.cloud.cloud import SandboxCloud
from providers.sandbox.cloud.control import CloudServerClient, start_server, stop_server
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog, SandboxInstanceType
from providers.sandbox.cloud.inventory.resources import SandboxMachine
from providers.sandbox.provider import SandboxProvider, SandboxSettings, plugin
from tests.doubles.immediate_disks import ImmediateDisks

FAULTS = {
    Breakage.CAPACITY: SandboxFault(FaultKind.CAPACITY, count=1),
    Breakage.QUOTA: SandboxFault(FaultKind.QUOTA, count=1),
    Breakage.RATE: SandboxFault(FaultKind.RATE_LIMIT, count=1, seconds=3),
    Breakage.AUTH: SandboxFault(FaultKind.AUTH, count=1),
    Breakage.IMAGE: SandboxFault(FaultKind.BAD_IMAGE, count=1),
    Breakage.DOWN: SandboxFault(FaultKind.UNAVAILABLE, count=1),
    Breakage.LOST: SandboxFault(FaultKind.LOSE_ANSWER, count=1),
    Breakage.LIST_DOWN: SandboxFault(FaultKind.UNAVAILABLE, calls=("list",), count=1),
    Breakage.TERMINATE: SandboxFault(FaultKind.ERROR, calls=("terminate",), count=1),
    Breakage.LEAK: SandboxFault(FaultKind.LEAK_VOLUME, count=1),
}


@dataclass
class NoBoxes(ImmediateDisks):
    """Machines that exist in name only."""

    def start(self, machine: SandboxMachine) -> None:
        """Nothing to start."""

    def stop(self, machine: SandboxMachine) -> None:
        """Nothing to stop."""

    def console(self, machine: SandboxMachine) -> str:
        return f"{machine.request.name} has booted\n"


@dataclass
class VirtualWorld(FaultWorld):
    """A cloud in this process; time passes when a test waits."""

    image: str = "debian"
    page: int = 2
    time: float = 1_800_000_000.0
    cloud: SandboxCloud = field(init=False)

    def __post_init__(self) -> None:
        types = (
            SandboxInstanceType("gpu4", 8, 16000, Decimal("3.06"), Decimal("0.92"), "v100", 4),
            SandboxInstanceType("small", 2, 2000, Decimal("0.10")),
        )
        capacity = {"a": {"gpu4": 6, "small": 6}, "b": {"gpu4": 6}}
        catalog = SandboxCatalog(types, capacity, boot_s=3.0, stop_s=2.0, list_lag_s=4.0, ended_shown_s=5.0)
        self.cloud = SandboxCloud(catalog, lambda: self.time, NoBoxes())

    def provider(self, cluster: str) -> Provider:
        return SandboxProvider("sky", cluster, DirectApi(self.cloud), page=self.page)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(60):
            if condition():
                return
            self.time += 1
        raise AssertionError("it never came to be")

    def calls(self) -> int:
        return self.cloud.calls.total()

    def user_data(self, instance_id: str) -> str:
        return next(m.request.user_data for m in self.cloud.machines() if m.id == instance_id)

    def inject_fault(self, how: Breakage) -> None:
        self.cloud.inject_fault(FAULTS[how])


class TestVirtual(ProviderContract, FaultContract, VolumeContract):
    """Everything, in no time."""

    @pytest.fixture
    def world(self) -> VirtualWorld:
        return VirtualWorld()

    def test_unclear_answers_to_a_launch_are_unknown_outcomes(self, world: VirtualWorld) -> None:
        """An internal error and an answer that takes too long."""
        provider = world.provider(CLUSTER)
        for fault in (SandboxFault(FaultKind.ERROR, count=1), SandboxFault(FaultKind.DELAY, count=1, seconds=60)):
            world.cloud.inject_fault(fault)
            assert isinstance(launch_outcome(world, provider, "c1"), OutcomeUnknown)

    def test_patience_is_told(self, world: VirtualWorld) -> None:
        """Retry-After comes through."""
        world.inject_fault(Breakage.RATE)
        result = launch_outcome(world, world.provider(CLUSTER), "c1")
        assert getattr(result, "retry_after_s", 0) == 3


@dataclass
class BoxWorld(FaultWorld):
    """A cloud server with boxes, and clients on its unix socket."""

    lab: Lab
    config: Path
    image: str = "debian"
    page: int = 2

    def __post_init__(self) -> None:
        self.control = CloudServerClient(self.lab.state)
        self.salt = uuid.uuid4().hex[:8]

    def claim(self, word: str) -> str:
        return f"{word}-{self.salt}"

    def provider(self, cluster: str) -> Provider:
        socket = self.lab.state / "cloud.sock"
        return SandboxProvider("sky", cluster, HttpApi("http://cloud", None, 5.0, socket), page=self.page)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, "it never came to be"
            time.sleep(0.05)

    def calls(self) -> int:
        return sum(self.control.calls().counts.values())

    def user_data(self, instance_id: str) -> str:
        """As cloud-init found it in the machine."""
        self.until(lambda: any(b.name == instance_id and b.alive and b.booted for b in self.lab.boxes()))
        return self.lab.box(instance_id).run(["cat", "/var/lib/cloud/instance/user-data.txt"]).stdout

    def inject_fault(self, how: Breakage) -> None:
        self.control.inject_fault(FAULTS[how])


CONFIG = """\
state = "{state}"
token_file = "{token}"
[lab]
name = "{name}"
[cloud]
boot_seconds = 0.1
list_lag_seconds = 0.1
ended_shown_seconds = 0.5
capacity = {{ a = {{ small = 6 }} }}
types = [{{ name = "small", cpus = 2, memory_mib = 1000, price = "0.10" }}]
[images.debian]
suite = "bookworm"
"""


@pytest.fixture(scope="module")
def box_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Path]]:
    """One lab and server for all tests; each test leaves it empty."""
    if os.geteuid() != 0:
        pytest.skip("boxes need root")
    rootfs.ensure_rootfs("bookworm")
    directory = tmp_path_factory.mktemp("w")
    token = directory / "token"
    token.write_text("s3cret", encoding="utf-8")
    lab = Lab(directory / "lab", LabNetwork(f"w{uuid.uuid4().hex[:8]}"))
    config = directory / "cloud.toml"
    config.write_text(CONFIG.format(state=lab.state, token=token, name=lab.network.name), encoding="utf-8")
    start_server(config)
    try:
        yield lab, config
    finally:
        lab.down()


@pytest.mark.boxes
class TestBoxes(ProviderContract, FaultContract, VolumeContract):
    """Everything, over HTTP, with machines that boot."""

    @pytest.fixture
    def world(self, box_lab: tuple[Lab, Path]) -> Iterator[BoxWorld]:
        world = BoxWorld(*box_lab)
        yield world
        world.control.cancel_fault()
        provider = world.provider(CLUSTER)
        provider.terminate([i.id for i in live_instances(provider)])
        world.until(lambda: not live_instances(provider) and not list(provider.instances()))

    def test_a_server_that_is_down_and_one_that_comes_back(self, world: BoxWorld) -> None:
        """Nothing was sent, so nothing was done; the machines live on."""
        provider = world.provider(CLUSTER)
        first = launch_outcome(world, provider, "c1")
        assert isinstance(first, Instance)
        asked = launch_request(world, provider, "c2")
        stop_server(world.lab.state)
        try:
            with pytest.raises(CloudUnavailable):
                list(provider.instances())
            (outcome,) = provider.launch([asked])
            assert isinstance(outcome.result, CloudUnavailable)
        finally:
            start_server(world.config)
        world.until(lambda: [i.id for i in live_instances(provider)] == [first.id])

    def test_a_client_on_the_hub_needs_the_token(self, world: BoxWorld, tmp_path: Path) -> None:
        """By TCP, as burstd on the head node comes."""
        token = tmp_path / "token"
        script = (
            "import sys; from pathlib import Path; from providers.sandbox.provider import SandboxSettings, plugin\n"
            "p = plugin.make('sky', 'ours', SandboxSettings(token_file=Path(sys.argv[1])))\n"
            "try: print(len(p.offers()))\n"
            "except Exception as e: print(type(e).__name__)\n"
        )
        said = []
        for word in ("wrong", "s3cret"):
            token.write_text(word, encoding="utf-8")
            argv = [*world.lab.network.enter(), sys.executable, "-c", script, str(token)]
            said.append(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip())
        assert said == [AuthFailed.__name__, "1"]


def test_the_plugin_makes_it() -> None:
    assert plugin.settings is SandboxSettings
    made = plugin.make("sky", CLUSTER, SandboxSettings(url="http://127.0.0.1:9", timeout_s=1))
    assert made.name == "sky"
    with pytest.raises((AuthFailed, CloudUnavailable)):
        made.offers()
    made.close()
