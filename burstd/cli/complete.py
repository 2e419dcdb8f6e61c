"""Names for the shell's completion, asked of the daemon; none where it does not answer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from burstd.cli.session import DEFAULT_SOCKET, ApiClient, DaemonUnreachable, GlobalOptions


def pool_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of pools."""
    return _starting(incomplete, (pool["name"] for pool in _answer(ctx, "/status").get("pools", ())))


def node_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of slots and ids of live claims."""
    return _starting(incomplete, _slots_and_claims(_answer(ctx, "/nodes?all=true").get("nodes", ())))


def job_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of jobs in the queue."""
    return _starting(incomplete, (job["id"] for job in _answer(ctx, "/jobs").get("jobs", ())))


def staged_job_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of jobs with data."""
    return _starting(incomplete, (job["job"] for job in _answer(ctx, "/stage").get("jobs", ())))


def provider_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of providers."""
    return _starting(incomplete, (provider["name"] for provider in _answer(ctx, "/status").get("providers", ())))


def _slots_and_claims(found: Iterable[dict[str, Any]]) -> Iterator[str]:
    for node in found:
        yield node["slot"]
        if node["claim"]:
            yield node["claim"]


def _starting(begin: str, candidates: Iterable[str]) -> list[str]:
    return sorted({candidate for candidate in candidates if candidate.startswith(begin)})


def _answer(ctx: typer.Context, path: str) -> dict[str, Any]:
    shared = ctx.find_root().obj
    # While completing, the callback of the program itself has not run.
    socket_path = (
        shared.socket if isinstance(shared, GlobalOptions) else Path(os.environ.get("BURSTD_SOCKET") or DEFAULT_SOCKET)
    )
    try:
        status, answer = ApiClient(socket_path, as_json=False).request_status("GET", path)
    except DaemonUnreachable:
        return {}
    return answer if status == 200 else {}
