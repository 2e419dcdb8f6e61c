"""Checks at sbatch: malformed directives, files that its owner cannot read, sizes beyond a quota.

slurmctld waits for the answer and answers nobody else meanwhile, so nothing here asks it anything, and looks are short.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from burstd.domain.staging import Directives, StageIn
from burstd.domain.units import size_text
from burstd.planner.staging.transfer_schedule import MAX_INPUT_BYTES, StorageUse, quota_fault
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.directives.parser import parse_directives
from burstd.staging.submission.job_chains import paths_overlap
from burstd.staging.submission.locations import DatasetSource, directive_variables, input_location, resolve_location
from burstd.transfer.privsep.client import Account, UserWorker, UserWorkerError, UserWorkerTimeout, account, printable
from burstd.transfer.privsep.object_workers import ObjectWorker, object_scheme

log = structlog.get_logger(__name__)

MAX_ANNOUNCED_OUTPUTS = 10_000
BURST_S = 2.0
REST_FACTOR = 9


@dataclass(frozen=True, slots=True)
class SubmitCheckRules:
    """Limits at sbatch. ``seconds`` for the whole look; ``scratch_max`` in bytes, None: no limit."""

    seconds: float
    scratch_max: int | None
    datasets: DatasetSource
    in_place: Callable[[StageIn, str], str | None] = lambda _asked, _origin: None
    """The path by which nodes see an input of this source as it is: then this machine need not see it."""


class SubmitCheck:
    """Answers ``check`` calls, from any thread."""

    def __init__(
        self,
        rules: SubmitCheckRules,
        open_worker: Callable[[Account, float], UserWorker],
        open_object_worker: Callable[[Account, str, float], ObjectWorker],
        quota_uses: Callable[[str, int, str], tuple[StorageUse, StorageUse]],
    ) -> None:
        """``open_worker`` takes its deadline (time.monotonic); ``open_object_worker`` the seconds for one answer.

        ``quota_uses``: what a user (name, uid) and a project have staged and may.
        """
        self.rules = rules
        """Those in force; replaced whole, from the deciding thread."""
        self._open_worker = open_worker
        self._open_object_worker = open_object_worker
        self._quota_uses = quota_uses
        self._throttle = SubmitCheckThrottle()
        self._lock = threading.Lock()
        self._announced_outputs: deque[tuple[int, str]] = deque(maxlen=MAX_ANNOUNCED_OUTPUTS)
        """Users and destinations of jobs that were let in of late."""

    def __call__(self, call: StageCall) -> StageReply:
        """Refuses with every fault there is, one a line. Files are looked at until the time for it is over."""
        deadline = time.monotonic() + self.rules.seconds
        directives, wrong = parse_directives(call.text)
        faults = [str(fault) for fault in wrong]
        scratch_limit = self.rules.scratch_max
        if scratch_limit is not None and directives.scratch_bytes > scratch_limit:
            faults.append(
                f"scratch of {size_text(directives.scratch_bytes)} is more than the {size_text(scratch_limit)} allowed"
            )
        # Slurm 22.05 does not say who submits: what is wrong with the files is then found at stage-in.
        if not faults and call.uid is not None:
            faults = self._file_faults(directives, call.uid, call.info, deadline)
        return StageReply("refused", "\n".join(faults)) if faults else StageReply("ok")

    def _file_faults(self, directives: Directives, uid: int, info: Mapping[str, str], deadline: float) -> list[str]:
        work_dir, project = info.get("work_dir", ""), info.get("account", "")
        faults: list[str] = []
        try:
            who = account(uid)
            with self._throttle.admit(uid) as allowed:
                if allowed:
                    with self._open_worker(who, deadline) as worker:
                        faults = self._check_files(worker, directives, who, work_dir, project, deadline)
        except UserWorkerTimeout:
            log.info("a job's files were not all looked at in time when it was submitted", uid=uid)
        except UserWorkerError as error:
            log.error("a job's files could not be looked at when it was submitted", uid=uid, error=str(error))
            return []
        if not faults:
            known = directive_variables(who)
            paths = (resolve_location(wanted.destination, known, work_dir) for wanted in directives.stage_out)
            with self._lock:
                self._announced_outputs.extend((uid, path) for path in paths if path is not None)
        return faults

    def _check_files(
        self, worker: UserWorker, directives: Directives, who: Account, work_dir: str, project: str, deadline: float
    ) -> list[str]:
        """Raises UserWorkerTimeout."""
        faults: list[str] = []
        size = 0
        variables = directive_variables(who)
        for stage_in in directives.stage_in:
            path: str | None = None
            try:
                path = input_location(stage_in, variables, work_dir, self.rules.datasets)
                # What hangs on the job's number is looked at when it is staged.
                if path is None or self.rules.in_place(stage_in, path):
                    continue
                seconds_left = _seconds_left(deadline)
                if object_scheme(path):
                    size += self._measure_objects(who, path, seconds_left)
                    continue
                found = worker.measure_source(path, seconds=seconds_left)
                size += found.size
                faults += [
                    f"line {stage_in.line}: {printable(unreadable_path)} cannot be read by {who.user}"
                    for unreadable_path, _ in found.unreadable
                ]
            except UserWorkerTimeout:
                raise
            except (UserWorkerError, ValueError) as error:
                if (
                    path
                    and isinstance(error, UserWorkerError)
                    and error.errno == errno.ENOENT
                    and self._is_announced(who.uid, path)
                ):
                    continue
                faults.append(
                    f"line {stage_in.line}: stage_in {printable(stage_in.source or stage_in.dataset)}: {error}"
                )
        for wanted in directives.stage_out:
            try:
                path = resolve_location(wanted.destination, variables, work_dir)
                if path is not None and object_scheme(path):
                    self._probe_objects(who, path, _seconds_left(deadline))
                elif path is not None and not worker.destination_space(path).writable:
                    faults.append(
                        f"line {wanted.line}: stage_out to {printable(path)}: {who.user} may not write there; choose "
                        "a destination of yours"
                    )
            except UserWorkerTimeout:
                raise
            except UserWorkerError as error:
                faults.append(f"line {wanted.line}: stage_out to {printable(wanted.destination)}: {error}")
        if not faults and size > MAX_INPUT_BYTES:
            faults.append(f"the input is {size_text(size)} and more; the most is {size_text(MAX_INPUT_BYTES)}")
        elif not faults and size:
            over_quota = quota_fault(size, *self._quota_uses(who.user, who.uid, project))
            faults += [over_quota] if over_quota else []
        return faults

    def _is_announced(self, uid: int, path: str) -> bool:
        """Whether a job of his that was submitted before will bring something there: what is not there may come.

        Jobs of other users are not disclosed, and input does not wait for them (see OutputDependencies).
        """
        with self._lock:
            return any(paths_overlap(path, destination) for user, destination in self._announced_outputs if user == uid)

    def _measure_objects(self, who: Account, source: str, timeout_s: float) -> int:
        """Their size, as far as it is known in time. Raises UserWorkerError where the user cannot have them."""
        with _tolerating_slow_server(source), self._open_object_worker(who, object_scheme(source), timeout_s) as worker:
            return worker.measure_source(source, seconds=timeout_s / 2).size
        return 0

    def _probe_objects(self, who: Account, destination: str, timeout_s: float) -> None:
        with (
            _tolerating_slow_server(destination),
            self._open_object_worker(who, object_scheme(destination), timeout_s) as worker,
        ):
            worker.destination_space(destination)


class SubmitCheckThrottle:
    """Whose files are looked at: one job of a user at a time, then none for REST_FACTOR times as long after BURST_S.

    slurmctld answers nobody while burstd looks. Who submits in loops has his jobs let in without a look: what is wrong
    is found when they are staged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._busy: set[int] = set()
        self._rested_at: dict[int, float] = {}
        """When the looks of a user have been made up for."""

    @contextmanager
    def admit(self, uid: int) -> Iterator[bool]:
        """Whether his files may be looked at now."""
        began = self._clock()
        with self._lock:
            self._rested_at = {uid: rested for uid, rested in self._rested_at.items() if rested > began}
            allowed = uid not in self._busy and self._rested_at.get(uid, began) - began < REST_FACTOR * BURST_S
            if allowed:
                self._busy.add(uid)
        try:
            yield allowed
        finally:
            if allowed:
                with self._lock:
                    now = self._clock()
                    self._busy.discard(uid)
                    self._rested_at[uid] = max(self._rested_at.get(uid, now), now) + REST_FACTOR * (now - began)


def _seconds_left(deadline: float) -> float:
    """Seconds that are left. Raises UserWorkerTimeout where none are."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise UserWorkerTimeout("", 0, "the time for it is over")
    return left


@contextmanager
def _tolerating_slow_server(location: str) -> Iterator[None]:
    """A server that is slow or away keeps nobody from submitting: it is asked again when the data is staged."""
    try:
        yield
    except UserWorkerError as error:
        if error.errno not in (0, errno.EAGAIN):
            raise
        log.info("objects could not be looked at when a job was submitted", place=location, error=str(error))
