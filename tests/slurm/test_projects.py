"""Projects on a real Slurm with slurmdbd, without burstd: what is set up, and what slurmctld then does by itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.project import OverQuotaLimits, Project
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.shape import Gres, Shape
from burstd.slurm.config.check import compare_slurm_conf, read_running_slurm
from burstd.slurm.config.project_check import project_findings, projects_findings, read_project_state
from burstd.slurm.config.render import SlurmConfOptions
from burstd.slurm.projects import SlurmProjects
from burstd.slurm.scheduler import CommandScheduler
from providers.sandbox.boxes.boot.description import BoxFile
from tests.lab import accounting, slurm_files
from tests.lab.cluster import Cluster

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

PROJECTS = {n: Project(n, f"team-{n}", Fraction(4), partitions=("onprem",), interactive_max_s=3600) for n in "abcd"}
SHARED = Pool("shared", ("sh1",), ("shared",), Shape(8, 1000, (Gres("gpu", "v100", 1), Gres("shard", "", 4))))
HALVES = {
    name: Project(name, f"team-{name[-1]}", quota, partitions=("shared",))
    for name, quota in {"half-a": Fraction(1, 2), "half-b": Fraction(1, 2), "none-c": Fraction(0)}.items()
}
NEW = Project("new", "team-new", Fraction(2), partitions=("onprem", "burst"), min_runtime_s=90)


@pytest.fixture(scope="module", params=sorted(slurm_files.VERSIONS))
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    lua = BoxFile("/etc/slurm/job_submit.lua", slurm_files.job_submit_lua(projects=list(PROJECTS.values())))
    with Cluster(
        request.param,
        state=tmp_path_factory.mktemp("cluster"),
        pools=[slurm_files.burst_pool(), SHARED],
        extra_conf="AccountingStorageTRES=gres/gpu,gres/shard",
        projects=list(PROJECTS.values()),
        onprem_gpus=8,
        head_files=[lua],
    ) as up:
        yield up


@pytest.fixture
def cluster(lab: Cluster) -> Cluster:
    lab.sh("scancel -u ada")
    lab.wait(lambda: not lab.sh("squeue -h"), 60, "an empty queue")
    return lab


@pytest.fixture
def slurm(cluster: Cluster) -> SlurmProjects:
    return SlurmProjects(cluster.commands())


def submit(cluster: Cluster, project: str, gpus: int, jobs: int = 1, words: str = "") -> str:
    array = f"--array=1-{jobs}" if jobs > 1 else ""
    command = f"sbatch --parsable -A team-{project} {array} --mem=1 --gres=gpu:{gpus} {words} --wrap 'sleep 1000'"
    return cluster.sh(f"cd /home/ada && {command} -o /dev/null", "ada").strip()


def running(cluster: Cluster) -> Counter[str]:
    """GPUs that run, by partition, of jobs with one GPU."""
    return Counter(cluster.sh("squeue -h -r -t R -o %P").split())


def used_gpus(cluster: Cluster) -> int:
    """As the nodes have it: a job is gone from the queue a moment before they are free of it."""
    return sum(map(int, re.findall(r"AllocTRES=\S*gres/gpu=(\d+)", cluster.sh("scontrol -o show nodes op1,op2"))))


def test_what_slurm_config_prints_is_what_check_wants(cluster: Cluster, slurm: SlurmProjects) -> None:
    view = slurm.read(PROJECTS)
    assert view.faults == {}
    assert view.limits == dict.fromkeys(PROJECTS, OverQuotaLimits(Fraction(0), 1))
    commands = cluster.commands()
    options = SlurmConfOptions(programs="/usr/local/bin", projects=tuple(PROJECTS.values()))
    found = compare_slurm_conf([], options, read_running_slurm(commands))
    needed = ("Accounting", "Preempt", "JobRequeue", "SchedulerParameters", "JobSubmitPlugins")
    assert [f for f in found if f.subject.startswith(needed)] == []
    config = {"SLURM_CONF": str(cluster.head.path("/etc/slurm/slurm.conf"))}
    assert [f for f in projects_findings(PROJECTS.values(), config, commands) if not f.recommended] == []


def test_a_project_is_set_up_changed_and_removed(cluster: Cluster, slurm: SlurmProjects) -> None:
    assert len(slurm.plan_setup(NEW)) == 5
    assert slurm.plan_setup(replace(NEW, account="")) == (), "it is to have children"
    # As after kill -9 between two commands.
    cluster.sh(slurm.plan_setup(NEW)[0])
    cluster.sh(slurm.plan_setup(NEW)[0])
    slurm.set_up(NEW)
    assert slurm.plan_setup(NEW) == ()
    view = slurm.read({"new": NEW})
    assert (view.faults, view.limits) == ({}, {"new": OverQuotaLimits(Fraction(0), 1)})
    shown = cluster.sh("scontrol -o show partition o-new")
    assert "Nodes=cl[1-8],op[1-2]" in shown or "Nodes=op[1-2],cl[1-8]" in shown
    slurm.set_caps({"new": Fraction(3)})
    larger = replace(NEW, quota=Fraction(5), account="team-a")
    assert set(slurm.read({"new": larger}).faults) == {"new"}
    slurm.set_up(larger)
    assert slurm.plan_setup(larger) == ()
    assert slurm.read({"new": larger}).limits == {"new": OverQuotaLimits(Fraction(3), 1)}
    slurm.remove(larger)
    slurm.remove(larger)
    assert not slurm.read({"new": larger}).limits
    assert "q-new" not in cluster.sh("sacctmgr -nP show qos format=name")
    assert "team-new" in cluster.sh("sacctmgr -nP show account format=account")


def test_jobs_of_a_project_that_burstd_made_outlive_a_reconfigure_and_a_restart(cluster: Cluster) -> None:
    conf = cluster.head.path("/etc/slurm/slurm.conf")
    config = {"SLURM_CONF": str(conf)}
    cluster.sh("mkdir -p /var/spool/burstd; touch /var/spool/burstd/projects.conf; chown -R slurm /var/spool/burstd")
    slurm = SlurmProjects(cluster.commands(), Path(cluster.head.path("/var/spool/burstd/projects.lua")))
    made = replace(NEW, account="team-a", partitions=("onprem",))
    slurm.set_up(made, made_by_burstd=True)
    found = list(projects_findings([], config, cluster.commands()))
    assert {(f.subject, f.found) for f in found} == {(f"partition {p}-new", "made by scontrol") for p in "qo"}
    state = read_project_state(cluster.commands(), [made], conf=conf)
    assert sorted(state.unwritten) == ["o-new", "q-new"]
    cluster.sh("ln -s /var/spool/burstd/projects.conf /etc/slurm/burstd-projects.conf")
    cluster.sh("echo 'Include burstd-projects.conf' >>/etc/slurm/slurm.conf")
    job = submit(cluster, "a", 1, words="-p q-new")
    cluster.wait(lambda: running(cluster)["q-new"] == 1, 60, "a job of it")
    cluster.sh("scontrol reconfigure")
    cluster.wait(lambda: cluster.head.run(["sinfo", "-h"], check=False).returncode == 0, 30, "slurmctld answering")
    cluster.restart_slurmctld()
    assert cluster.sh(f"squeue -h -j {job} -t R -o %P").strip() == "q-new"
    cluster.sh(f"scancel {job}")
    cluster.wait(lambda: not cluster.sh("squeue -h"), 60, "an empty queue")
    slurm.remove(made)
    cluster.sh("scontrol reconfigure")
    cluster.wait(lambda: cluster.head.run(["sinfo", "-h"], check=False).returncode == 0, 30, "slurmctld answering")
    assert "q-new" not in cluster.sh("sinfo -h -o %R")


def test_a_project_has_the_nodes_of_its_features_as_long_as_they_have_them(
    cluster: Cluster, slurm: SlurmProjects
) -> None:
    def give(**features: str) -> None:
        for node, text in features.items():
            cluster.sh(f"scontrol update nodename={node} AvailableFeatures={text} ActiveFeatures={text}")

    def nodes() -> list[str]:
        return sorted(cluster.sh("sinfo -h -N -p q-new -o %N").split())

    made = replace(NEW, account="team-a", features=("a100", "big"))
    with pytest.raises(
        SchedulerRefused, match="Slurm has no node of burst and onprem with a100 and big, which project"
    ):
        slurm.set_up(made)
    give(op1="a100,big", op2="v100,big", cl8="big,cloud,a100")
    slurm.set_up(made)
    assert (nodes(), slurm.read({"new": made}).faults) == (["cl8", "op1"], {})
    job = submit(cluster, "a", 1, words="-p q-new")
    cluster.wait(lambda: cluster.sh(f"squeue -h -j {job} -o %N").strip() == "op1", 60, "a job of it")
    other = "sbatch -A team-a --gres=gpu:1 --mem=1 -p q-new -C v100 --wrap true"
    assert "node configuration is not available" in cluster.sh(other, "ada", check=False)
    give(op1="v100,big", op2="a100,big")
    assert (
        slurm.read({"new": made}).faults["new"].startswith("partition q-new: Nodes=cl8,op1, project new shares other")
    )
    slurm.set_up(made)
    assert (nodes(), slurm.read({"new": made}).faults) == (["cl8", "op2"], {})
    assert cluster.sh(f"squeue -h -j {job} -o %T").strip() == "RUNNING"
    cluster.sh(f"scancel {job}")
    cluster.wait(lambda: not cluster.sh("squeue -h"), 60, "an empty queue")
    slurm.remove(made)
    give(op1="", op2="", cl8="cloud")


def test_what_the_site_made_is_neither_changed_nor_removed(cluster: Cluster, slurm: SlurmProjects) -> None:
    cluster.sh("sacctmgr -i add qos q-new Description=ours")
    with pytest.raises(SchedulerRefused, match="QOS q-new was not made for project new"):
        slurm.set_up(NEW)
    with pytest.raises(SchedulerRefused, match="QOS q-new was not made for project new"):
        slurm.remove(NEW)
    assert "q-new|ours" in cluster.sh("sacctmgr -nP show qos format=name,description")
    cluster.sh("sacctmgr -i delete qos q-new")


def test_partitions_with_jobs_are_removed_when_these_have_ended(cluster: Cluster, slurm: SlurmProjects) -> None:
    slurm.set_up(replace(NEW, account="team-a"))
    job = submit(cluster, "a", 1, words="-p q-new")
    with pytest.raises(SchedulerRefused):
        slurm.remove(NEW)
    cluster.sh(f"scancel {job}")
    cluster.wait(lambda: not cluster.sh("squeue -h"), 60, "an empty queue")
    slurm.remove(NEW)
    assert not slurm.read({"new": NEW}).limits


def test_limits_are_written_and_read(cluster: Cluster, slurm: SlurmProjects) -> None:
    slurm.set_caps({"a": Fraction(3), "b": Fraction(3), "c": Fraction(7, 2), "d": None})
    slurm.set_tiers({"a": 5, "b": 2})
    expected = {"a": (3, 5), "b": (3, 2), "c": (3, 1), "d": (None, 1)}
    assert {n: (limit.gpus, limit.tier) for n, limit in slurm.read(PROJECTS).limits.items()} == expected
    cluster.sh("scontrol reconfigure")
    cluster.wait(lambda: cluster.head.run(["sinfo", "-h"], check=False).returncode == 0, 30, "slurmctld answering")
    assert {n: (limit.gpus, limit.tier) for n, limit in slurm.read(PROJECTS).limits.items()} == {
        name: (gpus, 1) for name, (gpus, _) in expected.items()
    }


def test_limits_are_read_while_slurmdbd_is_down(cluster: Cluster, slurm: SlurmProjects) -> None:
    slurm.set_caps({"a": Fraction(2)})
    cluster.sh("kill -STOP $(pidof slurmdbd); kill -9 $(pidof slurmdbd)")
    with pytest.raises(SchedulerUnavailable, match="slurmdbd does not answer sacctmgr"):
        slurm.set_caps({"a": Fraction(3)})
    assert slurm.read(PROJECTS).limits["a"].gpus == 2
    cluster.head.run(accounting.START_SLURMDBD)
    slurm.set_caps({"a": Fraction(3)})
    # slurmdbd tells slurmctld once that is connected again.
    cluster.wait(lambda: slurm.read(PROJECTS).limits["a"].gpus == 3, 20, "slurmctld has the new limit")


def test_lines_that_look_like_directives_are_told_on_each_slurm(cluster: Cluster) -> None:
    script = "#!/bin/sh\n#burst stage_in /data\n# BURST scratch 1G\ntrue\n"
    cluster.head.path("/home/ada/unread.sh").write_text(script, encoding="utf-8")
    told = cluster.sh("cd && sbatch --hold -A team-a -p burst --mem=1 -o /dev/null unread.sh 2>&1", "ada").splitlines()
    cluster.sh("scancel -u ada")
    assert told[:-1] == [
        "sbatch: line 2: '#burst stage_in' is a comment, and nothing comes of it: write '#BURST stage_in'",
        "sbatch: line 3: '# BURST scratch' is a comment, and nothing comes of it: write '#BURST scratch'",
    ]


SUBMITTED = [
    ("sbatch -A team-a --gres=gpu:1 --wrap true", "q-a,o-a"),
    ("sbatch --gres=gpu:1 --wrap true", "q-a,o-a"),
    ("sbatch -A team-b -p onprem --array=1-3 --gres=gpu:1 --wrap true", "q-b,o-b"),
    ("sbatch -A team-a --no-requeue --gres=gpu:1 --wrap true", "q-a"),
    ("sbatch -A team-a -p q-a,o-a --no-requeue --gres=gpu:1 --wrap true", "q-a"),
    ("sbatch -A team-a -p q-a --gres=gpu:1 --wrap true", "q-a"),
    ("sbatch -A team-a -p burst --gres=gpu:1 --wrap true", "burst"),
    ("sbatch -A team-a -p burst,onprem --gres=gpu:1 --wrap true", "burst,q-a,o-a"),
    ("sbatch -A team-a --gres=gpu:1 -n1 : --gres=gpu:1 -n1 --wrap true", "q-a,o-a"),
    ("sbatch -A team-a --gpus=1 --wrap true", "q-a,o-a"),
    ("sbatch -A team-a --gpus-per-task=1 -n1 --wrap true", "q-a,o-a"),
    ("sbatch -A team-a --wrap true", "o-a"),
    ("sbatch -A team-a --no-requeue --wrap true", "onprem"),
    ("sbatch -A team-a --gres=gpu:1 -n1 : -n1 --wrap true", "q-a,o-a o-a"),
    ("sbatch -A team-a --no-requeue --array=1-3 --gres=gpu:1 --wrap true", "q-a"),
    ("sbatch -A team-a --no-requeue --gres=gpu:1 -n1 : --gres=gpu:1 -n1 --wrap true", "q-a"),
]


@pytest.mark.parametrize(("words", "partitions"), SUBMITTED)
def test_a_job_gets_the_partitions_of_its_project(cluster: Cluster, words: str, partitions: str) -> None:
    cluster.sh(f"cd /home/ada && {words.replace('sbatch', 'sbatch --hold --mem=1 -o /dev/null')}", "ada")
    assert set(cluster.sh("squeue -h -o %P").split()) == set(partitions.split())


CHANGED = [
    ("", "partition=onprem", "q-a,o-a"),
    ("", "requeue=0", "q-a"),
    ("--no-requeue", "partition=onprem", "q-a"),
    ("--no-requeue", "partition=q-a,o-a", "q-a"),
    ("--no-requeue", "requeue=1 partition=onprem", "q-a,o-a"),
    ("-p burst", "partition=onprem requeue=1", "q-a,o-a"),
    ("", "partition=burst", "burst"),
]


def test_a_waiting_job_stays_with_its_project_whatever_its_user_changes(cluster: Cluster) -> None:
    for words, change, partitions in CHANGED:
        job = submit(cluster, "a", 1, words=f"--hold {words}")
        cluster.sh(f"scontrol update jobid={job} {change}", "ada")
        assert cluster.sh(f"squeue -h -j {job} -o %P").strip() == partitions, (words, change)
    said = cluster.sh(f"scontrol update jobid={job} partition=o-a", "ada", check=False)
    assert ("Unspecified error" if cluster.release == "bookworm" else "not to be asked for alone") in said


def test_a_job_that_may_be_preempted_cannot_be_kept_from_starting_again(cluster: Cluster, slurm: SlurmProjects) -> None:
    """Slurm would cancel it. 22.05 does not say why it refuses a change."""
    slurm.set_caps({"a": Fraction(8)})
    job = submit(cluster, "a", 8)
    cluster.wait(lambda: running(cluster)["o-a"] == 1, 60, "a job beyond the quota")
    said = cluster.sh(f"scontrol update jobid={job} requeue=0", "ada", check=False)
    assert (
        "Unspecified error" if cluster.release == "bookworm" else "may be in partition o-a, where Slurm must"
    ) in said
    assert "Requeue=1" in cluster.sh(f"scontrol show job {job}")


def test_interactive_jobs_stay_within_the_quota(cluster: Cluster) -> None:
    said = cluster.sh("salloc -A team-a --gres=gpu:1 --mem=1 -t 3:00:00 squeue -h -o '%P %l' 2>&1", "ada")
    assert "interactive jobs of project a run for 60 minutes at most" in said
    assert "q-a 1:00:00" in said


def test_a_waiting_interactive_job_gets_no_longer_time_limit(cluster: Cluster) -> None:
    cluster.sh("setsid salloc -H -A team-a --gres=gpu:1 --mem=1 -t 5 true >/dev/null 2>&1 </dev/null &", "ada")
    cluster.wait(lambda: "q-a 5:00" in cluster.sh("squeue -h -o '%P %l'"), 30, "a job of salloc that waits")
    (job,) = cluster.sh("squeue -h -o %i").split()
    for limit, found in (("3:00:00", "1:00:00"), ("20", "20:00"), ("3:00:00 partition=onprem", "1:00:00")):
        cluster.sh(f"scontrol update jobid={job} timelimit={limit}", "ada", check=False)
        assert cluster.sh("squeue -h -o '%P %l'").strip() == f"q-a {found}"


def test_nothing_runs_beyond_the_quota_alone(cluster: Cluster) -> None:
    said = cluster.sh("sbatch -A team-a -p o-a --wrap true", "ada", check=False)
    assert "partition o-a is for what project a runs beyond its quota" in said
    assert "submit with '-p onprem'" in said
    assert not cluster.sh("squeue -h")


def test_a_quota_comes_back_while_burstd_is_dead(cluster: Cluster, slurm: SlurmProjects) -> None:
    """Sixteen GPUs: d's eight are its quota of four and nothing more, for burstd last gave the rest to a, b and c."""
    slurm.set_caps({"a": Fraction(4), "b": Fraction(0), "c": Fraction(4), "d": Fraction(0)})
    for name in "abc":
        submit(cluster, name, 1, 16)
    cluster.wait(lambda: sum(running(cluster).values()) == 16, 60, "all GPUs in use")
    assert running(cluster)["o-a"] + running(cluster)["o-c"] == 4
    submit(cluster, "d", 1, 8)
    cluster.wait(lambda: running(cluster)["q-d"] == 4, 60, "the quota of d")
    found = running(cluster)
    assert [found[f"q-{name}"] for name in "abcd"] == [4, 4, 4, 4]
    assert found["o-a"] + found["o-c"] == 0


