"""What ``burstctl volume`` shows."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, Money, OptionalTime, Time
from burstd.api.answers.nodes import EventView


class VolumeView(AnswerView):
    """One volume. Sizes in bytes."""

    id: str
    name: str
    user: str
    account: str
    size_bytes: int
    state: str
    since: Time
    created: Time
    reason: str
    provider: str
    zone: str
    disk_id: str
    job_id: str
    """The job that has it, or is the next to have it; empty: nobody's turn."""
    formatted: bool
    price: Money
    """Of an hour."""
    cost: Money
    """So far."""
    billed_from: OptionalTime
    error: str
    step_error: str
    """Why its last step failed; it is tried again."""


class UnknownDiskView(AnswerView):
    """A disk with the cluster's volume tag that is not on record. burstd never removes one."""

    provider: str
    id: str
    volume_id: str
    zone: str
    size_bytes: int
    attached_to: str
    name: str
    user: str


class VolumeListView(AnswerView):
    """``burstctl volume list``. ``unknown`` is for administrators."""

    now: Time
    on: bool
    """False: no provider of the site has volumes."""
    volumes: list[VolumeView]
    unknown: list[UnknownDiskView]


class VolumeDetailView(AnswerView):
    """``burstctl volume show NAME``."""

    now: Time
    volume: VolumeView
    history: list[EventView]
