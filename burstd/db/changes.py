"""Fields that a change of a claim, a staging or a volume may set."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TypedDict

from burstd.domain.cloud.offer import Offer
from burstd.domain.staging import Checkpoint, Directives, Tree


class ClaimFields(TypedDict, total=False):
    """What may change in a claim beside its state; see Claim."""

    offer: Offer
    jobs: tuple[str, ...]
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    reserved: Decimal
    egress: Decimal
    gang: str
    image: str
    instance_id: str
    address: str
    launch_called: float | None
    billed_from: float | None
    billed_until: float | None
    in_service_from: float | None
    attempts: int
    dedicated_by_policy: bool
    error: str


class StagingFields(TypedDict, total=False):
    """What may change in a staging beside its state; see Staging."""

    directives: Directives
    store: str
    account: str
    work_dir: str
    trees: Mapping[str, Tree]
    nodes: tuple[str, ...]
    outputs: Mapping[str, Tree]
    job_state: str
    exit_code: str
    bytes_in: int
    bytes_sent: int
    bytes_out: int
    estimated_ready: float
    staged: float
    attempts: int
    error: str
    resume: str
    checkpoints: tuple[Checkpoint, ...]
    checkpoint_error: str


class VolumeFields(TypedDict, total=False):
    """What may change in a volume beside its state; see Volume."""

    account: str
    provider: str
    region: str
    zone: str
    disk_id: str
    price: Decimal
    currency: str
    job_id: str
    claim_id: str
    instance_id: str
    formatted: bool
    called: float | None
    billed_from: float | None
    billed_until: float | None
    settled_until: float | None
    error: str
