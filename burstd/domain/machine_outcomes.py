"""Which past machines were bad, and where: what a place (provider, region, zone, type) is known for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from burstd.domain.claim import ClaimState
from burstd.domain.health import HEALTH

DAY_S = 86400.0
_FAULTS = frozenset({HEALTH, "node_down", "gpu_health", "gpu_clocks", "gpu_pcie"})
"""Errors of claims that speak of the machine."""
_FAULTS_OR_IMAGE = frozenset({"boot", "boot_timeout", "ended", "gpus", "gpu_test", "mig"})
"""Errors that an image may bring about too: they count where the image made a node of another machine. An image without
a driver or a program is the error "gpu_tools", which never counts."""
_UNREACHED = "boot_timeout"
_OVER = frozenset({ClaimState.FAILED, ClaimState.LOST, ClaimState.TERMINATING, ClaimState.GONE})


class Quality(StrEnum):
    """What came of a machine."""

    GOOD = "good"
    """It became a node."""
    BAD = "bad"
    BAD_OR_IMAGE = "bad_or_image"
    """Bad, unless its image is."""
    UNREACHED = "unreached"
    """The same, unless nothing of its provider was reached that day: then the way there was at fault."""


@dataclass(frozen=True, slots=True)
class MachineOutcome:
    """One past machine, as far as it matters for its place: those that are equal are counted."""

    place: str
    """``Offer.place``."""
    image: str
    day: int
    """Since 1970, of its claim; of one that ended for a fault at work that of its end."""
    quality: Quality


def machine_outcome(
    place: str,
    *,
    spot: bool,
    image: str,
    state: ClaimState,
    error: str,
    created: float,
    since: float,
    in_service_from: float | None,
    reused_from: str,
) -> tuple[MachineOutcome, float] | None:
    """What a claim of these fields says of its machine's place, and as of when; None: nothing.

    Capacity, quota, credentials, an end of a spot machine, a machine that was not handed over well and what nobody
    wanted any more say nothing.
    """
    quality = Quality.GOOD if in_service_from is not None or reused_from else None
    if state in _OVER and error in _FAULTS:
        quality = Quality.BAD
    elif state in _OVER and error in _FAULTS_OR_IMAGE and not reused_from and not (spot and error == "ended"):
        quality = Quality.UNREACHED if error == _UNREACHED else Quality.BAD_OR_IMAGE
    if quality is None:
        return None
    at = since if error == HEALTH and state in _OVER else created
    return MachineOutcome(place, image, int(at // DAY_S), quality), at


class BadPlaces(StrEnum):
    """``bad_places`` in ``[health]``: what comes of a place with too many bad machines."""

    AVOID = "avoid"
    """It is used where no other offer can be."""
    REFUSE = "refuse"
    """It is not used."""
    SHOW = "show"
    """It is used as any other."""


@dataclass(frozen=True, slots=True)
class BadPlaceRule:
    """Where too many machines are bad. A machine counts 1, and half as much for every ``half_life_d`` days since."""

    half_life_d: float = 14.0
    bad_share: float = 0.3
    """More than this part of its machines is bad, by weight."""
    bad_weight: float = 2.0
    """And the bad ones weigh this much or more."""
    bad_places: BadPlaces = BadPlaces.AVOID


@dataclass(frozen=True, slots=True)
class PlaceRecord:
    """What a place is known for, of the days that count."""

    machines: int
    bad: int
    days: int
    percent: int
    """How many of a hundred are bad, by weight."""
    too_bad: bool
    """More than the rule allows."""
    bad_places: BadPlaces = BadPlaces.AVOID
    """The rule's."""

    @property
    def avoided(self) -> bool:
        """Other offers come first."""
        return self.too_bad and self.bad_places is not BadPlaces.SHOW

    @property
    def refused(self) -> bool:
        """It is not used at all."""
        return self.too_bad and self.bad_places is BadPlaces.REFUSE

    def __str__(self) -> str:
        return f"{self.bad} of {self.machines} machines bad in {self.days} days, {self.percent} % by weight"
