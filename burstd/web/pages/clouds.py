"""Clouds: whether each answers, what it offers at which price, and which places are left alone."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from burstd.api.dependencies import ApiError
from burstd.api.routers.providers import get_offers, get_providers
from burstd.web.listing import Filter, PageNumber, list_page
from burstd.web.rendering import PageDep

router = APIRouter()


@router.get("/clouds")
def clouds_page(page: PageDep) -> HTMLResponse:
    """All clouds, with open circuit breakers and places that are avoided."""
    return page.render("clouds.html", "Clouds", providers=get_providers(page.caller, page.backend).providers)


@router.get("/clouds/{name}")
def cloud_page(
    page: PageDep, name: str, *, shown: Literal["", "all"] = "", text: Filter = "", number: PageNumber = 1
) -> HTMLResponse:
    """One cloud with its offers, cheapest first; without ``shown=all`` those that a pool can use."""
    providers = {one.name: one for one in get_providers(page.caller, page.backend).providers}
    if name not in providers:
        raise ApiError(404, f"There is no provider {name!r}; there are: {', '.join(providers)}.", providers)
    offers = get_offers(name, page.caller, page.backend, include_unusable=shown == "all")
    found = [one for one in offers.offers if text in one.id]
    listing = list_page(found, number, f"/clouds/{name}", {"shown": shown, "text": text})
    return page.render(
        "cloud.html", f"Cloud {name}", provider=providers[name], offers=offers, listing=listing, shown=shown, text=text
    )
