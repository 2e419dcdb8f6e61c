"""burstd as a process of its own, without Slurm or a cloud: what it does with its files, its clock, its record."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

_CODE = "import sys; sys.argv[0] = 'burstd'\n{before}\nfrom burstd.daemon.main import main\nsys.exit(main())"
_SETTINGS = """\
cluster = "lab"
[daemon]
state_dir = "{folder}/state"
runtime_dir = "{folder}/run"
spool_dir = "{folder}/spool/burstd"
poll_s = 0.2
tick_s = 0.2
[slurm]
bin_dir = "{folder}"
[node]
munge_key = "{folder}/secret"
munge_socket = "{folder}/no-munge"
[providers.alpha]
kind = "sandbox"
url = "http://127.0.0.1:9"
token_file = "{folder}/secret"
[pools.cpu]
nodes = "c[1-4]"
partitions = ["burst"]
cpus = 4
memory = 8000
offers = [{{ provider = "alpha", instance_types = ["cpu.*"] }}]
"""


def lone_heads(folder: Path, database: str) -> dict[str, LoneDaemon]:
    """Two for one cluster, head1 and head2; they differ by their names and their own folders."""
    shared = folder / "shared"
    shared.mkdir(0o700)
    heads = {}
    for host in ("head1", "head2"):
        (folder / host).mkdir()
        head = heads[host] = LoneDaemon(folder / host)
        more = f'database = "{database}"\nstandby = true\nshared_dir = "{shared}"\n[slurm]'
        head.settings.write_text(head.settings.read_text().replace("[slurm]", more))
    return heads


class LoneDaemon:
    """One installation in a folder. ``before``: code that runs in its process before the program does."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.database = self.state / "burstd.db"
        self.spool = folder / "spool"
        self.settings = folder / "burstd.toml"
        self.log = folder / "log"
        for sub in (self.state, folder / "run"):
            sub.mkdir(0o700)
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_text("0123456789abcdef0123456789abcdef\n")
        self.settings.touch(0o600)
        self.settings.write_text(_SETTINGS.format(folder=folder))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, before: str = "", umask: int = 0o022, words: str = "burstd runs") -> None:
        """Starts it; raises AssertionError with its log where that has not the words within a minute."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE.format(before=before), "--config", str(self.settings)],
                stdout=log, stderr=log, umask=umask, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
        self.wait_for(words)

    def wait_for(self, words: str) -> None:
        """Until its log has the words."""
        end = time.monotonic() + 60
        while words not in self.log_text():
            ended = self._process is None or self._process.poll() is not None
            assert not ended or words in self.log_text(), f"it ended\n{self.log_text()}"
            assert time.monotonic() < end, self.log_text()
            time.sleep(0.02)

    def log_text(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def run(self, before: str = "") -> tuple[int, str]:
        """Starts it where it cannot run; returns its exit status and what it says."""
        done = subprocess.run(
            [sys.executable, "-c", _CODE.format(before=before), "--config", str(self.settings)],
            capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        return done.returncode, done.stderr

    def stop(self) -> int:
        """SIGTERM, as systemd sends it; returns the exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
