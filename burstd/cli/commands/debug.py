"""burstctl debug: one file for a report of what went wrong, without secrets."""

from __future__ import annotations

import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from burstd.cli.offline.config import DEFAULT_CONFIG, ConfigOption
from burstd.cli.output import ConsoleOutput
from burstd.cli.plain_text import json_text, print_json
from burstd.cli.scrub import Scrubber
from burstd.cli.session import ApiClient, DaemonUnreachable, ExitCode, job_ids, node_names, with_client

_JOB_ID = re.compile(r"[0-9]+([_+][0-9]+)?")
_MAX_NODES = 8
"""Nodes of a job that are looked at."""
_EVENTS = 1000
_LOG_LINES = 5000
"""The last lines of burstd's log that name the job or its nodes."""
_LOG_DAYS = 7
_PROGRAM_TIMEOUT_S = 60.0
_CHECK_TIMEOUT_S = 150.0
_NOT_THERE = "NOT-IN-IT.txt"


class _NotObtained(Exception):
    """A part that is not to be had, with the reason."""


def _subject_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return [*job_ids(ctx, incomplete), *node_names(ctx, incomplete)]


@with_client
def debug(
    burstd: ApiClient,
    subject: Annotated[
        str, typer.Argument(metavar="JOB|NODE", help="A job, node or claim.", autocompletion=_subject_names)
    ],
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="The archive; default: burstd-debug-... here.")
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Put all about a job or node into one archive (.tar.gz, mode 600) for a report, without secrets.

    Versions, status, explain, events, burstd's log, settings, check, Slurm's records; for administrators also console
    and slurmd's log of the nodes. What could not be had is named in NOT-IN-IT.txt. Users get what they may see.
    """
    name = f"burstd-debug-{re.sub('[^A-Za-z0-9]+', '-', subject)}-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz"
    path = output or Path(name)
    report = _Report(burstd, subject, config)
    report.refuse_what_is_not_the_callers()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        burstd.fail(ExitCode.NEGATIVE, f"{path} cannot be made: {error.strerror}.")
    with os.fdopen(descriptor, "wb") as file:
        missing = report.write(file)
    if burstd.json:
        print_json({"file": str(path), "not_in_it": missing})
        return
    out = ConsoleOutput()
    out.line(f"{path} has what there is on {subject}; look through it before you hand it on.")
    for name, why in missing.items():
        out.note(f"not in it: {name}: {why}", "yellow")


class _Report:
    def __init__(self, burstd: ApiClient, subject: str, config: Path) -> None:
        self._burstd = burstd
        self._subject = subject
        self._is_job = _JOB_ID.fullmatch(subject) is not None
        self._config = config
        self._nodes: dict[str, str] = {} if self._is_job else {subject: subject}
        """What the daemon is asked for by the node's name: the claim, or where none is known the name."""
        self._missing: dict[str, str] = {}
        self._settings, self._settings_error = _read_settings(config)
        daemon = self._settings.get("daemon", {})
        kept_dir = Path(str(daemon.get("shared_dir") or daemon.get("state_dir", "/var/lib/burstd")))
        keys = (Path("/etc/munge/munge.key"), *(kept_dir / name for name in ("ssh_key", "job-folders.key")))
        self._scrubber = Scrubber(self._settings, keys, os.environ)

    def refuse_what_is_not_the_callers(self) -> None:
        """Ends the program where the daemon knows no such job or node, or it is not the caller's."""
        try:
            kind = "jobs" if self._is_job else "nodes"
            status, answer = self._burstd.request_status("GET", f"/{kind}/{self._subject}")
        except DaemonUnreachable:
            return
        if status in (403, 404):
            self._burstd.answer_or_exit(status, answer)
        if status == 200:
            views = answer["nodes"] if self._is_job else [answer["node"]]
            running = (answer["job"] or {}).get("nodes", []) if self._is_job else []
            found = {name: name for name in running} | {view["slot"]: view["claim"] or view["slot"] for view in views}
            self._nodes = dict([*found.items()][:_MAX_NODES])

    def write(self, file: IO[bytes]) -> Mapping[str, str]:
        """Returns what is not in it, with the reasons."""
        now = time.time()
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, make in self._parts():
                try:
                    self._add(archive, name, make(), now)
                except _NotObtained as error:
                    self._missing[name] = self._scrubber.text(str(error))
            lines = [f"{name}: {why}\n" for name, why in self._missing.items()]
            lines += [f"Secrets of {why}: only their usual forms were taken out.\n" for why in self._scrubber.unread]
            self._add(archive, _NOT_THERE, "".join(lines), now)
        return self._missing

    def _add(self, archive: tarfile.TarFile, name: str, content: object, now: float) -> None:
        text = content if isinstance(content, str) else json_text(self._scrubber.value(content), indent=2) + "\n"
        data = self._scrubber.text(text).encode("utf-8", "replace")
        entry = tarfile.TarInfo(f"burstd-debug-{self._subject}/{name}")
        entry.size, entry.mode, entry.mtime = len(data), 0o600, int(now)
        archive.addfile(entry, io.BytesIO(data))

    def _parts(self) -> Iterator[tuple[str, Callable[[], object]]]:
        yield "versions.txt", self._versions
        yield "status.json", lambda: self._ask("/status")
        if self._is_job:
            job = self._subject
            yield "job.json", lambda: self._ask(f"/jobs/{job}")
            yield "explain.json", lambda: self._ask(f"/jobs/{job}/explanation")
            yield "events.json", lambda: self._ask("/events", job=job, limit=_EVENTS)
            yield "data.json", lambda: self._ask(f"/stage/{job}")
            yield "slurm-job.txt", lambda: _run("scontrol", "show", "job", job)
        for node, asked in self._nodes.items():
            yield from self._node_parts(node, asked)
        yield "check.json", self._check
        yield "settings.json", self._settings_part
        yield "journal.txt", self._journal

    def _node_parts(self, node: str, asked: str) -> Iterator[tuple[str, Callable[[], object]]]:
        yield f"{node}/node.json", lambda: self._ask(f"/nodes/{asked}")
        yield f"{node}/events.json", lambda: self._ask("/events", node=node, limit=_EVENTS)
        yield f"{node}/slurm-node.txt", lambda: _run("scontrol", "show", "node", node)
        logs: dict[str, Any] = {}

        def log_part(kind: str) -> object:
            if not logs:
                logs.update(self._ask(f"/nodes/{asked}/logs"))
            if logs[f"{kind}_error"]:
                raise _NotObtained(logs[f"{kind}_error"])
            return logs[kind]

        yield f"{node}/console.txt", lambda: log_part("console")
        yield f"{node}/slurmd.log", lambda: log_part("slurmd")

    def _ask(self, path: str, **params: str | float) -> Any:
        try:
            status, answer = self._burstd.request_status("GET", path, params=params)
        except DaemonUnreachable as error:
            raise _NotObtained(str(error).partition("\n")[0]) from None
        if status != 200:
            raise _NotObtained(str(answer.get("error", f"the daemon answered {status}")))
        return answer

    def _versions(self) -> str:
        try:
            own = version("burstd")
        except PackageNotFoundError:
            own = "not installed"
        try:
            slurm = _run("scontrol", "--version").strip()
        except _NotObtained as error:
            slurm = str(error)
        return (
            f"made: {datetime.now().astimezone().isoformat(timespec='seconds')}\nburstctl: {own}\n"
            f"Python: {platform.python_version()}\nSlurm's commands: {slurm}\nsystem: {platform.platform()}\n"
        )

    def _check(self) -> str:
        if self._settings_error:
            raise _NotObtained(self._settings_error)
        words = ("--json", "--socket", str(self._burstd.path), "check", "--config", str(self._config))
        return _run(sys.executable, "-m", "burstd.cli.main", *words, codes=(0, 1), timeout_s=_CHECK_TIMEOUT_S)

    def _settings_part(self) -> object:
        if self._settings_error:
            raise _NotObtained(self._settings_error)
        return self._settings

    def _journal(self) -> str:
        argv = ("journalctl", "--quiet", "--no-pager", "--unit=burstd", "--output=short-iso", f"--since=-{_LOG_DAYS}d")
        names = {self._subject, *self._nodes, *self._nodes.values()}
        wanted = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")
        found = _last_lines(_run(*argv).splitlines(keepends=True), wanted)
        if not found:
            raise _NotObtained(f"no line of burstd's journal of {_LOG_DAYS} days that you may read names it")
        return "".join(found)


def _last_lines(lines: Iterable[str], wanted: re.Pattern[str]) -> Iterable[str]:
    return deque((line for line in lines if wanted.search(line)), _LOG_LINES)


def _read_settings(file: Path) -> tuple[Mapping[str, Any], str]:
    """The settings as they stand there, or why they cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")), ""
    except OSError as error:
        return {}, f"{file} cannot be read: {error.strerror}"
    except ValueError as error:
        return {}, f"{file} is no TOML: {error}"


def _run(*argv: str, codes: tuple[int, ...] = (0,), timeout_s: float = _PROGRAM_TIMEOUT_S) -> str:
    """What a program prints. Raises _NotObtained."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", timeout=timeout_s,
            check=False,
        )  # fmt: skip
    except OSError as error:
        raise _NotObtained(f"{argv[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _NotObtained(f"{argv[0]} was not done within {timeout_s:.0f} s") from None
    if done.returncode not in codes or not done.stdout:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise _NotObtained(f"{argv[0]}: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout
