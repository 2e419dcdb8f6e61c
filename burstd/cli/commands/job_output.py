"""burstctl job logs"""

from __future__ import annotations

import base64
import codecs
import os
import stat
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from burstd.cli.job_socket import AnswerLines, JobSocket, connect_unless_starting
from burstd.cli.plain_text import print_json_line, safe_text
from burstd.cli.session import (
    ApiClient,
    ExitCode,
    JobArgument,
    with_client,
)

DEFAULT_LINES = 1000
_CHUNK_BYTES = 1 << 16
_WINDOW_BYTES = 16 << 20
"""Lines are counted in so many of a file's last bytes."""
_POLL_S = 0.5
_RETRY_S = 2.0
_KEPT_CONTROLS = "\n\t\r"


@with_client
def job_logs(
    burstd: ApiClient,
    job_id: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what the job writes, until it ends or Ctrl-C.")
    ] = False,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="Its standard error, where that is a file of its own.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=-1, max=1_000_000, help="The last N lines; -1: all.")
    ] = DEFAULT_LINES,
) -> None:
    """What your job has written so far, also while it runs on a cloud node.

    A file that is on this host is read here, with your own rights.
    """
    request = {
        "kind": "log", "job": job_id, "stream": "stderr" if stderr else "stdout", "lines": lines, "follow": follow,
    }  # fmt: skip
    log = _JobLog(burstd, JobSocket(burstd.path, request), lines=lines, follow=follow)
    try:
        log.run()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


class _JobLog:
    def __init__(self, burstd: ApiClient, daemon: JobSocket, *, lines: int, follow: bool) -> None:
        self._burstd = burstd
        self._daemon = daemon
        self._lines = lines
        self._follow = follow
        self._out = _Output(as_json=burstd.json)
        self._file: _FollowedFile | None = None
        """The file on this host, where the output is there."""
        self._at: Any = None
        """Where a next connection goes on; None: there was no data so far."""

    def run(self) -> None:
        """Returns when all is told; with ``follow``, the daemon may be started again meanwhile."""
        again = False
        while not self._told(again):
            if not self._follow:
                self._burstd.fail(ExitCode.UNREACHABLE, "burstd hung up; try again when it runs.")
            if not again:
                self._out.note("burstd hung up; burstctl goes on when it runs again.")
            again = True
            time.sleep(_RETRY_S)

    def _told(self, again: bool) -> bool:
        """Whether the daemon said its last. ``again``: it need not answer."""
        more = {"at": self._at} if self._at is not None else {}
        connection = connect_unless_starting(self._burstd, self._daemon, again=again, **more)
        if connection is None:
            return False
        with connection:
            answers = AnswerLines(connection)
            while (answer := answers.next()) and "end" not in answer:
                if note := answer.get("note"):
                    self._out.note(str(note))
                if "data" in answer:
                    self._out.write(base64.b64decode(answer["data"]))
                    self._at = answer.get("at")
                elif "file" in answer:
                    return self._tell_file(Path(str(answer["file"])), answers)
        if not answer:
            return False
        self._out.finish()
        if answer.get("failed"):
            self._burstd.fail(ExitCode.NEGATIVE, str(answer["end"]))
        return True

    def _tell_file(self, path: Path, answers: AnswerLines) -> bool:
        """Tells a file of this host, until the daemon says that the job is over; False: it hung up."""
        file = self._file = self._file or _FollowedFile(path, self._lines)
        noted = ""
        answer = None if self._follow else answers.next()
        while answer is None:
            problem = file.copy_new(self._out)
            if problem and problem != noted:
                self._out.note(problem)
            noted = problem
            answer = answers.next(_POLL_S)
        # The daemon's last comes after the job's: what the job wrote is there by now.
        problem = file.copy_new(self._out)
        self._out.finish()
        if problem:
            self._burstd.fail(ExitCode.NEGATIVE, problem)
        return bool(answer)


class _FollowedFile:
    """A file of this host, which may come late, be replaced and be truncated."""

    def __init__(self, path: Path, lines: int) -> None:
        self._path = path
        self._lines = lines
        self._identity: tuple[int, int] | None = None
        self._offset = 0

    def copy_new(self, out: _Output) -> str:
        """Copies what is new up to its present end; returns why it cannot be read, or nothing."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except FileNotFoundError:
            return f"{self._path} is not on this host, or not yet: burstctl stage status tells what is on its way home."
        except OSError as error:
            return f"{self._path} cannot be read: {error.strerror}."
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return f"{self._path} is no regular file."
            identity = (found.st_dev, found.st_ino)
            if self._identity is None and self._lines >= 0:
                self._offset = _start_of_last_lines(file, found.st_size, self._lines)
            elif self._identity not in (None, identity) or found.st_size < self._offset:
                out.note("The file was replaced or truncated; it is read from its beginning.")
                self._offset = 0
            self._identity = identity
            file.seek(self._offset)
            while piece := file.read(min(_CHUNK_BYTES, found.st_size - self._offset)):
                out.write(piece)
                self._offset += len(piece)
        return ""


def _start_of_last_lines(file: Any, size: int, lines: int) -> int:
    start = max(0, size - _WINDOW_BYTES)
    file.seek(start)
    window = file.read(size - start)
    at = len(window) - window.endswith(b"\n")
    for _ in range(lines):
        at = window.rfind(b"\n", 0, at)
        if at < 0:
            return int(start)
    return int(start + at + 1) if lines else size


class _Output:
    """Standard output: bytes as they are to a file or pipe, without anything that a terminal obeys to a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._terminal = sys.stdout.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes) -> None:
        """Writes a piece of output at once."""
        if self._json:
            print_json_line({"data": base64.b64encode(data).decode("ascii")})
        elif self._terminal:
            self._write_escaped(self._decoder.decode(data))
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def finish(self) -> None:
        """Writes what is left of a character that was cut off."""
        if self._terminal and not self._json:
            self._write_escaped(self._decoder.decode(b"", final=True))

    def _write_escaped(self, text: str) -> None:
        sys.stdout.write(terminal_text(text))
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Says something beside the output."""
        if self._json:
            print_json_line({"note": text})
        else:
            sys.stderr.write(f"burstctl: {safe_text(text)}\n")
            sys.stderr.flush()


def terminal_text(text: str) -> str:
    """What a job wrote, with the characters that a terminal obeys written as Python does: ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT_CONTROLS else ascii(c)[1:-1] for c in text)
