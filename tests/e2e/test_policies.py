"""Policies on the real Slurm: a budget, a job that cannot be, a job that had better wait, a module that is broken."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from burstd.cli.session import ExitCode
from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from tests.e2e.sites import claims_of, comments_of, events, queue, site_up, wait_all_gone
from tests.lab.base_site import CONFIG
from tests.lab.site import CPU, GPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

# The cloud has no machine with such GPUs: Slurm takes the job, and nothing that burstd may start can run it.
DREAM = Pool(
    "dream", ("dream1",), ("burst",), Shape(2, 1000, (Gres("gpu", "b300", 1),), frozenset({"cloud"})),
    (OfferRule("sandbox", ("c2*",), image="node"),),
)  # fmt: skip
SETTINGS = """
[policies]
chain = ["broker", "wait_aware", "idle", "budget"]
[policies.wait_aware]
value = 2
[policies.idle]
keep_alive_s = 2
[policies.budget.projects.atlas]
limit = 1.00
[policies.budget.projects.belle]
limit = 0.10
"""
FOLDER = "/etc/burstd/policies"
GOOD = '''"""Nothing is started for jobs of this name."""

from pydantic import BaseModel, ConfigDict

from burstd.domain.plugins.policy import PolicyPlugin, without_jobs


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = "secret"


class Names:
    name = "names"

    def __init__(self, settings):
        self.settings = settings

    def evaluate(self, snapshot, target):
        def refusal(want, job):
            return "its name is not allowed" if job.name == self.settings.name else ""

        return without_jobs(target, self.name, snapshot, refusal)


plugin = PolicyPlugin("names", Settings, Names)
'''
NO_SYNTAX = GOOD.replace("def evaluate(self, snapshot, target):", "def evaluate(self, snapshot, target)")
RAISES = GOOD.replace('return "its name', 'return 1 / 0, "its name')
HANGS = GOOD.replace('return "its name', 'while job.name:\n                pass\n            return "its name')


@pytest.fixture(scope="module")
def whole() -> Iterator[Site]:
    with site_up(
        pools=[CPU, GPU, DREAM], settings=SETTINGS, comments=True, brokered=("burst",), quoted=("burst",)
    ) as up:
        yield up


@pytest.fixture
def site(whole: Site) -> Site:
    """The site without jobs and machines, and with the settings that it began with."""
    whole.cluster.sh(f"scancel -u ada; scancel -u bob; rm -rf {FOLDER}")
    whole.write(CONFIG, whole.burstd_toml())
    whole.burstctl("policy", "reload")
    wait_all_gone(whole)
    return whole


def settings(site: Site, old: str, new: str) -> None:
    """Other settings, not yet taken."""
    text = site.burstd_toml()
    assert old in text
    site.write(CONFIG, text.replace(old, new))


def explained(site: Site, job: str) -> str:
    return " ".join(site.burstctl("explain", job, user="ada").stdout.split())


def told_at_terminal(site: Site, words: str) -> str:
    """What sbatch says on a terminal, once burstd has time for a quote: it may just have answered another question."""
    found: list[str] = []

    def is_told() -> bool:
        said = site.cluster.sh(f"script -qec {shlex.quote(words)} /dev/null", "ada", check=False)
        found.append(" ".join(said.split()))
        return "burstd: " in found[-1]

    site.wait(is_told, 30, f"burstd's word on {words}")
    return found[-1]


def test_a_budget_stops_the_second_job_and_raising_it_starts_it(site: Site) -> None:
    words = "-p burst -A atlas -c1 --mem=100 -t90"
    first = site.submit(words, "sleep 300")
    site.wait_job(first, ["RUNNING"])
    second = site.submit(words, "sleep 1")
    site.wait(lambda: "project atlas has" in " ".join(comments_of(site, second)), 15, "squeue -o %k names the budget")
    [comment] = comments_of(site, second)
    assert comment.startswith("burstd: waits: ")
    assert "1.00 EUR" in comment
    why = explained(site, second)
    assert "budget" in why
    assert "project atlas has" in why
    assert claims_of(site, second) == []
    assert site.job(second)["JobState"] == "PENDING", "it would fit beside the first, on a machine that is not its own"
    [claim] = claims_of(site, first)
    reserved = Decimal(site.api(f"/v1/nodes/{claim['claim']}")["node"]["reserved"]["amount"])
    assert Decimal("0.60") < reserved < Decimal("1.00"), "90 minutes at 0.40 an hour, and what is around them"

    settings(site, "limit = 1.00", "limit = 2.00")
    site.burstctl("policy", "reload")
    site.wait_job(second)
    assert comments_of(site, second) != [comment]
    site.cluster.sh(f"scancel {first}")
    wait_all_gone(site)
    spent = Decimal(site.api("/v1/bill", group="account")["total"][0]["amount"])
    assert spent < Decimal("0.10"), "what was reserved is free again but for what it cost"
    third = site.submit("-p burst -A atlas -c1 --mem=100 -t90", "sleep 1")
    site.wait_job(third)


def test_what_can_never_be_is_told_at_once(site: Site) -> None:
    with pytest.raises(RuntimeError, match="Requested node configuration is not available"):
        site.submit("-p burst --gres=gpu:h100:9 -t5")
    told = told_at_terminal(site, "sbatch --parsable -p burst -A belle -c1 --mem=100 -t600 --wrap true")
    assert "burstd: cannot start: " in told
    assert "burstd: budget of project belle: 0.10 EUR left of 0.10 EUR (month)" in told
    assert told.split()[-1].isdecimal(), "the job's number, as scripts expect it"
    told = told_at_terminal(site, "sbatch --test-only -p burst --gres=gpu:b300:1 -t5 --wrap true")
    assert "burstd: cannot start: no offer can serve pool dream" in told
    dream = site.submit("-p burst --gres=gpu:b300:1 -t5")
    poor = site.submit("-p burst -A belle -c1 --mem=100 -t600")
    for job, why in ((dream, "no offer can serve pool dream"), (poor, "the whole budget")):
        site.wait(lambda job=job, why=why: why in " ".join(comments_of(site, job)), 15, f"{why}, in squeue")  # type: ignore[misc]
        [comment] = comments_of(site, job)
        assert comment.startswith("burstd: cannot start: ")
        assert why in explained(site, job)
    assert site.instances() == []


def test_a_job_that_starts_soon_stays_and_one_that_would_not_bursts(site: Site) -> None:
    """Both premises nodes are busy, one for a minute at most and one for ten hours."""
    soon, late = (n["name"] for n in _onprem(site))
    site.wait_job(site.submit(f"-p onprem -w {soon} --exclusive -t1", "sleep 25"), ["RUNNING"])
    site.wait_job(site.submit(f"-p onprem -w {late} --exclusive -t600", "sleep 600"), ["RUNNING"])
    stays = site.submit("-p onprem,burst -c2 --mem=100 -t30", "sleep 1")
    site.wait(lambda: "on premises" in explained(site, stays), 30, "it is told that it had better wait")
    assert "wait_aware" in explained(site, stays)
    assert claims_of(site, stays) == []
    # Both nodes: that is in ten hours.
    goes = site.submit("-p onprem,burst -N2 -c2 --mem=100 -t30", "sleep 60")
    site.wait_job(goes, ["RUNNING"])
    assert len(claims_of(site, goes)) == 2
    site.wait_job(stays)
    assert claims_of(site, stays) == []
    assert site.job(stays)["NodeList"] == soon


def _onprem(site: Site) -> list[dict[str, str]]:
    names = site.cluster.sh("sinfo -h -N -p onprem -o %N").split()
    assert len(names) == 2
    return [{"name": name} for name in names]


def policies(site: Site) -> dict[str, Any]:
    return {p["name"]: p for p in site.burstctl_json("policy", "list")["policies"]}


def test_a_broken_module_changes_nothing(site: Site) -> None:
    site.write(f"{FOLDER}/names.py", GOOD)
    settings(site, '"idle", "budget"]', '"idle", "names", "budget"]')
    checked = site.burstctl("policy", "check", check=False)
    assert checked.returncode == ExitCode.OK, checked.stdout
    site.burstctl("policy", "reload")
    assert policies(site)["names"]["origin"] == f"{FOLDER}/names.py"
    secret = site.submit("-p burst -c1 --mem=100 -t5 -J secret")
    site.wait(
        lambda: "its name is not allowed" in " ".join(comments_of(site, secret)), 15, "the new policy is in force"
    )

    site.write(f"{FOLDER}/names.py", NO_SYNTAX)
    line = next(n for n, text in enumerate(NO_SYNTAX.splitlines(), 1) if "def evaluate" in text)
    for words in (("policy", "check"), ("policy", "reload")):
        refused = site.burstctl(*words, check=False)
        assert refused.returncode == ExitCode.NEGATIVE
        assert f"{FOLDER}/names.py:{line}" in " ".join((refused.stdout + refused.stderr).split())
    site.signal_burstd("HUP")
    site.wait(lambda: "settings not taken" in site.daemon_log(), 10, "SIGHUP is refused as well")
    other = site.submit("-p burst -c1 --mem=100 -t5")
    site.wait_job(other)
    assert claims_of(site, secret) == [], "the old one is in force"
    assert "its name is not allowed" in explained(site, secret)


@pytest.mark.parametrize(
    ("code", "why"), [(RAISES, "ZeroDivisionError"), (HANGS, "it took longer than 1 s")], ids=["raises", "hangs"]
)
def test_a_policy_that_fails_at_work_holds_everything(site: Site, code: str, why: str) -> None:
    words = "-p burst -c1 --mem=100 -t30"
    running = site.submit(words, "sleep 300")
    site.wait_job(running, ["RUNNING"])
    [claim] = claims_of(site, running)
    site.write(f"{FOLDER}/names.py", code)
    text = site.burstd_toml().replace('"idle", "budget"]', '"idle", "names", "budget"]\ntimeout_s = 1.0')
    site.write(CONFIG, text)
    site.burstctl("policy", "reload")
    # It fails over the first job of that name.
    waiting = site.submit("-p burst -c2 --mem=100 -t5 -J secret", "sleep 1")
    site.wait(lambda: any("policy names failed" in a for a in site.api("/v1/status")["alarms"]), 20, "an alarm")
    assert why in policies(site)["names"]["error"]
    assert claims_of(site, waiting) == []
    assert site.job(running)["JobState"] == "RUNNING"
    assert [c["claim"] for c in claims_of(site, running)] == [claim["claim"]]
    assert [e for e in events(site, f"claim:{claim['claim']}") if e["new"] in ("draining", "terminating")] == []
    site.write(f"{FOLDER}/names.py", GOOD)
    settings(site, '"idle", "budget"]', '"idle", "names", "budget"]')
    site.burstctl("policy", "reload")
    site.wait(lambda: not any("failed" in a for a in site.api("/v1/status")["alarms"]), 20, "the alarm is over")
    site.wait(lambda: "its name is not allowed" in explained(site, waiting), 15, "and it does its work")


def brokered(required: str, command: str) -> str:
    return f"#!/bin/sh\n#SBATCH --comment='burst: {required}'\n{command}\n"


def test_a_job_runs_on_a_machine_that_meets_its_comment_and_on_no_other(site: Site) -> None:
    """The nodes on premises are free, and so is half of a node in the cloud; none of them has GPUs."""
    plain = site.submit("-p burst -c1 --mem=100 -t5", "sleep 300")
    site.wait_job(plain, ["RUNNING"])
    words = "-p onprem,burst -t5 --requeue"
    site.kill_burstd("KILL")
    misspelt = site.submit_script(brokered("gpu=3 modle=v100", "sleep 1"), words)
    dream = site.submit_script(brokered("gpu=3 model=a100", "sleep 1"), words)
    array = site.submit_script(brokered("gpu=3 model=v100 mem=300", "sleep 300"), f"{words} --array=1-2")
    # Its own begin time is not changed, so that Slurm starts it while burstd is not there.
    early = site.submit_script(brokered("gpu=1 model=v100", "sleep 300"), f"{words} -c1 --begin=now+1")
    site.wait_job(early, ["RUNNING"])
    assert site.job(early)["NodeList"].startswith("op")
    # So does one in the site's own partition, which nothing holds back there.
    local = site.submit_script(brokered("gpu=2", "sleep 300"), "-p onprem -c1 -t5")
    site.wait_job(local, ["RUNNING"])
    site.start_burstd()
    for job, why in (
        (local, "cannot start: no machine meets 'burst: gpu=2'; nearest is node op1: 0 GPUs, 2 required"),
        (misspelt, "cannot start: burst: unknown word modle, did you mean model?"),
        (dream, "cannot start: no machine meets 'burst: gpu=3 model=a100'; nearest is sandbox/"),
    ):
        site.wait(lambda job=job, why=why: why in " ".join(comments_of(site, job)), 20, f"{why}, in squeue")  # type: ignore[misc]
        assert why.partition(": ")[2] in explained(site, job)
    assert "g4.v100/on-demand (pool gpu): GPUs are v100, not a100" in explained(site, dream)
    # A job that waits has no NodeList.
    site.wait(lambda: site.job(early).get("NodeList", "").startswith("gpu"), 60, "it is moved")
    site.wait_job(early, ["RUNNING"])
    assert site.job(early)["Restarts"] == "1"
    tasks = (f"{array}_1", f"{array}_2")
    for task in tasks:
        site.wait_job(task, ["RUNNING"])
    rows = {job: nodes for job, _, nodes in queue(site, "RUNNING")}
    assert {rows[task][:3] for task in tasks} == {"gpu"}
    # "gres:" before Slurm 23.02, "gres/" from then on.
    asked = site.cluster.sh(f"squeue -h -r -j {array} -o '%b %m'").split("\n")[:-1]
    assert {text[5:] for text in asked} == {"gpu:v100:3 300M"}
    site.cluster.sh(f"scontrol update jobid={misspelt} comment='burst: gpu=3 model=v100'", user="ada")
    site.wait_job(misspelt)
    assert site.job(misspelt)["NodeList"].startswith("gpu")
    # Begun anew, it is kept off the free nodes as before.
    site.cluster.sh(f"scontrol requeue {tasks[0]}")
    site.wait(lambda: site.job(tasks[0])["JobState"] == "PENDING", 20, "the job waits again")
    # Slurm kills what starts on a node of its last run within a second of its requeue.
    since = int(site.cluster.sh("date +%s"))
    site.wait(lambda: int(site.cluster.sh("date +%s")) > since + 2, 20, "that second is over")
    site.cluster.sh(f"scontrol update jobid={tasks[0]} StartTime=now")
    site.wait_job(tasks[0], ["RUNNING"])
    assert site.job(tasks[0])["NodeList"].startswith("gpu")
    assert site.job(dream)["JobState"] == "PENDING"
    # Which nodes of the list are its user's is known after a restart too.
    site.kill_burstd("KILL")
    site.cluster.sh(f"scontrol update jobid={dream} comment=''", user="ada")
    site.start_burstd()
    site.wait_job(dream)
    assert site.job(dream)["NodeList"].startswith("op")
