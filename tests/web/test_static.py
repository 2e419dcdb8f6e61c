"""Files of the page: unchanged as their authors made them, kept by the browser as long as they are the same."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

import pytest

from burstd.web.static_files import static_file
from tests.api.client import ApiTestClient

VENDORED = {
    "vendor/htmx/htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "vendor/uplot/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "vendor/uplot/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 of the files of the npm packages htmx.org 4.0.1 and uplot 1.6.32."""


@pytest.mark.parametrize("path", VENDORED)
def test_a_vendored_file_is_as_its_authors_made_it(path: str) -> None:
    assert hashlib.sha256(files("burstd").joinpath(path).read_bytes()).hexdigest() == VENDORED[path]


def test_a_file_is_kept_for_good_under_its_hash_only(root: ApiTestClient) -> None:
    page = root.text("/")
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert {a.partition("?")[0] for a in addresses} == {"/static/style.css", "/static/app.js", "/static/htmx.js"}
    for address in addresses:
        answer = root.fetch("GET", address)
        assert (answer.status, "immutable" in answer.headers["cache-control"]) == (200, True)
        assert answer.headers["x-content-type-options"] == "nosniff"
        old = root.fetch("GET", address[:-1] + "x")
        assert old.headers["cache-control"] == "no-cache"
        same = root.fetch("GET", address, headers={"if-none-match": answer.headers["etag"]})
        assert (same.status, same.body) == (304, b"")


def test_nothing_else_of_the_package_is_sent(root: ApiTestClient) -> None:
    for name in ("../app.py", "..%2fapp.py", "htmx.min.js", ""):
        assert root.fetch("GET", f"/static/{name}").status == 404
    with pytest.raises(KeyError):
        static_file("page.py")
