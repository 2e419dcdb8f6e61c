"""What a job is told at sbatch: malformed directives, files that its owner cannot read, sizes beyond a quota.

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
from burstd.planner.staging.transfer_schedule import MOST_BYTES, Use, quota
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.directives.parser import parse
from burstd.staging.submission.job_chains import meet
from burstd.staging.submission.locations import DatasetSource, place, source, values
from burstd.transfer.privsep.client import Account, Hand, HandError, HandLate, account, printable
from burstd.transfer.privsep.object_workers import ObjectHand, scheme

log = structlog.get_logger(__name__)

PROMISES = 10_000
AT_ONCE_S = 2.0
RESTS = 9


@dataclass(frozen=True, slots=True)
class CheckRules:
    """Limits at sbatch. ``seconds`` for the whole look; ``scratch_max`` in bytes, None: no limit."""

    seconds: float
    scratch_max: int | None
    datasets: DatasetSource
    in_place: Callable[[StageIn, str], str | None] = lambda _asked, _origin: None
    """The path by which nodes see an input of this source as it is: then this machine need not see it."""


class Check:
    """Answers ``check`` calls, from any thread."""

    def __init__(
        self,
        rules: CheckRules,
        hand: Callable[[Account, float], Hand],
        objects: Callable[[Account, str, float], ObjectHand],
        usage: Callable[[str, int, str], tuple[Use, Use]],
    ) -> None:
        """``hand`` takes the time of time.monotonic by which it ends; ``objects`` how long its hand may take for an
        answer, in seconds.

        ``usage``: what a user (name, uid) and a project have staged and may.
        """
        self.rules = rules
        """Those in force; replaced whole, from the deciding thread."""
        self._hand = hand
        self._objects = objects
        self._usage = usage
        self._turns = Turns()
        self._lock = threading.Lock()
        self._promises: deque[tuple[int, str]] = deque(maxlen=PROMISES)
        """Users and destinations of jobs that were let in of late."""

    def __call__(self, call: StageCall) -> StageReply:
        """Refuses with every fault there is, one a line. Files are looked at until the time for it is over."""
        deadline = time.monotonic() + self.rules.seconds
        directives, wrong = parse(call.text)
        faults = [str(fault) for fault in wrong]
        most = self.rules.scratch_max
        if most is not None and directives.scratch_bytes > most:
            faults.append(
                f"scratch of {size_text(directives.scratch_bytes)} is more than the {size_text(most)} allowed"
            )
        # Slurm 22.05 does not say who submits: what is wrong with the files is then found at stage-in.
        if not faults and call.uid is not None:
            faults = self._files(directives, call.uid, call.info, deadline)
        return StageReply("refused", "\n".join(faults)) if faults else StageReply("ok")

    def _files(self, directives: Directives, uid: int, info: Mapping[str, str], deadline: float) -> list[str]:
        work_dir, project = info.get("work_dir", ""), info.get("account", "")
        faults: list[str] = []
        try:
            who = account(uid)
            with self._turns.of(uid) as may:
                if may:
                    with self._hand(who, deadline) as hand:
                        faults = self._look(hand, directives, who, work_dir, project, deadline)
        except HandLate:
            log.info("a job's files were not all looked at in time when it was submitted", uid=uid)
        except HandError as error:
            log.error("a job's files could not be looked at when it was submitted", uid=uid, error=str(error))
            return []
        if not faults:
            known = values(who)
            paths = (place(wanted.destination, known, work_dir) for wanted in directives.stage_out)
            with self._lock:
                self._promises.extend((uid, path) for path in paths if path is not None)
        return faults

    def _look(
        self, hand: Hand, directives: Directives, who: Account, work_dir: str, project: str, deadline: float
    ) -> list[str]:
        """Raises HandLate."""
        faults: list[str] = []
        size = 0
        known = values(who)
        for asked in directives.stage_in:
            path: str | None = None
            try:
                path = source(asked, known, work_dir, self.rules.datasets)
                # What hangs on the job's number is looked at when it is staged.
                if path is None or self.rules.in_place(asked, path):
                    continue
                left = _left(deadline)
                if scheme(path):
                    size += self._look_at_objects(who, path, left)
                    continue
                found = hand.look(path, seconds=left)
                size += found.size
                faults += [
                    f"line {asked.line}: {printable(lacks)} cannot be read by {who.user}"
                    for lacks, _ in found.unreadable
                ]
            except HandLate:
                raise
            except (HandError, ValueError) as error:
                if (
                    path
                    and isinstance(error, HandError)
                    and error.errno == errno.ENOENT
                    and self._promised(who.uid, path)
                ):
                    continue
                faults.append(f"line {asked.line}: stage_in {printable(asked.source or asked.dataset)}: {error}")
        for wanted in directives.stage_out:
            try:
                path = place(wanted.destination, known, work_dir)
                if path is not None and scheme(path):
                    self._try_objects(who, path, _left(deadline))
                elif path is not None and not hand.free(path).writable:
                    faults.append(
                        f"line {wanted.line}: stage_out to {printable(path)}: {who.user} may not write there; choose "
                        "a destination of yours"
                    )
            except HandLate:
                raise
            except HandError as error:
                faults.append(f"line {wanted.line}: stage_out to {printable(wanted.destination)}: {error}")
        if not faults and size > MOST_BYTES:
            faults.append(f"the input is {size_text(size)} and more; the most is {size_text(MOST_BYTES)}")
        elif not faults and size:
            too_much = quota(size, *self._usage(who.user, who.uid, project))
            faults += [too_much] if too_much else []
        return faults

    def _promised(self, uid: int, path: str) -> bool:
        """Whether a job of his that was submitted before will bring something there: what is not there may come.

        Nobody is told of the jobs of others, nor does his input wait for them (see Chain).
        """
        with self._lock:
            return any(meet(path, destination) for user, destination in self._promises if user == uid)

    def _look_at_objects(self, who: Account, source: str, left: float) -> int:
        """Their size, as far as it is known in time. Raises HandError where the user cannot have them."""
        with _in_time(source), self._objects(who, scheme(source), left) as hand:
            return hand.look(source, seconds=left / 2).size
        return 0

    def _try_objects(self, who: Account, destination: str, left: float) -> None:
        with _in_time(destination), self._objects(who, scheme(destination), left) as hand:
            hand.free(destination)


class Turns:
    """Whose files are looked at: one job of a user at a time, and RESTS times as long nothing after AT_ONCE_S of it.

    slurmctld answers nobody while burstd looks. Who submits in loops has his jobs let in without a look: what is wrong
    is found when they are staged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._busy: set[int] = set()
        self._paid: dict[int, float] = {}
        """When the looks of a user have been made up for."""

    @contextmanager
    def of(self, uid: int) -> Iterator[bool]:
        """Whether his files may be looked at now."""
        began = self._clock()
        with self._lock:
            self._paid = {uid: paid for uid, paid in self._paid.items() if paid > began}
            may = uid not in self._busy and self._paid.get(uid, began) - began < RESTS * AT_ONCE_S
            if may:
                self._busy.add(uid)
        try:
            yield may
        finally:
            if may:
                with self._lock:
                    now = self._clock()
                    self._busy.discard(uid)
                    self._paid[uid] = max(self._paid.get(uid, now), now) + RESTS * (now - began)


def _left(deadline: float) -> float:
    """Seconds that are left. Raises HandLate where none are."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise HandLate("", 0, "the time for it is over")
    return left


@contextmanager
def _in_time(place: str) -> Iterator[None]:
    """A server that is slow or away keeps nobody from submitting: it is asked again when the data is staged."""
    try:
        yield
    except HandError as error:
        if error.errno not in (0, errno.EAGAIN):
            raise
        log.info("objects could not be looked at when a job was submitted", place=place, error=str(error))
