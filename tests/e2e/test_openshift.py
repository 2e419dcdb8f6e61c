"""From sbatch to a job in a pod and back to namespaces as they were: a real control plane, a kubelet with containerd.

Each test has a pool of its own. Beside the site's pods the namespace holds a neighbour's, which nobody may touch.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from tests.e2e.sites import COPY, QUICK, SET_COMMENT, claims_of, comments_of, events, queue, restarts
from tests.lab import programs
from tests.lab.boxes import ip
from tests.lab.kubernetes import openshift
from tests.lab.kubernetes.images import Layer
from tests.lab.kubernetes.node import REPOSITORY
from tests.lab.kubernetes.plane import OPENSHIFT
from tests.lab.kubernetes.site import BURST, GPUS, LATE, STAGE, STUDENTS, OpenShiftSite
from tests.lab.remains import remains

pytestmark = [pytest.mark.boxes, pytest.mark.slurm, pytest.mark.clouds]

PATIENCE_S = 90.0
"""For anything: a whole cluster shares this machine."""
POOLS = ("main", "lost", "pair", "evict", "roll", "notebook", "volume")
BROKEN = Layer("broken", files={"usr/sbin/slurmd": b"#!/bin/sh\necho slurmd: this build is broken >&2\nexit 1\n"})
KINDS = {
    "pod": "/api/v1/namespaces/{}/pods",
    "claim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "service": "/api/v1/namespaces/{}/services",
    "secret": "/api/v1/namespaces/{}/secrets",
    "config map": "/api/v1/namespaces/{}/configmaps",
    "route": "/apis/route.openshift.io/v1/namespaces/{}/routes",
}
"""Everything that burstd may make, or might."""
PASSING = ("resourceVersion", "managedFields")
"""Of an object's metadata."""
PORT = 8888
SERVER = f"cd /tmp; echo hello from a pod >hello.txt; exec python3 -m http.server {PORT}"
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode().strip())"
Things = dict[tuple[str, str, str], Mapping[str, Any]]
"""By kind, namespace and name, as the API has them."""


def _pool(name: str) -> Pool:
    gres = (Gres("gpu", "h100", 1),) if name == "main" else ()
    rule = OfferRule("openshift", ("one" if gres else "two",))
    return Pool(name, (f"{name}1", f"{name}2"), ("burst",), Shape(2, 1000, gres, frozenset({name})), (rule,))


def things(site: OpenShiftSite, *kinds: str) -> Things:
    """Everything in both namespaces, or all of these kinds."""
    found: Things = {}
    with site.plane.reach():
        for kind in kinds or KINDS:
            for namespace in (BURST, STUDENTS):
                for one in site.plane.api.get(KINDS[kind].format(namespace))["items"]:
                    found[kind, namespace, one["metadata"]["name"]] = _still(one)
    return found


def settled(site: OpenShiftSite) -> Things:
    """Everything but the store's mover pod, which stays for a while."""
    return {key: one for key, one in things(site).items() if "burstd-store" not in one["metadata"].get("labels", {})}


def _still(thing: dict[str, Any]) -> Mapping[str, Any]:
    """Without what its services touch for themselves: of its status only the phase stays."""
    metadata = {key: value for key, value in thing["metadata"].items() if key not in PASSING}
    return {**thing, "metadata": metadata, "status": thing.get("status", {}).get("phase")}


@pytest.fixture(scope="module")
def site() -> Iterator[OpenShiftSite]:
    up = OpenShiftSite(
        pools=[*map(_pool, POOLS)],
        builds={"2": (), "broken": (BROKEN,)},
        openshift={"grace_s": 25, "settle_s": 5},
        settings=f'{QUICK}\n[volumes]\nprices = {{ openshift = "730" }}\n',
        daemon={"cloud_poll_s": 2.0},
    )
    with up:
        yield up
    left = remains(up.cluster.lab.network.name, up.cluster.state) + remains(up.plane.state.name, up.plane.state)
    assert not left, f"left behind: {left}"
    assert not up.node.groups(), "control groups are left behind"


@pytest.fixture(scope="module", autouse=True)
def theirs(site: OpenShiftSite) -> Things:
    """What the namespaces hold before burstd does anything: another burstd's pod, and things with names like ours."""
    somebodys(site, "lab2-main1-theirs", {"burstd-cluster": "lab2", "burstd-claim": "theirs"})
    somebodys(site, "lab-main1-like", {"burstd-cluster": "lab"})
    return settled(site)


