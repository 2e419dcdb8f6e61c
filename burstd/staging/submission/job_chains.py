"""Jobs that follow one another: an input waits for the output that is on its way to the same location.

Slurm asks for the input of a job that waits for another (``afterok``) as soon as that one has ended, while its output
is still on its way home, and before it asks for that output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging
from burstd.staging.submission.locations import directive_variables, resolve_location
from burstd.transfer.privsep.client import Account, UserWorkerError, account

_KNOWN_S = 600.0
"""How long an account is not looked up again: its database may be slow, and the deciding thread asks it."""


class OutputDependencies:
    """Answers for the rows of one step, which are seen once: asking costs nothing that grows with their number."""

    def __init__(self, accounts: Callable[[str], Account] = account) -> None:
        """``accounts`` raises UserWorkerError."""
        self._accounts = accounts
        self._known: dict[str, tuple[float, Account | None]] = {}
        self._pending_outputs: dict[str, _PendingOutputs] = {}
        self._outputs_of_running: dict[str, _PendingOutputs] = {}
        self._now = 0.0

    def update(
        self,
        rows: Iterable[Staging],
        output_requested: Callable[[str], bool],
        now: float,
        contain_errors: Callable[[str], AbstractContextManager[None]] = lambda _job_id: nullcontext(),
    ) -> None:
        """``output_requested``: whether a FETCHED job has ended. ``contain_errors``: the context for one job's work."""
        self._now = now
        self._pending_outputs, self._outputs_of_running = {}, {}
        for row in rows:
            if not row.directives.stage_out and not row.directives.workdir:
                continue
            with contain_errors(row.job_id):
                if row.state in (S.COLLECTING, S.DELIVERING, S.FETCHED):
                    runs = row.state is S.FETCHED and not output_requested(row.job_id)
                    outputs = self._outputs_of_running if runs else self._pending_outputs
                    for path in self._paths(row, (o.destination for o in row.directives.stage_out)):
                        outputs.setdefault(row.user, _PendingOutputs()).add(path, row)

    def awaited_job(self, row: Staging) -> str:
        """The id of a job whose output is on its way to where this one's input comes from; empty: there is none.

        A job of the same user, asked for before this one: nobody waits for what others bring, or what comes later.
        """
        return self._first_before(row, self._pending_outputs)

    def running_job(self, row: Staging) -> str:
        """As ``awaited_job``, of those that run as far as is known, or have ended a moment ago."""
        return self._first_before(row, self._outputs_of_running)

    def _first_before(self, row: Staging, outputs: Mapping[str, _PendingOutputs]) -> str:
        pending = outputs.get(row.user)
        if pending is None:
            return ""
        sources = self._paths(row, (i.source for i in row.directives.stage_in if not i.dataset))
        return next((found for path in sources if (found := pending.earliest_job_before(path, row.created))), "")

    def _paths(self, row: Staging, patterns: Iterable[str]) -> list[str]:
        since, who = self._known.get(row.user, (float("-inf"), None))
        if self._now - since > _KNOWN_S:
            try:
                who = self._accounts(row.user)
            except UserWorkerError:
                who = None
            self._known[row.user] = (self._now, who)
        if who is None:
            return []
        found = (resolve_location(pattern, directive_variables(who, row.job_id), row.work_dir) for pattern in patterns)
        # The working directory is read and written.
        return [path.rstrip("/") for path in (*found, row.work_dir if row.directives.workdir else None) if path]


class _PendingOutputs:
    """Destinations of one user's output, and the first job for each."""

    def __init__(self) -> None:
        self._at_destination: dict[str, tuple[float, str]] = {}
        self._above_destination: dict[str, tuple[float, str]] = {}
        """Every directory on the way to a destination, itself included."""

    def add(self, path: str, row: Staging) -> None:
        creation = (row.created, row.job_id)
        self._at_destination[path] = min(creation, self._at_destination.get(path, creation))
        for above in _path_and_ancestors(path):
            self._above_destination[above] = min(creation, self._above_destination.get(above, creation))

    def earliest_job_before(self, source: str, created: float) -> str:
        """A job asked for before then whose destination is the source, lies in it or has it in it."""
        found = [
            self._above_destination.get(source),
            *(self._at_destination.get(above) for above in _path_and_ancestors(source)),
        ]
        return min((one for one in found if one is not None and one[0] < created), default=(0.0, ""))[1]


def _path_and_ancestors(path: str) -> Iterator[str]:
    yield path
    while path:
        path = path.rpartition("/")[0]
        yield path


def paths_overlap(source: str, destination: str) -> bool:
    """One lies in the other."""
    return source == destination or source.startswith(f"{destination}/") or destination.startswith(f"{source}/")
