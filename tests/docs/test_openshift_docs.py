"""docs/providers/openshift.md: its settings are right; its commands work on a control plane, in their order."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from burstd.cli.main import app
from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState
from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER, DiskRequest
from burstd.domain.plugins.provider import LaunchRequest, Provider, RouteProvider, VolumeProvider
from burstd.domain.slurm.shape import Gres, Shape
from burstd.settings import PluginRegistry, load_settings, resolve_plugins
from providers.openshift.settings import ClaimSettings, NodeGroup, OpenShiftSettings, ScratchSettings
from tests.docs.blocks import Block, shell_blocks
from tests.lab.kubernetes.hollow import HollowNodes
from tests.lab.kubernetes.images import Layer
from tests.lab.kubernetes.plane import KubernetesPlane
from tests.lab.kubernetes.site import OpenShiftSite
from tests.lab.programs import PREFIX, PROJECT

DOCUMENT = PROJECT / "docs" / "providers" / "openshift.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
BLOCKS = shell_blocks(DOCUMENT)
UNTRIED = "# not tried"
CLUSTER, CLAIM, NAMESPACE = "mysite", "0123456789abcdef", "burst"
PATIENCE_S = 60.0
FIRST_JOBS, NOTEBOOK = "7. Check, start, run", "8. A notebook"
SECTIONS = {block.section for block in BLOCKS if not block.text.startswith(UNTRIED)}
SETTINGS, DATA, SHARED = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
BUILT = "image-registry.openshift-image-registry.svc:5000/burst/burst-node@sha256:" + "1" * 64
OC_ALONE = re.compile(r"\boc (new-project|start-build|adm|login|whoami)\b")
"""What kubectl does not know."""


def test_kubectl_knows_every_verb_of_a_block_that_is_typed() -> None:
    assert [b.line for b in BLOCKS if not b.text.startswith(UNTRIED) and OC_ALONE.search(b.text)] == []


def described(heading: str) -> set[str]:
    """Keys of the table with that heading."""
    table = TEXT.partition(heading)[2].partition("\n\n")[0]
    return {key for cell in re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \|", table, re.MULTILINE)
            for key in re.findall(r"`([\w.]+)`", cell)}  # fmt: skip


def test_every_key_is_described() -> None:
    parts = {"scratch": ScratchSettings.model_fields, "volumes": ClaimSettings.model_fields}
    inner = {f"{name}.{key}" for name, fields in parts.items() for key in fields}
    keys = described("| key of `[providers.NAME]` |")
    assert keys == {*OpenShiftSettings.model_fields, *inner, "kind"} - parts.keys()
    assert described("| key of `[providers.NAME.groups.GROUP]` |") == {*NodeGroup.model_fields, "sizes.SIZE"} - {
        "sizes"
    }


def test_the_defaults_are_as_described() -> None:
    """Where a table gives a value."""
    said = dict(re.findall(r'^\| `(\w+)` \| `("[^`]*"|[\d.]+|true|false)` \|', TEXT, re.MULTILINE))
    fields = NodeGroup.model_fields | OpenShiftSettings.model_fields
    sizes = {"shm": 1024}
    assert {name: sizes.get(name, json.loads(value)) for name, value in said.items()} == {
        name: fields[name].default for name in said
    }
    assert len(said) > 15
    path, size = re.findall(r"^\| `scratch\.(?:path|size)` \| `\"(.*?)\"`", TEXT, re.MULTILINE)
    assert ScratchSettings(path=path, size=size) == ScratchSettings()


@pytest.mark.parametrize("more", ["", DATA, SHARED], ids=["alone", "data", "shared"])
def test_the_settings_are_right(tmp_path: Path, more: str) -> None:
    file = tmp_path / "burstd.toml"
    file.write_text(f"{SETTINGS}\n{more}", encoding="utf-8")
    said = CliRunner().invoke(app, ["config", "check", "--no-files", str(file)])
    store = "staging through near (pvc), " if more == DATA else ""
    right = f"is right: 2 pools, 20 slots, 1 provider, {store}policies backlog, idle, limits."
    assert right in " ".join(said.stdout.split())


class OpenShiftReader:
    """Who types the document's blocks, each into a shell that knows what was set in those before.

    He administers the project; his context ``operator`` is the cluster's administrator. kubectl is his ``oc``.
    """

    def __init__(self, cluster: KubernetesPlane, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.typed: set[str] = set()
        """Sections."""
        self._known = folder / "known.sh"
        self._known.touch()
        (folder / "bin").mkdir()
        (folder / "bin" / "oc").symlink_to(cluster.kubectl)
        everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        cluster.namespace(NAMESPACE)
        mine = json.loads(cluster.user(NAMESPACE, everything, name="me").read_text(encoding="utf-8"))
        theirs = json.loads(cluster.admin().read_text(encoding="utf-8"))
        self._kubeconfig = folder / "my-kubeconfig"
        self._kubeconfig.touch(mode=0o600)
        self._kubeconfig.write_text(json.dumps(_merged(mine, theirs)), encoding="utf-8")

    def types(self, section: str) -> str:
        """Every tried block of a section; what they print. The first command that fails ends the test."""
        texts = [b.text for b in BLOCKS if b.section == section and not b.text.startswith(UNTRIED)]
        assert texts, section
        self.typed.add(section)
        return "".join(map(self.runs, texts))

    def runs(self, text: str) -> str:
        """These commands."""
        text = re.sub(r"^config=.*$", f"config={PROJECT}/config/openshift", text, flags=re.MULTILINE)
        keep = f"{{ declare -px namespace cluster; declare -p config; declare -f; }} >{self._known} 2>&-"
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", f". {self._known}\n{text}\n{keep} || true"], cwd=self.folder,
            env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", "KUBECONFIG": str(self._kubeconfig),
                 "HOME": str(self.folder)},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def burstd_toml(self) -> Path:
        """The document's, with the place where section 3 has put its file."""
        kubeconfig, file = self.folder / "burstd-kubeconfig", self.folder / "burstd.toml"
        assert kubeconfig.stat().st_mode & 0o777 == 0o600
        file.write_text(SETTINGS.replace("/etc/burstd/kubeconfig", str(kubeconfig)), encoding="utf-8")
        return file

    def provider(self) -> Provider:
        """Of those settings."""
        settings = load_settings(self.burstd_toml(), check_files=False)
        chosen = resolve_plugins(settings, PluginRegistry.installed()).providers["openshift"]
        made: Provider = chosen.plugin.make("openshift", settings.cluster, chosen.settings)
        return made

    def check(self) -> dict[str, Any]:
        """What ``burstctl provider check openshift`` answers."""
        words = ["provider", "check", "openshift", "--here", "--json", "--config", str(self.burstd_toml())]
        answer: dict[str, Any] = json.loads(CliRunner().invoke(app, words).stdout)
        return answer

    def build(self) -> None:
        """What OpenShift does when the BuildConfig is there."""
        made = {"created": "2026-11-21T00:00:00Z", "dockerImageReference": BUILT, "image": "sha256:1", "generation": 1}
        path = f"/apis/image.openshift.io/v1/namespaces/{NAMESPACE}/imagestreams/burst-node/status"
        self.cluster.api.patch(path, {"status": {"tags": [{"tag": "latest", "items": [made]}]}})


def _merged(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """A kubeconfig with the contexts ``mine`` and ``operator``."""
    cluster = [{"name": "lab", "cluster": mine["clusters"][0]["cluster"]}]
    users = [{"name": name, "user": one["users"][0]["user"]} for name, one in (("mine", mine), ("operator", theirs))]
    contexts = [{"name": name, "context": {"cluster": "lab", "user": name}} for name in ("mine", "operator")]
    return {"apiVersion": "v1", "kind": "Config", "current-context": "mine", "clusters": cluster, "users": users,
            "contexts": contexts}  # fmt: skip


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[OpenShiftReader]:
    with KubernetesPlane(openshift=True) as cluster, HollowNodes(cluster) as nodes:
        nodes.add("worker1", cpus=64, memory_gib=256, labels={"node-role.kubernetes.io/worker": ""})
        gpu = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        nodes.add("gpu1", cpus=64, memory_gib=512, gpus=4, labels=gpu,
                  taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])  # fmt: skip
        yield OpenShiftReader(cluster, tmp_path)


def machine(provider: Provider, claim: str = CLAIM) -> Instance:
    """Launches one as burstd does."""
    cheapest = min(provider.offers(), key=lambda offer: offer.price)
    tags = {TAG_CLUSTER: CLUSTER, TAG_CLAIM: claim}
    asked = LaunchRequest(claim, f"mysite-burst-cpu01-{claim[:6]}", cheapest, BUILT, "#cloud-config\n", tags)
    (outcome,) = provider.launch([asked])
    assert isinstance(outcome.result, Instance), outcome
    return outcome.result


