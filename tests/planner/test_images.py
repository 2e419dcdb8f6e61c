"""Which version of an image is taken, whose fault a failed machine is, and how nodes of another version make way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import OfferRule
from burstd.domain.plan import MakeClaim, SetGate
from burstd.domain.snapshot import CircuitBreaker, Pin, SlurmView, Snapshot
from burstd.planner.decide import decide
from burstd.planner.offers.image_rollout import (
    VERSION_CAUSE,
    choose_version,
    image_at_fault,
    image_breaker_key,
    newer_version,
)
from burstd.planner.offers.offers import BreakerIndex
from burstd.planner.offers.offers import breaker_key as offer_key
from burstd.planner.timeouts import Tuning

from .worlds import NOW, claim, job, make_snapshot, offer, pool, slot_node

NEW, OLD, OLDEST = "reg/node@sha256:3", "reg/node@sha256:2", "reg/node@sha256:1"
VERSIONS = (NEW, OLD, OLDEST)
POOL = replace(pool(), rules=(OfferRule("sky", image="stream:node"),))
IMAGES = {"sky": {"stream:node": VERSIONS}}


def failed_version(version: str, until: float = NOW + 60) -> CircuitBreaker:
    return CircuitBreaker(image_breaker_key("sky", version), VERSION_CAUSE, 1, until, "no slurmd")


@pytest.mark.parametrize(
    ("breakers", "taken"),
    [
        ((), NEW),
        ((failed_version(NEW),), OLD),
        ((failed_version(NEW), failed_version(OLD)), OLDEST),
        ((failed_version(NEW, until=NOW - 1),), NEW),
        (tuple(map(failed_version, VERSIONS)), NEW),
        ((replace(failed_version(NEW), cause="capacity"),), NEW),
    ],
)
def test_the_newest_version_that_has_not_failed_is_taken(breakers: tuple[CircuitBreaker, ...], taken: str) -> None:
    assert choose_version(VERSIONS, "sky", breakers, NOW) == taken


def test_a_version_s_breaker_covers_no_offer() -> None:
    assert BreakerIndex([failed_version("a"), failed_version("a/b/c@d")]).breakers_for(offer()) == []


@pytest.mark.parametrize(
    ("image", "cause", "proved", "guilty"),
    [
        (NEW, "image", False, True),
        (NEW, "slurm", False, True),
        (NEW, "boot", False, True),
        (NEW, "ended", False, True),
        (NEW, "slurmd", False, True),
        (NEW, "slurm", True, False),
        (NEW, "capacity", False, False),
        (NEW, "interrupted", False, False),
        (NEW, "lost", False, False),
        (NEW, "validation_timeout", False, False),
        ("stream:node", "slurm", False, False),
    ],
)
def test_a_version_is_to_blame_for_what_may_be_its_fault_until_there_was_a_node_of_it(
    image: str, cause: str, proved: bool, guilty: bool
) -> None:
    one = replace(claim("cpu1", S.VALIDATING), image=image)
    assert image_at_fault(one, cause, VERSIONS, validated=lambda _version: proved, hung=0) is guilty


@pytest.mark.parametrize(
    ("hung", "validated", "guilty"),
    [
        (2, (OLD,), True),
        (3, (OLDEST,), True),
        (1, (OLD,), False),
        (2, (), False),
        (2, (NEW, OLD), False),
    ],
)
def test_a_version_is_to_blame_for_its_second_machine_that_hangs_where_another_one_has_been_a_node(
    hung: int, validated: tuple[str, ...], guilty: bool
) -> None:
    one = replace(claim("cpu1", S.FAILED), image=NEW)
    assert image_at_fault(one, "boot_timeout", VERSIONS, validated=lambda v: v in validated, hung=hung) is guilty


def test_the_only_version_is_not_given_up() -> None:
    one = replace(claim("cpu1", S.VALIDATING), image=NEW)
    assert not image_at_fault(one, "slurm", (NEW,), validated=lambda _version: False, hung=0)


def seen(*claims: Claim, busy: tuple[str, ...] = (), **fields: object) -> Snapshot:
    nodes = [
        replace(slot_node(POOL, c.slot, up=True), address=c.address, state="ALLOCATED" if c.slot in busy else "IDLE")
        for c in claims
    ]
    base = make_snapshot(pools=(POOL,), claims=claims, nodes=tuple(nodes))
    return replace(base, images=IMAGES, **fields)  # type: ignore[arg-type]


def draining_claims(snapshot: Snapshot) -> set[str]:
    """The claims that the plan closes."""
    plan = decide(snapshot, (), Tuning())
    gates = [action for action in plan.actions if isinstance(action, SetGate)]
    return {claim_id for gate in gates for claim_id in gate.into_drain}


def in_service(slot: str, image: str) -> Claim:
    return replace(claim(slot, S.IN_SERVICE), image=image, in_service_from=NOW - 10)


def test_a_claim_is_made_from_the_version() -> None:
    snapshot = replace(make_snapshot(job(), pools=(POOL,)), images=IMAGES, breakers=(failed_version(NEW),))
    made = [a for a in decide(snapshot, (), Tuning()).actions if isinstance(a, MakeClaim)]
    assert [a.claim.image for a in made] == [OLD]


def test_nothing_is_started_before_the_versions_are_known() -> None:
    snapshot = replace(make_snapshot(job(), pools=(POOL,)), images={"sky": {"stream:node": ()}})
    assert not [a for a in decide(snapshot, (), Tuning()).actions if isinstance(a, MakeClaim)]


def test_idle_nodes_of_another_version_go_one_at_a_time_whatever_a_pin_says() -> None:
    old1, old2, new = in_service("cpu1", OLD), in_service("cpu2", OLD), in_service("cpu3", NEW)
    pins = (Pin("cpu", 3, "exact", None, "root", NOW),)
    assert draining_claims(seen(old1, old2, new, pins=pins)) == {old1.id}
    assert draining_claims(seen(old1, old2, new, pins=pins, busy=("cpu1",))) == {old2.id}
    assert draining_claims(seen(old1, old2, new, pins=pins, busy=("cpu1", "cpu2"))) == set()
    shut = CircuitBreaker(offer_key(offer(), "denied"), "denied", 1, NOW + 60, "403")
    assert draining_claims(seen(old1, old2, new, pins=pins, breakers=(shut,))) == set()
    coming = replace(claim("cpu4", S.BOOTING), image=NEW)
    assert draining_claims(seen(old1, old2, coming, pins=(replace(pins[0], nodes=3),))) == set()


def test_a_version_that_failed_makes_no_node_of_the_one_before_it_go() -> None:
    old, new = in_service("cpu1", OLD), in_service("cpu2", NEW)
    assert newer_version(seen(old), old) == NEW
    assert newer_version(seen(old, breakers=(failed_version(NEW),)), old) == ""
    assert newer_version(replace(seen(old), images={}), old) == ""
    assert newer_version(seen(new), replace(new, image="stream:node")) == ""
    assert isinstance(seen(old).slurm, SlurmView)