def test_a_quota_that_waits_preempts_nobody_and_comes_first_where_gpus_are_free(
    cluster: Cluster, slurm: SlurmProjects
) -> None:
    """Beside jobs of another project that wait for longer, with the same tier, and may not start by their limit."""
    waits = {**PROJECTS, "d": replace(PROJECTS["d"], reclaim_after_s=600)}
    slurm.set_caps({"a": Fraction(12), "d": Fraction(0)})
    submit(cluster, "a", 1, 32)
    cluster.wait(lambda: sum(running(cluster).values()) == 16, 60, "all GPUs in use")
    slurm.set_quota_preemption((), ["d"])
    view = slurm.read(waits)
    assert (view.without_preemption, dict(view.faults), slurm.plan_setup(waits["d"])) == (frozenset("d"), {}, ())
    assert "PriorityTier=1" in slurm.read(PROJECTS).faults["d"], "only a project that waits may have that"
    slurm.set_caps({"a": Fraction(8)})
    array = submit(cluster, "d", 1, 4)
    reasons = ("Resources", "Priority", "Nodes_required_for_job")
    cluster.wait(lambda: cluster.sh(f"squeue -h -j {array} -o %r").replace(" ", "_").startswith(reasons), 60, "a look")
    assert running(cluster) == {"q-a": 4, "o-a": 12}
    cluster.sh(f"scancel {cluster.sh('squeue -h -r -t R -p o-a -o %i').split()[0]}")
    cluster.wait(lambda: running(cluster)["q-d"] == 1, 60, "a job of d on the GPU that is free")
    assert running(cluster) == {"q-a": 4, "o-a": 11, "q-d": 1}
    assert slurm.restore_preemption() == ["d"]
    cluster.wait(lambda: running(cluster)["q-d"] == 4, 60, "the quota of d")
    assert slurm.restore_preemption() == []
    slurm.set_quota_preemption((), ["d"])
    cluster.sh("scontrol reconfigure")
    cluster.wait(lambda: cluster.head.run(["sinfo", "-h"], check=False).returncode == 0, 30, "slurmctld answering")
    assert slurm.read(waits).without_preemption == frozenset(), "slurm.conf has the guarantee"


