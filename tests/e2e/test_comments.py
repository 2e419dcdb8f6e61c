"""Jobs' comments on the real Slurm: what squeue -o %k shows of a job from its submission on."""

from __future__ import annotations

import pytest

from tests.e2e.sites import events
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

SOLO = "-p burst -C solo -c1 --mem=100 -t5"

ANY = "-p burst -c1 --mem=100 -t5"


def comments(site: Site) -> dict[str, str]:
    """By job (the pending rest of an array by its number), as squeue shows them."""
    lines = site.cluster.sh("squeue -h -o '%i %k'").splitlines()
    pairs = (line.partition(" ") for line in lines)
    return {job.partition("_[")[0]: text.replace("(null)", "") for job, _, text in pairs}


def test_a_job_is_told_what_becomes_of_it(site: Site) -> None:
    job = site.submit(f"{SOLO} --array=1-2 --exclusive", "sleep 200")
    seen: list[str] = []

    def runs() -> bool:
        seen.append(comments(site).get(job, ""))
        return comments(site).get(f"{job}_1", "").startswith("burstd: on solo1 (sandbox, ")

    site.wait(runs, 60, "the first task is told where it runs")
    assert any(text.startswith("burstd: ") for text in seen), seen
    assert {text[:13] for text in seen} <= {"", "burstd: start", "burstd: waits", "burstd: node "}
    assert comments(site)[f"{job}_1"].endswith(" EUR/h)")
    site.cluster.sh(f"scancel {job}_1")
    site.wait(lambda: comments(site).get(f"{job}_2", "").startswith("burstd: on solo1"), 60, "the second one as well")
    site.cluster.sh(f"scancel {job}")
    lost = site.submit(f"{SOLO} -o /nowhere/%j.out")
    why = (
        f"its launch on solo1 failed: the job's output /nowhere/{lost}.out cannot be opened there (No such file or "
        "directory); let --output and --error name a directory that the node has: /nowhere is none that its user may "
        "write to"
    )
    site.wait(lambda: [e["reason"] for e in events(site, f"job:{lost}")][-1:] == [why], 60, "the event of the launch")
    assert why in site.burstctl_json("explain", lost)["summary"]


def test_a_job_that_can_never_run_is_told_at_once_and_what_would_run(site: Site) -> None:
    job = site.submit("-p burst -C closed -c1 --mem=100 -t5")
    site.wait(lambda: comments(site)[job].startswith("burstd: cannot start: "), 10, "it is told")
    said = site.burstctl_json("explain", job)
    assert said["verdict"] == "impossible"
    change = next(c for c in said["changes"] if c["before"] == "-C closed")
    site.cluster.sh(change["command"], user="ada")
    site.wait_job(job)
    # Months later, too, its owner reads what was decided.
    reasons = [e["reason"] for e in events(site, f"job:{job}") if e["new"] == "impossible"]
    assert reasons
    assert "impossible" in site.burstctl("event", "list", "--job", job, user="ada").stdout


def test_what_a_user_wrote_stays(site: Site) -> None:
    his = site.submit(f"{ANY} --comment=for-the-paper", user="bob")
    job = site.submit(f"{ANY} --comment=burst:mem=100", user="bob")
    plain = site.submit(ANY, user="bob")
    limit = "burstd: waits: node limit of user bob is 0"
    site.wait(lambda: limit in comments(site)[plain], 20, "the limit stands in the comment")
    site.wait(
        lambda: comments(site)[job].startswith(f"burst:mem=100 -- {limit}"), 20, "behind the requirements as well"
    )
    assert comments(site)[his] == "for-the-paper"
    site.cluster.sh(f"scancel {plain}")
    site.wait(lambda: plain not in comments(site), 10, "it is gone")
    told = site.burstctl("event", "list", "--job", plain, user="bob").stdout
    assert "node limit of user bob is 0" in told
