"""Processes in a PID namespace of their own, kept by keeper.py: all end, and their folder goes, when we end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from providers.sandbox.boxes.machine import tool_path

_SUPERVISOR = Path(__file__).parent / "keeper.py"
_RUN_S = 600.0
_CLOSE_S = 60.0


class LabFailed(RuntimeError):
    """The lab did not do what it was told."""


class ProcessSupervisor:
    """The processes of ``state``, whose logs are in ``state``/log. ``prefix`` goes before the keeper's command line.

    ``environment`` is all that they get, but for PATH and the like of ours.
    """

    poll_s = 0.02
    """Between two looks at a condition."""

    def __init__(
        self,
        state: Path,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        patience_s: float = 120.0,
    ) -> None:
        self.state = state
        self._prefix = tuple(prefix)
        self._patience_s = patience_s
        self._supervisor: subprocess.Popen[str] | None = None
        self._asking = threading.Lock()
        self._lasting: dict[str, bool] = {}
        self._again: dict[str, tuple[Sequence[str], Mapping[str, str] | None]] = {}
        inherited = ("PATH", "LANG", "LC_ALL", "TMPDIR")
        self._environment = {name: os.environ[name] for name in inherited if name in os.environ}
        self._environment |= {"HOME": str(state), **(environment or {})}

    def open(self, *, keep: bool = False) -> None:
        """Starts the keeper, without any processes yet; with ``keep`` the state is not removed."""
        folders = [] if keep else [str(self.state)]
        words = [
            tool_path("unshare"),
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--",
            sys.executable,
        ]
        self._supervisor = subprocess.Popen(
            [*self._prefix, *words, "-I", str(_SUPERVISOR), *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=self.state,
        )

    def close(self) -> None:
        """Ends all at once. May be repeated."""
        if self._supervisor is None:
            return
        keeper, self._supervisor = self._supervisor, None
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        with suppress(BrokenPipeError):
            keeper.stdin.close()
        try:
            keeper.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            # unshare, which takes the PID namespace with it.
            keeper.kill()
            keeper.wait()
        keeper.stdout.close()

    def request(self, do: str, **words: Any) -> Any:
        """Of the keeper. Raises LabFailed."""
        assert self._supervisor is not None, "it is not up"
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        with self._asking:
            try:
                self._supervisor.stdin.write(json.dumps({"do": do, **words}) + "\n")
                self._supervisor.stdin.flush()
                line = self._supervisor.stdout.readline()
            except BrokenPipeError:
                line = ""
        answer = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in answer:
            raise LabFailed(f"the lab could not {do} {words.get('name', '')}: {answer['error']}")
        return answer

    def log(self, name: str) -> Path:
        """What a process has said."""
        return self.state / "log" / f"{name}.log"

    def read_log(self, name: str) -> str:
        """The end of its log."""
        file = self.log(name)
        return file.read_text(encoding="utf-8", errors="replace")[-3000:] if file.exists() else "(nothing)"

    def start(
        self,
        name: str,
        words: Sequence[str],
        more: Mapping[str, str] | None = None,
        *,
        lasting: bool = True,
        again: bool = False,
    ) -> None:
        """Starts a process, with ``more`` in its environment. Returns at once.

        A ``lasting`` one must not end; one that is to be started ``again`` may fail once.
        """
        if again:
            self._again[name] = (words, more)
        self.log(name).parent.mkdir(exist_ok=True)
        environment = {**self._environment, **(more or {})}
        self.request("start", name=name, words=list(words), environment=environment, log=str(self.log(name)))
        self._lasting[name] = lasting

    def run(self, name: str, words: Sequence[str]) -> None:
        """Runs a process to its end. Raises LabFailed."""
        self.start(name, words, lasting=False)
        self.succeed(name)

    def succeed(self, name: str) -> None:
        """Waits for the end of a process. Raises LabFailed where it is no good one, or does not come."""
        status = self.request("wait", name=name, timeout_s=_RUN_S)["status"]
        if status is None:
            raise LabFailed(f"{name} has not ended within {_RUN_S:.0f} s: {self.read_log(name)}")
        if status != 0:
            raise LabFailed(f"{name} ended with {status}: {self.read_log(name)}")

    def end(self, name: str, how: str = "SIGKILL") -> None:
        """Ends a process; returns when it is gone. Raises LabFailed where it does not go."""
        self._lasting.pop(name, None)
        self.signal(how, name)
        if self.request("wait", name=name, timeout_s=_CLOSE_S)["status"] is None:
            raise LabFailed(f"{name} did not end within {_CLOSE_S:.0f} s after {how}")

    def signal(self, how: str, *names: str) -> None:
        """Sends one, ``SIGSTOP``, to all of these processes."""
        for name in names:
            self.request("signal", name=name, signal=how)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Returns when the condition holds. Raises LabFailed when a process ends before, or it takes too long."""
        deadline = time.monotonic() + self._patience_s
        while not condition():
            for name, status in self.request("ended")["ended"].items():
                if status and name in self._again:
                    self.start(name, *self._again.pop(name))
                elif self._lasting.get(name) or (name in self._lasting and status):
                    raise LabFailed(f"{name} ended with {status}: {self.read_log(name)}")
            if time.monotonic() > deadline:
                raise LabFailed(f"not within {self._patience_s:.0f} s: {what}; see the logs in {self.state / 'log'}")
            time.sleep(self.poll_s)

    def cpu_s(self) -> float:
        """Processor time that all of them have used so far, in seconds."""
        return float(self.request("cpu")["seconds"])


class SupervisedPlane:
    """A control plane whose programs are kept: what can be done to all such."""

    @property
    def _processes(self) -> ProcessSupervisor:
        raise NotImplementedError

    def freeze(self, *names: str) -> None:
        """These programs take connections and do not answer, until ``thaw``."""
        self._processes.signal("SIGSTOP", *names)

    def thaw(self, *names: str) -> None:
        """They go on where they were."""
        self._processes.signal("SIGCONT", *names)

    @contextmanager
    def frozen(self, *names: str) -> Iterator[None]:
        """Frozen meanwhile."""
        self.freeze(*names)
        try:
            yield
        finally:
            self.thaw(*names)

    def cpu_s(self) -> float:
        """Processor time that all of it has used so far, in seconds."""
        return self._processes.cpu_s()
