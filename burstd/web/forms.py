"""Forms that change something: tokens that only this daemon makes, and a check where a form comes from."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

import structlog
from fastapi import Depends, Request

from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError, BackendDep, CallerDep

TOKEN_FIELD = "token"
_DAY_S = 86400
_MAX_FIELDS = 16

log = structlog.get_logger(__name__)


class FormTokens:
    """Marks that show that this daemon wrote something for one user. A restart makes all older ones worthless."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def mark(self, caller: Caller, text: str) -> str:
        """HMAC-SHA-256 over the user and a text."""
        return hmac.new(self._key, f"{caller.user}\0{text}".encode(), hashlib.sha256).hexdigest()

    def is_mark(self, caller: Caller, text: str, mark: str) -> bool:
        """Whether ``mark`` made this one; takes as long whatever is wrong."""
        return hmac.compare_digest(self.mark(caller, text).encode(), mark.encode(errors="replace"))

    def form_token(self, caller: Caller, now: float) -> str:
        """Goes with every form; good until the end of the next day (UTC)."""
        return self.mark(caller, f"form {now // _DAY_S:.0f}")

    def is_form_token(self, caller: Caller, now: float, token: str) -> bool:
        """Whether it is this user's, of today or yesterday."""
        days = (now // _DAY_S, now // _DAY_S - 1)
        return any([self.is_mark(caller, f"form {day:.0f}", token) for day in days])  # noqa: C419 - as long if the first is it


def _faults(request: Request, caller: Caller, backend: Backend, fields: dict[str, str]) -> Iterator[str]:
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    # Browsers send the first over https and from localhost only.
    same = site == "same-origin" if site else not origin or urlsplit(origin).netloc == request.headers.get("host")
    if not same:
        yield "another site's page sent it"
    tokens: FormTokens = request.app.state.form_tokens
    if not tokens.is_form_token(caller, backend.now(), fields.get(TOKEN_FIELD, "")):
        yield "its token is not of this daemon, this user and this day"


async def _checked_form(request: Request, caller: CallerDep, backend: BackendDep) -> dict[str, str]:
    async with request.form(max_files=0, max_fields=_MAX_FIELDS) as form:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
    for fault in _faults(request, caller, backend, fields):
        log.warning("a form was refused", user=caller.user, path=request.url.path[:200], reason=fault)
        raise ApiError(403, f"The form was refused: {fault}. Load its page again and send it from there.")
    return fields


FormDep = Annotated[dict[str, str], Depends(_checked_form)]
"""The fields of a form that came from one of burstd's own pages. Others are refused, and that is logged."""
