"""The policies of the chain, in words, and what each last decided. For administrators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from burstd.api.dependencies import ApiError, require_latest_loop
from burstd.api.routers.plan import policy_decisions
from burstd.api.routers.policies import get_policies
from burstd.domain.plugins.policy import Remark
from burstd.web.rendering import PageDep

MAX_DECISIONS = 20
"""Of one policy."""

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Decision:
    """What one policy decided, and about how many jobs, pools and machines."""

    verdict: str
    reason: str
    about: Sequence[str]


@router.get("/policies")
def policies_page(page: PageDep) -> HTMLResponse:
    """As ``burstctl policy list``, with each one's last decisions."""
    if not page.caller.admin:
        raise ApiError(403, f"Policies are for administrators; you are {page.caller.user}.")
    view = get_policies(page.caller, page.backend)
    target = require_latest_loop(page.backend)[1].target
    decided: dict[str, list[Decision]] = {}
    more = Counter[str]()
    for one in policy_decisions(target.remarks):
        if len(decided.setdefault(one.by, [])) < MAX_DECISIONS:
            decided[one.by].append(Decision(one.verdict, one.reason, one.about))
        else:
            more[one.by] += 1
    chain = sorted((p for p in view.policies if p.place is not None), key=lambda p: p.place or 0)
    names = {p.name for p in chain}
    return page.render(
        "policies.html",
        "Policies",
        view=view,
        chain=chain,
        idle=[p for p in view.policies if p.place is None],
        decided=decided,
        more=more,
        others=[by for by in decided if by not in names],
        first=_demand_counts(target.remarks),
    )


def _demand_counts(remarks: Sequence[Remark]) -> dict[str, int]:
    """What demand and placement made of pending jobs, before the policies: jobs by verdict."""
    found = Counter(r.verdict for r in remarks if r.by in ("demand", "placement") and r.subject.startswith("job:"))
    return dict(sorted(found.items()))
