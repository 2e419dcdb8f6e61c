"""Four projects on sixteen GPUs of a real Slurm, with burstd: who runs how much, and how many jobs restart for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

import httpx
import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.project import BurstOverQuota
from burstd.domain.slurm.shape import Gres, Shape
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.e2e.phases import PATIENCE_S, Phases, projects_on, settings
from tests.e2e.sites import events, site_up
from tests.lab import accounting
from tests.lab.base_site import CONFIG
from tests.lab.programs import PREFIX
from tests.lab.releases import releases
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

FULL = "trixie"
CLOUD = Pool(
    "gpu", ("gpu1", "gpu2", "gpu3", "gpu4"), ("burst",), Shape(2, 1000, (Gres("gpu", "v100", 2),), frozenset({"cloud"}))
)
GRACE_S = 6
TOLD = """#!/bin/bash
#SBATCH -A team-a --mem=1 --gres=gpu:1 -o /dev/null
export FILE=task.$SLURM_ARRAY_TASK_ID
srun bash -c '
[ $((SLURM_ARRAY_TASK_ID % 2)) = 0 ] || trap "echo told >> $FILE; trap exit TERM" TERM
[ -e $FILE ] && echo goes_on >> $FILE || echo begins >> $FILE
while :; do sleep 1000 & wait $!; done'
"""
"""Tasks with an odd number write a file on SIGTERM and go on, the others end. Once they begin they are ready for it."""
TYPES = """
[[cloud.types]]
name = "g4.v100"
cpus = 2
memory_mib = 2048
gpu_type = "v100"
gpus = 2
price = "9.80"

