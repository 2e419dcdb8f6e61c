"""The log's entries, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from burstd.db.codec import claim_field_from_json, claim_from_json, staging_field_from_json, staging_from_json
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.staging import StageState, Staging

REMARK_KEY = "remark"
"""Key in the data of an event that is a remark: about a claim, it is no part of its life."""

USER_KEY = "user"
"""Key in the data of an event about a job: whose it is."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One entry of the log. ``time`` in burstd's own seconds since 1970."""

    seq: int
    time: float
    subject: str
    """``claim:ID``, ``stage:JOBID``, ``job:ID``, ``pool:NAME``, ``slot:NODE``, ``breaker:KEY``, ``meta:KEY`` ..."""
    old: str
    new: str
    reason: str
    cause: str
    """Who or what brought it about: ``burstd``, ``slurm``, ``demand``, a policy's name, ``user:alice`` ..."""
    data: Mapping[str, Any] = field(default_factory=dict)


def claim_subject(claim_id: str) -> str:
    """The subject under which a claim's events are logged."""
    return f"claim:{claim_id}"


def stage_subject(job_id: str) -> str:
    """The subject under which the events of a job's data are logged."""
    return f"stage:{job_id}"


def replay_claims(events: Iterable[LoggedEvent]) -> dict[str, Claim]:
    """The claims that follow from the log, by id; events of other subjects, and remarks, are passed over.

    The first event of a claim holds all of it (``data["claim"]``), a later one the fields that changed. Raises
    ValueError where the log has a hole: a claim without its first event, or a move from a state it was not in.
    """
    claims: dict[str, Claim] = {}
    for event in sorted(events, key=lambda e: e.seq):
        kind, _, claim_id = event.subject.partition(":")
        if kind != "claim" or REMARK_KEY in event.data:
            continue
        if "claim" in event.data:
            claims[claim_id] = claim_from_json(event.data["claim"])
            continue
        claim = claims.get(claim_id)
        if claim is None or claim.state != event.old:
            was = "unknown" if claim is None else claim.state
            raise ValueError(f"event {event.seq} takes claim {claim_id} out of {event.old}, but it is {was} by then.")
        changes = {name: claim_field_from_json(name, plain) for name, plain in event.data.get("set", {}).items()}
        if event.old != event.new:
            changes |= {"state": ClaimState(event.new), "since": event.time, "reason": event.reason}
        claims[claim_id] = replace(claim, **changes)
    return claims


def replay_stagings(events: Iterable[LoggedEvent]) -> dict[str, Staging]:
    """The data of jobs that follows from the log, by job id, as ``replay`` does it for claims.

    A first event (``data["staging"]``) of a job that is known replaces it: the id came again. Raises ValueError.
    """
    stagings: dict[str, Staging] = {}
    for event in sorted(events, key=lambda e: e.seq):
        kind, _, job_id = event.subject.partition(":")
        if kind != "stage" or REMARK_KEY in event.data:
            continue
        if "staging" in event.data:
            stagings[job_id] = staging_from_json(event.data["staging"])
            continue
        staging = stagings.get(job_id)
        if staging is None or staging.state != event.old:
            was = "unknown" if staging is None else staging.state
            raise ValueError(
                f"event {event.seq} takes the data of job {job_id} out of {event.old}, but it is {was} by then."
            )
        changes = {name: staging_field_from_json(name, plain) for name, plain in event.data.get("set", {}).items()}
        if event.old != event.new:
            changes |= {"state": StageState(event.new), "since": event.time, "reason": event.reason}
        stagings[job_id] = replace(staging, **changes)
    return stagings
