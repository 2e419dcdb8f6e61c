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
from dataclasses import dataclass, field

import structlog

from burstd.domain.staging import Directives, StageIn, VolumeLine, WorkdirRules
from burstd.domain.units import size_text
from burstd.planner.staging.transfer_schedule import MAX_INPUT_BYTES, StorageUse, beyond_quota
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.directives.parser import parse_directives
from burstd.staging.submission.container import JOB_SUBMIT, container_first_line, has_container_line, image_fault
from burstd.staging.submission.job_chains import paths_overlap
from burstd.staging.submission.locations import DatasetSource, directive_variables, input_location, resolve_location
from burstd.staging.submission.workdir import (
    IGNORE_FILE,
    check_workdir,
    read_ignore_rules,
    workdir_location_fault,
    workdir_size_fault,
)
from burstd.transfer.images.reference import SCHEME
from burstd.transfer.privsep.client import Account, UserWorker, UserWorkerError, UserWorkerTimeout, account, printable
from burstd.transfer.privsep.object_workers import ObjectWorker, object_scheme

log = structlog.get_logger(__name__)

MAX_SCRATCH_BYTES = 400 << 40
"""Where the site sets no limit: no cloud sells a machine with larger disks of its own."""
MAX_ANNOUNCED_OUTPUTS = 10_000
BURST_S = 2.0
REST_FACTOR = 9
NO_VOLUMES = "no provider of this site has volumes"
_NO_WORKDIR = "the working directory cannot be staged"


@dataclass(frozen=True, slots=True)
class SubmitCheckRules:
    """Limits at sbatch. ``seconds`` for the whole look; ``scratch_max`` in bytes, None: no limit."""

    seconds: float
    scratch_max: int | None
    datasets: DatasetSource
    in_place: Callable[[StageIn, str], str | None] = lambda _asked, _origin: None
    """The path by which nodes see an input of this source as it is: then this machine need not see it."""
    workdir: WorkdirRules = field(default_factory=WorkdirRules)
    image_fault: Callable[[str], str] = lambda _source: ""
    """Why a container of this ``docker://`` reference is not allowed; empty: it is."""
    volume_fault: Callable[[VolumeLine, int | None, Mapping[str, str]], str] = lambda *_: NO_VOLUMES
    """Why a job of this user (None: unknown) cannot have the volume of its line, by what Slurm tells; empty: it can."""
    scratch_fault: Callable[[int, tuple[str, ...]], str] = lambda *_: ""
    """Why no machine for a job in these partitions (none: not known) has so many bytes of scratch; empty: one may."""