[cloud.capacity.north]
"g4.v100" = 8
"""


def alarms(site: Site) -> list[str]:
    """What burstd warns of."""
    found: list[str] = site.burstctl_json("status")["alarms"]
    return found


on_one_release = pytest.mark.parametrize("whole", [FULL], indirect=True)


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    projects = projects_on("onprem")
    with site_up(
        request.param,
        pools=[CLOUD],
        types=TYPES,
        projects=projects.values(),
        onprem_gpus=8,
        shared=tmp_path_factory.mktemp("shared"),
        settings=settings(projects),
    ) as up:
        yield up


@pytest.fixture
def phases(whole: Site, figure: Callable[[str], None]) -> Phases:
    """Nobody has jobs, and burstd runs."""
    found = Phases(whole, projects_on("onprem"), figure)
    found.clear()
    return found


@pytest.mark.parametrize("whole", releases(FULL, "bookworm", "forky"), indirect=True)
def test_six_phases(phases: Phases) -> None:
    phases.six_phases()


@on_one_release
def test_the_quota_holds_while_slurmdbd_is_down(phases: Phases) -> None:
    site = phases.site
    phases.settle("d idle", [8, 4, 4, 0], 0, lambda: phases.submit_together("abc", 16))
    before = phases.limits()
    site.cluster.sh("pkill -x slurmdbd")
    try:
        phases.settle("d asks for 8, slurmdbd down", [4, 2, 2, 8], 8, lambda: phases.submit_jobs("d", 8), written=False)
        site.wait(lambda: "slurmdbd" in str(alarms(site)), 60, "an alarm")
        assert phases.limits() == before
    finally:
        site.cluster.head.run(accounting.START_SLURMDBD)
    site.wait(lambda: phases.limits() == [0, 0, 0, 0], 60, "what was to be written")
    site.wait(lambda: "slurmdbd" not in str(alarms(site)), 60, "no alarm any more")


@on_one_release
def test_a_reconfiguration_takes_no_share_away(phases: Phases) -> None:
    """Slurm has the partitions as slurm.conf has them again; what QOS limit stays."""
    site = phases.site
    phases.settle("d idle", [8, 4, 4, 0], 0, lambda: phases.submit_together("abc", 16))
    limits = phases.limits()
    site.cluster.sh(
        "scontrol update partitionname=o-a PriorityTier=77; scontrol update partitionname=o-b PriorityTier=77"
    )
    site.wait(lambda: phases.tiers() == [1, 1, 1, 1], 30, "the tiers that burstd wants")
    site.cluster.sh("scontrol reconfigure")
    site.wait(lambda: site.cluster.head.run(["sinfo", "-h"], check=False).returncode == 0, 30, "slurmctld answering")
    assert (phases.running(), phases.limits(), sum(phases.restarts().values())) == ([8, 4, 4, 0], limits, 0)


@on_one_release
def test_jobs_that_may_not_be_requeued_are_never_victims(phases: Phases) -> None:
    phases.submit_jobs("a", 16, "--no-requeue")
    phases.site.wait(lambda: phases.running() == [4, 0, 0, 0], 30, "the quota of a")
    phases.settle("b, c and d ask", [4, 2, 2, 8], 0, lambda: phases.submit_together("bcd", 16))


RECLAIMED = ("reclaim", "requeued")


@on_one_release
def test_jobs_are_told_before_they_are_requeued_for_others(phases: Phases) -> None:
    """Two go for the quota of b, by slurmctld, three for its share, by burstd; half of all end of the signal."""
    site = phases.site
    site.cluster.sh("rm -f task.*", "ada")
    site.cluster.sh(f"scontrol update partitionname=o-a GraceTime={GRACE_S}")
    try:
        array = site.submit_script(TOLD, "--array=1-16")
        site.wait(lambda: site.cluster.sh("cat task.*", "ada", check=False).count("begins") == 16, 60, "16 jobs of a")
        phases.settle("b asks, with a grace", [11, 5, 0, 0], 5, lambda: phases.submit_jobs("b", 16))
        restarts = {job: count for job, count in phases.restarts().items() if count}
        assert set(restarts.values()) == {1}
        assert {int(job.partition("_")[2]) % 2 for job in restarts} == {0, 1}
        for task in range(1, 17):
            job, lines = f"{array}_{task}", site.cluster.sh(f"cat task.{task}", "ada").split()
            assert lines == (["begins", "told"] if job in restarts and task % 2 else ["begins"]), job

        def by_burstd() -> list[list[dict[str, Any]]]:
            """For each job that burstd requeued itself, what it has on record of that."""
            logged = [e for e in events(site, "job:") if e["new"] in ("warned", "requeued")]
            found = [[e for e in logged if e["subject"] == f"job:{job}"] for job in restarts]
            # One that burstd has warned may be slurmctld's in the end, which then takes it for the quota of b.
            return [changes for changes in found if changes and (changes[-1]["by"], changes[-1]["new"]) == RECLAIMED]

        # Slurm shows a restart before burstd has written down that it asked for it.
        site.wait(lambda: bool(by_burstd()), 30, "a restart on record")
        for changes in by_burstd():
            assert [change["new"] for change in changes] == ["warned", "requeued"]
            assert changes[0]["reason"].startswith("project b asks for its share: project a has ")
        causes = Counter(e["by"] for e in events(site, f"job:{array}_") if e["new"] == "warned")
        assert causes["reclaim"], causes
        phases.leave("b")
        site.wait(lambda: phases.running() == [16, 0, 0, 0], PATIENCE_S, "all of a again")
        site.wait(
            lambda: site.cluster.sh("cat task.*", "ada").count("goes_on") == len(restarts),
            30,
            "what they have written is found",
        )
    finally:
        site.cluster.sh("scontrol update partitionname=o-a GraceTime=0")


@on_one_release
def test_an_account_that_is_gone_is_named(phases: Phases) -> None:
    site = phases.site
    site.cluster.sh("sacctmgr -i delete account team-c")
    try:
        site.wait(lambda: "project c: account team-c: not there" in str(alarms(site)), 30, "an alarm")
        phases.settle("b asks", [0, 16, 0, 0], 0, lambda: phases.submit_jobs("b", 16))
    finally:
        site.cluster.sh("sacctmgr -i add account team-c && sacctmgr -i add user ada account=team-c")
    site.wait(lambda: not alarms(site), 60, "no alarm any more")


OWN_COST = '[site.cost.old]\nnodes = ["op*"]\nnode_hour = 9\nkw = "1.8"\nenergy_kwh = 1\n'
"""An hour costs 7.20 EUR used or not, and 1.80 EUR more if it is used."""
HALF = projects_on("onprem", "burst", burst=BurstOverQuota.ALWAYS)


@pytest.fixture(scope="module")
def half() -> Iterator[Site]:
    """Half of the GPUs are in the cloud."""
    with site_up(
        FULL, pools=[CLOUD], types=TYPES, projects=list(HALF.values()), onprem_gpus=4,
        settings=settings(HALF, keep_alive_s=600) + OWN_COST,
    ) as site:  # fmt: skip
        yield site


@pytest.mark.thorough
def test_six_phases_with_half_of_the_gpus_in_the_cloud(half: Site, figure: Callable[[str], None]) -> None:
    phases = Phases(half, HALF, figure)
    phases.submit_jobs("a", 16)
    half.wait(lambda: phases.running() == [16, 0, 0, 0], 60, "four machines of the cloud")
    phases.clear()
    phases.six_phases()
    phases.clear()
    _both_places_are_compared_by_slurms_own_times(half)


def _both_places_are_compared_by_slurms_own_times(site: Site) -> None:
    """Of two like jobs one runs here, with a quarter of a node, one there, with half of a machine that is up."""
    words = "-A team-d -J beside --mem=1 --gres=gpu:1 -o /dev/null"
    here, there = (site.submit(f"{words} {where}", "sleep 2") for where in ("-w op1", "-C cloud"))

    def accounted() -> list[str]:
        return site.cluster.sh(f"sacct -nXP -s CD -j {here},{there} -o Submit,Eligible,Start,End").split()

    site.wait(lambda: len(accounted()) == 2, 60, "both jobs completed in Slurm's accounting")
    times = [[datetime.fromisoformat(text).timestamp() for text in line.split("|")] for line in accounted()]
    own_h, rented_h = ((ended - started) / 3600 for _, _, started, ended in times)
    owned, marginal, charged = 7.20 * own_h / 4, 1.80 * own_h / 4, 9.80 * rented_h / 2

    def by_hand(job: str) -> bool:
        """Once its end and that of the other are on record."""
        try:
            answer = site.api("/v1/compare", job=job)
        except httpx.HTTPStatusError:
            return False
        used, of_use, rent = (
            float(sum(Decimal(one["amount"]) for one in answer[place][name]["costs"] or ()))
            for place, name in (("here", "used"), ("here", "marginal"), ("there", "charged"))
        )
        told = [answer[place][name]["seconds"] for place in ("here", "there") for name in ("wait", "run", "completion")]
        by_slurm = [
            seconds
            for submitted, eligible, started, ended in times
            for seconds in (started - eligible, ended - started, ended - submitted)
        ]
        idle = owned / float(answer["groups"][0]["utilisation"])
        return (
            told == pytest.approx(by_slurm, abs=0.05)
            and [used, of_use, rent] == pytest.approx([idle + marginal, marginal, charged], rel=0.03)
            and float(answer["break_even"] or 0) == pytest.approx(owned / (charged - marginal), rel=0.03)
        )

    for job in (here, there):
        site.wait(partial(by_hand, job), 30, f"job {job} here and there as Slurm's accounting has both: {times}")


def test_a_quota_waits_for_cloud_nodes_and_takes_gpus_back_where_none_comes(
    half: Site, figure: Callable[[str], None]
) -> None:
    phases = Phases(half, HALF, figure)

    def d_waits() -> bool:
        return "PriorityTier=1 " in half.cluster.sh("scontrol -o show partition q-d")

    def clear() -> None:
        """Nobody has jobs, every slot of the cloud is free, and d's quota waits."""
        phases.clear()
        half.wait_empty()
        off = ["idle~"] * len(CLOUD.slots)
        half.wait(lambda: half.cluster.sh("sinfo -h -N -p burst -o %t").split() == off, 60, "slots that are free")
        half.wait(d_waits, 30, "d's quota waiting")

    half.write(CONFIG, half.burstd_toml().replace("keep_alive_s = 600", "keep_alive_s = 2"))
    half.burstctl("policy", "reload")
    half.burstctl("project", "set", "d", "--reclaim-after", "10m")
    half.burstctl("project", "set", "a", "--burst-over-quota", "never")
    clear()
    phases.submit_jobs("a", 16)
    half.wait(lambda: phases.running() == [8, 0, 0, 0], 30, "a alone")
    phases.settle("d asks for 8, and the cloud has nodes", [8, 0, 0, 8], 0, lambda: phases.submit_jobs("d", 8))
    assert d_waits()
    half.kill_burstd("KILL")
    phases.leave("d")
    phases.submit_together("bc", 2)
    phases.settle("burstd dead, b and c ask", [8, 2, 2, 0], 0, lambda: None, written=False)
    phases.settle("d's quota still waits", [8, 2, 2, 4], 0, lambda: phases.submit_jobs("d", 8), written=False)
    # What systemd does (tests/e2e/test_units.py).
    quotas = [f"{PREFIX}/bin/burstd-quotas", "--config", CONFIG]
    phases.settle("burstd-quotas", [4, 2, 2, 8], 4, lambda: half.cluster.head.run(quotas), written=False)
    half.start_burstd()
    clear()
    half.cloud.inject_fault(SandboxFault(FaultKind.CAPACITY))
    phases.submit_jobs("a", 16)
    half.wait(lambda: phases.running() == [8, 0, 0, 0], 30, "a alone")
    phases.settle("d asks, and the cloud has none", [4, 0, 0, 4], 4, lambda: phases.submit_jobs("d", 8), written=False)
