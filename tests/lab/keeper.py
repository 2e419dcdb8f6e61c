"""Keeps the processes of one control plane: the first process of a PID namespace, so that all end when it ends.

``keeper.py [FOLDER]`` reads one JSON object a line and answers each with one line. It ends when its input does: when
the one that started it is gone, however it went. It then ends all processes and removes the folder. It needs the
standard library only.

    {"do": "start", "name", "words", "environment", "log"}  -> {}
    {"do": "signal", "name", "signal"}                       -> {}; to all of its process group
    {"do": "wait", "name", "timeout_s"}                      -> {"status"}, of os.waitstatus_to_exitcode; null: not yet
    {"do": "ended"}                                          -> {"ended": {name: status}}
    {"do": "cpu"}                                            -> {"seconds"} of processor time, of all that run
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any


class Supervisor:
    """Starts and reaps."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._ended: dict[int, int] = {}
        self._changed = threading.Condition()

    def handle(self, words: dict[str, Any]) -> dict[str, Any]:
        """One request."""
        match words["do"]:
            case "start":
                self._start(words["name"], words["words"], words["environment"], words["log"])
            case "signal":
                os.killpg(self._pids[words["name"]], signal.Signals[words["signal"]])
            case "wait":
                return {"status": self._wait(self._pids[words["name"]], words["timeout_s"])}
            case "ended":
                with self._changed:
                    return {"ended": {n: self._ended[pid] for n, pid in self._pids.items() if pid in self._ended}}
            case "cpu":
                return {"seconds": _cpu_s()}
            case other:
                raise ValueError(f"{other} is nothing to do")
        return {}

    def end(self) -> None:
        """Ends all that is in this PID namespace but ourselves."""
        while True:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                return
            with self._changed:
                self._changed.wait(0.01)

    def reap(self) -> None:
        """Collects what has ended, also what its parent has left to us. Does not return."""
        while True:
            with self._changed:
                while not self._pids:
                    self._changed.wait()
            try:
                pid, status = os.wait()
            except ChildProcessError:
                with self._changed:
                    self._changed.wait(0.1)
                continue
            with self._changed:
                self._ended[pid] = os.waitstatus_to_exitcode(status)
                self._changed.notify_all()

    def _start(self, name: str, words: list[str], environment: dict[str, str], log: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawnp(words[0], words, environment, file_actions=files, setsid=True)
        with self._changed:
            self._pids[name] = pid
            self._changed.notify_all()

    def _wait(self, pid: int, timeout_s: float) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: pid in self._ended, timeout_s)
            return self._ended.get(pid)


def _cpu_s() -> float:
    """Of every process in this PID namespace, and those that they have reaped. proc_pid_stat(5): fields 14 to 17."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, fields[11:15] if file.parent.name != "1" else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Until the end of the input."""
    if os.getpid() != 1:
        sys.exit("keeper.py would end every process of this machine: run it as the first one of a PID namespace")
    keeper = Supervisor()
    threading.Thread(target=keeper.reap, daemon=True).start()
    for line in sys.stdin:
        try:
            answer = keeper.handle(json.loads(line))
        except (OSError, ValueError, KeyError) as error:
            answer = {"error": repr(error)}
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:
            break
    keeper.end()
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)
    # The thread that reaps does not return.
    os._exit(0)


if __name__ == "__main__":
    main()
