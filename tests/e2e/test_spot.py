"""Machines that are taken back, or have a fault: drained with the reason, the job begun anew elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from burstd.domain.cloud.offer import OfferRule
from providers.sandbox.boxes.box import find_boxes
from tests.e2e.sites import (
    QUICK,
    TYPES_WITH_SPOT,
    claims_of,
    events,
    node_box,
    queue,
    record,
    restarts,
    seconds_until,
    site_up,
    wait_all_gone,
)
from tests.e2e.test_staging import manifest, submit, wait_over
from tests.lab.site import CPU, GPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

SPOT = replace(CPU, rules=(OfferRule("sandbox", ("c2*",), markets=("on-demand", "spot"), image="node"),))
NOTICE_S = 45.0
GPUS = replace(GPU, slots=GPU.slots[:4])
CUT = ("interrupted", "requeued")
KERNEL_LOG = "/run/burstd-kernel-log"
MAILS, MESSAGES = "/var/log/slurm/mails", "/var/log/slurm/messages"
"""What Slurm's MailProg was called with, and what burstd's hook got."""
NOTIFY = """
[notify]
program = "/usr/local/bin/burstd-hook"
jobs = ["spot"]
begin_after_s = 1
end_after_s = 1
"""
HARMLESS = "NVRM: Xid (PCI:0000:2b:00): 31, pid=1, name=python3, Ch 00000008, intr 00000000. MMU Fault\n" * 1000
FELL_OFF = "NVRM: Xid (PCI:0000:2b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
SAYS_IT_IS_BAD = """#!/bin/sh
[ "$1" = -L ] || echo '<gpu id="00000000:2B:00.0">
<remapped_row_failure>Yes</remapped_row_failure>
</gpu>'
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    settings = f"{QUICK}\n[health]\ncheck_interval_s = 3\n{NOTIFY}"
    conf = "MailProg=/usr/local/bin/slurm-mail"
    with site_up(pools=[SPOT, GPUS], types=TYPES_WITH_SPOT, settings=settings, extra_conf=conf) as up:
        up.write("/usr/local/bin/slurm-mail", f'#!/bin/sh\necho "$*" >>{MAILS}\n', 0o755)
        up.write("/usr/local/bin/burstd-hook", f"#!/bin/sh\ncat >>{MESSAGES}\n", 0o755)
        yield up


def running(site: Site, job: str, but: str = "", timeout_s: float = 90.0) -> dict[str, str]:
    """Waits until the job runs on a machine other than ``but``; the claim under it."""

    def claim() -> dict[str, str] | None:
        nodes = [nodes for i, state, nodes in queue(site) if (i, state) == (job, "RUNNING")]
        live = site.api("/v1/nodes")["nodes"]
        return next((n for n in live if [n["slot"]] == nodes and n["instance"] != but), None)

    site.wait(lambda: claim() is not None, timeout_s, f"job {job} running")
    found = claim()
    assert found is not None
    return found


def reason(site: Site, slot: str) -> str:
    """Why the node is drained, as ``sinfo -R`` tells; empty: it is not."""
    lines = site.cluster.sh("sinfo -h -R -N -o '%n|%E'").splitlines()
    return next((text for name, text in (line.split("|", 1) for line in lines) if name == slot), "")


def taken_back(site: Site, job: str, claim: dict[str, str], number: int) -> tuple[float, float]:
    """Waits until the node is drained for the notice that its machine got; then until the job is requeued."""
    slot = claim["slot"]
    drained = seconds_until(site, lambda: reason(site, slot).startswith("burstd: interruption, ends "), 15, "drained")
    if not site.burstd_runs():
        site.start_burstd()
    return drained, seconds_until(site, lambda: restarts(site, [job])[job] == number, 15, "the job requeued")


def test_a_job_outlives_its_spot_machines(site: Site, figure: Callable[[str], None]) -> None:
    mail = "--mail-type=ALL"
    job = site.submit(f"-p burst -c2 -t9 {mail}", '[ "${SLURM_RESTART_COUNT:-0}" -ge 2 ] || sleep 300')
    before = ""
    for number in (1, 2):
        claim = running(site, job, before)
        assert claim["offer"].endswith("/spot")
        if number == 2:
            # The machine has to say it by itself.
            site.kill_burstd()
        before = claim["instance"]
        site.cloud.interrupt(before, NOTICE_S)
        drained, requeued = taken_back(site, job, claim, number)
        who = "the machine alone" if number == 2 else "machine or queue"
        figure(f"notice to drained node, by {who}: {drained:.1f} s, to the requeue of its job: {requeued:.1f} s more")
    site.wait_job(job, timeout_s=90)
    last = claims_of(site, job)[-1]
    assert last["offer"].endswith("/on-demand")
    planned = events(site, f"claim:{last['claim']}")[0]
    assert "on demand: its nodes were interrupted 2 times" in planned["reason"]
    told = [e for e in events(site, f"job:{job}") if e["new"] == "interrupted"]
    assert [e["by"] for e in told] == ["spot", "spot"]
    assert "interruption, ends" in told[0]["reason"]
    _mails_and_messages(site, job)
    wait_all_gone(site)
    _every_slot_is_usable_again(site)


