"""Shards of GPUs from sbatch to the cloud: as many machines as the jobs need, and each GPU given away as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.project import Project, gpu_number
from burstd.domain.slurm.shape import Gres, Shape
from providers.sandbox.boxes.box import Box
from tests.e2e.sites import QUICK, claims_of, comments_of, node_box, site_up, wait_all_gone
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

SHARED = Pool(
    "shared",
    tuple(f"shared{i}" for i in range(1, 9)),
    ("burst",),
    Shape(16, 1000, (Gres("gpu", "v100", 2), Gres("shard", "", 8))),
    gpu_memory_limit="mps",
)
TYPES = """
[[cloud.types]]
name = "g4.two"
cpus = 16
memory_mib = 2048
gpu_type = "v100"
gpus = 2
price = "4.00"

[cloud.capacity.north]
"g4.two" = 8
"""
PROJECTS = {
    name: Project(name, f"team-{name}", quota, partitions=("onprem",))
    for name, quota in {"a": Fraction(1, 2), "b": Fraction(1, 2), "c": Fraction(0)}.items()
}
# GPUs of 16 GiB, and MPS until somebody ends it.
PROGRAMS = r"""
[node]
skip_checks = ["cpus"]
commands = ['''
cd /usr/local/bin
cat >nvidia-smi <<'END'
#!/bin/sh
case $* in
-L) for gpu in 0 1; do echo "GPU $gpu: Tesla V100 (UUID: GPU-$gpu)"; done ;;
*memory.total*) echo 16384; echo 16384 ;;
esac
END
cat >nvidia-cuda-mps-control <<'END'
#!/bin/sh
[ ! -e /run/no-mps ] || { echo "Cannot find MPS control daemon process"; exit 1; }
read command
END
chmod 755 nvidia-smi nvidia-cuda-mps-control
install -d -m 1777 /shown
''']
"""
SHOW = "cd /shown; env >$SLURM_JOB_ID.new; mv $SLURM_JOB_ID.new $SLURM_JOB_ID; sleep 600"
"""A job that shows its environment."""
REGIONS = ("nvidia/0000:00:04.0/vidmem", "nvidia/0000:00:05.0/vidmem")
SMALL = "-p burst -c1 --mem=10 -t20"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """One GPU of four shards on premises, whose halves are two projects' own; and a pool of shards in the cloud."""
    # The boxes have the CPUs of this machine, however many Slurm is told.
    settings = (
        QUICK
        + PROGRAMS
        + "".join(
            f'[projects.{p.name}]\naccount = "{p.account}"\nquota = {gpu_number(p.quota)}\npartitions = ["onprem"]\n'
            for p in PROJECTS.values()
        )
    )
    with site_up(
        "trixie", pools=[SHARED], types=TYPES, settings=settings, comments=True, projects=PROJECTS.values(),
        onprem=1, onprem_gpus=1, onprem_shards=4, extra_conf="AccountingStorageTRES=gres/gpu,gres/shard",
    ) as up:  # fmt: skip
        yield up


def mps_limits(site: Site, job: str) -> dict[str, str]:
    """What MPS finds in the environment of a job that runs SHOW."""
    box = node_box(site, site.job(job)["NodeList"])
    shown = box.path(f"/shown/{job}")
    site.wait(shown.exists, 15, f"job {job} shows its environment")
    pairs = (line.partition("=") for line in shown.read_text(encoding="utf-8").splitlines())
    return {name: value for name, _, value in pairs if name.startswith("CUDA_MPS_")}


def limit_by_dmem(box: Box) -> Path:
    """Has dmem limit jobs of a node in service, with a folder in place of its cgroups; returns slurmstepd's scope."""
    scope = "/run/cgroup/system.slice/slurmstepd.scope"
    box.run(["mkdir", "-p", scope])
    for folder in ("/run/cgroup", "/run/cgroup/system.slice", scope):
        box.path(folder).joinpath("cgroup.subtree_control").write_text("cpu memory\n", encoding="utf-8")
    capacity = "".join(f"{region} {80 << 30}\n" for region in REGIONS)
    box.path("/run/cgroup/dmem.capacity").write_text(capacity, encoding="utf-8")
    scripts = files("burstd.node").joinpath("scripts")
    hook = scripts.joinpath("gpu_memory_prolog.sh").read_text(encoding="utf-8")
    assert "cgroup=/sys/fs/cgroup\n" in hook
    bring = scripts.joinpath("gpu_memory_limit.sh").read_text(encoding="utf-8")
    box.run(["sh", "-c", bring, "sh", "dmem", "4"], input=hook.replace("cgroup=/sys/fs/cgroup", "cgroup=/run/cgroup"))
    return box.path(scope)


