"""The agent on a real machine, by a real sshd, with a real storage node: delivered, spoken with, interrupted."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.shell import ConnectionLost
from burstd.domain.slurm.shape import Shape
from burstd.domain.staging import ObjectRange
from burstd.node.agent import AGENT_DIRECTORY, AgentError, AgentStopped, NodeAgent
from burstd.node.ssh.host_keys import HostKeyPolicy, HostKeys, parse_console_host_keys
from burstd.node.ssh.session import SshTarget, open_ssh_session
from burstd.transfer.content_store.manifest import ManifestEntry, decode_manifest, encode_manifest, object_key
from burstd.transfer.protocol.bundle import agent_zipapp
from providers.sandbox.boxes.box import Box
from staging.ssh.stager import SshSettings, SshStager
from tests.lab.ssh_store import DATA, SshStore
from tests.node.conftest import Machines

pytestmark = [pytest.mark.boxes, pytest.mark.usefixtures("head_network")]
ADDRESS = "10.77.1.7"
JOB = "/var/spool/burst/12"


@pytest.fixture(scope="module")
def storage(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshStore]:
    with SshStore(tmp_path_factory.mktemp("store"), lab=machines.cluster.lab) as up:
        yield up


@pytest.fixture
def stager(storage: SshStore) -> Iterator[SshStager]:
    settings = SshSettings(
        host=storage.address,
        key_file=storage.key,
        node_key_file=storage.node_key,
        known_hosts_file=storage.known_hosts,
        path=Path(DATA),
    )
    made = SshStager("store", "lab", settings)
    yield made
    made.close()


@pytest.fixture
def box(boot: Callable[..., Box]) -> Box:
    return boot("cl7", ADDRESS)


class AgentNode:
    """A machine with an agent, and what is asked of it."""

    def __init__(self, box: Box, machines: Machines, stager: SshStager) -> None:
        keys = HostKeys(HostKeyPolicy.CONSOLE, parse_console_host_keys(machines.console_of(box)()))
        self.box = box
        self.stager = stager
        self.agent = NodeAgent(lambda claim: open_ssh_session(SshTarget(claim.address, machines.key), keys))
        self.cancelled = threading.Event()
        self.progress: list[tuple[int, int]] = []
        self.when_progressed: Callable[[], object] = lambda: None
        offer = Offer("sandbox", "here", "a", "gpu4", spot=False, shape=Shape(1, 1), price=Decimal(1))
        self.claim = Claim(
            "claim-cl7", "lab", "gpu", "cl7", offer, Cause.DEMAND, ClaimState.BOOTING, 0.0, 0.0,
            instance_id="i-7", address=ADDRESS,
        )  # fmt: skip

    def _on_progress(self, done: int, of: int) -> None:
        self.progress.append((done, of))
        self.when_progressed()

    def run_operation(self, do: str, **more: Any) -> dict[str, Any]:
        reach = self.stager.node_access()
        request = {
            "do": do, "job": "12", "user": "nobody", "uid": 65534, "gid": 65534, "groups": [65534], "dir": JOB,
            "reach": {"kind": reach.kind, "facts": dict(reach.facts)}, **more,
        }  # fmt: skip
        return self.agent.run(
            self.claim, request, answer=lambda _: {"error": "nothing is to be asked"}, progress=self._on_progress,
            cancelled=self.cancelled,
        )  # fmt: skip

    def place_inputs(self, tree: dict[str, Any]) -> dict[str, Any]:
        return self.run_operation(
            "place", trees=[tree], scratch=0, cache={"dir": "/var/spool/burst/cache", "keep_free": 0}
        )

    def tree(self, *bodies: bytes) -> dict[str, Any]:
        keys = [self._put(body) for body in bodies]
        entries = [ManifestEntry(b"", "d", 0o755, 10**18)] + [
            ManifestEntry(b"f%d" % n, "f", 0o640, 10**18 + n, len(body), pieces=(ObjectRange(keys[n], 0, len(body)),))
            for n, body in enumerate(bodies)
        ]
        manifest = b"".join(encode_manifest(entries))
        return {
            "name": "data", "access": "read_only", "prefix": "in", "digest": hashlib.sha256(manifest).hexdigest(),
            "manifest": [[self._put(manifest), 0, len(manifest)]], "single": False, "size": sum(map(len, bodies)),
        }  # fmt: skip

    def _put(self, body: bytes) -> str:
        key = hashlib.sha256(body).hexdigest()
        self.stager.put(object_key("in", key), body)
        return key


@pytest.fixture
def node(box: Box, machines: Machines, stager: SshStager) -> AgentNode:
    return AgentNode(box, machines, stager)


def test_input_there_and_output_back(node: AgentNode) -> None:
    bodies = [bytes([n]) * (n << 20) for n in (0, 1, 33)]
    large = [bodies[1], bodies[2][: 32 << 20]]
    tree = node.tree(b"text", *large)
    done = node.place_inputs(tree)
    assert done["fetched"] > 33 << 20
    assert node.progress[-1] == (4 + (33 << 20), 4 + (33 << 20))
    said = node.box.run(["sh", "-c", f"cd {JOB}/in/data/ && stat -c '%n %a %u %Y' f0 && cat f0 && sha256sum < f2"])
    assert said.stdout.split() == [
        "f0", "440", "65534", "1000000000", f"text{hashlib.sha256(large[1]).hexdigest()}", "-",
    ]  # fmt: skip
    assert node.place_inputs(tree)["fetched"] == 0

    # Delivered once, for root only; no secret stays.
    name = f"agent-{hashlib.sha256(agent_zipapp()).hexdigest()[:16]}.pyz"
    assert node.box.run(["sh", "-c", f"stat -c '%a %u' {AGENT_DIRECTORY}; ls {AGENT_DIRECTORY}"]).stdout.split() == [
        "700",
        "0",
        name,
    ]
    assert "PRIVATE KEY" not in node.box.run(["sh", "-c", "grep -rl 'PRIVATE KEY' /tmp /var /run || true"]).stdout

    node.box.run(["sh", "-c", f"echo result > {JOB}/out/r"], user="nobody")
    node.box.run(["sh", "-c", "echo said > /srv/slurm-12.out"])
    done = node.run_operation("collect", patterns=["."], files=["/srv/slurm-12.out"], prefix="out/12/cl7")
    entries: dict[bytes, ManifestEntry] = {}
    for found in (done["trees"][0], done["files"][0]):
        body = b"".join(node.stager.get(object_key("out/12/cl7", key)) for key, _, _ in found["manifest"])
        entries |= {e.path: e for e in decode_manifest([body])}
    assert sorted(entries) == [b"", b"r", b"slurm-12.out"]
    piece = entries[b"r"].pieces[0]
    assert node.stager.get(object_key("out/12/cl7", piece.key))[piece.offset :][: piece.length] == b"result\n"

    assert node.run_operation("clear") == {}
    assert node.box.run(["ls", "-A", "/var/spool/burst"]).stdout.split() == ["cache"]


def test_what_goes_wrong_is_told_with_its_kind(node: AgentNode) -> None:
    tree = node.tree(b"text" * 1000)
    key = hashlib.sha256(b"text" * 1000).hexdigest()
    node.stager.put(object_key("in", key), b"damaged")
    with pytest.raises(AgentError, match="is not what its name says") as caught:
        node.place_inputs(tree)
    assert (caught.value.kind, caught.value.keys) == ("damaged", (key,))
    with pytest.raises(AgentError) as caught:
        node.run_operation("collect", patterns=["../.."], files=[], prefix="out/12/cl7")
    assert caught.value.kind == "agent"
    facts = {**node.stager.node_access().facts, "host_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA" + "A" * 42]}
    with pytest.raises(AgentError) as caught:
        node.run_operation("collect", patterns=["."], files=[], prefix="x", reach={"kind": "ssh", "facts": facts})
    assert caught.value.kind == "store"
    assert "PRIVATE" not in str(caught.value)
    node.box.run(["mv", "/usr/bin/python3", "/usr/bin/python3.away"])
    with pytest.raises(AgentError, match="no python3"):
        node.place_inputs(tree)


def running(box: Box) -> str:
    return box.run(["pgrep", "-f", "agent-.*pyz"], check=False).stdout


def test_told_to_stop_and_cut_off(node: AgentNode) -> None:
    tree = node.tree(*(bytes([n]) * (8 << 20) for n in range(20)))
    node.when_progressed = node.cancelled.set
    with pytest.raises(AgentStopped):
        node.place_inputs(tree)
    node.box.wait(lambda b: not running(b), 20, "without an agent")
    node.cancelled.clear()
    node.when_progressed = lambda: node.box.run(["pkill", "-9", "-f", "sshd: root"], check=False)
    with pytest.raises(ConnectionLost):
        node.place_inputs(tree)
    node.box.wait(lambda b: not running(b), 20, "without an agent")
    node.when_progressed = lambda: None
    assert node.place_inputs(tree)["fetched"] <= 161 << 20
    assert node.box.run(["sh", "-c", f"cat {JOB}/in/data/f* | wc -c"]).stdout.strip() == str(160 << 20)
