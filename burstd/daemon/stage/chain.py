"""Jobs that follow one another: an input waits for the output that is on its way to the same place.

Slurm asks for the input of a job that waits for another (``afterok``) as soon as that one has ended, while its output
is still on its way home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from burstd.daemon.stage.places import place, values
from burstd.data.hands import Account, HandError, account
from burstd.model.data import StageState as S
from burstd.model.data import Staging


def awaited(row: Staging, others: Iterable[Staging], ending: Callable[[str], bool]) -> str:
    """The id of a job whose output is on its way to where this one's input comes from; empty: there is none.

    ``ending``: whether a PLACED job is known to have ended.
    """
    sources: list[str] | None = None
    for other in others:
        if other.job_id == row.job_id or not other.directives.stage_out:
            continue
        owed = other.state in (S.COLLECTING, S.BRINGING) or (other.state is S.PLACED and ending(other.job_id))
        if not owed:
            continue
        if sources is None:
            sources = _paths(row, (i.source for i in row.directives.stage_in if not i.dataset))
        if any(meet(s, d) for s in sources for d in _paths(other, (o.destination for o in other.directives.stage_out))):
            return other.job_id
    return ""


def _paths(row: Staging, patterns: Iterable[str]) -> list[str]:
    try:
        who: Account = account(row.user)
    except HandError:
        return []
    found = (place(pattern, values(who, row.job_id), row.work_dir) for pattern in patterns)
    return [path.rstrip("/") for path in found if path]


def meet(source: str, destination: str) -> bool:
    """One lies in the other."""
    return source == destination or source.startswith(f"{destination}/") or destination.startswith(f"{source}/")
