"""The interface of a provider: one cloud account, region or cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from burstd.domain.cloud.bounds import valid_time
from burstd.domain.cloud.instance import Instance, Leftover
from burstd.domain.cloud.offer import Offer
from burstd.domain.cloud.volume import Disk, DiskRequest, LaunchDisk
from burstd.domain.errors import ProviderError
from burstd.domain.plugins.shell import Shell


class Idempotency(StrEnum):
    """What keeps a launch that is asked for twice from making two machines."""

    TOKEN = "token"
    """The cloud takes the claim id as client token: the same request may be sent again at once."""
    NAME = "name"
    """The cloud refuses a second object of the claim's name: may be sent again at once."""
    SETTLE = "settle"
    """Nothing does: look for the claim's tag until ``settle_s`` have passed before asking again."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Everything that decides what is made. Written to the store before the call, repeated word for word after a crash.

    ``user_data`` holds nothing secret and is the same for every claim of a pool and provider. ``tags`` holds
    TAG_CLUSTER and TAG_CLAIM among others. ``name`` is derived from the claim, valid as a host name.
    """

    claim_id: str
    name: str
    offer: Offer
    image: str
    user_data: str
    tags: dict[str, str] = field(default_factory=dict)
    others: tuple[Offer, ...] = ()
    """Offers of the same provider and market that may be given instead, best first."""
    gang: str = ""
    """Requests of one gang are for one job: all of them or none, close to each other where the cloud can."""
    batch: str = ""
    """Set by ``prepare``: requests with the same word are served by one call. A batch of one bears the claim's id."""
    recipe: str = ""
    """Set by ``prepare``: the call that serves the batch, in the provider's own words, for a repeat word for word."""
    fabric: str = ""
    """``Pool.fabric``: the machine is to have it, whether or not it is of a gang."""
    disks: tuple[LaunchDisk, ...] = ()
    """Disks that the machine is to have; only where the provider's ``disks_at_launch`` says so."""


@dataclass(frozen=True, slots=True)
class LaunchOutcome:
    """What came of one request: an instance, or the error."""

    claim_id: str
    result: Instance | ProviderError
    offer: Offer | None = None
    """Which offer was given, where it is not the one asked for."""
    warnings: tuple[tuple[Offer, ProviderError], ...] = ()
    """Offers that the cloud tried for this call and could not give, whatever came of the call."""


class Provider(Protocol):
    """A cloud. Calls block, are made from several threads, and raise ProviderError and its kinds only.

    Constructed by an entry point of the group ``burstd.providers`` (see docs/provider-authors.md).
    """

    name: str
    idempotency: Idempotency
    settle_s: float
    """Seconds after which an instance that was made surely shows in ``instances()``."""

    def offers(self) -> Sequence[Offer]:
        """What can be started now, whether or not there is capacity. One call or a few pages."""
        ...

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """Starts one instance for each request, in as few calls as the cloud allows; one outcome a request.

        Idempotent by claim id as ``idempotency`` says. A lost answer is OutcomeUnknown.
        """
        ...

    def instances(self) -> Iterator[Instance]:
        """All instances with our cluster's tag, page by page; ends early only by raising."""
        ...

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """Asks for their end, with all that belongs to them. Ids that are gone already are no error."""
        ...

    def leftovers(self) -> Iterator[Leftover]:
        """What bears our cluster's tag and is not an instance: volumes, ports, addresses ... page by page."""
        ...

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Removes them. What is gone already is no error; what is not ours is refused with BadRequest."""
        ...

    def close(self) -> None:
        """Gives connections back."""
        ...


@runtime_checkable
class LaunchPreparer(Protocol):
    """Optional ability: to serve many requests by one call, or to need more for a call than the request says."""

    def prepare(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchRequest | ProviderError]:
        """For each request, in order: the same with ``batch`` and ``recipe``, or why it can never be served.

        May look things up, makes nothing. What it returns is written down, then given to ``launch``: the whole batch,
        or after a crash those of it whose outcome is not known. Raises where nothing can be looked up now.
        """
        ...


class NoticeKind(StrEnum):
    """What a cloud says of a machine that it will take back."""

    INTERRUPTION = "interruption"
    """It ends at ``deadline``."""
    REBALANCE = "rebalance"
    """It may end soon."""


@dataclass(frozen=True, slots=True)
class Notice:
    """An announcement. ``deadline`` in seconds since 1970 by the cloud's clock; None: not said."""

    instance_id: str
    kind: NoticeKind
    deadline: float | None = None
    receipt: str = ""
    """The provider's own, for ``acknowledge``."""

    def __post_init__(self) -> None:
        """A deadline that cannot be one was not said."""
        if self.deadline is not None:
            object.__setattr__(self, "deadline", valid_time(self.deadline) or None)


@runtime_checkable
class NoticeSource(Protocol):
    """Optional ability: the cloud's announcements, by a queue of its own."""

    @property
    def notice_markets(self) -> frozenset[str]:
        """Whose machines the queue, going by the settings, speaks of: ``spot``, ``on-demand``; empty: there is none.

        Makes no call. While there are machines of these markets the queue is read every few seconds.
        """
        ...

    def notices(self) -> Sequence[Notice]:
        """Those that wait, in few calls; the same again until they are acknowledged."""
        ...

    def acknowledge(self, notices: Sequence[Notice]) -> None:
        """They are on record: the queue may forget them."""
        ...