def test_a_project_within_its_quota_does_not_preempt_its_own_jobs(cluster: Cluster, slurm: SlurmProjects) -> None:
    """Where they run beyond it, for others of its jobs have ended: burstd then gives these the higher tier."""
    slurm.set_caps({"a": Fraction(3), "b": Fraction(5), "c": Fraction(0), "d": Fraction(0)})
    submit(cluster, "b", 1, 9)
    submit(cluster, "a", 1, 7)
    cluster.wait(lambda: sum(running(cluster).values()) == 16, 60, "all GPUs in use")
    cluster.sh("squeue -h -r -t R -p q-a -o %i | xargs scancel")
    cluster.wait(lambda: used_gpus(cluster) == 12, 60, "GPUs that are free")
    submit(cluster, "c", 1, 4)

    def all_in_use() -> bool:
        # slurmctld requeues more than it must now and then, and starts that again after two minutes.
        now = running(cluster)
        return now["q-c"] == 4 and sum(now.values()) == 16

    cluster.wait(all_in_use, 180, "all GPUs in use again")
    before = running(cluster)
    slurm.set_tiers({"a": 2})
    try:
        submit(cluster, "a", 1)
        cluster.wait(lambda: running(cluster)["q-a"] == 1, 60, "what is within the quota of a")
        assert running(cluster) == before + Counter({"q-a": 1}) - Counter({"o-b": 1})
    finally:
        slurm.set_tiers({"a": 1})


