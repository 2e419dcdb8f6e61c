"""The demo's jobs with data: what they are, what is told of them, and whether anything of them is left."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from burstd.domain.units import size_text
from tests.lab.site import Site
from tests.lab.ssh_store import DATA

STAGING = 'bandwidth = "16MB"\n'
"""The line to the cloud is slow enough that one sees what goes over it."""
CORPUS_MIB = 64
FILE = "sums.sh"
SCRIPT = """\
#!/bin/sh
#BURST stage_in corpus
#BURST stage_out sums.txt to results/%j/
cd "$BURST_IN/corpus" && sha256sum * >"$BURST_OUT/sums.txt"
"""
STATES = ("uploading", "staged", "fetching", "fetched", "delivering", "delivered", "cleared", "held")
"""What is told of data on its way."""


def prepare(site: Site) -> None:
    """ada has a script, and an input of two files."""
    site.write(f"/home/ada/{FILE}", SCRIPT)
    site.cluster.sh("install -d -m 1733 /var/spool/burst")
    half = f"head -c {CORPUS_MIB // 2}M /dev/urandom"
    site.cluster.sh(f"mkdir corpus; {half} >corpus/east; {half} >corpus/west", "ada")


def moving(site: Site, job: str) -> bool:
    """Whether a good part of the job's input has been sent, and some has not."""
    found = site.api("/v1/stage")["jobs"]
    readings = [t for row in found if row["job"] == job for t in row["transfers"] if t["direction"] == "in"]
    return any(CORPUS_MIB << 18 < t["bytes_done"] < CORPUS_MIB << 20 for t in readings)


def over(site: Site) -> bool:
    """Whether no job has data on the way."""
    return not site.api("/v1/stage")["jobs"]


def left_of(site: Site) -> list[str]:
    """Output in the store and folders of jobs, on the head: nothing, when all is home."""
    objects = site.storage.box.run(["find", DATA, "-path", "*/out/*", "-type", "f"]).stdout.split()
    folders = site.cluster.sh("find /var/spool/burst -mindepth 1 -maxdepth 1 -name '[0-9]*' 2>/dev/null || true")
    return [*objects, *folders.split()]


def table(site: Site, submitted: Mapping[str, float], data: Mapping[str, Mapping[str, float]]) -> Table:
    """Of each job with data: how much, and when what was so. Times in seconds since 1970."""
    lines = Table(title="What became of their data, in seconds after sbatch", title_justify="left")
    for column in ("job", "input", "sent", "hits", "in the store", "allocated", "home"):
        lines.add_column(column, justify="left" if column == "job" else "right", no_wrap=True)
    for job, states in data.items():
        row = site.api(f"/v1/stage/{job}")["job"]
        sizes = [size_text(row[key]) for key in ("bytes_in", "bytes_sent", "bytes_hits")]
        times = [states.get(state) for state in ("staged", "fetching", "delivered")]
        lines.add_row(job, *sizes, *(f"{at - submitted[job]:.1f}" if at else "-" for at in times))
    return lines
