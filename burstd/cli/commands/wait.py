"""burstctl wait"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import typer

from burstd.api.answers.text import parse_duration
from burstd.cli.job_socket import AnswerLines, JobSocket, connect_unless_starting
from burstd.cli.plain_text import print_json_line, safe_text
from burstd.cli.session import (
    EXIT_CODE_BY_STATUS,
    ApiClient,
    ExitCode,
    job_ids,
    with_client,
)
from burstd.domain.launch_failure import LAUNCH_SIGNAL

TIMED_OUT = 124
"""As of timeout(1)."""
_RETRY_S = 2.0


@with_client
def wait(
    burstd: ApiClient,
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="123, 123_7, 123+1.", autocompletion=job_ids)],
    start: Annotated[bool, typer.Option("--start", help="Until they run; of an array, a task.")] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Give up after: 90s, 15m, 2h (exit code 124).")] = "",
) -> None:
    """Wait until your jobs have ended, and say what they wait for.

    The exit code is the highest of theirs, as of sbatch --wait: 1 where one was ended by a signal, by Slurm or by
    somebody. It goes on when the daemon is started again.
    """
    try:
        deadline = time.monotonic() + parse_duration(timeout) if timeout else None
    except ValueError as error:
        burstd.fail(ExitCode.USAGE, f"--timeout: {error}.")
    waiting = _Wait(burstd, jobs, start=start, deadline=deadline)
    try:
        waiting.run()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(waiting.exit_code)


def wait_for_start(burstd: ApiClient, job: str) -> bool:
    """Returns when the job runs, or False when it has ended; says meanwhile what it waits for."""
    waiting = _Wait(burstd, [job], start=True, deadline=None)
    waiting.run()
    return waiting.runs


def exit_code(state: str, status_and_signal: str) -> int:
    """Of a part of a job that has ended as ``state``, with Slurm's ``1:0``."""
    status, _, signal = status_and_signal.partition(":")
    code = 1 if signal not in ("", "0") else int(status or 0)
    return code if state == "COMPLETED" else max(1, code)


def _end_text(part: Mapping[str, Any]) -> str:
    code, why = str(part["exit_code"] or "?"), str(part.get("reason", ""))
    if code == LAUNCH_SIGNAL:
        why = why or "it did not start, as slurmd's log of its node says"
    return f"Job {part['id']} has ended: {part['state']}, exit code {code}{f': {why}' if why else ''}"


class _Wait:
    def __init__(self, burstd: ApiClient, jobs: list[str], *, start: bool, deadline: float | None) -> None:
        self._burstd = burstd
        self._left = list(dict.fromkeys(jobs))
        self._start = start
        self._deadline = deadline
        self._noted: dict[str, str] = {}
        self.exit_code = 0
        self.runs = False

    def run(self) -> None:
        """Returns when all is told; the daemon may be started again meanwhile."""
        again = False
        while not self._told(again):
            if not again:
                typer.echo("burstctl: burstd hung up; burstctl goes on when it runs again.", err=True)
            again = True
            self._pause()

    def _told(self, again: bool) -> bool:
        """Whether the daemon said its last. ``again``: it need not answer."""
        request = {"kind": "wait", "job": self._left[0], "jobs": self._left, "start": self._start}
        connection = connect_unless_starting(self._burstd, JobSocket(self._burstd.path, request), again=again)
        if connection is None:
            return False
        with connection:
            answers = AnswerLines(connection)
            while True:
                answer = answers.next(self._left_s())
                if answer is None:
                    self._give_up()
                elif not answer:
                    return False
                elif "end" in answer:
                    return True
                elif "error" in answer:
                    self._refuse(answer["status"], str(answer["error"]))
                else:
                    self._take(answer)

    def _refuse(self, status: int, why: str) -> NoReturn:
        self._burstd.fail(EXIT_CODE_BY_STATUS.get(status, ExitCode.UNREACHABLE), why)

    def _take(self, answer: Mapping[str, Any]) -> None:
        job = str(answer["job"])
        if "note" in answer:
            note = str(answer["note"])
            if self._noted.get(job) == note:
                return
            self._noted[job] = note
            text = f"Job {job}: {note}"
        elif "ended" in answer:
            self._left = [one for one in self._left if one != job]
            parts = answer["ended"]
            self.exit_code = max(self.exit_code, *(exit_code(p["state"], p["exit_code"]) for p in parts))
            text = "\n".join(map(_end_text, parts))
        else:
            self._left = [one for one in self._left if one != job]
            self.runs = True
            text = f"Job {job} runs"
        if self._burstd.json:
            print_json_line(answer)
        else:
            typer.echo(safe_text(text))

    def _left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _pause(self) -> None:
        left = self._left_s()
        time.sleep(_RETRY_S if left is None else min(_RETRY_S, left))
        if left is not None and left <= _RETRY_S:
            self._give_up()

    def _give_up(self) -> NoReturn:
        waits = "have not begun" if self._start else "have not ended"
        typer.echo(f"burstctl: {waits} in time: {', '.join(self._left)}.", err=True)
        raise typer.Exit(TIMED_OUT)