def somebodys(site: OpenShiftSite, name: str, labels: Mapping[str, str]) -> None:
    """A pod that runs, a claim and a service of that name, with these labels."""
    about = {"name": name, "labels": dict(labels)}
    little = {"cpu": "100m", "memory": "32Mi"}
    container = {
        "name": "main",
        "image": f"{REPOSITORY}:1",
        "command": ["sleep", "infinity"],
        "resources": {"limits": little},
    }
    specs: dict[str, tuple[str, dict[str, Any]]] = {
        "pod": ("Pod", {"containers": [container], "terminationGracePeriodSeconds": 0}),
        "claim": (
            "PersistentVolumeClaim",
            {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "none",
            },
        ),
        "service": ("Service", {"clusterIP": "None", "ports": [{"port": 80}]}),
    }
    with site.plane.reach():
        for kind, (called, spec) in specs.items():
            body = {"apiVersion": "v1", "kind": called, "metadata": about, "spec": spec}
            site.plane.api.post(KINDS[kind].format(BURST), body)
    site.wait(lambda: things(site, "pod")["pod", BURST, name]["status"] == "Running", PATIENCE_S, f"{name} runs")


def submit(site: OpenShiftSite, name: str, script: str = "true") -> str:
    return site.submit(f"-p burst -C {name} -c1 --mem=100 -t5", script)


def running(site: OpenShiftSite, job: str) -> dict[str, Any]:
    """Waits until the job runs, and burstd has seen it; the claim under it."""
    site.wait(lambda: site.job(job).get("JobState") == "RUNNING", PATIENCE_S, f"job {job} runs")
    site.wait(lambda: site.api(f"/v1/jobs/{job}")["job"]["state"] == "RUNNING", PATIENCE_S, f"job {job} is seen to run")
    (slot,) = (nodes for number, _, nodes in queue(site) if number == job)
    return next(claim for claim in reversed(claims_of(site, job)) if claim["slot"] == slot)


def publish(site: OpenShiftSite, tag: str) -> None:
    """Waits until burstd knows of it."""
    site.publish(tag)
    version = f"version={site.images[tag].reference}"
    site.wait(lambda: version in site.daemon_log(), PATIENCE_S, f"burstd sees the image {tag}")


def image_of(pod: Mapping[str, Any]) -> str:
    (container,) = pod["spec"]["containers"]
    return str(container["image"])


def test_the_check_finds_nothing_wrong(site: OpenShiftSite) -> None:
    # Whoever may read Secrets could become anybody in the cluster; the second account may not look at nodes.
    expected = {"openshift": ["secrets:"], "restricted": ["right nodes", "right pods", "secrets:"]}

    for provider, unclear in expected.items():
        said = ""

        def nodes_are_ready(provider: str = provider) -> bool:
            """On a busy machine one may miss its heartbeats for a moment."""
            nonlocal said
            said = site.burstctl("provider", "check", provider).stdout
            return "not ready" not in said

        site.wait(nodes_are_ready, 60, "nodes that are ready")
        found = [line.removeprefix("?").strip() for line in map(str.strip, said.splitlines()) if line.startswith("?")]
        assert len(found) == len(unclear), said
        assert all(map(str.startswith, found, unclear)), said


