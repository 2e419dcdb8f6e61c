"""burstctl provider try: one machine of a cloud that does what it should, and of clouds that do not."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest

from burstd.cli.checks.trial import LEAST_S, TAG_TRIAL, ProviderTrial, affordable_s, choose_offer
from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance
from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.errors import NodeNotReady, NodeRefused
from burstd.domain.plugins.provider import Finding, LaunchRequest
from burstd.domain.slurm.shape import Shape
from burstd.testing.cloud_world import CLUSTER, Breakage, launch_request
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.contract.test_sandbox_provider import VirtualWorld

SPEND = Decimal("0.10")
OK, WRONG, UNCLEAR = True, False, None


class Trying:
    """A trial in a cloud whose time passes while it pauses. By default what is entered says that it is well."""

    def __init__(self, enter: Callable[[Instance], str] = lambda _: "it is entered") -> None:
        self.world = VirtualWorld()
        self.findings: list[Finding] = []
        self.provider = self.world.provider(CLUSTER)
        self.enter = enter
        self.on_pause: Callable[[], object] = lambda: None

    def request(self) -> LaunchRequest:
        made = launch_request(self.world, self.provider, "c1")
        tags = {TAG_CLUSTER: CLUSTER, TAG_CLAIM: "c1", TAG_TRIAL: "1"}
        cheapest = min(self.provider.offers(), key=lambda offer: offer.price)
        return LaunchRequest("c1", "ours-try-1", cheapest, made.image, made.user_data, tags)

    def pause(self, seconds: float) -> None:
        self.world.time += seconds
        self.on_pause()

    def run(self) -> dict[str, bool | None]:
        trial = ProviderTrial(
            self.provider, self.request(), SPEND, self.enter, self.findings.append, now=lambda: self.world.time,
            wall=lambda: self.world.time, pause=self.pause,
        )  # fmt: skip
        try:
            trial.run()
        finally:
            assert trial.ok is all(finding.ok is not False for finding in self.findings)
        return {finding.subject: finding.ok for finding in self.findings}

    @property
    def alive(self) -> list[str]:
        return [one.id for one in self.world.cloud.machines() if one.state.value not in ("terminated", "shutting-down")]

    def text(self, subject: str) -> str:
        return next(finding.text for finding in self.findings if finding.subject == subject)


def test_a_machine_is_launched_once_listed_entered_and_gone() -> None:
    trying = Trying()
    assert trying.run() == dict.fromkeys(
        ["launch", "asked again", "list", "boot", "entry", "end", "leftovers", "cost"], OK
    )
    assert not trying.alive
    assert len(trying.world.cloud.machines()) <= 1
    assert trying.text("cost").startswith("at most 0.000")


@pytest.mark.parametrize("how", sorted({Breakage.CAPACITY, Breakage.QUOTA, Breakage.AUTH, Breakage.IMAGE}))
def test_a_refusal_is_said_and_nothing_is_waited_for(how: Breakage) -> None:
    trying = Trying()
    trying.world.inject_fault(how)
    assert trying.run() == {"launch": WRONG}
    assert trying.world.time == VirtualWorld().time


def test_a_lost_answer_is_looked_for_and_its_machine_ended() -> None:
    trying = Trying()
    trying.world.inject_fault(Breakage.LOST)
    found = trying.run()
    assert (found["launch"], found["list"], found["end"]) == (UNCLEAR, OK, OK)
    assert not trying.alive


def test_a_machine_that_does_not_boot_is_ended_before_it_costs_more() -> None:
    trying = Trying()
    trying.world.cloud.inject_fault(SandboxFault(FaultKind.BOOT_SLOW, count=1, seconds=9999))
    found = trying.run()
    assert (found["boot"], found["end"], found["cost"]) == (WRONG, OK, OK)
    assert not trying.alive


def test_a_machine_that_cannot_be_entered_says_why_and_is_ended() -> None:
    def enter(_: Instance) -> str:
        raise NodeNotReady("no answer on port 22")

    trying = Trying(enter)
    found = trying.run()
    assert (found["entry"], found["end"], found["cost"]) == (WRONG, OK, OK)
    assert trying.text("entry").endswith("no answer on port 22")


def test_a_machine_that_is_less_than_its_offer_is_said_at_once() -> None:
    def enter(_: Instance) -> str:
        raise NodeRefused("it has 1 CPU")

    trying = Trying(enter)
    assert trying.run()["entry"] is WRONG
    assert trying.world.time - VirtualWorld().time < LEAST_S


def test_an_end_that_fails_is_asked_for_again_and_a_leak_is_removed() -> None:
    trying = Trying()
    trying.world.inject_fault(Breakage.TERMINATE)
    trying.world.inject_fault(Breakage.LEAK)
    found = trying.run()
    assert (found["end"], found["leftovers"]) == (OK, WRONG)
    assert any(finding.subject == "end" and finding.ok is UNCLEAR for finding in trying.findings)
    assert not trying.alive
    trying.world.until(lambda: not list(trying.provider.leftovers()))


@pytest.mark.parametrize("inside", [False, True])
def test_whoever_interrupts_it_leaves_no_machine(inside: bool) -> None:
    def interrupt(_: object = None) -> str:
        trying.on_pause = lambda: None
        raise KeyboardInterrupt

    trying = Trying(interrupt) if inside else Trying()
    if not inside:
        trying.on_pause = interrupt
    with pytest.raises(KeyboardInterrupt):
        trying.run()
    assert not trying.alive
    assert trying.findings[-1].subject == "cost"


def test_whoever_interrupts_its_end_hears_what_may_run_on() -> None:
    def enter(_: Instance) -> str:
        trying.on_pause = interrupt
        return "it is entered"

    def interrupt() -> None:
        raise KeyboardInterrupt

    trying = Trying(enter)
    with pytest.raises(KeyboardInterrupt):
        trying.run()
    (machine,) = trying.world.cloud.machines()
    assert (trying.findings[-1].ok, trying.findings[-1].subject) == (WRONG, "end")
    assert machine.id in trying.findings[-1].text


@pytest.mark.parametrize(("age_s", "said", "left"), [(3600, "earlier trial", 1), (60, "another trial", 2)])
def test_a_trial_ends_the_machine_of_one_that_was_killed_and_none_that_may_be_under_way(
    age_s: int, said: str, left: int
) -> None:
    trying = Trying()
    old = trying.request()
    tags = {**old.tags, TAG_CLAIM: "c0"}
    trying.provider.launch([LaunchRequest("c0", "ours-try-0", old.offer, old.image, old.user_data, tags)])
    other = launch_request(trying.world, trying.provider, "node")
    trying.provider.launch([other])
    trying.world.until(lambda: len(list(trying.provider.instances())) == 2)
    trying.world.time += age_s
    assert trying.run()[said] is UNCLEAR
    trying.world.until(lambda: len(trying.alive) == left)
    claims = {one.request.tags[TAG_CLAIM] for one in trying.world.cloud.machines() if one.id in trying.alive}
    assert claims == ({"node"} if left == 1 else {"node", "c0"})


def test_the_cheapest_that_a_pool_names_and_no_more_than_may_be_spent() -> None:
    offers = VirtualWorld().provider(CLUSTER).offers()
    pools = {
        "gpu": Pool("gpu", ("g1",), ("burst",), Shape(8, 16000), (OfferRule("sky", ("gpu4",), markets=("spot",)),)),
        "cpu": Pool("cpu", ("c1",), ("burst",), Shape(2, 2000), (OfferRule("sky", ("small",)),)),
    }
    chosen = choose_offer(offers, pools, SPEND)
    assert isinstance(chosen, tuple)
    assert (chosen[0].name, chosen[1].instance_type) == ("cpu", "small")
    assert affordable_s(chosen[1], Decimal("0.01")) == 360
    refused = choose_offer(offers, {"gpu": pools["gpu"]}, Decimal("0.05"))
    assert isinstance(refused, Finding)
    assert refused.text == (
        "the cheapest, sky/here/a/gpu4/spot, costs 0.0767 EUR for 5 min, and no more than 0.05 may be"
    )
    enough = choose_offer(offers, {"gpu": pools["gpu"]}, Decimal(refused.remedy.split()[1]))
    assert isinstance(enough, tuple), "what it asks for is enough"
    assert isinstance(choose_offer(offers, {}, SPEND), Finding)