def _mails_and_messages(site: Site, job: str) -> None:
    """Slurm's own mails are as without burstd; burstd tells the job's owner of each machine that was taken back."""

    def messages() -> list[dict[str, Any]]:
        text = site.cluster.sh(f"cat {MESSAGES} 2>/dev/null || true")
        found = [json.loads(line) for line in text.splitlines()]
        return [one for one in found if one["kind"] == "job" and one["data"]["job"] == job]

    site.wait(lambda: len({one["id"] for one in messages()}) == 2, 20, "both messages")
    assert {(one["user"], one["event"]) for one in messages()} == {("ada", "spot")}
    mails = site.cluster.sh(f"grep -o 'Job_id={job} .*' {MAILS}").splitlines()
    words = [next(w for w in ("Began", "Requeued", "Ended", "Failed", "?") if w in f"{mail}?") for mail in mails]
    assert words == ["Began", "Requeued", "Began", "Requeued", "Began", "Ended"]


def _every_slot_is_usable_again(site: Site) -> None:
    assert not [slot for slot in SPOT.slots if reason(site, slot)]
    jobs = [site.submit("-p burst -c2 -t5", "sleep 1") for _ in SPOT.slots]
    for job in jobs:
        site.wait_job(job, timeout_s=90)


def test_a_hint_lets_the_job_end(site: Site) -> None:
    wait_all_gone(site)
    job = site.submit("-p burst -c2 -t5", "until [ -e /run/end ]; do sleep 1; done")
    claim = running(site, job)
    site.cloud.recommend_rebalance(claim["instance"])
    site.wait(lambda: reason(site, claim["slot"]) == "burstd: rebalance hint", 15, "drained")
    node_box(site, claim["slot"]).run(["touch", "/run/end"])
    site.wait_job(job, timeout_s=60)
    assert restarts(site, [job]) == {job: 0}
    wait_all_gone(site)


def runs_again(site: Site, job: str, before: dict[str, str]) -> float:
    """Waits until the job runs on another machine; for how many seconds."""
    return seconds_until(site, lambda: bool(running(site, job, before["instance"], 120)), 120, "on another machine")


@pytest.mark.thorough
def test_a_job_outlives_its_gpus(site: Site, figure: Callable[[str], None]) -> None:
    """Xids in the kernel's log: harmless ones, then a lost GPU. On the next machine nvidia-smi, with burstd dead."""
    wait_all_gone(site)
    job, other = (site.submit("-p burst -c2 --gres=gpu:v100:1 -t9", "sleep 300") for _ in range(2))
    first, second = running(site, job), running(site, other)
    box = node_box(site, first["slot"])
    pid = box.run(["pgrep", "-x", "-o", "sleep", "-u", "ada"]).stdout.split()[0]
    box.run(["tee", KERNEL_LOG], input=HARMLESS.replace("pid=1", f"pid={pid}"))
    note = f"it has met Xid 31 on GPU 0000:2b:00.0 of {first['slot']}"
    site.wait(lambda: note in site.burstctl_in_process("explain", job), 60, "a note of its Xid")
    box.run(["tee", KERNEL_LOG], input=FELL_OFF)
    drained = seconds_until(site, lambda: reason(site, first["slot"]).endswith("Z, jobs are requeued"), 60, "drained")
    assert reason(site, first["slot"]).startswith("burstd: unhealthy, Xid 79 on GPU 0000:2b:00.0 at 20")
    requeued = seconds_until(site, lambda: restarts(site, [job])[job] == 1, 60, "the job requeued")
    figure(f"Xid 79 to drained node: {drained:.1f} s, to the requeue of its job: {requeued:.1f} s more")
    replaced = runs_again(site, job, first)
    life = events(site, f"claim:{claims_of(site, job)[-1]['claim']}")
    times = {e["new"]: datetime.fromisoformat(e["time"]) for e in life}
    boot = (times["ready"] - times["planned"]).total_seconds()
    figure(f"from there to its run on another machine: {replaced:.1f} s, of which {boot:.1f} s are the machine's boot")
    slot, box = second["slot"], node_box(site, second["slot"])
    site.kill_burstd()
    box.run(["tee", "/usr/local/bin/smi"], input=SAYS_IT_IS_BAD)
    box.run(["install", "/usr/local/bin/smi", "/usr/local/bin/nvidia-smi"])
    drained = seconds_until(site, lambda: reason(site, slot).endswith("Z, jobs end first"), 60, "drained")
    assert "unhealthy, GPU 0000:2B:00.0 has bad memory that cannot be replaced at 20" in reason(site, slot)
    assert site.job(other)["JobState"] == "RUNNING"
    box.run(["tee", KERNEL_LOG], input=FELL_OFF)
    worse = seconds_until(site, lambda: reason(site, slot).endswith("Z, jobs are requeued"), 60, "worse")
    figure(
        f"nvidia-smi's word to drained node with burstd killed: {drained:.1f} s; Xid 79 to its reason: {worse:.1f} s"
    )
    site.start_burstd()
    requeued = seconds_until(site, lambda: restarts(site, [other])[other] == 1, 60, "the job requeued")
    replaced = runs_again(site, other, second)
    figure(f"burstd back to the requeue: {requeued:.1f} s, to the run on another machine: {replaced:.1f} s more")
    said = site.burstctl("explain", other).stdout
    assert "Its run was requeued" in said
    assert f"{slot}: unhealthy, Xid 79 on GPU 0000:2b:00.0" in said
    site.cluster.sh(f"scancel {job} {other}")
    wait_all_gone(site)
    cut = [e for e in events(site) if e["subject"] in (f"job:{job}", f"job:{other}") and e["new"] in CUT]
    assert [(e["new"], e["by"]) for e in cut] == [("requeued", "health")] * 2
    lost = [c for c in record(site).claims.values() if c.instance_id in (first["instance"], second["instance"])]
    assert [c.error for c in lost] == ["health"] * 2
    site.start_burstd()
    assert not [slot for slot in GPUS.slots if reason(site, slot)]