class SubmitCheck:
    """Answers ``check`` calls, from any thread."""

    def __init__(
        self,
        rules: SubmitCheckRules,
        open_worker: Callable[[Account, float], UserWorker],
        open_object_worker: Callable[[Account, str, float], ObjectWorker],
        quota_uses: Callable[[str, int, str], tuple[StorageUse, StorageUse]],
        count_mistake: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        """``open_worker`` takes its deadline (time.monotonic); ``open_object_worker`` the seconds for one answer.

        ``quota_uses``: what a user (name, uid) and a project have staged and may. ``count_mistake`` takes the kind of
        what a job is refused for: that of its first fault.
        """
        self.rules = rules
        """Those in force; replaced whole, from the deciding thread."""
        self._open_worker = open_worker
        self._open_object_worker = open_object_worker
        self._quota_uses = quota_uses
        self._count_mistake = count_mistake
        self._throttle = SubmitCheckThrottle()
        self._slurm_names_owners = False
        """burst_buffer/lua of this Slurm says whose job it is, so that job_submit.lua need not have files looked at."""
        self._lock = threading.Lock()
        self._announced_outputs: deque[tuple[int, str]] = deque(maxlen=MAX_ANNOUNCED_OUTPUTS)
        """Users and destinations of jobs that were let in of late."""

    def __call__(self, call: StageCall) -> StageReply:
        """Refuses with every fault there is, one a line. Files are looked at until the time for it is over.

        The text of the answer to job_submit.lua is the first line that the script is to have; empty: its own.
        """
        deadline = time.monotonic() + self.rules.seconds
        directives, wrong = parse_directives(call.text)
        faults = [str(fault) for fault in wrong]
        kind = "directive" if faults else ""
        first_line = ""
        if directives.container:
            try:
                first_line = _container_line(call, directives)
            except ValueError as error:
                faults.append(str(error))
            image = next(i for i in directives.stage_in if i.name == directives.container)
            if image.source.startswith(SCHEME) and (fault := self.rules.image_fault(image.source)):
                faults.append(f"line {image.line}: container {printable(image.source)}: {fault}")
            kind = kind or ("container" if faults else "")
        scratch_limit = MAX_SCRATCH_BYTES if self.rules.scratch_max is None else self.rules.scratch_max
        scratch = directives.all_scratch_bytes
        if scratch > scratch_limit:
            faults.append(f"scratch of {size_text(scratch)} is more than the {size_text(scratch_limit)} allowed")
            kind = kind or "scratch"
        elif fault := self.rules.scratch_fault(scratch, tuple(filter(None, call.info.get("partition", "").split(",")))):
            faults.append(fault)
            kind = kind or "scratch"
        if (volume := directives.volume) is not None and (
            fault := self.rules.volume_fault(volume, call.uid, call.info)
        ):
            faults.append(f"line {volume.line}: volume {volume.name}: {fault}")
            kind = kind or "volume"
        by_job_submit = call.info.get("plugin") == JOB_SUBMIT
        self._slurm_names_owners = self._slurm_names_owners or (call.uid is not None and not by_job_submit)
        # Slurm 22.05 does not say who submits: what is wrong with the files is then found at stage-in.
        if not faults and call.uid is not None and not (by_job_submit and self._slurm_names_owners):
            faults = self._file_faults(directives, call.uid, call.info, deadline)
            kind = "files" if faults else ""
        if kind:
            self._count_mistake(kind)
        return StageReply("refused", "\n".join(faults)) if faults else StageReply("ok", first_line)

    def _file_faults(self, directives: Directives, uid: int, info: Mapping[str, str], deadline: float) -> list[str]:
        work_dir, project = info.get("work_dir", ""), info.get("account", "")
        faults: list[str] = []
        try:
            who = account(uid)
            if directives.workdir and work_dir and (fault := workdir_location_fault(work_dir, who.home)):
                # Whatever the time for a look: no file is needed to know it.
                faults = [f"{_NO_WORKDIR}: {fault}"]
            with self._throttle.admit(uid) as allowed:
                if allowed:
                    with self._open_worker(who, deadline) as worker:
                        faults = self._check_files(worker, directives, who, work_dir, project, deadline)
        except UserWorkerTimeout:
            log.info("a job's files were not all looked at in time when it was submitted", uid=uid)
        except UserWorkerError as error:
            log.error("a job's files could not be looked at when it was submitted", uid=uid, error=str(error))
            return faults
        if not faults:
            known = directive_variables(who)
            paths = [resolve_location(wanted.destination, known, work_dir) for wanted in directives.stage_out]
            paths += [work_dir] if directives.workdir else []
            with self._lock:
                self._announced_outputs.extend((uid, path) for path in paths if path)
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
                if path.startswith(SCHEME):
                    continue  # a registry takes longer than slurmctld is to wait
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
                if stage_in.name == directives.container and (fault := image_fault(worker, path)):
                    faults.append(f"line {stage_in.line}: container {printable(stage_in.source)}: {fault}")
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
                word = "container" if stage_in.name == directives.container else "stage_in"
                faults.append(f"line {stage_in.line}: {word} {printable(stage_in.source or stage_in.dataset)}: {error}")
        if directives.workdir and work_dir:
            size += self._check_workdir(worker, who, work_dir, deadline, faults)
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
            # What else is in the store may leave it until the job's turn comes.
            never_fits = beyond_quota(size, *self._quota_uses(who.user, who.uid, project))
            faults += [never_fits] if never_fits else []
        return faults

    def _check_workdir(self, worker: UserWorker, who: Account, path: str, deadline: float, faults: list[str]) -> int:
        """Bytes of the working directory, as far as it was looked at. Raises UserWorkerTimeout."""
        try:
            check_workdir(worker, path, who)
            found = worker.measure_source(
                path, seconds=_seconds_left(deadline), entries=self.rules.workdir.max_files + 1,
                ignore=read_ignore_rules(worker, path, self.rules.workdir),
            )  # fmt: skip
        except UserWorkerTimeout:
            raise
        except UserWorkerError as error:
            faults.append(f"{_NO_WORKDIR}: {error}")
            return 0
        faults += [
            f"{printable(path)}/{printable(name)} cannot be read by {who.user}: name it in {IGNORE_FILE}"
            for name, _ in found.unreadable
        ]
        if too_large := workdir_size_fault(path, found, self.rules.workdir):
            faults.append(too_large)
        elif not worker.destination_space(path).writable:
            faults.append(f"{who.user} may not write in {printable(path)}, where the job's files would come")
        return found.size

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


def _container_line(call: StageCall, directives: Directives) -> str:
    """The first line of a script that runs in a container, where job_submit.lua asks. Raises ValueError."""
    if call.info.get("plugin") == JOB_SUBMIT and call.text.startswith("#!"):
        return container_first_line(call.text)
    if not has_container_line(call.text):
        image = next(i for i in directives.stage_in if i.name == directives.container)
        raise ValueError(
            f"line {image.line}: container {printable(image.source)}: nothing starts the script in it. The line "
            "stands in a script for sbatch, not in --bb, and the site has burstd's job_submit.lua (docs/stores.md, "
            "Containers). Else name the image with 'stage_in' and call 'apptainer exec' in the script"
        )
    return ""


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
