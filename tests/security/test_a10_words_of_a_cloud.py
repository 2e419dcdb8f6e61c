"""A10. Ids, names, addresses and sentences that a cloud says: what cannot be is not taken, and none is obeyed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from decimal import Decimal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from burstd.cli.plain_text import print_json, print_json_line
from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plan import Action, ChangeClaimState, RecordAddress, RegisterNodes, StartSlurmd, ValidateNode
from burstd.domain.plugins.provider import Idempotency
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import CloudView, RuntimeState, SlurmView, Snapshot
from burstd.planner.lifecycle.lifecycle import advance_claims
from burstd.planner.snapshot_view import build_view
from burstd.planner.timeouts import Tuning

WILD = ["a\x1b]0;mine\x07", "i-1\ni-2", "\x9b2J", "-rf", "--all", "x" * 65536, "\u202egnp", " i-1", "a\0", "\ud800"]
SHAPE = Shape(4, 8000)
OFFER = Offer("sky", "r", "z", "t", False, SHAPE, Decimal(1))
NOW = 10_000.0


@pytest.mark.parametrize("said", WILD, ids=ascii)
def test_ids_that_cannot_be(said: str) -> None:
    for make in (
        lambda: Instance(said, "sky", InstanceState.RUNNING, "c"),
        lambda: Leftover("volume", said, "sky", "c"),
        lambda: replace(OFFER, zone=said),
        lambda: replace(OFFER, instance_type=said),
        lambda: replace(OFFER, region=said),
    ):
        with pytest.raises(ValueError, match="cannot be") as refused:
            make()
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 500


@given(st.text(max_size=300) | st.sampled_from(WILD))
def test_words_are_fit_for_every_reader(said: str) -> None:
    one = Instance("i", "sky", InstanceState.ERROR, said, name=said, zone=said, instance_type=said, error=said,
                   address=said, batch=said, cause=said)  # fmt: skip
    words = (one.claim_id, one.name, one.zone, one.instance_type, one.error, one.address, one.batch, one.cause)
    assert all(word.isprintable() and len(word) < 1100 for word in words)
    assert not {" ", ",", "=", "/"} & {*one.claim_id, *one.batch, *one.address}
    assert not one.address.startswith("-")


@pytest.mark.parametrize("said", ["::ffff:10.0.0.1", "0:0:0:0:0:ffff:a00:1"])
def test_an_address_has_one_form(said: str) -> None:
    assert Instance("i", "sky", InstanceState.RUNNING, "", address=said).address == "10.0.0.1"


@given(st.text(max_size=50) | st.sampled_from(WILD))
@pytest.mark.parametrize("put", [print_json, print_json_line])
def test_json_is_read_by_terminals_too(put: Callable[[object], None], said: str) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        put({"reason": said})
    assert out.getvalue().replace("\n", "").isprintable()
    assert json.loads(out.getvalue()) == {"reason": said}


def _claim(name: str, state: S, address: str) -> Claim:
    return Claim(
        id=f"c-{name}", cluster="x", pool="gpu", slot=name, offer=OFFER, cause=Cause.DEMAND, state=state,
        created=NOW - 60, since=NOW - 60, instance_id=f"i-{name}", address=address, launch_called=NOW - 60, attempts=1,
    )  # fmt: skip


def _next(claims: list[Claim], said: dict[str, str], *, since_s: float = 60.0) -> list[Action]:
    """What is done where the cloud says these addresses of the machines of claims; ``home`` is on premises."""
    nodes = {
        c.slot: Node(c.slot, "IDLE", frozenset({"CLOUD"}), address=c.address) for c in claims if c.state is S.IN_SERVICE
    }
    nodes |= {c.slot: Node(c.slot, "IDLE", frozenset({"CLOUD", "POWERED_DOWN"})) for c in claims if c.slot not in nodes}
    nodes["home"] = Node("home", "IDLE", address="10.1.0.1")
    listed = tuple(
        Instance(c.instance_id, "sky", InstanceState.RUNNING, c.id, address=said.get(c.slot, c.address)) for c in claims
    )
    cloud = CloudView((OFFER,), listed, (), NOW - 1, Idempotency.TOKEN, 0.0, leftovers_listed=NOW - 1)
    pool = Pool("gpu", tuple(c.slot for c in claims), ("burst",), SHAPE)
    aged = tuple(replace(c, since=NOW - since_s, created=NOW - since_s) for c in claims)
    started = {c.id: 0.0 for c in claims}
    progress = RuntimeState(
        slurmd_started=started, validated=frozenset(c.id for c in claims if c.state is S.VALIDATING)
    )
    snapshot = Snapshot(
        NOW, "x", {"gpu": pool}, SlurmView((), nodes, (), NOW, "22.05.0"), {"sky": cloud}, aged, runtime_state=progress
    )
    return list(advance_claims(build_view(snapshot, "gate"), Tuning()))


TOUCHED = (RecordAddress, ValidateNode, RegisterNodes, StartSlurmd)


@pytest.mark.parametrize("address", ["10.1.0.1", "::ffff:10.1.0.1", "10.2.0.1"], ids=["home", "mapped", "claim"])
@pytest.mark.parametrize("learned", [False, True], ids=["listed", "answered"])
def test_a_machine_at_the_address_of_another_is_not_entered(address: str, *, learned: bool) -> None:
    """Neither that of a node on premises nor that of another claim's machine; in the end the claim fails."""
    plain = Instance("i", "sky", InstanceState.RUNNING, "", address=address).address
    claims = [_claim("c1", S.IN_SERVICE, "10.2.0.1"), _claim("c2", S.BOOTING, plain if learned else "")]
    assert not [one for one in _next(claims, {"c2": address}) if isinstance(one, TOUCHED)]
    (end,) = (one for one in _next(claims, {"c2": address}, since_s=90_000) if isinstance(one, ChangeClaimState))
    assert (end.claim_id, end.new, end.error) == ("c-c2", S.FAILED, "address")
    assert ("home" if "10.1" in address else "c1") in end.reason


def test_a_node_is_not_told_to_slurm_at_the_address_of_another() -> None:
    claims = [
        _claim("c1", S.IN_SERVICE, "10.2.0.1"),
        _claim("c2", S.VALIDATING, "10.2.0.1"),
        _claim("c3", S.VALIDATING, "10.2.0.3"),
    ]
    told = [one for one in _next(claims, {}) if isinstance(one, RegisterNodes)]
    assert [one.addresses for one in told] == [(("c3", "10.2.0.3"),)]


def test_of_two_that_boot_at_one_address_the_first_is_entered() -> None:
    claims = [_claim("c1", S.BOOTING, "10.2.0.1"), _claim("c2", S.BOOTING, "10.2.0.1")]
    entered = [one.claim_id for one in _next(claims, {}) if isinstance(one, ValidateNode)]
    assert len(entered) == 1
