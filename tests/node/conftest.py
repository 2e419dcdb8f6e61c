"""A cluster, machines that burstd has never seen, and a way to stand on their network."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from burstd.node.munge import ENCODE, is_made_with
from burstd.node.ssh.host_keys import parse_console_host_keys
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.node.user_data import UserDataValues, render_user_data
from providers.sandbox.boxes.boot.description import BoxFile
from providers.sandbox.boxes.box import Box, BoxSpec
from tests.lab.cluster import Cluster

_CLONE_NEWNET = 0x40000000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Boxes need root; without it their tests are left out, visibly."""
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("boxes"):
                item.add_marker(pytest.mark.skip(reason="needs root"))


@contextlib.contextmanager
def on_network(namespace: str) -> Iterator[None]:
    """This thread's sockets, and the programs it starts, are in a network namespace for a while."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open("rb") as before, Path(f"/run/netns/{namespace}").open("rb") as there:
        assert libc.setns(there.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(before.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


@pytest.fixture(scope="session")
def cuda_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA driver that computes on the processor (fake_cuda.c)."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    source = Path(__file__).with_name("fake_cuda.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


class Machines:
    """Machines of a cloud: boxes that know of the cluster what their user data says, and nothing else."""

    def __init__(self, cluster: Cluster, key: Path) -> None:
        self.cluster = cluster
        self.key = key
        self.public = ensure_ssh_key(key)

    def boot(
        self,
        name: str,
        address: str,
        *,
        gpus: int = 4,
        public: str = "",
        files: tuple[BoxFile, ...] = (),
        ssh: bool = True,
    ) -> Box:
        """Starts one with the template's user data; ``public``: another key than ours."""
        values = UserDataValues("lab", "gpu", "sandbox", public or self.public)
        # A machine finds the head by name, as it would by DNS.
        hosts = BoxFile("/etc/hosts", "127.0.0.1 localhost\n10.77.0.2 head\n")
        layers = [self.cluster.rootfs.path]
        spec = BoxSpec(
            name,
            address,
            layers,
            gpus=gpus,
            user_data=render_user_data(values),
            files=[hosts, *files],
            ssh=ssh,
            disk_mib=512,
        )
        return self.cluster.lab.start(spec)

    def credential(self, uid: int = 0) -> str:
        """Of the head's munged."""
        credential = self.cluster.head.run([*ENCODE, f"--restrict-uid={uid}"]).stdout
        assert is_made_with(credential, (self.cluster.state / "munge.key").read_bytes())
        return credential

    def console_of(self, box: Box) -> Callable[[], str]:
        """Its console once the keys are there: what a later try of burstd would see."""
        box.wait(lambda b: bool(parse_console_host_keys(b.console())), 60, "done with cloud-init")
        return box.console


@pytest.fixture(scope="module", params=["bookworm"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A head of Debian's Slurm, without nodes of its own."""
    with Cluster(request.param, onprem=1) as up:
        # A node that slurmctld cannot find holds it up for seconds, whatever it is asked meanwhile.
        up.sh("scontrol update nodename=cl[1-8] nodeaddr=10.77.1.[1-8]")
        yield up


@pytest.fixture(scope="module")
def machines(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Machines:
    """The cloud."""
    return Machines(cluster, tmp_path_factory.mktemp("ssh") / "id_ed25519")


@pytest.fixture
def head_network(cluster: Cluster) -> Iterator[None]:
    """The test speaks from the lab's network."""
    hub = cluster.lab.network.hub
    assert hub is not None
    with on_network(hub):
        yield


@pytest.fixture
def boot(machines: Machines) -> Iterator[Callable[..., Box]]:
    """Boots machines that end with the test, so that the next one finds their names and addresses free."""
    booted: list[Box] = []

    def one(name: str, address: str, **how: object) -> Box:
        booted.append(machines.boot(name, address, **how))  # type: ignore[arg-type]
        return booted[-1]

    yield one
    for box in booted:
        box.stop()
