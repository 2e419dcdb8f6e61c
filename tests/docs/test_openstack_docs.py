"""docs/providers/openstack.md: its settings are right; its commands work on a control plane, in their order."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from burstd.cli.main import app
from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState
from burstd.domain.errors import AuthFailed
from burstd.domain.plugins.provider import LaunchRequest, Provider
from burstd.settings import PluginRegistry, load_settings, resolve_plugins
from providers.openstack.settings import OpenStackRootVolume, OpenStackSettings
from tests.docs.blocks import shell_blocks
from tests.lab.openstack import conf
from tests.lab.openstack.plane import ControlPlane
from tests.lab.programs import PROJECT

DOCUMENT = PROJECT / "docs" / "providers" / "openstack.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
BLOCKS = shell_blocks(DOCUMENT)
UNTRIED = "# not tried"
CLUSTER, CLAIM = "mysite", "0123456789abcdef"
EXTERNAL = "public"
PATIENCE_S = 60.0
FIRST_JOBS = "7. Check, start, run"
"""Typed in tests/e2e/test_openstack.py."""
SECTIONS = {block.section for block in BLOCKS if not block.text.startswith(UNTRIED)}
(SETTINGS,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_every_key_is_described() -> None:
    table = re.findall(
        r"^\| ((?:`[\w.]+`(?:, )?)+) \|",
        TEXT.partition("| key of `[providers.NAME]` |")[2].partition("\n\n")[0],
        re.MULTILINE,
    )
    keys = {key for cell in table for key in re.findall(r"`([\w.]+)`", cell)}
    root = {f"root.{key}" for key in OpenStackRootVolume.model_fields}
    assert keys == {*OpenStackSettings.model_fields, *root, "kind"} - {"root"}


def test_the_defaults_are_as_described() -> None:
    """Where the table gives a value."""
    said = dict(re.findall(r'^\| `(\w+)` \| `("[^`]*"|[\d.]+|true|false)` \|', TEXT, re.MULTILINE))
    defaults = {name: OpenStackSettings.model_fields[name].default for name in said}
    assert {name: json.loads(value) for name, value in said.items()} == defaults
    assert len(said) > 10


def test_the_settings_are_right(tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    file.write_text(SETTINGS, encoding="utf-8")
    said = CliRunner().invoke(app, ["config", "check", "--no-files", str(file)])
    assert "is right: 2 pools, 20 slots, 1 provider, policies backlog, idle, limits." in " ".join(said.stdout.split())


class OpenStackReader:
    """Who types the document's blocks, each into a shell that knows what was set in those before."""

    def __init__(self, cloud: ControlPlane, folder: Path) -> None:
        self.cloud = cloud
        self.folder = folder
        self.typed: set[str] = set()
        """Sections."""
        self._known = folder / "known.sh"
        self._known.touch()
        self.project = cloud.project("physics", bare=True)
        mine = self.project.cloud(password=True)
        theirs = json.loads(json.dumps(mine))
        theirs["auth"] |= dict.fromkeys(("username", "password", "project_name"), conf.ADMIN)
        self._clouds = folder / "my-clouds.yaml"
        self._clouds.write_text(json.dumps({"clouds": {"mycloud": mine, "operator": theirs}}), encoding="utf-8")
        with cloud.admin() as admin:
            external = admin.network.create_network(name=EXTERNAL, is_router_external=True)
            admin.network.create_subnet(name=EXTERNAL, network_id=external.id, ip_version=4, cidr="198.51.100.0/24")

    def types(self, section: str) -> str:
        """Every tried block of a section; what they print. The first command that fails ends the test."""
        texts = [b.text for b in BLOCKS if b.section == section and not b.text.startswith(UNTRIED)]
        assert texts, section
        self.typed.add(section)
        return "".join(map(self.runs, texts))

    def runs(self, text: str) -> str:
        """These commands."""
        keep = f"{{ declare -px OS_CLOUD cluster home; declare -p project server 2>&-; declare -f; }} >{self._known}"
        program, client = Path(self.cloud.services.program("openstack")), Path(conf.__file__).parent / "client"
        with self.cloud.reach():
            done = subprocess.run(
                ["bash", "-eu", "-o", "pipefail", "-c", f". {self._known}\n{text}\n{keep} || true"], cwd=self.folder,
                env={"PATH": f"{program.parent}:/usr/bin:/bin", "OS_CLIENT_CONFIG_FILE": str(self._clouds),
                     "PYTHONPATH": str(client)},
                capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def burstd_toml(self) -> Path:
        """The document's, with the place where section 3 has put its file."""
        clouds, file = self.folder / "burstd-clouds.yaml", self.folder / "burstd.toml"
        assert clouds.stat().st_mode & 0o777 == 0o600
        file.write_text(SETTINGS.replace("/etc/burstd/clouds.yaml", str(clouds)), encoding="utf-8")
        return file

    def provider(self) -> Provider:
        """Of those settings."""
        settings = load_settings(self.burstd_toml(), check_files=False)
        chosen = resolve_plugins(settings, PluginRegistry.installed()).providers["openstack"]
        made: Provider = chosen.plugin.make("openstack", settings.cluster, chosen.settings)
        return made

    def check(self) -> dict[str, Any]:
        """What ``burstctl provider check openstack`` answers."""
        with self.cloud.reach():
            words = ["provider", "check", "openstack", "--here", "--json", "--config", str(self.burstd_toml())]
            answer: dict[str, Any] = json.loads(CliRunner().invoke(app, words).stdout)
        return answer


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[OpenStackReader]:
    with ControlPlane() as cloud:
        yield OpenStackReader(cloud, tmp_path)


def qcow2(file: Path) -> None:
    """A disk of 3 GiB with nothing on it. The header: docs/interop/qcow2 of QEMU."""
    fields = (b"QFI\xfb", 3, 0, 0, 16, 3 << 30, 0, 6, 0x30000, 0x10000, 1, 0, 0, 0, 0, 0, 4, 104)
    file.write_bytes(struct.pack(">4sIQIIQIIQQIIQQQQII", *fields).ljust(0x40000, b"\0"))


def machine(provider: Provider) -> Instance:
    """Launches one as burstd does."""
    cheapest = min(provider.offers(), key=lambda offer: offer.price)
    tags = {TAG_CLUSTER: CLUSTER, TAG_CLAIM: CLAIM}
    asked = LaunchRequest(CLAIM, "mysite-burst-cpu01-abcdef", cheapest, "", "#cloud-config\n", tags)
    (outcome,) = provider.launch([asked])
    assert isinstance(outcome.result, Instance), outcome
    return outcome.result


def until(condition: Callable[[], bool]) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def is_refused(provider: Provider) -> bool:
    """Whether its credential is worth nothing any more."""
    try:
        list(provider.instances())
    except AuthFailed:
        return True
    return False


def ends(provider: Provider) -> None:
    """Everything that burstd would take for its own."""
    provider.terminate([one.id for one in provider.instances()])
    until(lambda: not list(provider.instances()))
    provider.remove(list(provider.leftovers()))


@pytest.mark.clouds
@pytest.mark.boxes
@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_the_document_from_its_first_command_to_its_last(reader: OpenStackReader) -> None:
    qcow2(reader.folder / "slurm-node.qcow2")
    for section in ("1. Project and quotas", "2. Network", "3. Credential"):
        reader.types(section)
    assert f"slurm-node-{datetime.now(UTC):%Y%m%d}" in reader.types("4. Image")
    reader.types("5. Flavors, GPUs, prices")

    answer = reader.check()
    assert [finding for finding in answer["findings"] if finding["ok"] is False] == []
    with closing(reader.provider()) as provider:
        _while_it_runs(reader, provider)
        with reader.cloud.reach():
            assert list(provider.instances())
            reader.types("Another credential")
            # The services know its token for some seconds more.
            until(lambda: is_refused(provider))
    assert reader.check()["ok"]
    with closing(reader.provider()) as provider, reader.cloud.reach():
        ends(provider)
    reader.types("Taking it away")
    assert reader.typed == SECTIONS - {FIRST_JOBS}
    with reader.cloud.reach(), reader.project.connect(password=True) as client:
        network, compute = client.network, client.compute
        left = [*network.ports(), *network.security_groups(), *network.routers(), *network.ips()]
        left += [*network.networks(), *compute.servers(), *compute.server_groups()]
        left += client.identity.application_credentials(reader.project.user_id)
        images = [image.name for image in client.image.images() if image.owner_id == reader.project.id]
    assert [thing.name for thing in left if thing.project_id == reader.project.id] == ["default", "physics", "burstd"]
    assert images == []


def _while_it_runs(reader: OpenStackReader, provider: Provider) -> None:
    with reader.cloud.reach():
        assert {offer.instance_type for offer in provider.offers()} == {"burst.cpu", "burst.h100"}
        made = machine(provider)
        until(lambda: [one.state for one in provider.instances()] == [InstanceState.RUNNING])
    shown = reader.types("What burstd makes in the project")
    assert made.id in shown
    assert f"{TAG_CLUSTER}={CLUSTER} {TAG_CLAIM}={CLAIM}" in shown
    assert made.name in reader.types("A quota is reached")
    reader.runs("openstack server create --image node --flavor toobig --network burstd-mysite --wait stuck || true")
    assert "No valid host was found" in reader.types("No host has room")
    assert "nova-compute" in reader.types("Servers that do not go away")
    assert reader.runs("openstack server list -f value -c Name").split() == [made.name]
    reader.types("The API does not answer")
