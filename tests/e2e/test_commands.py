"""burstctl against the real daemon: pins, drained nodes, a hold, why a job waits, who may see what, new settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

import pytest
from textual.pilot import Pilot

from burstd.cli.session import ExitCode
from tests.cli.test_top import play, shown, top
from tests.e2e.sites import SET_COMMENT, claims_of, comments_of, events, node_box, wait_all_gone
from tests.lab.base_site import CONFIG
from tests.lab.programs import PREFIX
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]


def states(site: Site, pool: str) -> list[str]:
    return sorted(n["state"] for n in site.api("/v1/nodes")["nodes"] if n["pool"] == pool)


def test_a_floor_brings_nodes_without_jobs(site: Site) -> None:
    site.burstctl("scale", "cpu", "2", "--floor", "--for", "1h")
    site.wait(lambda: states(site, "cpu") == ["in_service", "in_service"], 60, "two nodes without a job")
    (pin,) = next(p["pins"] for p in site.burstctl_json("status")["pools"] if p["name"] == "cpu")
    assert (pin["kind"], pin["nodes"], pin["by"]) == ("floor", 2, "root")
    assert {n["cause"] for n in site.api("/v1/nodes")["nodes"]} == {"pin"}
    job = site.submit("-p burst -c2 --mem=200 -t5 -C cloud")
    site.wait_job(job)
    assert claims_of(site, job) == [], "it ran on a node that was there"
    site.burstctl("scale", "cpu", "--clear")
    wait_all_gone(site)


def test_a_drained_node_ends_its_job_and_is_not_used_until_released(site: Site) -> None:
    words = "-p burst -C solo -c1 --mem=100 -t5"
    before = events(site)
    quote = json.loads(site.burstctl("quote", "--json", *words.split(), "--wrap", "sleep 4", user="ada").stdout)
    (way,) = (way for way in quote["quotes"][0]["ways"] if way["taken"])
    assert (way["pool"], way["options"], way["market"], quote["refused"]) == ("solo", "", "on-demand", False)
    assert (events(site), site.instances()) == (before, []), "asking changes nothing"
    running = site.submit(words, "until [ -e /run/end ]; do sleep 1; done")
    site.wait_job(running, ["RUNNING"])
    site.burstctl("node", "drain", "solo1", "--reason", "new disk")
    site.wait(lambda: "solo1" in site.cluster.sh("scontrol -o show reservation burstd"), 30, "it is behind the gate")
    waiting = site.submit(words)
    node_box(site, "solo1").run(["touch", "/run/end"])
    site.wait_job(running)
    site.wait(lambda: states(site, "solo") == ["held"], 60, "its machine is gone")
    assert site.instances() == []
    assert site.job(waiting)["JobState"] == "PENDING", "it fitted beside the job that ran there"
    (held,) = site.api("/v1/nodes")["nodes"]
    assert (held["slot"], held["held"]["reason"], held["held"]["by"]) == ("solo1", "new disk", "root")
    assert "held" in site.burstctl("explain", waiting).stdout
    site.burstctl("node", "release", "solo1")
    site.wait_job(waiting)


def test_on_hold_nothing_is_booted(site: Site) -> None:
    site.burstctl("hold", "the chiller is off")
    job = site.submit("-p burst -C solo -c1 --mem=100 -t5")
    site.wait(lambda: any(j["id"] == job for j in site.api("/v1/jobs")["jobs"]), 10, "burstd knows the job")
    assert "the chiller is off" in site.burstctl("status").stdout
    assert claims_of(site, job) == []
    assert site.burstctl_json("plan")["paused"] == "the chiller is off"
    assert site.instances() == []

    async def top_shows_it(pilot: Pilot[None]) -> None:
        await shown(pilot, "on hold", "the chiller is off")
        await pilot.press("2")
        await shown(pilot, "1-1 of 1", job)
        await pilot.press("enter")
        await shown(pilot, f"Job {job} of ada", "the chiller is off")

    # The job of the test before may be completing at the first look.
    play(top(site.cluster.head.path("/run/burstd/control.sock"), 1.0), top_shows_it)
    site.burstctl("unhold")
    waited = site.burstctl("wait", job, user="ada").stdout
    assert waited.splitlines()[-1] == f"Job {job} has ended: COMPLETED, exit code 0:0", waited


def test_explain_names_why_a_job_waits(site: Site) -> None:
    limited = site.submit("-p burst -C solo -c1 --mem=100 -t5", user="bob")
    held = site.submit("-p burst -C solo -c1 --mem=100 -t5 --hold", user="bob")
    site.wait(lambda: len(site.api("/v1/jobs")["jobs"]) == 2, 10, "burstd knows the jobs")
    limit = "node limit of user bob is 0"
    site.wait(lambda: limit in site.burstctl_in_process("explain", limited), 20, "the limit is named")
    said = site.burstctl_json("explain", held)
    assert "held by its user" in said["slurm"]
    assert any("scontrol release" in remedy for remedy in said["remedies"])
    assert site.instances() == []


def test_others_see_their_own_only(site: Site) -> None:
    adas = site.submit("-p burst -C solo -c1 --mem=100 -t5 -J secret", "sleep 100")
    bobs = site.submit("-p burst -C solo -c1 --mem=100 -t5", "sleep 100", user="bob")
    site.wait_job(adas, ["RUNNING"])

    def seen(user: str) -> set[str]:
        return {j["id"] for j in json.loads(site.burstctl("job", "list", "--json", user=user).stdout)["jobs"]}

    assert seen("root") == {adas, bobs}
    assert seen("ada") == {adas}
    assert seen("bob") == {bobs}
    for words in (("status",), ("node", "list"), ("event", "list"), ("job", "list"), ("plan",)):
        text = site.burstctl(*words, "--json", user="bob", check=False).stdout
        assert "secret" not in text
        assert f"job {adas}" not in text, f"{words} tells bob of ada's job"
    assert site.burstctl("job", "show", adas, user="bob", check=False).returncode == ExitCode.FORBIDDEN
    assert site.burstctl("explain", adas, user="bob", check=False).returncode == ExitCode.FORBIDDEN
    for command in (("scale", "cpu", "1"), ("hold", "no"), ("unhold",), ("node", "drain", "solo1")):
        refused = site.burstctl(*command, user="bob", check=False)
        assert refused.returncode == ExitCode.FORBIDDEN, f"{command}: {refused.stdout}{refused.stderr}"


_SERVER = "cd $(mktemp -d) && echo a notebook >index.html && exec python3 -m http.server --bind 127.0.0.1 8123"
_VISIT = """
set -e
cd; rm -f forward
burstctl port-forward {job} 8123 --local 0 >forward 2>&1 &
until grep -q "is port 8123 of solo1" forward; do kill -0 $! || {{ cat forward; exit 1; }}; sleep 0.1; done
at=$(sed 's/ .*//' forward)
visit='import sys, urllib.request as u; print(u.urlopen("http://" + sys.argv[1] + "/").read())'
until python3 -c "$visit" "$at" 2>>forward; do sleep 0.2; done
scancel {job}
code=0; wait $! || code=$?
tail -n 1 forward; echo "code $code"
"""


def test_a_port_of_a_job_is_brought_to_its_owner(site: Site) -> None:
    job = site.submit("-p burst -C solo -c1 --mem=200 -t5", _SERVER)
    site.wait(lambda: [j["state"] for j in site.api("/v1/jobs")["jobs"]] == ["RUNNING"], 60, "burstd sees it run")
    for user, code in (("bob", ExitCode.FORBIDDEN), ("root", ExitCode.NEGATIVE)):
        refused = site.burstctl("route", "open", job, "8123", user=user, check=False)
        assert refused.returncode == code, refused.stderr
    assert f"burstctl port-forward {job} 8123" in refused.stderr
    assert site.burstctl("port-forward", job, "8123", user="bob", check=False).returncode == ExitCode.FORBIDDEN
    site.burstctl("debug", job, "-o", f"/root/{job}.tgz")
    report = site.cluster.sh(f"tar xzf {job}.tgz; cd burstd-debug-{job}; wc -c */*; cat */slurmd.log")
    assert ("solo1/console.txt" in report, "slurmd version" in report) == (True, True), report
    said = site.cluster.sh(f"PATH={PREFIX}/bin:$PATH\n{_VISIT.format(job=job)}", "ada", timeout_s=60)
    assert "b'a notebook\\n'" in said
    assert f"Job {job} does not run any more." in said
    assert "code 1" in said


def test_broken_settings_leave_the_old_ones_in_force(site: Site) -> None:
    good = site.burstd_toml()
    lines = good.splitlines()
    at = lines.index("keep_alive_s = 2")
    lines[at] = "keep_alife_s = 2"
    site.write(CONFIG, "\n".join(lines))
    site.signal_burstd("HUP")
    site.wait(lambda: "settings not taken" in site.daemon_log(), 10, "burstd says that it does not take them")
    said = site.daemon_log().partition("settings not taken")[2]
    assert f"line {at + 1}: policies.idle.keep_alife_s" in said, said
    assert "did you mean 'keep_alive_s'" in said, said
    job = site.submit("-p burst -C solo -c1 --mem=100 -t5")
    site.wait_job(job)
    site.wait_empty()

    site.write(CONFIG, good.replace("keep_alive_s = 2", "keep_alive_s = 60"))
    site.signal_burstd("HUP")
    site.wait(lambda: any(e["new"] == "reloaded" for e in events(site, "daemon")), 10, "they are taken")

    def in_force() -> bool:
        (idle,) = (p for p in site.burstctl_json("policy", "list")["policies"] if p["name"] == "idle")
        return bool(idle["settings"]["keep_alive_s"] == 60)

    try:
        site.submit("-p burst -C solo -c1 --mem=100 -t5")
        site.wait(in_force, 60, "the new time is in force")
    finally:
        # The site is other tests' too.
        site.write(CONFIG, good)
        site.signal_burstd("HUP")


def test_an_idle_node_becomes_one_of_another_pool(site: Site, figure: Callable[[str], None]) -> None:
    """The same instance, cleared of what the first job left; the bill has both nodes."""
    before = site.burstd_toml()
    site.write(CONFIG, before.replace("[pools.solo]\n", '[pools.solo]\nreuse_from = ["cpu"]\n'))
    site.burstctl("policy", "reload")
    try:
        _two_pools_in_turn(site, figure)
    finally:
        # The site is other tests' too.
        site.write(CONFIG, before)
        site.burstctl("policy", "reload")


def _two_pools_in_turn(site: Site, figure: Callable[[str], None]) -> None:
    left = "/tmp/left /dev/shm/left"  # noqa: S108  on a node
    words = "-p burst -c2 --mem=200 -t5"
    first = site.submit(f"{words} -C cloud", f"touch {left}; {SET_COMMENT % f'ls {left} | grep -c left'}; sleep 3")
    site.wait_job(first, ["RUNNING"])
    [launched] = claims_of(site, first)
    [machine] = site.instances()
    looks = f"{SET_COMMENT % f'ls {left} 2>&1 | grep -c cannot'}; sleep 2"
    second = site.submit(f"{words} -C solo --dependency=afterany:{first}", looks)
    site.wait_job(first)
    site.wait(lambda: "handed over" in site.burstctl_in_process("explain", second), 20, "explain says so")
    site.wait_job(second, ["RUNNING"])
    assert site.instances() == [machine]
    shown = " ".join(site.burstctl("node", "show", "solo1").stdout.split())
    assert (machine in shown, f"{launched['slot']} until" in shown) == (True, True), shown
    [claim] = claims_of(site, second)
    assert claim["claim"] == launched["claim"]
    site.wait_job(second)
    assert (comments_of(site, first), comments_of(site, second)) == (["2"], ["2"])
    account = wait_all_gone(site)
    assert account.by_claim[launched["claim"]] == [machine]
    bill = {line["key"] for line in site.burstctl_json("bill", "--by", "pool")["lines"]}
    assert {"cpu", "solo"} <= bill
    steps = [e for e in events(site, f"claim:{claim['claim']}") if e["new"] in ("planned", "in_service", "validating")]
    times = [datetime.fromisoformat(e["time"]).timestamp() for e in steps]
    figure(f"from a claim to a node in service: {times[2] - times[0]:.1f} s, handed over: {times[4] - times[3]:.1f} s")
