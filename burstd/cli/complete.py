"""Names for the shell's completion, asked of the daemon; none where it does not answer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from burstd.cli.session import DEFAULT_SOCKET, Session, Shared, Unreachable


def pools(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of pools."""
    return _starting(incomplete, (pool["name"] for pool in _answer(ctx, "/status").get("pools", ())))


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of slots and ids of live claims."""
    return _starting(incomplete, _node_names(_answer(ctx, "/nodes?all=true").get("nodes", ())))


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of jobs in the queue."""
    return _starting(incomplete, (job["id"] for job in _answer(ctx, "/jobs").get("jobs", ())))


def staged_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of jobs with data."""
    return _starting(incomplete, (job["job"] for job in _answer(ctx, "/stage").get("jobs", ())))


def providers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of providers."""
    return _starting(incomplete, (provider["name"] for provider in _answer(ctx, "/status").get("providers", ())))


def _node_names(found: Iterable[dict[str, Any]]) -> Iterator[str]:
    for node in found:
        yield node["slot"]
        if node["claim"]:
            yield node["claim"]


def _starting(begin: str, words: Iterable[str]) -> list[str]:
    return sorted({word for word in words if word.startswith(begin)})


def _answer(ctx: typer.Context, path: str) -> dict[str, Any]:
    shared = ctx.find_root().obj
    # While completing, the callback of the program itself has not run.
    place = shared.socket if isinstance(shared, Shared) else Path(os.environ.get("BURSTD_SOCKET") or DEFAULT_SOCKET)
    try:
        status, answer = Session(place, as_json=False).talk("GET", path)
    except Unreachable:
        return {}
    return answer if status == 200 else {}
