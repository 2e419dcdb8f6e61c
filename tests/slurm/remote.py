"""A Scheduler that lives in a box: pyslurm needs the box's libslurm, the tests run outside.

Run in the box (``remote.py KIND``) it makes the scheduler and serves calls on its standard input and output.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import BinaryIO, cast

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.plugins.scheduler import Scheduler

_ERRORS = {error.__name__: error for error in (SchedulerRefused, SchedulerUnavailable)}


class Remote:
    """Every method is called over there."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        self.kind = self._answer()

    def __getattr__(self, name: str) -> object:
        def call(*args: object, **options: object) -> object:
            pickle.dump((name, args, options), self._to)
            self._to.flush()
            return self._answer()

        return call

    def _answer(self) -> object:
        error, value = pickle.load(self._from)  # noqa: S301 - our own process
        if error:
            raise _ERRORS[error](value)
        return value

    def as_scheduler(self) -> Scheduler:
        """For the type checker."""
        return cast("Scheduler", self)


def serve(kind: str, calls: BinaryIO, answers: BinaryIO) -> None:
    """Answers calls until there are no more."""
    from burstd.slurm.pyslurm_scheduler import open_scheduler

    def answer(error: str, value: object) -> None:
        pickle.dump((error, value), answers)
        answers.flush()

    try:
        scheduler, _reason = open_scheduler(kind)
    except SchedulerUnavailable as error:
        answer(type(error).__name__, str(error))
        return
    answer("", type(scheduler).__name__)
    while True:
        try:
            name, args, options = pickle.load(calls)  # noqa: S301
        except EOFError:
            return
        try:
            answer("", getattr(scheduler, name)(*args, **options))
        except (SchedulerRefused, SchedulerUnavailable) as error:
            answer(type(error).__name__, str(error))


if __name__ == "__main__":
    serve(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
