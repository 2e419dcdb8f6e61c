"""What the end-to-end tests share: a site that leaves nothing behind, the cloud's books, burstd's record."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from burstd.api.auth import base_job_id
from burstd.db import LoggedEvent, StoreReader, replay_claims
from burstd.domain.claim import Claim
from burstd.runtime.clock import SteadyClock
from providers.sandbox.boxes.box import Box, find_boxes
from providers.sandbox.cloud import wire
from tests.lab import programs
from tests.lab.base_site import BaseSite
from tests.lab.patience import patience_s
from tests.lab.remains import remains
from tests.lab.site import TYPES, Site

QUICK = """
[policies]
chain = ["backlog", "idle", "limits"]
[policies.idle]
keep_alive_s = 2
"""
TYPES_WITH_SPOT = TYPES.replace('price = "0.40"', 'price = "0.40"\nspot_price = "0.10"')
STATE = "/var/lib/burstd"
MISSED_SOON = "SlurmdTimeout=30"
"""slurmctld misses a node that is gone in ten seconds, not in a hundred."""


@contextlib.contextmanager
def site_up(release: str = "bookworm", **settings: Any) -> Iterator[Site]:
    """A whole site with a short keep-alive; when it is down nothing of it is left on this machine."""
    site = Site(release, **{"settings": QUICK, "cloud": "boot_seconds = 0.3", "extra_conf": MISSED_SOON, **settings})
    with site:
        yield site
    left = remains(site.cluster.lab.network.name, site.cluster.state)
    assert not left, f"left behind: {left}"


@dataclass(frozen=True, slots=True)
class CloudInventory:
    """Everything that the cloud ever made, and what is there now, leftovers included."""

    by_claim: Mapping[str, Sequence[str]]
    """Ids of all instances ever made by the claim they bear."""
    alive: tuple[str, ...]
    parts: tuple[str, ...]
    """Volumes and ports."""


def ask_cloud(site: Site, method: str, path: str, **parts: Any) -> httpx.Response:
    """A call at the lab's own door of the cloud."""
    socket = site.cluster.state / "cloud.sock"
    transport = httpx.HTTPTransport(uds=str(socket), verify=False)
    with httpx.Client(transport=transport, base_url="http://cloud/v1", timeout=30.0) as client:
        answer = client.request(method, path, **parts)
    answer.raise_for_status()
    return answer


def parts(site: Site) -> list[wire.ResourceView]:
    """All volumes and ports."""
    found: list[wire.ResourceView] = []
    for kind in ("volumes", "ports"):
        answer = ask_cloud(site, "GET", f"/{kind}", params={"limit": 1000}).json()
        found += wire.PageView[wire.ResourceView].model_validate(answer).items
    return found


def cloud_inventory(site: Site) -> CloudInventory:
    """The cloud's own account of the site's machines."""
    by_claim: dict[str, list[str]] = {}
    for row in site.cloud.bill().rows:
        by_claim.setdefault(row.tags.get("burstd-claim", ""), []).append(row.instance)
    return CloudInventory(by_claim, tuple(site.instances()), tuple(f"{p.kind} {p.id}" for p in parts(site)))


def wait_all_gone(site: Site, timeout_s: float = 60.0) -> CloudInventory:
    """Waits until nodes, machines, volumes and ports are gone; then no claim ever had two machines."""
    site.wait_empty(timeout_s)
    site.wait(lambda: not cloud_inventory(site).parts, timeout_s, "no volume and no port")
    account = cloud_inventory(site)
    doubles = {claim: made for claim, made in account.by_claim.items() if len(made) > 1}
    assert not doubles, f"claims with two machines: {doubles}"
    assert account.alive == ()
    return account


def events(site: BaseSite, subject: str = "") -> list[dict[str, Any]]:
    """burstd's log, oldest first: of the subjects that begin so."""
    found: list[dict[str, Any]] = []
    last = 0
    while True:
        page = site.api("/v1/events", after=last, limit=1000)
        found += [e for e in page["events"] if e["subject"].startswith(subject)]
        if not page["events"]:
            return found
        last = page["last"]


def claims_of(site: BaseSite, job: str) -> list[dict[str, Any]]:
    """Claims made for a job, past ones included, oldest first."""
    try:
        nodes: list[dict[str, Any]] = site.api(f"/v1/jobs/{job}")["nodes"]
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.NOT_FOUND:
            raise
        nodes = []  # burstd has not looked at the queue since
    # The answer has the machines too that it ran on and that are made for others.
    made = [n for n in nodes if base_job_id(job) in map(base_job_id, n["jobs"])]
    return sorted(made, key=lambda n: (n["created"], n["claim"]))


