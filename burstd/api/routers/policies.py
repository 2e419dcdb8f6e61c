"""The routes of policies, for administrators: what there is, and what those on disk would decide."""

from __future__ import annotations

from fastapi import APIRouter

from burstd.api.answers.policies import PoliciesView, PolicyTestView, policies_view, policy_test_view
from burstd.api.dependencies import Admin, Daemon, Denied
from burstd.domain.command import TryPolicies

router = APIRouter(prefix="/v1/policies")


@router.get("")
def get_policies(you: Admin, office: Daemon) -> PoliciesView:
    """All policies, those of the chain first."""
    del you
    return policies_view(office.policies.states(), office.now())


@router.post("/test")
def post_policies_test(you: Admin, office: Daemon) -> PolicyTestView:
    """Asks the policies as they are on disk, beside those in force; does nothing of what they say."""
    result = office.command(TryPolicies(you.by))
    if result.compared is None:
        raise Denied(409, result.text)
    return policy_test_view(*result.compared, office.now())
