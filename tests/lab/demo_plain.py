"""The demo's plain script: a folder at home on a cloud node, its output live, and a user who may not read it."""

from __future__ import annotations

from tests.lab import programs
from tests.lab.site import Site

MOUNTS = """
[mounts.trees]
home = { path = "/home/{user}" }
"""
PROLOG = f"PrologSlurmctld={programs.PREFIX}/bin/burstd-prolog"
FOLDER = "project"
FILE = "train.sh"
SCRIPT = """\
#!/bin/sh
echo "$(id -un) in $(pwd) on $(hostname)"
for step in 1 2 3 4 5 6; do
  echo "step $step of 6"
  sleep 1
done
sort names.txt >result.txt
"""
CURIOUS = f"cat /home/ada/{FOLDER}/names.txt"


def prepare(site: Site) -> None:
    """ada has a folder with a script and its input, and a home that others cannot look into."""
    site.cluster.sh(
        f"chmod 700 . && mkdir {FOLDER} && printf 'turing\\nnoether\\nhopper\\n' >{FOLDER}/names.txt", "ada"
    )
    site.write(f"/home/ada/{FOLDER}/{FILE}", SCRIPT)
    site.cluster.sh(f"chown ada: /home/ada/{FOLDER}/{FILE}")


class LiveOutput:
    """What ``tail -f`` at home shows of a job's output."""

    def __init__(self, site: Site, job: str) -> None:
        self.path = f"/home/ada/{FOLDER}/slurm-{job}.out"
        self._file = site.cluster.head.path(self.path)
        self._shown = 0

    def new_lines(self) -> list[str]:
        """Whole lines since the last call."""
        if not self._file.exists():
            return []
        lines = self._file.read_text(encoding="utf-8").splitlines(keepends=True)
        new = [line.rstrip("\n") for line in lines[self._shown :] if line.endswith("\n")]
        self._shown += len(new)
        return new
