"""Every page, by callers of all kinds: no name, number, path or amount of another's job is in its bytes."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from burstd.web import static_files
from burstd.web.app import PAGES
from tests.api.client import ApiTestClient, HttpAnswer
from tests.api.fake_backend import FakeBackend
from tests.api.world import OTHER_USER, USER
from tests.security.test_a07_what_others_see import (
    LEFT,
    SECRET,
    SHARED,
    THIRD,
    WAITS,
    WHOLE,
    reader,
    served,
)

__all__ = ["reader", "served"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user"),
]

NUMBERS = (WHOLE, SHARED, WAITS, LEFT)
ADDRESSES = {
    "/": ["/"],
    "/queue": ["/queue?state=all", "/queue?sort=user", f"/queue?state=all&user={OTHER_USER}"],
    "/nodes": ["/nodes?state=all"],
    "/gpus": ["/gpus?state=all"],
    "/nodes/{name}": [f"/nodes/gpu{n}" for n in range(1, 9)],
    "/jobs/{job_id}": [f"/jobs/{number}" for number in NUMBERS],
    "/jobs/{job_id}/use.svg": [f"/jobs/{number}/use.svg" for number in NUMBERS],
    "/projects": ["/projects"],
    "/projects/{name}": ["/projects/a"],
    "/costs": ["/costs", "/costs?group=job", "/costs?group=claim", "/costs?group=account", "/costs?group=pool"],
    "/costs/compare": ["/costs/compare", f"/costs/compare?job={LEFT}", f"/costs/compare?user={OTHER_USER}"],
    "/costs/{name}": [
        "/costs/bill.csv?group=claim",
        "/costs/site.csv",
        "/costs/focus.csv",
        "/costs/site-focus.csv",
        "/costs/bill.html",
    ],
    "/history": ["/history?span=week"],
    "/policies": ["/policies"],
    "/clouds": ["/clouds"],
    "/clouds/{name}": ["/clouds/sandbox?shown=all"],
    "/act/{name}": ["/act/hold", "/act/retry", f"/act/retry?job={WAITS}"],
    "/done/{name}": ["/done/hold?text=x&mark=y"],
    "/static/{name}": ["/static/style.css"],
}
"""Every page, and what of it is asked for."""
_SEEN = re.compile(rf"\b({'|'.join(NUMBERS)})\b|77\.77|{SECRET}")


def pages(path: Path, user: str) -> dict[str, HttpAnswer]:
    found = {}
    with ApiTestClient(path, pwd.getpwnam(user).pw_uid) as client:
        for addresses in ADDRESSES.values():
            for address in addresses:
                found[address] = client.fetch("GET", address)
    return found


def test_every_page_is_asked_for() -> None:
    routes = [route for module in (*PAGES, static_files) for route in module.router.routes]
    assert {r.path for r in routes if isinstance(r, APIRoute) and "GET" in (r.methods or ())} == ADDRESSES.keys()


@pytest.mark.parametrize("user", [USER, THIRD])
def test_another_user_learns_nothing_of_a_job(served: tuple[FakeBackend, Path], user: str) -> None:
    for address, answer in pages(served[1], user).items():
        assert answer.status in (200, 403, 404), address
        # What the address itself says may come back.
        text = answer.body.decode()
        for number in NUMBERS:
            text = text.replace(number, "") if number in address else text
        assert _SEEN.search(text) is None, (address, _SEEN.findall(text))


@pytest.mark.parametrize("user", ["root", OTHER_USER])
def test_root_and_the_owner_see_it(served: tuple[FakeBackend, Path], user: str) -> None:
    seen = pages(served[1], user)
    assert SECRET in seen["/"].body.decode()
    assert "What it used" in seen[f"/jobs/{WHOLE}"].body.decode()
    assert seen[f"/jobs/{WHOLE}/use.svg"].body.startswith(b"<svg")