def test_from_sbatch_to_an_empty_namespace(site: OpenShiftSite, theirs: Things) -> None:
    """Data and working directory in through a claim, a GPU with an odd number, all of it home, and the pod is gone."""
    site.cluster.sh("mkdir -p project/data; cd project; echo hello > data/a.txt; echo '*.tmp' >.burstignore", "ada")
    look = 'ls /dev/nvidia* > "$BURST_OUT/devices.txt"\n'
    work = "{ pwd; cat data/a.txt; } >seen.txt; touch a.tmp; echo said\n"
    script = COPY.replace("#BURST", "#BURST workdir\n#BURST", 1) + look + work
    words = "-p burst -C main --gres=gpu:h100:1 -c1 --mem=100 -t5 --chdir=/home/ada/project"
    job = site.submit_script(script, words)
    site.wait_job(job, timeout_s=PATIENCE_S)
    (claim,) = claims_of(site, job)
    (pod,) = site.ever("main")
    assert claim["instance"] == pod["metadata"]["name"]
    assert pod["metadata"]["labels"]["burstd-claim"] == claim["claim"]
    assert image_of(pod) == site.images["1"].reference
    assert site.cluster.sh(f"cd project; cat seen.txt slurm-{job}.out", "ada") == "/home/ada/project\nhello\nsaid\n"
    names = {".burstignore", "data", "results", "seen.txt", f"slurm-{job}.out"}
    assert set(site.cluster.sh("ls -A project", "ada").split()) == names
    assert site.cluster.sh("cd project/results; cat copy.txt gpus.txt", "ada") == "hello\n0\n"
    assert site.cluster.sh("cat project/results/devices.txt", "ada") in [f"/dev/nvidia{number}\n" for number in GPUS]
    site.wait(lambda: settled(site).keys() <= theirs.keys(), PATIENCE_S, "nothing of it is left")
    assert settled(site) == theirs


def test_an_answer_that_is_lost_and_a_death_make_one_pod(site: OpenShiftSite) -> None:
    """The API server has the whole call; what it answers comes to nobody, and whoever made the call is gone."""
    head = f"{site.cluster.head.address}/32"
    hub = site.cluster.lab.network.hub or ""
    with site.plane.frozen(OPENSHIFT):
        # What admits pods is asked for each, and its answer is waited for.
        job = submit(site, "lost")
        site.wait(lambda: _asked(site), PATIENCE_S, "the pod is asked for")
        ip("-n", hub, "route", "add", "blackhole", head)
    try:
        site.wait(lambda: len(site.ever("lost")) == 1, PATIENCE_S, "it was made, and nobody heard of it")
        site.kill_burstd("KILL")
    finally:
        ip("-n", hub, "route", "del", "blackhole", head)
    site.start_burstd()
    site.wait_job(job, timeout_s=PATIENCE_S)
    (pod,) = site.ever("lost")
    assert [claim["instance"] for claim in claims_of(site, job)] == [pod["metadata"]["name"]]


def _asked(site: OpenShiftSite) -> bool:
    """Whether the service that admits pods was sent something that it has not read. ss(8)"""
    words = ["ss", "-Htn", "state", "established", "sport", "=", f":{openshift.PORT}"]
    enter = site.cluster.lab.network.enter()
    said = subprocess.run([*enter, *words], capture_output=True, text=True, check=True).stdout
    return any(int(unread) for unread in re.findall(r"^(\d+)", said, re.MULTILINE))


def test_two_pods_of_one_job(site: OpenShiftSite) -> None:
    job = site.submit(
        "-p burst -C pair -N2 --exclusive -t5", SET_COMMENT % "srun printenv SLURMD_NODENAME | sort | xargs"
    )
    site.wait_job(job, timeout_s=PATIENCE_S)
    assert comments_of(site, job) == ["pair1 pair2"]
    assert len(site.ever("pair")) == 2


def test_a_job_outlives_the_eviction_of_its_pod(site: OpenShiftSite) -> None:
    """As by ``kubectl drain``: the node says when it ends, and the job begins anew elsewhere."""
    job = submit(site, "evict", '[ "${SLURM_RESTART_COUNT:-0}" -ge 1 ] || sleep 600')
    claim = running(site, job)
    pod = claim["instance"]
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod}}
    with site.plane.reach():
        site.plane.api.post(f"/api/v1/namespaces/{BURST}/pods/{pod}/eviction", eviction)
    reason = f"sinfo -h -n {claim['slot']} -o %E"
    site.wait(
        lambda: site.cluster.sh(reason).startswith("burstd: interruption, ends "),
        PATIENCE_S,
        "the drain and its reason",
    )
    site.wait(lambda: restarts(site, [job])[job] == 1, PATIENCE_S, "the job requeued")
    site.wait_job(job, timeout_s=PATIENCE_S)
    last = claims_of(site, job)[-1]
    assert last["instance"] != pod
    (cut,) = (e for e in events(site, f"job:{job}") if e["new"] == "interrupted")
    assert "interruption, ends" in cut["reason"]