def test_jobs_without_gpus_take_no_quota_from_others(cluster: Cluster, slurm: SlurmProjects) -> None:
    """Sixteen CPUs, as many as GPUs: nothing would limit such jobs in q-a, and they would preempt all of b's."""
    slurm.set_caps({"a": Fraction(0), "b": Fraction(8)})
    submit(cluster, "b", 1, 12)
    cluster.wait(lambda: sum(running(cluster).values()) == 12, 60, "all of b's jobs")
    command = "cd /home/ada && sbatch --parsable -A team-a --array=1-8 --mem=1 -o /dev/null --wrap 'sleep 1000'"
    cluster.sh(command, "ada")
    cluster.sh(command.replace("--array", "-p q-a --array"), "ada", check=False)
    cluster.wait(lambda: running(cluster)["o-a"] == 4, 60, "what is left of CPUs in use")
    submit(cluster, "d", 1, 4)
    cluster.wait(lambda: running(cluster)["q-d"] == 4, 60, "the quota of d")
    assert (running(cluster)["q-a"], running(cluster)["q-b"]) == (0, 4)


def test_a_job_is_not_preempted_before_its_minimum_run_time(cluster: Cluster, slurm: SlurmProjects) -> None:
    """The QOS of a partition counts for PreemptExemptTime: Slurm shows when its jobs may be preempted."""
    longer = {**PROJECTS, "a": replace(PROJECTS["a"], min_runtime_s=600)}
    assert slurm.min_runtime_faults(longer) == {
        "a": "QOS o-a: PreemptExemptTime=00:00:00, Slurm keeps another min_runtime_s for project a than burstd:"
        " run sacctmgr modify qos o-a set PreemptExemptTime=00:10:00"
    }
    slurm.set_up(longer["a"])
    assert slurm.min_runtime_faults(longer) == {}
    slurm.set_caps({"a": Fraction(12)})
    job = submit(cluster, "a", 1, 5)
    cluster.wait(lambda: running(cluster)["o-a"] == 1, 60, "a job beyond the quota")
    (task,) = cluster.sh(f"squeue -h -r -t R -p o-a -j {job} -o %A").split()
    fields = dict(
        w.partition("=")[::2] for w in cluster.sh(f"SLURM_TIME_FORMAT=%s scontrol -o show job {task}").split()
    )
    # 26.05 may count from the second after.
    assert int(fields["PreemptEligibleTime"]) - int(fields["StartTime"]) in (600, 601)
    slurm.set_up(PROJECTS["a"])