@dataclass(frozen=True, slots=True)
class Record:
    """What the database holds."""

    claims: Mapping[str, Claim]
    events: tuple[LoggedEvent, ...]


@contextlib.contextmanager
def database(site: BaseSite, signal: str) -> Iterator[StoreReader]:
    """Ends burstd with a signal and reads a copy of its database."""
    site.kill_burstd(signal)
    with tempfile.TemporaryDirectory() as folder:
        for file in site.cluster.head.path(STATE).glob("burstd.db*"):
            shutil.copy(file, folder)
        with StoreReader.open(Path(folder) / "burstd.db", SteadyClock()) as reader:
            yield reader


def record(site: BaseSite) -> Record:
    """Ends burstd kindly and reads its database; the log, replayed, gives the rows."""
    with database(site, "TERM") as reader:
        rows = {c.id: c for c in reader.find_claims(limit=10_000)}
        log = tuple(reader.events(limit=10**6))
    assert replay_claims(log) == rows
    assert [e.seq for e in log] == sorted({e.seq for e in log})
    return Record(rows, log)


def node_box(site: BaseSite, slot: str) -> Box:
    """The machine of a node in service."""
    (node,) = (node for node in site.api("/v1/nodes")["nodes"] if node["slot"] == slot)
    (box,) = (box for box in find_boxes(site.cluster.lab.boxes_directory) if box.name == node["instance"])
    return box


def queue(site: BaseSite, states: str = "all") -> list[tuple[str, str, str]]:
    """Jobs and array tasks: id, state, nodes."""
    text = site.cluster.sh(f"squeue -h -r -t {states} -o '%i|%T|%N'")
    return [(i, state, nodes) for i, state, nodes in (line.split("|") for line in text.splitlines())]


def wait_done(site: BaseSite, jobs: Sequence[str], timeout_s: float = 90.0) -> None:
    """Waits until every task of these jobs has ended; all of them must be COMPLETED, none of them ever restarted."""
    wanted = set(jobs)

    def mine() -> list[tuple[str, str, str]]:
        return [row for row in queue(site) if row[0].split("_")[0] in wanted]

    busy = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING")
    site.wait(lambda: not any(state in busy for _, state, _ in mine()), timeout_s, f"jobs {', '.join(jobs)} ended")
    assert {row[0].split("_")[0] for row in mine()} == wanted
    assert {state for _, state, _ in mine()} == {"COMPLETED"}, mine()


def restarts(site: BaseSite, jobs: Sequence[str]) -> dict[str, int]:
    """How often Slurm has started these jobs again."""
    return {job: int(site.job(job)["Restarts"]) for job in jobs}


def try_provider(site: BaseSite, name: str, pool: str) -> None:
    """``burstctl provider try`` with the rights that burstd has: first beside burstd, then while it is stopped."""
    trial = [f"{programs.PREFIX}/bin/burstctl", "provider", "try", name, "--spend", "0.50", "--pool", pool]
    refused = site.cluster.head.run(trial, check=False)
    assert "burstd works for cluster lab" in refused.stderr
    site.kill_burstd("TERM")
    done = site.cluster.head.run(trial, check=False, timeout=patience_s(300))
    site.start_burstd()
    site.wait(site.has_looked, 30, "burstd's first loop")
    lines = [line.split(": ")[0].split() for line in done.stdout.splitlines() if line.startswith(("ok", "not ok", "?"))]
    looked_at = ["launch", "asked again", "list", "boot", "entry", "end", "leftovers", "cost"]
    assert [" ".join(words[1:]) for words in lines] == looked_at, done.stdout + done.stderr
    assert {words[0] for words in lines} == {"ok"}, done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


def seconds_until(site: BaseSite, what: Callable[[], bool], timeout_s: float, name: str) -> float:
    """Waits for something; the seconds it took."""
    begun = time.monotonic()
    site.wait(what, timeout_s, name)
    return time.monotonic() - begun


SET_COMMENT = (
    "me=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}; "
    'scontrol update jobid=$me comment="$(%s)"'
)
"""A line of a job's script: what a command says in the job becomes the job's comment. The boxes share no files."""

COPY = """#!/bin/sh
#BURST stage_in data as set
#BURST stage_out . to results
cat "$BURST_IN/set/a.txt" > "$BURST_OUT/copy.txt"
echo "$CUDA_VISIBLE_DEVICES" > "$BURST_OUT/gpus.txt"
"""
"""A job that takes a file in and brings it home, and tells of its GPUs."""


def comments_of(site: BaseSite, job: str) -> list[str]:
    """The comments of a job and its array tasks."""
    return site.cluster.sh(f"squeue -h -r -t all -j {job} -o %k").split("\n")[:-1]
