"""What a person asks of the daemon. The control interface makes these, the deciding thread carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from burstd.domain.plan import Plan
from burstd.domain.project import Project
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.slurm.quote import Quote, UsablePartition
from burstd.domain.snapshot import Snapshot

PIN_KINDS = ("exact", "floor", "ceiling")
"""What Pin.kind and SetPin.kind may be."""


@dataclass(frozen=True, slots=True)
class SetPin:
    """``burstctl scale POOL N``. ``until`` in burstd's seconds since 1970; None: until taken back."""

    pool: str
    nodes: int
    kind: str
    """One of PIN_KINDS."""
    until: float | None
    by: str
    """Who asked, as events name him: ``user:alice``; so in every command."""


@dataclass(frozen=True, slots=True)
class ClearPin:
    """``burstctl scale POOL --clear``: takes all pins of the pool back."""

    pool: str
    by: str


@dataclass(frozen=True, slots=True)
class DrainSlots:
    """``burstctl node drain``: new jobs are kept off, the machine goes when its jobs have ended, none comes back."""

    slots: tuple[str, ...]
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """``burstctl node release``: takes DrainSlots back."""

    slots: tuple[str, ...]
    by: str


@dataclass(frozen=True, slots=True)
class ForgetMachines:
    """``burstctl provider forget``: past machines of these places do not speak against them any more."""

    places: tuple[str, ...]
    """As Offer.place."""
    by: str
    breakers: tuple[tuple[str, str], ...] = ()
    """Key and cause of circuit breakers that are closed."""


@dataclass(frozen=True, slots=True)
class SetReference:
    """``burstctl node reference NODE``: machines are compared with this node of the site from now on."""

    node: str
    """Its name; empty: as it calls itself."""
    answer: str
    """What facts.sh printed there."""
    by: str


@dataclass(frozen=True, slots=True)
class ClearReference:
    """``burstctl node reference --clear``: takes SetReference back."""

    by: str


@dataclass(frozen=True, slots=True)
class Pause:
    """``burstctl hold``: nothing new is booted and nothing wanted is closed."""

    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Resume:
    """``burstctl unhold``: takes Pause back."""

    by: str


@dataclass(frozen=True, slots=True)
class Confirm:
    """``burstctl confirm``: what burstd is in doubt about is right."""

    what: str
    """``record`` or ``clock``."""
    by: str


@dataclass(frozen=True, slots=True)
class PlanNow:
    """``burstctl plan``: looks afresh and decides, and does nothing of it."""

    by: str


@dataclass(frozen=True, slots=True)
class Reload:
    """Reads the settings again, as SIGHUP does."""

    by: str


@dataclass(frozen=True, slots=True)
class TryPolicies:
    """``burstctl policy test``: asks the policies as they are on disk beside those in force, and does nothing of it."""

    by: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """``burstctl explain``: looks for the smallest changes with which a waiting job would start, by the last look."""

    job_id: str
    """Of a row of the queue."""
    by: str


@dataclass(frozen=True, slots=True)
class QuoteJobs:
    """``burstctl quote``: asks what jobs would meet that are not submitted."""

    jobs: tuple[Job, ...]
    """The components of one job."""
    usable: tuple[UsablePartition, ...]
    """Of a het job none."""
    by: str


@dataclass(frozen=True, slots=True)
class RetryStage:
    """``burstctl stage retry``: lets a job's data that is HELD go on from where it stopped."""

    job_id: str
    by: str


@dataclass(frozen=True, slots=True)
class DiscardOutput:
    """``burstctl stage discard``: gives up what a job's nodes still have of its output; the nodes may go."""

    job_id: str
    by: str


EVICT_KINDS = ("dataset", "tree", "user", "unneeded")
"""What Evict.kind may be."""


@dataclass(frozen=True, slots=True)
class Evict:
    """``burstctl stage evict``: removes input from the store, never what a waiting or running job needs."""

    kind: str
    """One of EVICT_KINDS."""
    name: str
    """``NAME`` or ``NAME@VERSION`` of a data set, the digest of a tree (or its beginning), a user; else empty."""
    by: str
    owner: str = ""
    """Only what this user has staged; empty: anybody's."""


@dataclass(frozen=True, slots=True)
class RemoveVolume:
    """``burstctl volume remove``: ends a volume, with all that is on it."""

    volume_id: str
    by: str


@dataclass(frozen=True, slots=True)
class ChangeProject:
    """``burstctl project create`` and ``set``. Slurm's side of it is set up afterwards."""

    name: str
    values: Mapping[str, object]
    """Keys of [projects.NAME] with values as JSON has them; None: as if the key were not there."""
    create: bool
    reset: bool
    """What was changed before is taken back first."""
    dry_run: bool
    """Only checked."""
    by: str


@dataclass(frozen=True, slots=True)
class DeleteProject:
    """``burstctl project delete``: ends a project that ``burstctl project create`` has made."""

    name: str
    dry_run: bool
    by: str


StageCommand = RetryStage | DiscardOutput | Evict | RemoveVolume
"""Carried out where jobs' data is staged."""
Command = (
    SetPin
    | ClearPin
    | DrainSlots
    | ReleaseSlots
    | ForgetMachines
    | SetReference
    | ClearReference
    | Pause
    | Resume
    | Confirm
    | PlanNow
    | Reload
    | TryPolicies
    | WhatIf
    | QuoteJobs
    | ChangeProject
    | DeleteProject
    | StageCommand
)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What came of a command."""

    text: str
    """One sentence for the person who asked: what was done, or why it was not."""
    done: bool = True
    """False: refused, nothing was changed (settings with a fault, a pool that a reload took away)."""
    changed: bool = True
    """False: done, and it was so before."""
    dry_run: tuple[Snapshot, Plan] | None = None
    """The answer to PlanNow."""
    policy_comparison: tuple[Snapshot, Plan, Plan] | None = None
    """The answer to TryPolicies: by the policies in force, and by those on disk."""
    option_changes: tuple[OptionChange, ...] = ()
    """The answer to WhatIf, smallest first."""
    quotes: tuple[Quote, ...] = ()
    """The answer to QuoteJobs, one a job."""
    project: Project | None = None
    """The answer to ChangeProject and DeleteProject: as it is to be, or as it was."""
    undo: str = ""
    """The command that takes a change of a project back."""
