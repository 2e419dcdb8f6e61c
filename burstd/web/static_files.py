"""Style, scripts and what they need, from this package alone. An address with the right hash is kept for good."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response

from burstd.api.dependencies import ApiError

_SOURCES = {
    "style.css": "web/static/style.css",
    "app.js": "web/static/app.js",
    "charts.js": "web/static/charts.js",
    "htmx.js": "vendor/htmx/htmx.min.js",
    "uplot.js": "vendor/uplot/uPlot.iife.min.js",
    "uplot.css": "vendor/uplot/uPlot.min.css",
}
"""Names on the page, and where the files lie in the package."""
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_HASH_CHARS = 16

router = APIRouter()


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent. ``version``: the beginning of its SHA-256."""

    content: bytes
    media_type: str
    version: str


@cache
def static_file(name: str) -> StaticFile:
    """Raises KeyError where there is none of that name."""
    content = files("burstd").joinpath(_SOURCES[name]).read_bytes()
    version = hashlib.sha256(content).hexdigest()[:_HASH_CHARS]
    return StaticFile(content, _TYPES[name.rpartition(".")[2]], version)


@router.get("/static/{name}")
def get_static(request: Request, name: str, v: str = "") -> Response:
    """A file; ``v`` is its version, as templates write it."""
    if name not in _SOURCES:
        raise ApiError(404, "There is no such file.")
    found = static_file(name)
    tag = f'"{found.version}"'
    keep = "public, max-age=31536000, immutable" if v == found.version else "no-cache"
    headers = {"etag": tag, "cache-control": keep}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)
