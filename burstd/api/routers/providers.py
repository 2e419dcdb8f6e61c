"""The routes of providers: what they have, for everybody; having one look at itself, for administrators."""

from __future__ import annotations

import os
import pwd
from typing import Annotated

from fastapi import APIRouter, Query

from burstd.api.answers.providers import CheckView, OffersView, ProvidersView, check_view, offers_view, providers_view
from burstd.api.backend import CheckUnderWay, Office
from burstd.api.dependencies import Admin, Daemon, Denied, You, looked
from burstd.planner.offers.named_images import images_named

router = APIRouter(prefix="/v1/providers")


@router.get("")
def get_providers(you: You, office: Daemon) -> ProvidersView:
    """All clouds with their state."""
    del you
    return providers_view(office.facts(), looked(office)[0], office.checks.able(), office.now())


@router.get("/{name}/offers")
def get_offers(
    name: str, you: You, office: Daemon, *, every: Annotated[bool, Query(alias="all")] = False
) -> OffersView:
    """What one cloud can start and some pool can use; with ``all`` everything."""
    del you
    _known(name, office)
    return offers_view(name, looked(office)[0], office.now(), every=every)


@router.post("/{name}/check")
def post_check(name: str, you: Admin, office: Daemon) -> CheckView:
    """Has one cloud look whether launching would work."""
    del you
    if not _known(name, office):
        raise Denied(409, f"Provider {name} has no check of its own: its kind does not offer one.")
    snapshot, _ = looked(office)
    pools = (*snapshot.pools.values(), *(node.pool for node in snapshot.store_nodes))
    try:
        found = office.checks.run(name, images_named(name, pools))
    except CheckUnderWay as error:
        raise Denied(409, f"{error}.") from None
    return check_view(name, found, _me(), office.now())


def _known(name: str, office: Office) -> bool:
    """Whether it can look at itself; denied where there is no such provider."""
    able = office.checks.able()
    if name not in able:
        raise Denied(404, f"There is no provider {name!r}; there are: {', '.join(sorted(able))}.", sorted(able))
    return able[name]


def _me() -> str:
    """The name of the user that burstd runs as, whose credentials clouds are asked with."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
