"""docs/staging.md: its scripts and commands, run by a user of a real site, with the results that it promises."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.sites import site_up
from tests.lab.programs import PROJECT
from tests.lab.site import CPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

DOCUMENT = PROJECT / "docs" / "staging.md"
FENCE = re.compile(r"^```(\S+)[ \t]*(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTINGS = """
[policies]
chain = ["backlog", "idle", "limits"]
[policies.idle]
keep_alive_s = 30
[staging.datasets.vocabulary]
versions = { "1" = "/home/ada/vocabulary" }
latest = "1"
"""
HOME = """
mkdir corpus samples vocabulary 'my data'
printf 'one two\\nthree\\n' >corpus/a.txt; echo four >corpus/b.txt
echo list >vocabulary/list.txt; echo 1 >'my data/one'
for i in 1 2 3; do seq $i >samples/$i.txt; done
"""


@dataclass(slots=True)
class StagingReader:
    """A person who does what the page says."""

    site: Site
    jobs: dict[str, list[str]] = field(default_factory=dict)
    """Numbers of the jobs of each script."""

    def follow(self, document: Path) -> None:
        """From the first block to the last; returns when all jobs have ended and their output is home."""
        said = ""
        for fence in FENCE.finditer(document.read_text(encoding="utf-8")):
            kind, word, text = fence.groups()
            if kind == "bash":
                self.site.write(f"/home/ada/{word}", text)
            elif kind == "sh":
                said = self._run(text)
            elif kind == "text":
                assert said == text
        self.site.wait(lambda: not self.site.cluster.sh("squeue -h -u ada"), 60, "the end of all jobs")
        for line in self.site.cluster.sh("squeue -h -a -t all -u ada -o '%A %j'").splitlines():
            job, script = line.split()
            self.jobs.setdefault(script, []).append(job)

    def _run(self, commands: str) -> str:
        script = f"exec 2>&1; PATH=$PATH:/opt/burstd/bin\n{commands}"
        words = ["timeout", "50", "bash", "-eu", "-o", "pipefail", "-c", script]
        done = self.site.cluster.head.run(words, user="ada", cwd="/home/ada", check=False)
        log = self.site.daemon_log()[-3000:]
        assert done.returncode == 0, f"{commands} ended with {done.returncode}:\n{done.stdout}\n{log}"
        return done.stdout

    def job(self, script: str) -> str:
        """The number of the only job of a script."""
        (job,) = self.jobs[script]
        return job

    def cat(self, *names: str) -> str:
        """What files in ada's home say."""
        return self.site.cluster.head.run(["cat", *names], user="ada", cwd="/home/ada").stdout

    def has(self, name: str) -> bool:
        """Whether there is such a file in ada's home."""
        done = self.site.cluster.head.run(["test", "-e", name], user="ada", cwd="/home/ada", check=False)
        return done.returncode == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    shared = tmp_path_factory.mktemp("shared")
    # Since 23.02 Slurm says at sbatch whose job it is, without a job_submit plug-in.
    with site_up("trixie", pools=[CPU], settings=SETTINGS, staging="", shared=shared) as up:
        up.cluster.sh(HOME, "ada")
        yield up


def test_the_page_from_its_first_script_to_its_last(site: Site) -> None:
    reader = StagingReader(site)
    reader.follow(DOCUMENT)
    cloud, home = sorted(reader.jobs["count.sh"], key=int)
    counts = reader.cat(f"results/{cloud}/counts.txt")
    assert counts.split()[-2:] == ["4", "total"]
    assert reader.cat(f"results/{home}/counts.txt") == counts
    nodes = [json.loads(reader.cat(f"results/{job}/burst-{job}.json"))["nodes"] for job in (cloud, home)]
    assert [names[0][:2] for names in nodes] == ["cp", "op"]
    assert reader.has(f"slurm-{cloud}.out")
    train = reader.job("train.sh")
    assert reader.cat(f"models/{train}/last.bin").split() == ["list", "more", "one", "two", "three"]
    assert reader.cat("corpus/a.txt").split() == ["one", "two", "three"]
    assert not reader.has("failed")
    assert reader.cat("of names.sh/two\nlines").split() == ["1", "one", "two", "three"]
    assert sorted(reader.cat("report.txt").split()) == ["3", "4", "5"]
    for script, folder in (("fails.sh", reader.job("fails.sh")), ("long.sh", "long.sh")):
        job = reader.job(script)
        assert "so far" in reader.cat(f"runs/{folder}/log") or "as far" in reader.cat(f"runs/{folder}/log")
        assert "did not end well" in reader.cat(f"runs/{folder}/burst-{job}.PARTIAL")
    assert reader.cat(f"counted/{reader.job('counts.sh')}/number") == "3\n"
    scripts = {"count.sh", "train.sh", "names.sh", "sweep.sh", "report.sh", "counts.sh", "fails.sh", "long.sh"}
    assert set(reader.jobs) == scripts
    site.wait(lambda: not site.api("/v1/stage")["jobs"], 30, "nothing of a job's data is left")
