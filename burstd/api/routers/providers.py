"""The routes of providers: their state and offers, for everybody; their self-checks, for administrators."""

from __future__ import annotations

import os
import pwd
from typing import Annotated

from fastapi import APIRouter, Query

from burstd.api.answers.providers import CheckView, OffersView, ProvidersView, check_view, offers_view, providers_view
from burstd.api.backend import Backend, CheckInProgress
from burstd.api.dependencies import AdminDep, ApiError, BackendDep, CallerDep, require_latest_loop
from burstd.planner.offers.named_images import explicit_images

router = APIRouter(prefix="/v1/providers")


@router.get("")
def get_providers(caller: CallerDep, backend: BackendDep) -> ProvidersView:
    """All clouds with their state."""
    del caller
    return providers_view(
        backend.daemon_info(), require_latest_loop(backend)[0], backend.checks.self_check_support(), backend.now()
    )


@router.get("/{name}/offers")
def get_offers(
    name: str, caller: CallerDep, backend: BackendDep, *, include_unusable: Annotated[bool, Query(alias="all")] = False
) -> OffersView:
    """What one cloud can start and some pool can use; with ``all`` everything."""
    del caller
    _require_provider(name, backend)
    return offers_view(name, require_latest_loop(backend)[0], backend.now(), include_unusable=include_unusable)


@router.post("/{name}/check")
def post_check(name: str, caller: AdminDep, backend: BackendDep) -> CheckView:
    """Checks whether one cloud could launch machines."""
    del caller
    if not _require_provider(name, backend):
        raise ApiError(409, f"Provider {name} has no self-check: its kind does not offer one.")
    snapshot, _ = require_latest_loop(backend)
    pools = (*snapshot.pools.values(), *(node.pool for node in snapshot.storage_nodes))
    try:
        found = backend.checks.run_check(name, explicit_images(name, pools))
    except CheckInProgress as error:
        raise ApiError(409, f"{error}.") from None
    return check_view(name, found, _daemon_user(), backend.now())


def _require_provider(name: str, backend: Backend) -> bool:
    """Whether the provider has a self-check; refused where there is no provider of that name."""
    able = backend.checks.self_check_support()
    if name not in able:
        raise ApiError(404, f"There is no provider {name!r}; there are: {', '.join(sorted(able))}.", sorted(able))
    return able[name]


def _daemon_user() -> str:
    """The name of the user that burstd runs as, whose credentials clouds are asked with."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
