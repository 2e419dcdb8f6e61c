"""Jobs that follow one another: an input waits for the output that is on its way to the same place.

Slurm asks for the input of a job that waits for another (``afterok``) as soon as that one has ended, while its output
is still on its way home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging
from burstd.staging.submission.locations import place, values
from burstd.transfer.privsep.client import Account, HandError, account

_KNOWN_S = 600.0
"""How long an account is not looked up again: its database may be slow, and the deciding thread asks it."""


class Chain:
    """Answers for the rows of one step, which are seen once: asking costs nothing that grows with their number."""

    def __init__(self, accounts: Callable[[str], Account] = account) -> None:
        """``accounts`` raises HandError."""
        self._accounts = accounts
        self._known: dict[str, tuple[float, Account | None]] = {}
        self._owed: dict[str, _Owed] = {}
        self._now = 0.0

    def see(
        self,
        rows: Iterable[Staging],
        ending: Callable[[str], bool],
        now: float,
        each: Callable[[str], AbstractContextManager[None]] = lambda _job_id: nullcontext(),
    ) -> None:
        """``ending``: whether a PLACED job is known to have ended. ``each``: within what a job is looked at."""
        self._now = now
        self._owed = {}
        for row in rows:
            if not row.directives.stage_out:
                continue
            with each(row.job_id):
                if row.state in (S.COLLECTING, S.BRINGING) or (row.state is S.PLACED and ending(row.job_id)):
                    for path in self._paths(row, (o.destination for o in row.directives.stage_out)):
                        self._owed.setdefault(row.user, _Owed()).add(path, row)

    def awaited(self, row: Staging) -> str:
        """The id of a job whose output is on its way to where this one's input comes from; empty: there is none.

        A job of the same user, asked for before this one: nobody waits for what others bring, or what comes later.
        """
        owed = self._owed.get(row.user)
        if owed is None:
            return ""
        sources = self._paths(row, (i.source for i in row.directives.stage_in if not i.dataset))
        return next((found for path in sources if (found := owed.before(path, row.created))), "")

    def _paths(self, row: Staging, patterns: Iterable[str]) -> list[str]:
        since, who = self._known.get(row.user, (float("-inf"), None))
        if self._now - since > _KNOWN_S:
            try:
                who = self._accounts(row.user)
            except HandError:
                who = None
            self._known[row.user] = (self._now, who)
        if who is None:
            return []
        found = (place(pattern, values(who, row.job_id), row.work_dir) for pattern in patterns)
        return [path.rstrip("/") for path in found if path]


class _Owed:
    """Destinations of one user's output, and the first job for each."""

    def __init__(self) -> None:
        self._at: dict[str, tuple[float, str]] = {}
        self._below: dict[str, tuple[float, str]] = {}
        """Every directory on the way to a destination, itself included."""

    def add(self, path: str, row: Staging) -> None:
        mine = (row.created, row.job_id)
        self._at[path] = min(mine, self._at.get(path, mine))
        for above in _upwards(path):
            self._below[above] = min(mine, self._below.get(above, mine))

    def before(self, source: str, created: float) -> str:
        """A job asked for before then whose destination is the source, lies in it or has it in it."""
        found = [self._below.get(source), *(self._at.get(above) for above in _upwards(source))]
        return min((one for one in found if one is not None and one[0] < created), default=(0.0, ""))[1]


def _upwards(path: str) -> Iterator[str]:
    yield path
    while path:
        path = path.rpartition("/")[0]
        yield path


def meet(source: str, destination: str) -> bool:
    """One lies in the other."""
    return source == destination or source.startswith(f"{destination}/") or destination.startswith(f"{source}/")