def until(condition: Callable[[], bool]) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.clouds
@pytest.mark.boxes
@pytest.mark.timeout(600)
def test_the_document_from_its_first_command_to_its_last(reader: OpenShiftReader) -> None:
    for section in ("1. Project, rights and quotas", "2. Network", "3. Account", "4. Image"):
        reader.types(section)
    reader.build()
    assert f"latest {BUILT}" in reader.runs(next(b.text for b in BLOCKS if "imagestream burst-node -o" in b.text))
    reader.runs("oc create secret generic burst-munge --from-literal=munge.key=0123456789abcdef0123456789abcdef")
    assert "NVIDIA-H100-80GB-HBM3" in reader.types("5. Nodes, GPUs, prices")
    assert [finding for finding in reader.check()["findings"] if finding["ok"] is False] == []
    reader.types("Data")
    reader.types("Restricted clusters")

    with closing(reader.provider()) as provider:
        _while_it_runs(reader, provider)
    reader.types("Taking it away")
    assert reader.typed == SECTIONS - {FIRST_JOBS, NOTEBOOK}
    api, kept = reader.cluster.api, {"default", "me"}
    for path in ("pods", "persistentvolumeclaims", "services", "resourcequotas", "serviceaccounts"):
        left = api.get(f"/api/v1/namespaces/{NAMESPACE}/{path}")["items"]
        assert [one["metadata"]["name"] for one in left if one["metadata"]["name"] not in kept] == [], path
    for path in ("roles", "rolebindings"):
        left = api.get(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/{path}")["items"]
        assert [one["metadata"]["name"] for one in left if not one["metadata"]["name"].startswith("me-")] == [], path


def _volume(reader: OpenShiftReader, provider: Provider) -> None:
    assert isinstance(provider, VolumeProvider)
    tags = {TAG_VOLUME_CLUSTER: CLUSTER, TAG_VOLUME: "v-corpus1"}
    provider.create_disk(DiskRequest("v-corpus1", "", 1 << 30, tags, next(iter(provider.offers())).region))
    assert re.search(rf"^{CLUSTER}-v-\S+ .* v-corpus1$", reader.types("Volumes"), re.MULTILINE)
    (disk,) = provider.disks()
    provider.delete_disk(disk.id)
    until(lambda: not list(provider.disks()))


def _while_it_runs(reader: OpenShiftReader, provider: Provider) -> None:
    assert {(offer.zone, offer.instance_type) for offer in provider.offers()} == {("cpu", "eight"), ("h100", "one")}
    made = machine(provider)
    until(lambda: [one.state for one in provider.instances()] == [InstanceState.RUNNING])
    assert isinstance(provider, RouteProvider)
    route = provider.open_route(made.id, "4711", 8888)
    shown = reader.types("What burstd makes in the project")
    assert f"pod/{made.name} " in shown
    assert re.search(r"^job4711-8888-\w{8} ", shown, re.MULTILINE)
    assert "/job4711-8888-" in route.url
    assert re.search(rf"{made.name} .* {CLAIM} +eight$", shown, re.MULTILINE)
    _volume(reader, provider)
    shown = reader.types("A quota is reached")
    assert made.name in shown
    assert re.search(r"requests.cpu +8 +240", shown)
    overrides = json.dumps({"spec": {"nodeSelector": {"no": "such"}}})
    room = "cpu=1,memory=1Gi"
    reader.runs(f"oc run stuck --image=node --overrides='{overrides}' --requests={room} --limits={room}")
    until(lambda: "didn't match" in reader.types("No node has room"))
    reader.runs("oc delete pod stuck")
    assert "burst-stage" in reader.types("A volume is not bound")
    assert "ok" in reader.types("The API does not answer")
    reader.runs("cp burstd-kubeconfig old-kubeconfig")
    reader.types("Another token")
    # The API server knows the old one for some seconds more.
    reader.runs("while oc --kubeconfig old-kubeconfig get pods >old 2>&1; do sleep 0.5; done")
    assert [one.id for one in provider.instances()] == [made.id]
    assert reader.check()["ok"]
    provider.terminate([made.id])
    until(lambda: not list(provider.instances()))
    provider.remove(list(provider.leftovers()))
    until(lambda: not provider.routes())


POOLS = (
    Pool("cpu", ("cpu1",), ("burst",), Shape(2, 1000, (), frozenset({"cloud"})), (OfferRule("openshift", ("two",)),)),
    Pool(
        "h100", ("h1001",), ("burst",), Shape(2, 1000, (Gres("gpu", "h100", 1),), frozenset({"cloud", "h100"})),
        (OfferRule("openshift", ("one",)),),
    ),
)  # fmt: skip


JUPYTER = """#!/usr/bin/python3
import http.server, sys
words = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
http.server.test(http.server.SimpleHTTPRequestHandler, bind=words["--ip"], port=int(words["--port"]))
"""
"""Listens as the real one does."""


@pytest.mark.clouds
@pytest.mark.boxes
@pytest.mark.slurm
def test_the_first_jobs_and_a_notebook_as_the_document_has_them() -> None:
    stand_in = Layer("jupyter", files={"usr/local/bin/jupyter": JUPYTER.encode()})
    with OpenShiftSite(pools=POOLS, builds={"1": (stand_in,)}) as site:
        first, jobs, last = (_types(site, block) for block in _section(FIRST_JOBS, "root", "ada", "root"))
        assert "two" in first
        assert jobs.count("JobState=COMPLETED") == 2
        assert re.findall(r"NodeList=(\w+)", jobs) == ["cpu1", "h1001"]
        assert "cpu1" in last
        _notebook(site)


def _section(name: str, *users: str) -> list[Block]:
    """Its blocks, which these users type."""
    blocks = [block for block in BLOCKS if block.section == name]
    assert [block.user for block in blocks] == list(users)
    return blocks


def _words(block: Block, job: str = "4711") -> str:
    # The site has started burstd in its own way, and the head is where this runs.
    text = block.text.replace("systemctl restart burstd", "").replace("4711", job)
    return f"set -eu; PATH={PREFIX}/bin:$PATH\n{re.sub(r'ssh -t -L [^ ]+ head ', 'exec ', text)}"


def _types(site: OpenShiftSite, block: Block, job: str = "4711") -> str:
    return site.cluster.sh(_words(block, job), block.user, timeout_s=240)


def _notebook(site: OpenShiftSite) -> None:
    begin, forward, route = _section(NOTEBOOK, "ada", "ada", "ada")
    job = _types(site, begin).split()[-1]
    site.wait(lambda: [j["state"] for j in site.api("/v1/jobs")["jobs"]] == ["RUNNING"], 60, "burstd sees it run")
    words = ["bash", "-c", _words(forward, job)]
    with site.cluster.head.popen(words, user="ada", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as carries:
        assert carries.stdout is not None
        assert b"127.0.0.1:8888 is port 8888 of " in carries.stdout.readline()
        page = ["python3", "-c", "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8888').status)"]
        visit = partial(site.cluster.head.run, page, user="ada", check=False)
        site.wait(lambda: visit().stdout == "200\n", 20, "the notebook answers")
        said = _types(site, route, job)
        assert said.count(f"https://job{job}-8888-") == 3
        assert site.burstctl("route", "list").stdout == "No route is open.\n"
        site.cluster.sh("scancel -u ada")
        assert carries.wait(60) == 1
        assert carries.stderr is not None
        assert carries.stderr.read().decode().endswith(f"Job {job} does not run any more.\n")
