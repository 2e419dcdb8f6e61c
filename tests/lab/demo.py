"""``make demo``: a whole burst on this machine, told as it happens. ``--shell`` leaves it running with a prompt."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from burstd.domain.claim import ClaimState
from burstd.slurm.hostlist import compress
from providers.sandbox.boxes.errors import SandboxError
from tests.lab import demo_data, demo_plain, demo_projects
from tests.lab.meter import metered_bill
from tests.lab.remains import remains
from tests.lab.site import Site
from tests.lab.slurm_files import VERSIONS
from tests.lab.web_page import web_page

SETTINGS = (
    """
[policies]
chain = ["backlog", "idle", "limits"]
[policies.idle]
keep_alive_s = 8
[policies.limits]
nodes = 10
[site.cost.onprem]
nodes = ["op*"]
node_hour = 0.9
"""
    + demo_plain.MOUNTS
    + demo_projects.SETTINGS
)
JOBS = 15
"""With every task of the array."""
PATIENCE_S = 150.0
POLL_S = 0.2
_WHO = {"ada": "bold cyan", "bob": "bold red", "tail": "cyan",
        "burstd": "bold yellow", "cloud": "magenta", "node": "blue", "slurm": "bold green",
        "data": "bold blue"}  # fmt: skip
_CURIOUS = "who may not read it"
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")


@dataclass(slots=True)
class DemoJob:
    """A job, or one task of an array, as the demo saw it."""

    id: str
    what: str
    submitted: float
    state: str = ""
    nodes: str = ""
    started: float | None = None
    ended: float | None = None
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DemoRun:
    """Tells what happens, from Slurm's queue and burstd's event log."""

    site: Site
    console: Console
    began: float = field(default_factory=time.time)
    jobs: dict[str, DemoJob] = field(default_factory=dict)
    what: dict[str, tuple[str, float]] = field(default_factory=dict)
    """What a job is and when it was submitted, by its bare number."""
    slots: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    data: dict[str, dict[str, float]] = field(default_factory=dict)
    """When the data of a job came to each state, by its bare number."""
    last: int = 0

    def say(self, who: str, text: str, at: float | None = None) -> None:
        """One line: seconds since the beginning, who, what."""
        seconds = (time.time() if at is None else at) - self.began
        self.console.print(f"[dim]{seconds:6.1f} s[/]  [{_WHO[who]}]{who:<7}[/]", end="")
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def submit(self, what: str, words: str, script: str, user: str = "ada") -> str:
        """``sbatch`` of a command; the job's number, empty where Slurm refuses it."""
        at = time.time()
        command = f"sbatch {words} --wrap {script!r}"
        try:
            job = self.site.submit(words, script, user)
        except RuntimeError as error:
            self.say(user, f"$ {command}")
            self.say("slurm", f"refused at once: {' '.join(str(error).split())}")
            self.refused.append(what)
            return ""
        self._submitted(what, command, job, at, user)
        return job

    def submit_file(self, what: str, words: str, file: str, folder: str = "") -> str:
        """``sbatch`` of a script in ada's home, or a folder of it; the job's number."""
        at = time.time()
        command = f"cd ~/{folder} && sbatch {words} {file}" if folder else f"sbatch {words} {file}"
        job = self.site.cluster.sh(command.replace("sbatch", "sbatch --parsable"), "ada").strip()
        self._submitted(what, command, job, at)
        return job

    def _submitted(self, what: str, command: str, job: str, at: float, user: str = "ada") -> None:
        self.what[job] = (what, at)
        self.say(user, f"$ {command}    -> job {job}", at)

    def poll(self) -> None:
        """Tells what is new."""
        self._poll_events()
        self._poll_queue()

    def _poll_queue(self) -> None:
        now = time.time()
        for line in self.site.cluster.sh("squeue -h -a -t all -u ada,bob -o '%i|%T|%N|%r'").splitlines():
            job_id, state, nodes, reason = line.split("|", 3)
            bare = job_id.split("_")[0]
            if bare not in self.what or "[" in job_id:
                continue
            demo_job = self.jobs.setdefault(job_id, DemoJob(job_id, self.what[bare][0], self.what[bare][1]))
            if state == "PENDING" and reason.startswith("BurstBuffer") and reason not in demo_job.reasons:
                demo_job.reasons.append(reason)
                self.say("slurm", f"job {job_id} waits: {reason}", now)
            if state == demo_job.state:
                continue
            demo_job.state, demo_job.nodes = state, nodes or demo_job.nodes
            if state in ("RUNNING", "COMPLETING", "STAGE_OUT", "COMPLETED") and demo_job.started is None:
                demo_job.started = now
                waited = now - demo_job.submitted
                self.say("slurm", f"job {job_id} starts on {nodes}, {waited:.1f} s after sbatch", now)
            if state == "STAGE_OUT":
                self.say("slurm", f"job {job_id} has ended, and is to stay until its output is home: {state}", now)
            if state in _ENDED and demo_job.ended is None:
                demo_job.ended = now
                self.say("slurm", f"job {job_id} {state.lower()}", now)

    def _poll_events(self) -> None:
        page = self.site.api("/v1/events", after=self.last, limit=1000)
        self.last = page["last"]
        # What happens to several nodes at once, for one reason, is one line.
        together: dict[tuple[str, str, str], tuple[list[str], float]] = {}
        for event in page["events"]:
            at = _seconds(event["time"])
            kind, _, name = event["subject"].partition(":")
            if kind == "stage" and event["new"] != event["old"]:
                self.data.setdefault(name, {})[event["new"]] = at
            for who, name, verb, reason in self._lines(event):
                names, _ = together.setdefault((who, verb, reason), ([], at))
                names.append(name)
        for (who, verb, reason), (names, at) in together.items():
            self.say(who, f"{compress(sorted(filter(None, names)))} {verb}: {reason}".strip(), at)

    def _slot(self, claim: str) -> str:
        if claim not in self.slots:
            self.slots[claim] = self.site.api(f"/v1/nodes/{claim}")["node"]["slot"]
        return self.slots[claim]

    def _lines(self, event: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
        """Who, which node, what happened to it, why; nothing for what a person need not read."""
        kind, _, name = event["subject"].partition(":")
        old, new, reason = event["old"], event["new"], event["reason"]
        if kind == "job" and new != old and (old, new) != ("boot", "covered"):
            yield "burstd", "", f"job {name}", reason
        elif kind == "claim" and new in set(ClaimState) and new != old:
            slot = self._slot(name)
            self.used.add(slot)
            who = {"booting": "cloud", "gone": "cloud", "validating": "node"}.get(new, "burstd")
            yield who, slot, new.replace("_", " "), re.sub(rf"^{re.escape(slot)} is | gave instance .*", "", reason)
        elif kind == "slot" and new == "proven":
            yield "node", name, "validated", re.sub(r"^\S+ has | \([0-9.]+ s\)$", "", reason)
        elif kind == "stage" and new in demo_data.STATES and new != old:
            yield "data", "", f"job {name} {new}", reason
        elif kind in ("breaker", "orphan", "pool") and new != old:
            yield "burstd", "", f"{name} {new}", reason


def _seconds(stamp: str) -> float:

    return datetime.fromisoformat(stamp).timestamp()


def play(story: DemoRun) -> None:
    """Submits, watches, ends."""
    plain = story.submit_file("plain script", "-p burst -c1 --mem=100 -t5", demo_plain.FILE, demo_plain.FOLDER)
    output, curious = demo_plain.LiveOutput(story.site, plain), ""
    story.submit("CPU job", "-p burst -c2 --mem=200 -t5", "hostname; sleep 6")
    story.submit(
        "GPU array", "-p burst --gres=gpu:v100:2 --mem=100 --array=1-8 -t5", "echo $CUDA_VISIBLE_DEVICES; sleep 4"
    )
    story.submit("two whole nodes", "-p burst -N2 --exclusive --gres=gpu:4 -t5", "srun hostname; sleep 5")
    story.submit("onprem or burst", "-p onprem,burst -t5", "hostname; sleep 3")
    story.submit("cannot run", "-p burst --gres=gpu:h100:1 -t5", "hostname")
    first = story.submit_file("with data", "-p burst -c2 --mem=100 -t5", demo_data.FILE)
    explained = shown = again = False
    deadline = time.time() + PATIENCE_S
    while True:
        story.poll()
        for line in output.new_lines():
            story.say("tail", f"{output.path}: {line}")
        if not curious and plain in story.jobs and story.jobs[plain].started:
            beside = f"-p burst -c1 --mem=100 -t5 -w {story.jobs[plain].nodes}"
            curious = story.submit(_CURIOUS, beside, demo_plain.CURIOUS, "bob")
        if not explained and any(j.started for j in story.jobs.values()):
            explained = True
            _show(story, "burstctl", "status")
        if not shown and demo_data.moving(story.site, first):
            shown = True
            _show(story, "burstctl", "stage", "status", first)
        if not again and first in story.jobs and story.jobs[first].started:
            again = True
            story.submit_file("the same data", "-p burst -c2 --mem=100 -t5", demo_data.FILE)
        jobs_done = len(story.jobs) >= JOBS and all(j.ended for j in story.jobs.values())
        if jobs_done and demo_data.over(story.site) and _no_machine(story.site):
            break
        if time.time() > deadline:
            poll = story.site.cluster.sh("squeue; sinfo") + story.site.burstctl("stage", "status").stdout
            raise TimeoutError(f"the demo did not end within {PATIENCE_S:.0f} s:\n{poll}")
        time.sleep(POLL_S)
    story.poll()
    failed = [f"{j.id} {j.state}" for j in story.jobs.values() if j.state != "COMPLETED" and j.what != _CURIOUS]
    if failed:
        raise AssertionError(f"jobs did not complete: {', '.join(failed)}")
    _ask(story, f"cd {demo_plain.FOLDER} && ls -l && cat result.txt")
    _ask(story, f"cat slurm-{curious}.out", "bob")
    for job in story.data:
        _ask(story, f"cat results/{job}/sums.txt; cd corpus && sha256sum -c ../results/{job}/sums.txt")
    if left := demo_data.left_of(story.site):
        raise AssertionError(f"data of jobs was left: {', '.join(left)}")


def _no_machine(site: Site) -> bool:
    return not site.instances() and not site.api("/v1/nodes")["nodes"]


def _ask(story: DemoRun, command: str, user: str = "ada") -> None:
    """A user's command on the head; its failure ends the demo."""
    story.console.print(f"\n[bold]{user} $ {command}[/]", highlight=False, soft_wrap=True)
    said = story.site.cluster.sh(command, user).rstrip()
    story.console.print(said, markup=False, highlight=False, soft_wrap=True)


def _show(story: DemoRun, *words: str) -> None:
    story.console.print(f"\n[bold]$ {' '.join(words)}[/]")
    text = story.site.burstctl(*words[1:]).stdout
    story.console.print(text, markup=False, highlight=False)


def summary(story: DemoRun) -> None:
    """Submit to start for each job, nodes, the bill."""
    table = Table(title="What became of the jobs", title_justify="left")
    for column in ("job", "what", "sbatch to start", "ran on", "outcome"):
        table.add_column(column, justify="right" if "start" in column else "left")
    for job in sorted(story.jobs.values(), key=lambda j: (j.submitted, j.id)):
        waited = f"{job.started - job.submitted:.1f} s" if job.started else "-"
        table.add_row(job.id, job.what, waited, job.nodes, job.state.lower())
    for what in story.refused:
        table.add_row("-", what, "-", "-", "refused at sbatch")
    story.console.print(table)
    submitted = {job: at for job, (_, at) in story.what.items()}
    story.console.print(demo_data.table(story.site, submitted, story.data))
    _bill(story)
    calls = story.site.cloud.calls()
    story.console.print(
        f"{len(story.used)} cloud nodes used, {calls.counts.get('launch', 0)} launch calls; {_delay(story)}",
        soft_wrap=True,
    )


def _bill(story: DemoRun) -> None:
    """The bill with every job, beside the cloud's own meter. Raises AssertionError where either is not so."""
    bill = story.site.api("/v1/bill", group="job")
    lines = Table(title="The bill, by job", title_justify="left")
    for column in ("job", "machine time", "cost"):
        lines.add_column(column, justify="right")
    lines.add_column("for")
    for line in bill["lines"]:
        parts = (f"{part['kind']} {part['cause']}".strip().replace("_", " ") for part in line["parts"])
        lines.add_row(line["key"] or "nobody's", f"{line['machine_s']:.0f} s", _cost(line["cost"]), ", ".join(parts))
    lines.add_section()
    lines.add_row("all", "", ", ".join(_cost(total) for total in bill["total"]))
    lines.add_section()
    for line in bill["site_lines"]:
        lines.add_row(line["key"], f"{line['node_s']:.0f} s", _cost(line["cost"]), "nodes of the site")
    story.console.print(lines)
    beside = metered_bill(story.site)
    story.console.print(
        f"The cloud's own meter of {beside.machines} machines: {beside.metered:.4f} EUR while they ran; burstd counts "
        f"{beside.boot:.4f} EUR from their launch until then too, and {beside.end:.4f} EUR until it knew of their end.",
        soft_wrap=True,
    )
    billed = {line["key"] for line in (*bill["lines"], *bill["site_lines"])}
    if missing := {job.id for job in story.jobs.values() if job.nodes} - billed:
        raise AssertionError(f"jobs that ran are not on the bill: {', '.join(sorted(missing))}")


def _cost(amount: dict[str, Any]) -> str:
    return f"{float(amount['amount']):.4f} {amount['currency']}"


def _delay(story: DemoRun) -> str:
    """From sbatch to the call that launched the job's first machine."""
    launches = {launch.token: launch.time for launch in story.site.cloud.calls().launches}
    delays = []
    for bare, (_, submitted) in story.what.items():
        try:
            claims = [n["claim"] for n in story.site.api(f"/v1/jobs/{bare}")["nodes"]]
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            continue  # It ran on premises and has left the queue: burstd has no record of it.
        called = [launches[c] for c in claims if c in launches]
        if called:
            delays.append(min(called) - submitted)
    return f"sbatch to launch call: median {statistics.median(delays):.2f} s over {len(delays)} jobs" if delays else ""


def shell(site: Site, console: Console) -> None:
    """A prompt on the head node, as ada, who may use burstctl as an administrator, and become anybody."""
    site.cluster.head.run(["sh", "-c", "getent group burstd >/dev/null || groupadd burstd; usermod -aG burstd ada"])
    site.cluster.head.run(["sh", "-c", "for user in root ada bob; do passwd -d $user; done"])  # For su.
    console.print(
        "\nYou are [bold]ada[/] on the head node: sbatch, squeue, sinfo and burstctl work. Try\n"
        "  sbatch -p burst --gres=gpu:1 --wrap 'hostname; sleep 30'; burstctl event follow\n"
        "  burstctl status; burstctl explain JOB; burstctl scale gpu 2 --for 5m\n"
        f"  cat {demo_data.FILE}; sbatch -p burst {demo_data.FILE}; burstctl stage status --watch; ls results\n"
        f"  cd {demo_plain.FOLDER}; sbatch -p burst {demo_plain.FILE}; tail -F slurm-*.out\n"
        "  sbatch -A team-a -p onprem --gres=gpu:1 --mem=1 --array=1-16 --wrap 'sleep 600'; burstctl project list\n"
        "  su bob; su: a prompt as another user, or as root, until exit\n"
        "Leave with exit: everything is taken down.\n",
        soft_wrap=True,
    )
    path = f"/opt/burstd/bin:{os.environ.get('PATH', '/usr/bin:/bin')}"
    words = ["script", "-q", "-c", "bash --norc", "/dev/null"]
    prompt = {"PATH": path, "PS1": "\\u@head \\$ ", "TERM": os.environ.get("TERM", "vt100")}
    # Ctrl-C is for what runs at the prompt, which would ignore it as well were it ignored here.
    old = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        site.cluster.head.popen(words, user="ada", cwd="/home/ada", env=prompt, stdin=None).wait()
    finally:
        signal.signal(signal.SIGINT, old)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: with everything taken down."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    yield


def main() -> int:
    """The demo."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--release", default="bookworm", choices=sorted(VERSIONS))
    parser.add_argument("--shell", action="store_true", help="leave it running, with a prompt in it")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    begun = time.monotonic()

    def progress(step: str) -> None:
        console.print(f"[dim]{time.monotonic() - begun:6.1f} s  {step}[/]", soft_wrap=True)

    shared = tempfile.TemporaryDirectory(prefix="burstd-demo-")  # the homes, which the nodes on premises see too
    site = Site(
        arguments.release, settings=SETTINGS, comments=True, staging=demo_data.STAGING, extra_conf=demo_plain.PROLOG,
        shared=Path(shared.name), projects=demo_projects.PROJECTS, onprem_gpus=demo_projects.GPUS_OF_A_NODE,
        progress=progress,
    )  # fmt: skip
    try:
        with shared, _ended_by_signals(), site:
            version = "{}.{:02}.{}".format(*VERSIONS[arguments.release])
            console.print(f"[dim]{time.monotonic() - begun:6.1f} s  set up: Slurm {version} ({arguments.release})[/]\n")
            demo_data.prepare(site)
            demo_plain.prepare(site)
            with web_page(site, "root") as address:
                console.print(f"[bold]The page[/], for a browser on this machine: {address}\n", soft_wrap=True)
                if arguments.shell:
                    shell(site, console)
                else:
                    story = DemoRun(site, console)
                    play(story)
                    console.print()
                    summary(story)
                    demo_projects.play(site, console)
    except KeyboardInterrupt:
        console.print("\nstopped; everything was taken down")
        return 130
    except (SandboxError, TimeoutError, AssertionError) as error:
        console.print(f"\n[bold red]The demo failed:[/] {error}", soft_wrap=True)
        return 1
    left = remains(site.cluster.lab.network.name, site.cluster.state)
    if left:
        console.print(f"[bold red]Left behind:[/] {'; '.join(left)}")
        return 1
    console.print(f"Nothing is left behind. {time.monotonic() - begun:.0f} s in all.\n")
    if not arguments.shell:
        console.print(
            "Try next: make demo-shell; make demo RELEASE=trixie; docs/admin.md for your own cluster.", soft_wrap=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
