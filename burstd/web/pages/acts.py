"""What burstctl can change, by forms: each has a page of its own to confirm it. Rights and commands are burstctl's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import ValidationError

from burstd.api.answers.base import CommandResultView
from burstd.api.answers.text import parse_duration
from burstd.api.auth import Authorizer, Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError
from burstd.api.routers import plan, staging
from burstd.web.forms import FormDep, FormTokens
from burstd.web.rendering import Page, PageDep, url_prefix

router = APIRouter()
Perform = Callable[[Mapping[str, str], Caller, Backend], CommandResultView]


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a form. ``choices``: what it may be; none: any text."""

    name: str
    label: str
    kind: Literal["text", "number"] = "text"
    required: bool = True
    choices: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Act:
    """Something that changes the state. ``back``: the page that shows what came of it."""

    title: str
    effect: str
    fields: tuple[Field, ...]
    perform: Perform
    back: str
    admins_only: bool = True


def _scale(fields: Mapping[str, str], caller: Caller, backend: Backend) -> CommandResultView:
    span = fields.get("for", "").strip()
    request = {"nodes": fields.get("nodes", ""), "kind": fields.get("kind", "exact"),
               "for_s": parse_duration(span) if span else None}  # fmt: skip
    return plan.put_pin(fields.get("pool", ""), plan.PinRequest.model_validate(request), caller, backend)


def _nodes(fields: Mapping[str, str]) -> plan.NodesRequest:
    return plan.NodesRequest(nodes=fields.get("nodes", "").split(), reason=fields.get("reason", ""))


_JOB, _POOL, _NODES = Field("job", "Job"), Field("pool", "Pool"), Field("nodes", "Nodes, such as gpu[1-4] gpu7")
_PIN_KINDS = (("exact", "exactly"), ("floor", "at least"), ("ceiling", "at most"))

ACTS: Mapping[str, Act] = {
    "scale": Act(
        "Pin a pool",
        "The pool has this many nodes, whatever jobs ask for, until the pin is taken back or ends.",
        (_POOL, Field("kind", "How", choices=_PIN_KINDS), Field("nodes", "Nodes", "number"),
         Field("for", "For, such as 2h or 3d; empty: until taken back", required=False)),
        _scale, "/",
    ),
    "unpin": Act(
        "Take a pool's pins back", "The pool follows the jobs again.", (_POOL,),
        lambda fields, caller, backend: plan.delete_pin(fields.get("pool", ""), caller, backend), "/",
    ),
    "drain": Act(
        "Drain nodes",
        "New jobs are kept off, the machine is ended when its jobs have ended, and no other takes its place.",
        (_NODES, Field("reason", "Reason", required=False)),
        lambda fields, caller, backend: plan.post_hold_nodes(_nodes(fields), caller, backend), "/nodes",
    ),
    "release": Act(
        "Release nodes", "Machines may be started on them again.", (_NODES,),
        lambda fields, caller, backend: plan.post_release_nodes(_nodes(fields), caller, backend), "/nodes",
    ),
    "hold": Act(
        "Hold burstd", "No machine is started, and none that is wanted is ended, until the hold is taken back.",
        (Field("reason", "Reason"),),
        lambda fields, caller, backend: plan.put_hold(
            plan.PauseRequest(reason=fields.get("reason", "")), caller, backend),
        "/",
    ),
    "unhold": Act(
        "Take the hold back", "burstd starts and ends machines again.", (),
        lambda _, caller, backend: plan.delete_hold(caller, backend), "/",
    ),
    "retry": Act(
        "Try a job's data again", "What was held goes on where it was.", (_JOB,),
        lambda fields, caller, backend: staging.post_retry(fields.get("job", ""), caller, backend), "/queue",
        admins_only=False,
    ),
    "discard": Act(
        "Give a job's output up", "Output that is not home yet is lost.", (_JOB,),
        lambda fields, caller, backend: staging.post_discard(fields.get("job", ""), caller, backend), "/queue",
        admins_only=False,
    ),
}  # fmt: skip
"""By the last part of the address, ``/act/NAME``. Fields of a form are filled in from the query: ``?pool=gpu``."""


@router.get("/act/{name}")
def confirm_page(page: PageDep, name: str) -> HTMLResponse:
    """The form."""
    act = _require_act(name, page)
    given = {field.name: page.request.query_params.get(field.name, "") for field in act.fields}
    token = _tokens(page).form_token(page.caller, page.backend.now())
    return page.render("act.html", act.title, act=act, given=given, token=token)


@router.post("/act/{name}")
def perform(page: PageDep, name: str, fields: FormDep) -> RedirectResponse:
    """Carries it out, then leads to a page with the result: loading that again repeats nothing."""
    act = _require_act(name, page)
    try:
        result = act.perform(fields, page.caller, page.backend)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise ApiError(422, "; ".join(faults)) from None
    except ValueError as error:
        raise ApiError(422, f"{error}.") from None
    query = urlencode({"text": result.text, "mark": _tokens(page).mark(page.caller, f"done {name} {result.text}")})
    return RedirectResponse(f"{url_prefix(page.request)}/done/{name}?{query}", 303)


@router.get("/done/{name}")
def done_page(page: PageDep, name: str, text: str = "", mark: str = "") -> HTMLResponse:
    """What came of it. The mark shows that burstd wrote the sentence, and not whoever made the link."""
    act = _require_act(name, page)
    if not _tokens(page).is_mark(page.caller, f"done {name} {text}", mark):
        raise ApiError(404, "burstd has not written this, or has been restarted since.")
    return page.render("done.html", act.title, act=act, text=text)


def _require_act(name: str, page: Page) -> Act:
    act = ACTS.get(name)
    if act is None:
        raise ApiError(404, f"There is no act {name!r}.")
    if act.admins_only and not page.caller.admin:
        authorizer: Authorizer = page.request.app.state.authorizer
        raise ApiError(403, f"This is for {authorizer.admins_text()}; you are {page.caller.user}.")
    return act


def _tokens(page: Page) -> FormTokens:
    tokens: FormTokens = page.request.app.state.form_tokens
    return tokens