DISK_FULL = "#!/bin/sh\nprintf 'Filesystem Blocks Used Available\\n/dev/sda1 9000000 9000000 0\\n'\n"


def test_a_node_of_the_site_drains_itself_and_takes_it_back(site: Site) -> None:
    """As burstd-node-watch.service runs it; df says that the disk is full, for a while."""
    name = site.cluster.onprem[0][0]
    (box,) = (box for box in find_boxes(site.cluster.lab.boxes_directory) if box.name == name)
    box.run(["tee", "/run/burstd-node-watch.sh"], input=site.burstctl("node", "watch-script").stdout)
    box.run(["sh", "-c", "setsid sh /run/burstd-node-watch.sh >/dev/null 2>&1 </dev/null &"])
    box.run(["tee", "/run/df"], input=DISK_FULL)
    box.run(["install", "/run/df", "/usr/sbin/df"])
    site.wait(lambda: reason(site, name) != "", 60, "drained")
    said = reason(site, name)
    assert said.startswith("burstd: unusable, /")
    assert said.endswith("Z, jobs end first")
    unusable = f"the site's node {name} is unusable, "
    site.wait(lambda: any(unusable in a for a in site.api("/v1/status")["alarms"]), 30, "an alarm")
    box.run(["rm", "/usr/sbin/df"])
    site.wait(lambda: reason(site, name) == "", 60, "undrained")
    job = site.submit(f"-p onprem -w {name} -c1 -t1", "true")
    site.wait_job(job)
    box.run(["pkill", "-f", "/run/burstd-node-watch"])


def test_a_job_that_may_not_be_requeued_is_told_and_runs_on(site: Site) -> None:
    wait_all_gone(site)
    job = site.submit("-p burst -c2 -t5 --no-requeue", "sleep 300")
    claim = running(site, job)
    site.cloud.interrupt(claim["instance"], 120.0)
    site.wait(lambda: "Slurm does not requeue it" in site.cluster.sh(f"squeue -h -j {job} -o %k"), 100, "its comment")
    assert site.job(job)["JobState"] == "RUNNING"
    site.cloud.interrupt(claim["instance"])
    site.wait_job(job, ("NODE_FAIL",), 60)
    wait_all_gone(site)
    assert {c.state.value for c in record(site).claims.values()} == {"gone"}
    site.start_burstd()


@pytest.mark.thorough
def test_output_is_off_a_machine_before_it_is_ended() -> None:
    """The job that was cut short leaves what it wrote, and writes all of it on the next machine."""
    with site_up(pools=[SPOT], types=TYPES_WITH_SPOT, staging="") as site:
        site.cluster.sh("mkdir -p data/set; echo hello >data/set/a.txt", "ada")
        run = '[ -n "$SLURM_RESTART_COUNT" ] && echo whole >"$BURST_OUT/last" || { sleep 300 & wait; }'
        job = submit(site, run, words="-p burst -c2 --mem=100")
        claim = running(site, job)
        site.cloud.interrupt(claim["instance"], NOTICE_S)
        site.wait(lambda: restarts(site, [job])[job] == 1, 30, "the job requeued")
        site.wait_job(job, timeout_s=120)
        wait_over(site, job)
        assert manifest(site, job)["complete"]
        assert site.cluster.sh("cat results/last", "ada") == "whole\n"
        life = [e for e in events(site) if e["subject"] in (f"stage:{job}", f"claim:{claim['claim']}")]
        steps = [e["new"] for e in life]
        assert "REQUEUED" in life[steps.index("collecting")]["reason"]
        assert steps.index("delivering") < steps.index("terminating"), "it was kept until its output was off it"
        wait_all_gone(site)
