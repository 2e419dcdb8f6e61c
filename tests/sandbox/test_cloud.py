"""The sandbox cloud in virtual time: its promises, and each fault that can be ordered."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from providers.sandbox.cloud.cloud import SandboxCloud
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog
from providers.sandbox.cloud.inventory.resources import SandboxInstanceState
from providers.sandbox.cloud.refusals import AnswerLost, RefusalCode, SandboxRefused

from .virtual import START, RecordingBackend, catalog, cloud, request


def refusal(kind: FaultKind) -> RefusalCode:
    made, _, _ = cloud()
    made.inject_fault(SandboxFault(kind, count=1))
    with pytest.raises(SandboxRefused) as no:
        made.launch(request())
    assert made.machines() == []
    made.launch(request())
    return no.value.code


def test_an_instance_lives_and_is_billed() -> None:
    made, manual_clock, boxes = cloud(ended_shown_s=30.0)
    machine = made.launch(request())
    assert (machine.state, machine.id, boxes.running) == (SandboxInstanceState.PENDING, "i-0000001", {})
    assert made.advance() == START + 10
    manual_clock.time += 10
    assert made.instance(machine.id).state is SandboxInstanceState.RUNNING
    assert list(boxes.running) == [machine.id]
    assert boxes.running[machine.id].request.user_data == "#cloud-config\n"
    manual_clock.time += 3600
    made.terminate(machine.id)
    made.terminate(machine.id)
    assert boxes.running == {}
    manual_clock.time += 29
    assert made.instance(machine.id).state is SandboxInstanceState.TERMINATED
    (row,) = made.bill({"cluster": "ours"})
    assert (row.seconds, row.cost) == (3600, Decimal("0.10"))
    assert made.bill({"cluster": "theirs"}) == []
    manual_clock.time += 1
    assert made.instances().items == ()
    with pytest.raises(SandboxRefused):
        made.terminate(machine.id)
    assert made.bill()[0].seconds == 3600


def test_offers_are_what_is_sold() -> None:
    made, _, _ = cloud()
    assert made.offers() == [
        ("a", "gpu4", False, Decimal("3.06")),
        ("a", "gpu4", True, Decimal("0.92")),
        ("a", "small", False, Decimal("0.10")),
        ("b", "gpu4", False, Decimal("3.06")),
        ("b", "gpu4", True, Decimal("0.92")),
    ]


def test_one_token_makes_one_instance() -> None:
    made, manual_clock, _ = cloud()
    first = made.launch(request())
    assert made.launch(request()).id == first.id
    with pytest.raises(SandboxRefused) as no:
        made.launch(request(user_data="other"))
    assert no.value.code is RefusalCode.TOKEN_REUSED
    made.terminate(first.id)
    assert made.launch(request()).state is SandboxInstanceState.TERMINATED
    manual_clock.time += 24 * 3600
    assert made.launch(request()).id != first.id


def test_capacity_and_quota() -> None:
    made, _, _ = cloud()
    made.launch(request("1", type="gpu4", zone="b"))
    with pytest.raises(SandboxRefused) as no:
        made.launch(request("2", type="gpu4", zone="b", spot=True))
    assert no.value.code is RefusalCode.CAPACITY
    for n in range(4):
        made.launch(request(f"s{n}"))
    made.launch(request("3", type="gpu4"))
    with pytest.raises(SandboxRefused) as no:
        made.launch(request("4", type="gpu4"))
    assert no.value.code is RefusalCode.QUOTA
    assert made.quota() == (6, 6)
    made.terminate("i-0000001")
    made.launch(request("4", type="gpu4"))


@pytest.mark.parametrize(
    "wrong",
    [{"type": "huge"}, {"zone": "c"}, {"image": "none"}, {"type": "small", "spot": True}, {"token": ""}],
)
def test_what_can_never_be(wrong: dict[str, object]) -> None:
    made, _, _ = cloud()
    with pytest.raises(SandboxRefused) as no:
        made.launch(request(**wrong))  # type: ignore[arg-type]
    assert no.value.code is RefusalCode.BAD_REQUEST


def test_refusals_to_order() -> None:
    assert refusal(FaultKind.CAPACITY) is RefusalCode.CAPACITY
    assert refusal(FaultKind.QUOTA) is RefusalCode.QUOTA
    assert refusal(FaultKind.BAD_IMAGE) is RefusalCode.BAD_REQUEST
    assert refusal(FaultKind.RATE_LIMIT) is RefusalCode.RATE
    assert refusal(FaultKind.AUTH) is RefusalCode.AUTH
    assert refusal(FaultKind.ERROR) is RefusalCode.INTERNAL
    assert refusal(FaultKind.UNAVAILABLE) is RefusalCode.UNAVAILABLE


def test_a_fault_is_for_those_it_names() -> None:
    made, _, _ = cloud()
    made.inject_fault(SandboxFault(FaultKind.CAPACITY, zones="a", types="gpu*", names="n-[12]"))
    made.launch(request("1"))
    made.launch(request("2", type="gpu4", zone="b"))
    made.launch(request("3", type="gpu4"))
    with pytest.raises(SandboxRefused):
        made.launch(request("1", type="gpu4", name="n-1"))
    made.cancel_fault(made.pending_faults()[0].id)
    assert made.pending_faults() == ()


def test_a_lost_answer_leaves_an_instance() -> None:
    made, _, _ = cloud()
    made.inject_fault(SandboxFault(FaultKind.LOSE_ANSWER, count=1))
    with pytest.raises(AnswerLost):
        made.launch(request())
    assert made.launch(request()).id == made.instances().items[0].id == "i-0000001"
    made.inject_fault(SandboxFault(FaultKind.DELAY, count=1, seconds=5))
    made.launch(request("2"))
    made.inject_fault(SandboxFault(FaultKind.DELAY, count=1, seconds=60))
    with pytest.raises(AnswerLost):
        made.launch(request("3"))
    assert [c.outcome for c in made.launch_calls] == ["i-0000001", "i-0000001", "i-0000002", "i-0000003"]


def test_boots_that_go_wrong() -> None:
    made, manual_clock, boxes = cloud()
    for kind, seconds in (
        (FaultKind.BOOT_HANG, 0),
        (FaultKind.BOOT_FAIL, 0),
        (FaultKind.BOOT_SLOW, 100),
        (FaultKind.LIE, 50),
    ):
        made.inject_fault(SandboxFault(kind, names=f"n-{kind.value}", seconds=seconds))
        made.launch(request(kind.value))
    manual_clock.time += 10
    hang, fail, slow, lie = made.instances().items
    assert (hang.state, fail.state, slow.state, lie.state) == ("running", "error", "pending", "running")
    assert boxes.running[hang.id].hangs
    assert fail.error
    assert [b.id for b in boxes.running.values()] == [hang.id, lie.id]
    manual_clock.time += 50
    made.advance()
    assert list(boxes.running) == [hang.id]
    made.report_death(lie.id, "it is dead")
    assert made.instance(lie.id).state is SandboxInstanceState.RUNNING
    manual_clock.time += 50
    assert made.instance(slow.id).state is SandboxInstanceState.RUNNING
    made.report_death(slow.id, "kernel panic")
    assert (made.instance(slow.id).state, made.instance(slow.id).error) == (SandboxInstanceState.ERROR, "kernel panic")
    for machine in made.instances().items:
        made.terminate(machine.id)
    assert made.quota()[1] == 0
    assert made.list_resources("port").items == ()


def test_termination_that_goes_wrong_and_leaks() -> None:
    made, _, _ = cloud(stop_s=5.0)
    machine = made.launch(request())
    made.inject_fault(SandboxFault(FaultKind.ERROR, calls=("terminate",), count=2))
    made.inject_fault(SandboxFault(FaultKind.LEAK_VOLUME, count=1))
    made.inject_fault(SandboxFault(FaultKind.LEAK_PORT, count=1))
    for _ in range(2):
        with pytest.raises(SandboxRefused):
            made.terminate(machine.id)
    assert made.instance(machine.id).state is SandboxInstanceState.PENDING
    made.terminate(machine.id)
    assert made.instance(machine.id).state is SandboxInstanceState.STOPPING


def test_leaks_are_found_by_tag_and_removed() -> None:
    made, _, _ = cloud()
    machine = made.launch(request())
    (volume,) = made.list_resources("volume", {"cluster": "ours"}).items
    assert volume.attached_to == machine.id
    with pytest.raises(SandboxRefused) as no:
        made.remove("volume", volume.id)
    assert no.value.code is RefusalCode.IN_USE
    made.inject_fault(SandboxFault(FaultKind.LEAK_VOLUME, count=1))
    made.terminate(machine.id)
    (volume,) = made.list_resources("volume", {"cluster": "ours"}).items
    assert volume.attached_to == ""
    assert made.list_resources("port").items == ()
    made.remove("volume", volume.id)
    with pytest.raises(SandboxRefused) as no:
        made.remove("volume", volume.id)
    assert no.value.code is RefusalCode.NOT_FOUND


def test_lists_lag_and_come_in_pages() -> None:
    made, manual_clock, _ = cloud(list_lag_s=3.0)
    machine = made.launch(request())
    assert made.instances().items == ()
    with pytest.raises(SandboxRefused):
        made.instance(machine.id)
    manual_clock.time += 3
    for n in range(2, 5):
        made.launch(request(str(n), zone="a" if n < 4 else "b", type="small" if n < 4 else "gpu4"))
    manual_clock.time += 3
    made.launch(request("5", zone="a", type="gpu4", tags={"cluster": "theirs"}))
    manual_clock.time += 3
    first = made.instances({"cluster": "ours"}, limit=3)
    made.terminate(first.items[0].id)  # a page is not shifted by what goes meanwhile
    second = made.instances({"cluster": "ours"}, limit=3, marker=first.next)
    assert [m.request.token for m in (*first.items, *second.items)] == ["t1", "2", "3", "4"]
    assert second.next == ""
    made.inject_fault(SandboxFault(FaultKind.UNAVAILABLE, calls=("list",)))
    with pytest.raises(SandboxRefused):
        made.instances()
    assert made.calls["list"] == 4


def test_spot_is_taken_back_after_notice() -> None:
    made, manual_clock, boxes = cloud()
    machine = made.launch(request(type="gpu4", spot=True))
    manual_clock.time += 10
    made.interrupt(machine.id, notice_s=120)
    assert made.instance(machine.id).interrupted_at == START + 130
    assert made.instance(machine.id).state is SandboxInstanceState.RUNNING
    manual_clock.time += 120
    taken = made.instance(machine.id)
    assert (taken.state, taken.error) == (SandboxInstanceState.TERMINATED, "spot capacity was taken back")
    assert boxes.running == {}
    assert made.bill()[0].cost == Decimal("0.92") * 120 / 3600


def test_addresses_rest_before_they_are_used_again() -> None:
    made, _, _ = cloud(addresses="10.0.0.0/30")
    first = made.launch(request("1"))
    made.terminate(first.id)
    second = made.launch(request("2"))
    third = made.launch(request("3"))
    assert (first.address, second.address, third.address) == ("10.0.0.1", "10.0.0.2", "10.0.0.1")
    with pytest.raises(SandboxRefused, match="no address"):
        made.launch(request("4"))


def test_a_restarted_cloud_knows_everything() -> None:
    made, manual_clock, _ = cloud()
    made.inject_fault(SandboxFault(FaultKind.DELAY, calls=("list",), seconds=1))
    machine = made.launch(request(type="gpu4", spot=True))
    manual_clock.time += 10
    made.advance()
    boxes = RecordingBackend()
    again = SandboxCloud(catalog(), manual_clock.now, boxes)
    again.restore(json.loads(json.dumps(made.to_json())))
    assert again.machines() == made.machines()
    assert again.to_json() == made.to_json()
    assert boxes.log == []
    assert again.launch(request(type="gpu4", spot=True)).id == machine.id
    again.terminate(machine.id)
    assert boxes.log == [("stop", machine.id)]
    assert again.launch(request("2")).id == "i-0000002"


def test_user_data_is_not_kept_for_ever() -> None:
    made, manual_clock, _ = cloud(ended_shown_s=5.0)
    made.terminate(made.launch(request()).id)
    manual_clock.time += 5
    assert made.machines()[0].request.user_data == ""


def test_capacity_must_be_of_known_types() -> None:
    with pytest.raises(ValueError, match="nothing"):
        SandboxCatalog((), {"a": {"nothing": 1}})
