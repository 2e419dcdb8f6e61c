"""``burstctl check --deep``: one job of an ordinary user, from that user's home, on a machine of a cloud."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burstd.api.answers.text import duration_text, money_text, plural
from burstd.cli.output import ConsoleOutput, styled_state
from burstd.cli.session import ApiClient, ExitCode, Params
from burstd.domain.claim import ClaimState
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.slurm.commands.parsing import expand_hosts
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config.check import read_partitions
from burstd.slurm.hostlist import compress

if TYPE_CHECKING:
    from burstd.settings import Settings

POLL_S = 0.5
OUTPUT_TIMEOUT_S = 30.0
_OUTPUT_BYTES = "65536"
"""Of the job's output that are read at most: the file is the user's."""
_TRIES = 2
"""Machines that may fail before the check gives up."""
_FAILED = (ClaimState.FAILED.value, ClaimState.LOST.value)
_QUEUE_S = 120.0
_FIRST_UID = 1000
_LAST_UID = 60000
_MARK = "burstd check:"


def choose_user(burstd: ApiClient, name: str) -> pwd.struct_passwd:
    """The user of this name; else who ran sudo, else the first with a home. Ends the program where there is none."""
    wanted = name or os.environ.get("SUDO_USER", "")
    if wanted and wanted != "root":
        try:
            return pwd.getpwnam(wanted)
        except KeyError:
            burstd.fail(ExitCode.NOT_FOUND, f"There is no user {wanted} here; say another with --user.")
    people = (user for user in pwd.getpwall() if _FIRST_UID <= user.pw_uid < _LAST_UID and Path(user.pw_dir).is_dir())
    found = min(people, key=lambda user: user.pw_uid, default=None)
    if found is None:
        burstd.fail(ExitCode.USAGE, "No ordinary user has a home directory here; say whose job to try: --user.")
    return found


def choose_pool(burstd: ApiClient, pools: Sequence[Pool], name: str) -> Pool:
    """The pool of this name; else the first without GPUs, else the first."""
    if name:
        for pool in pools:
            if pool.name == name:
                return pool
        burstd.fail(ExitCode.NOT_FOUND, f"There is no pool {name}; there are {', '.join(p.name for p in pools)}.")
    return next((pool for pool in pools if not pool.shape.gres), pools[0])


def try_job(burstd: ApiClient, settings: Settings, pools: Sequence[Pool], user_name: str, pool_name: str) -> None:
    """Runs the job and prints each step with its time and what it cost; ends the program where a step fails."""
    if os.geteuid() != 0:
        burstd.fail(ExitCode.FORBIDDEN, "--deep submits a job as another user, so it needs root: run it with sudo.")
    user, pool = choose_user(burstd, user_name), choose_pool(burstd, pools, pool_name)
    out = ConsoleOutput()
    patience_s = _TRIES * (settings.daemon.boot_timeout_s + settings.daemon.validation_timeout_s) + _QUEUE_S
    trial = Trial(burstd, out, user, patience_s, partial(run_at_home, user))
    job = trial.submit(pool, _other_nodes(burstd, pool))
    out.line(("Trial", "bold"), f": job {job} of {user.pw_name} from {user.pw_dir} in partition {pool.partitions[0]}")
    try:
        trial.follow(job)
        trial.read_output(job)
    except BaseException:
        subprocess.run(["scancel", job], check=False, capture_output=True)
        raise
    _print_cost(burstd, out, settings, pool, job)


def _other_nodes(burstd: ApiClient, pool: Pool) -> list[str]:
    """Nodes of the partition that are not the pool's."""
    try:
        fields = read_partitions(SlurmCommands()).get(pool.partitions[0], {})
    except (SchedulerUnavailable, SchedulerRefused) as error:
        burstd.fail(ExitCode.UNREACHABLE, f"Slurm cannot be asked: {error}.")
    return sorted(set(expand_hosts(fields.get("Nodes", ""))) - set(pool.slots))