@runtime_checkable
class NoticeWatch(Protocol):
    """Optional ability: a machine can learn by itself that it will be taken back."""

    def watch_script(self) -> str:
        """A POSIX shell script for the machine, run as root every few seconds; says nothing while there is no notice.

        A notice is one line: ``interruption SECONDS`` (its end, in seconds since 1970) or ``rebalance``.
        """
        ...


@runtime_checkable
class ShellProvider(Protocol):
    """Optional ability: machines are entered by the cloud's own interface; without it they are by ssh.

    Such a machine (a pod) ends by itself when Slurm powers its node down: none is ever handed over to another pool.
    """

    def shell(self, instance_id: str, timeout_s: float) -> Shell:
        """A way into a machine that runs. Makes at most one call. Raises NodeNotReady, NodeRefused, ProviderError."""
        ...


@runtime_checkable
class VersionedImages(Protocol):
    """Optional ability: an image's word stands for versions that come and go, and the cloud remembers earlier ones."""

    def images(self, word: str) -> Sequence[str]:
        """The versions of the word of a pool's rule (empty: of the settings' image), the newest first.

        Each is such that ``LaunchRequest.image`` takes it and always means the same. A word that stands for itself
        alone is the one version. One call. Raises BadRequest where there is no such image.
        """
        ...


@dataclass(frozen=True, slots=True)
class Route:
    """A way from outside the cloud to a port of one job's node."""

    job_id: str
    port: int
    instance_id: str
    url: str


@runtime_checkable
class RouteProvider(Protocol):
    """Optional ability: a web address for a port of a machine (a notebook). It ends with the machine at the latest."""

    def open_route(self, instance_id: str, job_id: str, port: int) -> Route:
        """Opens one; that which is there already is no error. Raises NotFound where the machine is gone."""
        ...

    def routes(self) -> Sequence[Route]:
        """All of our cluster's, in few calls."""
        ...

    def close_routes(self, routes: Sequence[Route]) -> None:
        """Those that are gone already are no error."""
        ...


@runtime_checkable
class VolumeProvider(Protocol):
    """Optional ability: persistent disks, which outlive every machine that they are attached to.

    They bear TAG_VOLUME_CLUSTER and never TAG_CLUSTER: ``leftovers`` does not list them, ``remove`` refuses them, and
    the end of a machine leaves them.
    """

    disks_at_launch: bool
    """A machine has the disks of its launch request, and no others ever (pods). Their file systems are the cloud's.

    Such disks have no zone, ``attach_disk`` only looks, and a disk is free when the machine is gone.
    """

    def disks(self) -> Iterator[Disk]:
        """All with our cluster's volume tag, page by page; ends early only by raising."""
        ...

    def create_disk(self, request: DiskRequest) -> None:
        """Asks for it. Repeated for the same ``volume_id`` only once ``disks`` has not shown it for ``settle_s``.

        Raises BadRequest, QuotaExceeded and InsufficientCapacity where there is none; a lost answer is OutcomeUnknown.
        """
        ...

    def attach_disk(self, disk_id: str, instance_id: str) -> None:
        """Asks for it. That it is so already, or on its way, is no error.

        Raises BadRequest where ``disks_at_launch``, and the machine was launched without it.
        """
        ...

    def detach_disk(self, disk_id: str, instance_id: str, *, force: bool) -> None:
        """Asks for it. That it is so already, or on its way, is no error. ``force``: its machine is gone."""
        ...

    def delete_disk(self, disk_id: str) -> None:
        """Asks for its end, with all that is on it. One that is gone is no error. Raises BadRequest for one that is
        attached, or does not bear our cluster's volume tag."""
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``ok`` None: it could not be told."""

    subject: str
    ok: bool | None
    text: str
    remedy: str = ""
    """What to do where it is not ok."""


@runtime_checkable
class SelfCheck(Protocol):
    """Optional ability: to say whether launching would work, and what is missing, without making anything."""

    def check(self, images: Sequence[str]) -> Iterator[Finding]:
        """Looks at credentials, rights, images (those that pools name), networks, quotas. Raises nothing."""
        ...


@runtime_checkable
class CloudClock(Protocol):
    """Optional ability: the cloud's own clock, with which 'burstctl check' compares the head's."""

    def cloud_time(self) -> float:
        """Now, in seconds since 1970, to the second. One call."""
        ...


@runtime_checkable
class ConsoleLog(Protocol):
    """Optional ability: the console's output, from which a new instance's ssh host keys are learned."""

    def console(self, instance_id: str) -> str:
        """Output so far, empty while there is none. Raises NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of the account. ``limit`` and ``used`` in ``unit``."""

    name: str
    limit: int
    used: int
    unit: str = "instances"


@runtime_checkable
class QuotaReport(Protocol):
    """Optional ability: how much of the account's limits is left."""

    def quotas(self) -> Sequence[Quota]:
        """The limits that bear on launching."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderPlugin:
    """What an entry point of the group ``burstd.providers`` names: how to make a provider from its settings."""

    name: str
    settings: type[Any]
    """A pydantic model that refuses unknown keys; its fields are the keys of ``[providers.NAME]`` beside ``kind``."""
    make: Callable[[str, str, Any], Provider]
    """Takes the provider's name, the cluster's name (for the tags) and the settings; calls no cloud yet."""
    has_ssh: bool = True
    """False: its machines are entered by the cloud's own interface alone (ShellProvider), and can show no trees."""
