"""What ``burstctl policy`` shows: the policies there are, and what those on disk would decide otherwise."""

from __future__ import annotations

from typing import Any, Literal

from burstd.api.answers.base import AnswerView, OptionalTime, Time

PolicyChangeSubject = Literal["want", "release"]
PolicyChangeKind = Literal["comes", "goes", "changes"]


class PolicyView(AnswerView):
    """A policy. ``place``: as which of the chain it is asked, from 1; None: not in it, nothing more is known of it.

    ``took_s``: for the last decision; None: it was not asked yet. ``origin``: its package and version, or its file.
    """

    name: str
    origin: str
    place: int | None = None
    hard: bool = False
    settings: dict[str, Any] = {}
    took_s: float | None = None
    failing: bool = False
    failed_at: OptionalTime = None
    error: str = ""


class PoliciesView(AnswerView):
    """``burstctl policy list``."""

    now: Time
    folder: str
    timeout_s: float
    policies: list[PolicyView]
    warnings: list[str]
    unread: list[str]
    """Files that have changed, come or gone since they were read."""
    restart: list[str]
    """What only a restart takes."""


class PolicyChangeView(AnswerView):
    """A want or a release that the policies on disk would have otherwise. Nodes and offer of a release: none."""

    kind: PolicyChangeSubject
    change: PolicyChangeKind
    pool: str
    nodes: int
    nodes_before: int
    offer: str
    offer_before: str
    jobs: list[str]
    slots: list[str]
    by: str
    """The policy that made the difference, as far as it said so."""
    reason: str


class PolicyTestView(AnswerView):
    """``burstctl policy test``."""

    now: Time
    seen: Time
    paused: str
    failed: list[str]
    """Policies on disk that fail with what is there now: then nothing would be done."""
    failing: list[str]
    """Of those in force."""
    wants: int
    releases: int
    """By the policies on disk, in all."""
    changes: list[PolicyChangeView]