def test_shards_wake_the_machines_that_they_need(site: Site) -> None:
    site.burstctl("hold", "they are to come together")
    nine = [site.submit(f"{SMALL} --gres=shard:3", "sleep 600") for _ in range(9)]
    never = site.submit(f"{SMALL} --gres=shard:5")
    site.wait(lambda: all(comments_of(site, job) for job in [*nine, never]), 15, "burstd has seen them")
    assert [way["gpu_memory_limit"] for way in site.burstctl_json("explain", nine[0])["ways"]] == ["mps"]
    site.burstctl("unhold")
    assert "cannot start: no node in pool shared has 5 shards of one GPU" in comments_of(site, never)[0]
    changes = site.burstctl_json("explain", never)["changes"]
    assert {change["after"] for change in changes} >= {"--gres=gpu:2"}
    for job in nine:
        site.wait_job(job, ["RUNNING"])
    jobs_of_node = Counter(site.job(job)["NodeList"] for job in nine)
    assert sorted(jobs_of_node.values()) == [1, 2, 2, 2, 2], "one job a GPU"
    assert len({claim["claim"] for job in nine for claim in claims_of(site, job)}) == 5
    (alone,) = (node for node, jobs in jobs_of_node.items() if jobs == 1)

    def free_shards() -> list[str]:
        shown: list[str] = site.burstctl_json("node", "show", alone)["node"]["slurm"]["free_shards"]
        return shown

    site.wait(lambda: free_shards() == ["1/4", "4/4"], 15, "burstd has read what is left of each GPU")
    assert "2 GPUs whose memory MPS divides" in site.burstctl_json("node", "show", alone)["validated"]

    # Half a GPU each for two users on one GPU; whoever wants two whole ones gets another machine.
    halves = [site.submit(f"{SMALL} --gres=shard:2", SHOW, user) for user in ("ada", "bob")]
    for job in halves:
        site.wait_job(job, ["RUNNING"])
        assert site.job(job)["NodeList"] == alone
        assert mps_limits(site, job) == {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        }  # fmt: skip
    site.wait(lambda: free_shards() == ["1/4", "0/4"], 15, "both halves are in use")
    whole = site.submit(f"{SMALL} --gres=gpu:2", SHOW)
    site.wait_job(whole, ["RUNNING"])
    assert site.job(whole)["NodeList"] not in jobs_of_node
    assert mps_limits(site, whole) == {}
    site.wait(lambda: "1.00 EUR/h for its shards" in comments_of(site, halves[0])[0], 15, "the price of two shards")
    a_job_without_its_limit_does_not_run(site, alone, site.job(nine[0])["NodeList"])
    site.cluster.sh("scancel -u ada; scancel -u bob")
    assert len(wait_all_gone(site).by_claim) == 6


def test_half_a_gpu_is_always_a_projects_own(site: Site) -> None:
    """Two projects have half of one GPU each; a third runs on what they leave, until they ask."""

    def submit(project: str, shards: int, user: str = "ada") -> str:
        return site.submit(f"-A team-{project} --mem=1 --gres=shard:{shards} -o /dev/null", "sleep 600", user)

    def running() -> Counter[str]:
        return Counter(site.cluster.sh("squeue -h -t R -o %P").split())

    def shares() -> dict[str, tuple[float, float]]:
        """By project, the GPUs that it has and is to have."""
        found = site.burstctl_json("project", "list")["projects"]
        return {p["name"]: (p["share"]["running"], p["share"]["share"]) for p in found}

    assert site.burstctl_json("status")["alarms"] == []
    over = [submit("c", 1) for _ in range(4)]
    site.wait(lambda: running() == {"o-c": 4}, 60, "the whole GPU in use beyond quotas")
    half = submit("a", 2)
    site.wait(lambda: running() == {"q-a": 1, "o-c": 2}, 60, "the half of a")
    site.wait(lambda: shares() == {"a": (0.5, 0.5), "b": (0, 0), "c": (0.5, 0.5)}, 30, "shares of half a GPU")
    assert "0.5 of 0.5 GPUs in quota" in site.burstctl("project", "show", "a").stdout
    said = "project c: 0 of 0 GPUs in quota, 0.5 over; reclaimed when b asks"
    site.wait(lambda: any(said in comments_of(site, job)[0] for job in over), 30, "a comment")

    site.kill_burstd("KILL")
    submit("b", 2, "bob")
    site.wait(lambda: running() == {"q-a": 1, "q-b": 1}, 60, "the half of b, while burstd is dead")
    site.start_burstd()

    site.cluster.sh(f"scancel {half}")
    site.wait(lambda: running() == {"q-b": 1, "o-c": 2}, 60, "the shards that a leaves, in use again")
    site.cluster.sh("scancel -u ada; scancel -u bob")


def a_job_without_its_limit_does_not_run(site: Site, broken: str, other: str) -> None:
    """Nor does it start again and again; the node ends. On another node it runs with its limit."""
    broken_box = node_box(site, broken)
    broken_box.run(["touch", "/run/no-mps"])
    job = site.submit(f"{SMALL} --gres=shard:1 -w {broken}", SHOW)
    site.wait(lambda: site.job(job).get("Reason") == "launch_failed_requeued_held", 30, "the job is held")
    assert "Prolog error" in site.cluster.sh(f"scontrol show node {broken}")
    assert not broken_box.path(f"/shown/{job}").exists()
    assert site.job(job)["Restarts"] == "1"
    site.cluster.sh(f"scancel -w {broken}")
    site.wait(lambda: node_of(site, broken) is None, 60, f"the machine of {broken} has ended")

    scope = limit_by_dmem(node_box(site, other))
    site.cluster.sh(f"scontrol update jobid={job} starttime=now reqnodelist={other} && scontrol release {job}")
    site.wait_job(job, ["RUNNING"])
    assert mps_limits(site, job) == {}
    limits = scope.joinpath(f"job_{job}", "dmem.max").read_text(encoding="utf-8")
    assert limits == "".join(f"{region} {20 << 30}\n" for region in REGIONS)
    assert scope.joinpath("cgroup.subtree_control").read_text(encoding="utf-8") == "+dmem\n"

    # Nodes on premises have no part in this but for one link.
    for name, _ in site.cluster.onprem:
        link = "mkdir -p /etc/burstd && ln -s /bin/true /etc/burstd/task-prolog"
        site.cluster.lab.box(name).run(["sh", "-c", link])
    assert set(site.cluster.sh("srun -p onprem hostname", "ada").split()) == {"op1"}


def node_of(site: Site, slot: str) -> str | None:
    """The claim on a slot."""
    return next((node["claim"] for node in site.api("/v1/nodes")["nodes"] if node["slot"] == slot), None)