class Trial:
    """One job. ``patience_s``: how long it may take to end; ``as_user``: runs a command as the user, at home."""

    def __init__(
        self,
        burstd: ApiClient,
        out: ConsoleOutput,
        user: pwd.struct_passwd,
        patience_s: float,
        as_user: Callable[..., subprocess.CompletedProcess[str]],
    ) -> None:
        self._burstd = burstd
        self._out = out
        self._user = user
        self._patience_s = patience_s
        self._as_user = as_user
        self._begin = time.monotonic()
        # Job numbers come again after 'slurmctld -c': what is on record of an older job of this number is not ours.
        self._last_event: int = burstd.get_json("/events", params={"limit": 1})["last"]

    def submit(self, pool: Pool, exclude: Sequence[str]) -> str:
        """The job's id."""
        gpus = next((gres for gres in pool.shape.gres), None)
        words = ["sbatch", "--parsable", f"--partition={pool.partitions[0]}", "--ntasks=1", "--mem=100", "--time=5"]
        words += [f"--gres={gpus.name}:{gpus.type}:1" if gpus.type else f"--gres={gpus.name}:1"] if gpus else []
        words += [f"--exclude={compress(exclude)}"] if exclude else []
        words += ["--job-name=burstd-check", f'--wrap=echo "{_MARK} $(id -u) $PWD"; test -w "$PWD"']
        done = self._as_user(*words)
        if done.returncode:
            self._burstd.fail(ExitCode.NEGATIVE, f"sbatch refused {self._user.pw_name}'s job: {done.stderr.strip()}")
        return done.stdout.strip().partition(";")[0]

    def follow(self, job: str) -> None:
        """Prints what happens until the job has ended well; two machines that fail are enough."""
        causes: list[str] = []
        while True:
            query: Params = {"job": job, "after": self._last_event}
            status, events = self._burstd.request_status("GET", "/events", params=query)
            if status == 200:  # else burstd has not seen the job yet
                self._last_event = max(self._last_event, events["last"])
                for event in events["events"]:
                    subject = event["node"] or event["subject"].replace(":", " ")
                    self._step(subject, event["new"] or "over", event["reason"])
                    if event["subject"].startswith("claim:") and event["new"] in _FAILED:
                        causes.append(f"\n  {subject}: {event['reason']}")
                    if event["subject"] == f"job:{job}" and event["new"] == "held":
                        self._fail(job, "burstd holds the job, which cannot run on its node")
            if len(causes) >= _TRIES:
                self._fail(job, f"{plural(len(causes), 'machine')} failed:{''.join(causes)}")
            status, detail = self._burstd.request_status("GET", f"/jobs/{job}")
            end = detail.get("end") if status == 200 else None
            if end is not None:
                self._step(f"job {job}", end["state"], f"on {', '.join(end['nodes']) or 'no node'}")
                if end["state"] == "COMPLETED":
                    return
                self._fail(job, f"the job ended as {end['state']}, exit code {end['exit_code'] or 'unknown'}")
            if status == 200 and (detail.get("job") or {}).get("verdict") == "impossible":
                self._fail(job, "the job can never start")
            if time.monotonic() - self._begin > self._patience_s:
                self._fail(job, f"the job has not ended within {duration_text(self._patience_s)}")
            time.sleep(POLL_S)

    def read_output(self, job: str) -> None:
        """The job's output lies in the user's home, and says that it ran as that user there."""
        file = f"slurm-{job}.out"
        deadline = time.monotonic() + OUTPUT_TIMEOUT_S
        while _MARK not in (text := self._as_user("head", "-c", _OUTPUT_BYTES, file).stdout):
            if time.monotonic() > deadline:
                home = self._user.pw_dir
                self._fail(
                    job,
                    f"the job completed, and its output is not in {home}/{file}: its node did not have {home} of this "
                    "host; name the tree in [mounts] of burstd.toml, or mount it in the node's image",
                )
            time.sleep(POLL_S)
        line = next(line for line in text.splitlines() if line.startswith(_MARK))
        uid, _, home = line.removeprefix(_MARK).strip().partition(" ")
        if (uid, home) != (str(self._user.pw_uid), self._user.pw_dir):
            self._fail(
                job,
                f"the job ran as uid {uid} in {home}, and {self._user.pw_name} is uid {self._user.pw_uid} in "
                f"{self._user.pw_dir} here: users must have the same numbers and homes on nodes",
            )
        self._step(file, "read", f"it ran as {self._user.pw_name} (uid {uid}) in {home}")
        self._as_user("rm", "-f", file)

    def _step(self, subject: str, state: str, reason: str) -> None:
        took = f"{time.monotonic() - self._begin:6.1f} s  "
        word = styled_state(state)
        self._out.line(took, (subject, "bold"), "  ", (word.plain, str(word.style)), f"  {reason}" if reason else "")

    def _fail(self, job: str, text: str) -> None:
        """Says what burstd knows of the job, and ends the program."""
        from burstd.api.answers.jobs import ExplainView
        from burstd.cli.commands.job import print_explanation

        status, answer = self._burstd.request_status("GET", f"/jobs/{job}/explanation")
        if status == 200:
            print_explanation(self._out, self._burstd.parse(ExplainView, answer))
        self._burstd.fail(ExitCode.NEGATIVE, f"The trial failed: {text}.")


def run_at_home(user: pwd.struct_passwd, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with the user's rights, in the user's home."""
    become = [shutil.which("runuser") or "/usr/sbin/runuser", "-u", user.pw_name, "--"]
    enter = ["env", f"--chdir={user.pw_dir}"]
    # Not root's own environment, which sbatch hands on to the job: it may have credentials of clouds.
    kept = {name: value for name in ("PATH", "SLURM_CONF") if (value := os.environ.get(name))}
    env = {**kept, "HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "LANG": "C.UTF-8"}
    return subprocess.run([*become, *enter, *words], capture_output=True, text=True, check=False, cwd="/", env=env)


def _print_cost(burstd: ApiClient, out: ConsoleOutput, settings: Settings, pool: Pool, job: str) -> None:
    from burstd.api.answers.jobs import JobDetailView

    detail = burstd.parse(JobDetailView, burstd.get_json(f"/jobs/{job}"))
    idle: dict[str, Any] = settings.policies.policy_tables.get("idle", {})
    keep = {**idle, **idle.get("pools", {}).get(pool.name, {})}.get("keep_alive_s", 300)
    cost = ", ".join(money_text(money) for money in detail.cost) or "nothing yet"
    prices = sorted({money_text(node.price_per_hour) for node in detail.nodes if node.price_per_hour})
    an_hour = f" at {', '.join(prices)} an hour" if prices else ""
    out.line(("It works.", "bold green"), f" The trial cost {cost} so far{an_hour}; its machine ends "
             f"after {duration_text(keep)} without jobs.")  # fmt: skip