def test_a_new_image_is_rolled_out_and_a_broken_one_is_left(site: OpenShiftSite) -> None:
    old, new, broken = (site.images[tag].reference for tag in ("1", "2", "broken"))
    stays = submit(site, "roll", "sleep 600")
    claim = running(site, stays)
    publish(site, "2")
    job = submit(site, "roll --exclusive")
    site.wait_job(job, timeout_s=PATIENCE_S)
    assert [image_of(pod) for pod in site.ever("roll")] == [old, new]
    assert site.job(stays)["JobState"] == "RUNNING", "nodes of the old image are left alone while they work"
    publish(site, "broken")
    job = submit(site, "roll --exclusive")
    site.wait_job(job, timeout_s=PATIENCE_S)
    assert [image_of(pod) for pod in site.ever("roll")][2:] == [broken, new]
    opened = [e for e in events(site, "breaker:openshift/image/") if broken.rpartition("@")[2] in e["subject"]]
    assert opened, "it is left alone for a while"
    site.cluster.sh(f"scancel {stays}")
    site.wait(lambda: claim["instance"] not in site.instances(), PATIENCE_S, "the node of the old image ends")


def test_a_shell_in_a_job_of_a_pod_ends_with_its_client(site: OpenShiftSite) -> None:
    job = submit(site, "notebook", "sleep 300")
    running(site, job)
    enter = ("job", "shell", "--via", "node", job, "--")
    told = site.burstctl(*enter, "sh", "-c", "id -un; echo $SLURM_JOB_ID; exit 7", user="ada", check=False)
    assert (told.returncode, told.stdout) == (7, f"ada\n{job}\n"), told.stderr

    def left() -> str:
        return site.burstctl(*enter, "sh", "-c", "grep -lzsx '432[1]' /proc/[0-9]*/cmdline | wc -l", user="ada").stdout

    words = [f"{programs.PREFIX}/bin/burstctl", *enter, "sh", "-c", "sleep 4321 & echo begun; sleep 4321"]
    with site.cluster.head.popen(words, user="ada", stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"begun\n"
        assert left() == "2\n"
        client.kill()
    site.wait(lambda: left() == "0\n", PATIENCE_S, "nothing of it is left")
    site.cluster.sh(f"scancel {job}")
    # The next test's job gets a pod of its own.
    site.wait_empty()


def test_a_notebook_by_port_forward_and_by_route(site: OpenShiftSite, theirs: Things) -> None:
    job = submit(site, "notebook", SERVER)
    claim = running(site, job)
    words = [f"{programs.PREFIX}/bin/burstctl", "port-forward", job, str(PORT), "--local", "0", "--json"]
    with ExitStack() as last:
        forward = last.enter_context(site.cluster.head.popen(words, user="ada", stdout=subprocess.PIPE))
        last.callback(forward.kill)
        assert forward.stdout is not None
        here = json.loads(forward.stdout.readline())
        assert _fetch(site, f"http://{here['host']}:{here['port']}/hello.txt") == "hello from a pod"
        site.burstctl("route", "open", job, str(PORT), user="ada")
        (route,) = things(site, "route").values()
        site.wait(lambda: len(_backends(site, route)) == 1, PATIENCE_S, "the route leads to the pod")
        assert _fetch(site, f"http://{_backends(site, route)[0]}/hello.txt") == "hello from a pod"
        assert route["spec"]["host"] in site.burstctl("route", "list", user="ada").stdout
        site.cluster.sh(f"scancel {job}")
        assert forward.wait(PATIENCE_S) == 1, "it ends with the job"
    site.wait(lambda: not things(site, "route", "service").keys() - theirs.keys(), PATIENCE_S, "the route is closed")
    site.wait(lambda: claim["instance"] not in site.instances(), PATIENCE_S, "the pod is gone")


def _backends(site: OpenShiftSite, route: Mapping[str, Any]) -> list[str]:
    """Where a router sends what comes for a route: the service's endpoints."""
    name = route["spec"]["to"]["name"]
    with site.plane.reach():
        found = site.plane.api.find(f"/api/v1/namespaces/{BURST}/endpoints/{name}") or {}
    return [
        f"{one['ip']}:{port['port']}"
        for subset in found.get("subsets") or ()
        for one in subset.get("addresses") or ()
        for port in subset["ports"]
    ]


def _fetch(site: OpenShiftSite, url: str) -> str:
    """What the job's owner gets on the head."""
    return site.cluster.head.run(["python3", "-c", FETCH, url], user="ada", timeout=30).stdout.strip()


VOLUME = """#!/bin/sh
#BURST volume {line}
set -eu
cd "$BURST_VOLUMES/{name}"
{run}
"""


def test_the_next_pod_reads_what_the_last_one_wrote(site: OpenShiftSite) -> None:
    """A claim comes with its job's pod, outlives it, is one job's at a time, and goes only when its owner says so."""
    first = with_volume(site, "corpus 1G", "echo one >log; until [ -e go ]; do sleep 0.2; done")
    second = with_volume(site, "corpus", SET_COMMENT % "{ stat -c %U:%a .; cat log; ls; } | xargs")
    claim = running(site, first)
    why = f"in use by job {first}"
    site.wait(lambda: why in site.burstctl_in_process("explain", second), PATIENCE_S, "explain says why")
    assert claims_of(site, second) == [], "nothing is paid for a job that waits"
    (volume,) = volumes(site)
    made = things(site, "claim")["claim", BURST, f"lab-{volume['id']}"]
    assert made["status"] == "Bound"
    assert made["spec"]["storageClassName"] == LATE
    assert not made["metadata"].keys() & {"ownerReferences", "deletionTimestamp"}
    site.burstctl(
        "job", "shell", "--via", "node", first, "--", "touch", f"/run/burst-volumes/{first}/corpus/go", user="ada"
    )
    site.wait_job(second, timeout_s=PATIENCE_S)
    assert comments_of(site, second) == ["ada:700 one go log"]
    assert claims_of(site, second)[-1]["instance"] != claim["instance"]
    site.wait(lambda: volumes(site)[0]["state"] == "available", PATIENCE_S, "its pod is gone")
    assert any(line["volumes"] for line in site.api("/v1/bill", group="user")["lines"])
    site.burstctl("volume", "remove", "corpus", "--yes", user="ada")
    site.wait(lambda: volumes(site) == [], PATIENCE_S, "it is gone")
    assert ("claim", BURST, made["metadata"]["name"]) not in things(site, "claim")


def test_a_quota_holds_the_job_and_no_pod_is_made(site: OpenShiftSite) -> None:
    quotas = f"/api/v1/namespaces/{BURST}/resourcequotas"
    hard = {f"{LATE}.storageclass.storage.k8s.io/requests.storage": "1Gi"}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "disks"}, "spec": {"hard": hard}}
    before = len(site.ever("volume"))
    with site.plane.reach():
        site.plane.api.post(quotas, body)
        site.plane.wait(lambda: "used" in site.plane.api.get(f"{quotas}/disks").get("status", {}), "the quota counts")
    job = with_volume(site, "large 2G", "true")
    site.wait(lambda: "exceeded quota: disks" in site.cluster.sh(f"scontrol show job {job}"), PATIENCE_S, "it is held")
    assert volumes(site) == []
    assert len(site.ever("volume")) == before
    site.wait(lambda: all(one["state"] == "gone" for one in claims_of(site, job)), PATIENCE_S, "nothing waits for it")
    site.cluster.sh(f"scancel {job}", "ada")
    with site.plane.reach():
        site.plane.api.delete(f"{quotas}/disks")
    # Later the store would be woken once more.
    site.wait(lambda: not site.api("/v1/stage")["jobs"], PATIENCE_S, "no job's data is left")


def with_volume(site: OpenShiftSite, line: str, run: str) -> str:
    words = "-p burst -C volume -c1 --mem=100 -t5 --output=/dev/null"
    return site.submit_script(VOLUME.format(line=line, name=line.partition(" ")[0], run=run), words)


def volumes(site: OpenShiftSite) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.api("/v1/volumes", user="ada")["volumes"]
    return found


def test_in_the_end_only_the_neighbours_things_are_left(site: OpenShiftSite, theirs: Things) -> None:
    site.wait_empty(PATIENCE_S)
    site.wait(lambda: things(site).keys() <= theirs.keys(), PATIENCE_S, "nothing of ours is left")
    assert things(site) == theirs
    assert site.node.box.run(["find", f"/srv{STAGE}", "-path", "*/out/*", "-type", "f"]).stdout == ""