def test_a_check_finds_what_is_not_as_it_must_be(cluster: Cluster, slurm: SlurmProjects, tmp_path: Path) -> None:
    commands, config = cluster.commands(), {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    projects = [replace(PROJECTS["a"], account="team-z"), replace(PROJECTS["b"], quota=Fraction(6))]
    found = {f.subject: f.found for f in projects_findings(projects, config, commands)}
    assert found["account team-z"] == "not there"
    assert found["partition q-a"] == "AllowAccounts=team-a"
    assert found["QOS q-b"] == "gres/gpu=4"
    assert found[f"{tmp_path}/job_submit.lua"] == "no such line, or no file that can be read"
    assert slurm.read({"b": projects[1]}).faults["b"].startswith("QOS q-b: gres/gpu=4, Slurm keeps another quota")
    # burstd may have lowered what slurmctld has: slurm.conf must say what comes back.
    (tmp_path / "slurm.conf").write_text("PartitionName=q-c Nodes=op1\nInclude more.conf\n")
    (tmp_path / "more.conf").write_text("PARTITIONNAME=q-d Nodes=op1 prioritytier=10000\n")
    waits = [replace(PROJECTS[name], reclaim_after_s=60) for name in "cd"]
    state = read_project_state(commands, waits, conf=tmp_path / "slurm.conf")
    tiers = [f.found for project in waits for f in project_findings(project, state) if "PriorityTier" in f.found]
    assert tiers == ["PriorityTier=1"]
    assert {"o-c", "o-d"} < {*state.unwritten}
    assert {"q-c", "q-d"}.isdisjoint(state.unwritten)


def test_a_job_is_told_and_begins_anew_where_it_ends_of_that(cluster: Cluster, slurm: SlurmProjects) -> None:
    """And slurmctld shows whom it preempts itself."""
    scheduler = CommandScheduler(cluster.commands())
    slurm.set_caps({"a": Fraction(16)})
    assert slurm.read(PROJECTS).grace_s == {}
    cluster.sh("scontrol update partitionname=o-a GraceTime=300")
    try:
        assert slurm.read(PROJECTS).grace_s == {"a": 300.0}
        words = "sbatch --parsable -A team-a --mem=1 --gres=gpu:8 -o /dev/null --wrap"
        ends, stays = (
            cluster.sh(f"cd /home/ada && {words} '{w}'", "ada").strip() for w in ("srun sleep 999", "sleep 999")
        )
        cluster.wait(lambda: running(cluster)["o-a"] == 2, 30, "both running")
        cluster.wait(lambda: f"{ends}.0" in cluster.sh(f"squeue -h -s -j {ends} -o %i"), 30, "a step")
        scheduler.warn_jobs([ends])
        cluster.wait(lambda: ends not in {job.id for job in scheduler.jobs()}, 30, "its end")
        scheduler.requeue_ended(ends)
        row = next(job for job in scheduler.jobs() if job.id == ends)
        assert (row.state, row.restarts) == (JobState.PENDING, 1)
        scheduler.requeue_ended(ends)  # It waits.
        cluster.sh(f"scancel {ends}")
        with pytest.raises(SchedulerRefused, match="it has ended as CANCELLED"):
            scheduler.requeue_ended(ends)
        assert all(not job.preempted_at for job in scheduler.jobs())
        submit(cluster, "b", 2, words="-N2")
        cluster.wait(
            lambda: any(job.id == stays and job.preempted_at for job in scheduler.jobs()), 60, "the grace of slurmctld"
        )
    finally:
        cluster.sh("scontrol update partitionname=o-a GraceTime=0; scancel -u ada")


@pytest.fixture
def shared(lab: Cluster) -> Iterator[SlurmProjects]:
    """With a node of one GPU of four shards, and burstd's table of the projects that share it."""
    lab.sh(f"scontrol update nodename=sh1 nodeaddr={lab.address_of('sh1')} state=power_up")
    lab.wait(lambda: "#" in lab.sh("sinfo -hn sh1 -o %t"), 30, "sh1 powering up")
    lab.boot_slots(["sh1"])
    lab.start_slurmd("sh1")
    lab.wait(lambda: lab.sh("sinfo -hn sh1 -o %t").strip() == "idle", 60, "sh1 idle")
    lab.sh("mkdir -p /var/spool/burstd; chown -R slurm /var/spool/burstd")
    table = Path(lab.head.path("/var/spool/burstd/projects.lua"))
    yield SlurmProjects(lab.commands(), table)
    table.unlink()


def test_a_quota_of_half_a_gpu_is_two_shards_that_come_back_while_burstd_is_dead(
    cluster: Cluster, shared: SlurmProjects
) -> None:
    for project in HALVES.values():
        shared.set_up(project)
        assert shared.plan_setup(project) == ()
    view = shared.read(HALVES)
    assert (view.faults, view.shards) == ({}, dict.fromkeys(HALVES, 4))
    assert shared.read(PROJECTS).shards == {}, "their nodes have no shards"
    shared.set_caps({"half-a": Fraction(3, 8), "half-b": None, "none-c": Fraction(1)})
    assert [limit.gpus for limit in shared.read(HALVES).limits.values()] == [Fraction(1, 4), None, 1]
    shared.set_caps({"half-a": Fraction(0), "half-b": Fraction(0)})
    shared.write_table(HALVES.values(), view.shards)

    def submit_shards(team: str, shards: int, words: str = "-p shared") -> str:
        gres = f"--gres=shard:{shards}" if shards else ""
        command = f"sbatch --parsable -A team-{team} {words} --mem=1 {gres} -o /dev/null --wrap 'sleep 1000'"
        return cluster.sh(f"cd /home/ada && {command}", "ada").strip()

    over = [submit_shards("c", 2) for _ in range(2)]
    cluster.wait(lambda: running(cluster) == {"o-none-c": 2}, 60, "all shards in use beyond quotas")
    submit_shards("a", 2)
    cluster.wait(lambda: running(cluster) == {"o-none-c": 1, "q-half-a": 1}, 60, "the half of a")
    more, nothing = submit_shards("a", 1), submit_shards("a", 0, "-p q-half-a")
    submit_shards("b", 1)
    cluster.wait(lambda: running(cluster) == {"q-half-a": 1, "q-half-b": 1}, 60, "a shard of b's half")
    assert all("Restarts=1" in cluster.sh(f"scontrol show job {job}") for job in over)
    last = submit_shards("b", 1)
    cluster.wait(lambda: running(cluster) == {"q-half-a": 1, "q-half-b": 2}, 60, "the half of b")
    assert "Restarts=0" in cluster.sh(f"scontrol show job {last}")
    reasons = {more: "QOSGrpBilling", nothing: "QOSMinBilling"}
    shown = f"squeue -h -j {more},{nothing} -o '%A %r'"
    cluster.wait(lambda: dict(map(str.split, cluster.sh(shown).splitlines())) == reasons, 60, f"{reasons}")

    larger = replace(HALVES["half-a"], quota=Fraction(3, 4))
    assert shared.read({"half-a": larger}).faults["half-a"].startswith("QOS q-half-a: billing=2, Slurm keeps")
    shared.set_up(larger)
    assert shared.read({"half-a": larger}).faults == {}
    third = replace(larger, quota=Fraction(3, 10))
    config = {"SLURM_CONF": str(cluster.head.path("/etc/slurm/slurm.conf"))}
    (found,) = (f for f in projects_findings([third], config, cluster.commands()) if f.subject.startswith("quota"))
    assert found.consequence == "it is rounded down to 0.25 GPUs: a GPU of shared has 4 shards"
    assert found.remedy == "set projects.half-a.quota to 0.25 or 0.5"

    cluster.sh("scancel -u ada")
    cluster.wait(lambda: not cluster.sh("squeue -h"), 60, "an empty queue")
    for project in HALVES.values():
        shared.remove(project)


def test_a_project_whose_nodes_get_shards_is_counted_in_them(cluster: Cluster, slurm: SlurmProjects) -> None:
    """As it was set up before slurmctld counted shards."""
    project = HALVES["half-a"]
    slurm.set_up(project)
    cluster.sh(
        "sacctmgr -i modify qos q-half-a set GrpTRES=billing=-1,gres/gpu=1 MinTRESPerJob=billing=-1,gres/gpu=1; "
        "sacctmgr -i modify qos o-half-a set GrpTRES=billing=-1,gres/gpu=3; "
        "scontrol update partitionname=q-half-a TRESBillingWeights=; "
        "scontrol update partitionname=o-half-a TRESBillingWeights="
    )
    view = slurm.read({"half-a": project})
    assert "counts other parts of GPUs than its nodes have" in view.faults["half-a"]
    assert not view.shards
    assert view.limits["half-a"].gpus == 3
    slurm.set_up(project)
    assert slurm.plan_setup(project) == ()
    view = slurm.read({"half-a": project})
    assert (view.faults, view.shards, view.limits["half-a"]) == ({}, {"half-a": 4}, OverQuotaLimits(Fraction(0), 1))
    shown = cluster.sh(
        "sacctmgr -nP show qos where name=q-half-a,o-half-a format=name,GrpTRES,MinTRESPerJob,MaxTRESPerJob"
    )
    twice = "gres/gpu=0" if cluster.release == "bookworm" else ""
    assert set(shown.split()) == {f"q-half-a|billing=2|billing=1|{twice}", f"o-half-a|billing=0||{twice}"}
    slurm.remove(project)
