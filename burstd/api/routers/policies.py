"""The routes of policies, for administrators: what there is, and what those on disk would decide."""

from __future__ import annotations

from fastapi import APIRouter

from burstd.api.answers.policies import PoliciesView, PolicyTestView, policies_view, policy_test_view
from burstd.api.dependencies import AdminDep, ApiError, BackendDep
from burstd.domain.command import TryPolicies

router = APIRouter(prefix="/v1/policies")


@router.get("")
def get_policies(caller: AdminDep, backend: BackendDep) -> PoliciesView:
    """All policies, those of the chain first."""
    del caller
    return policies_view(backend.policies.policy_states(), backend.now())


@router.post("/test")
def post_policies_test(caller: AdminDep, backend: BackendDep) -> PolicyTestView:
    """Asks the policies as they are on disk, beside those in force; does nothing of what they say."""
    result = backend.command(TryPolicies(caller.actor))
    if result.policy_comparison is None:
        raise ApiError(409, result.text)
    return policy_test_view(*result.policy_comparison, backend.now())
