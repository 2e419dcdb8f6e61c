from __future__ import annotations

import pytest

from burstd.domain.errors import BadRequest, CloudUnavailable, OutcomeUnknown, RateLimited
from burstd.domain.plugins.provider import NoticeKind
from providers.openshift.notices import PodNotices
from providers.openshift.pods.listing import PodListing
from providers.openshift.pods.status import OUR_GRACE_S
from providers.openshift.terminate import PodTerminator
from tests.providers.openshift.store import PODS, FakeObjectStore
from tests.providers.openshift.things import BORN, BORN_S, CLUSTER, Pod, going, running, settings


class Rig:
    def __init__(self, *pods: Pod, listed: bool = True) -> None:
        said = settings(relist_s=0)
        self.store = FakeObjectStore(said)
        self.store.has(PODS, *pods)
        self.listing = PodListing("p", CLUSTER, said, self.store)
        self.terminator = PodTerminator(CLUSTER, said, self.store, self.listing)
        self.notices = PodNotices(self.listing, self.terminator.has_terminated)
        if listed:
            self.listing.refresh()
            self.store.sent.clear()

    def deletes(self) -> list[tuple[str, int, str]]:
        return [
            (said.removeprefix("DELETE pods/"), body["gracePeriodSeconds"], body["preconditions"]["uid"])
            for said, body in self.store.sent
            if said.startswith("DELETE")
        ]


def test_a_pod_that_is_known_is_ended_by_one_call() -> None:
    rig = Rig(running("a"), running("b"))
    rig.terminator.terminate(["a", "b", "a"])
    assert sorted(rig.deletes()) == [("a", OUR_GRACE_S, "uid-a"), ("b", OUR_GRACE_S, "uid-b")]
    assert rig.store.names(PODS) == []
    rig.terminator.terminate(["a", "b"])


def test_a_pod_that_is_not_known_is_looked_at_first() -> None:
    rig = Rig(running("a"), running("theirs", cluster="other"), listed=False)
    with pytest.raises(BadRequest, match="theirs"):
        rig.terminator.terminate(["gone", "theirs", "a"])
    assert rig.deletes() == [("a", OUR_GRACE_S, "uid-a")]


def test_a_pod_that_was_made_again_ends_and_no_other() -> None:
    rig = Rig(running("a", uid="u1"))
    rig.store.has(PODS, running("a", 30, uid="u2"))
    rig.terminator.terminate(["a"])
    assert [uid for _, _, uid in rig.deletes()] == ["u1", "u2"]
    rig.store.has(PODS, running("a", 40, uid="u3", cluster="other"))
    with pytest.raises(BadRequest):
        rig.terminator.terminate(["a"])
    assert rig.store.names(PODS) == ["a"]


@pytest.mark.parametrize(
    ("grace", "late_s", "asked"),
    [(10, -5, []), (10, 599, []), (10, 600, [0]), (0, 600, []), (120, -100, [OUR_GRACE_S]), (120, 700, [0])],
)
def test_a_pod_that_goes_is_hurried_or_forced_but_not_asked_over_and_over(
    grace: int, late_s: float, asked: list[int]
) -> None:
    rig = Rig(going("a", at=BORN, grace=grace))
    rig.store.time = BORN_S + late_s
    rig.terminator.terminate(["a"])
    assert [seconds for _, seconds, _ in rig.deletes()] == asked


def test_one_failure_is_of_one_pod_and_is_told() -> None:
    rig = Rig(running("a"), running("b"))
    rig.store.fails["DELETE pods/a"] = OutcomeUnknown("no answer")
    with pytest.raises(OutcomeUnknown):
        rig.terminator.terminate(["a", "b"])
    assert rig.store.names(PODS) == ["a"]
    rig.terminator.terminate(["a", "b"])
    assert rig.store.names(PODS) == []


def test_nothing_is_asked_once_calls_are_too_many() -> None:
    rig = Rig(*(running(f"n{number}") for number in range(40)))
    rig.store.fails |= {f"DELETE pods/n{number}": RateLimited("slower") for number in range(40)}
    with pytest.raises(RateLimited):
        rig.terminator.terminate([f"n{number}" for number in range(40)])
    assert len(rig.deletes()) <= 2 * settings().side_by_side


def test_who_takes_a_pod_away_is_told_until_that_is_on_record() -> None:
    rig = Rig(running("quiet"), running("mine"), going("taken", uid="u1"))
    rig.store.fails["DELETE pods/mine"] = CloudUnavailable("which only burstd did not hear of")
    with pytest.raises(CloudUnavailable):
        rig.terminator.terminate(["mine"])
    rig.store.has(PODS, going("mine", 30))
    rig.listing.refresh()
    rig.store.sent.clear()
    (told,) = rig.notices.notices()
    assert (told.instance_id, told.kind, told.deadline) == ("taken", NoticeKind.INTERRUPTION, BORN_S)
    assert list(rig.notices.notices()) == [told]
    rig.notices.acknowledge([told])
    assert rig.notices.notices() == []
    assert rig.store.sent == [], "no call is made for notices"
    rig.store.has(PODS, going("taken", 40, uid="u2"))
    rig.listing.refresh()
    (again,) = rig.notices.notices()
    assert again.receipt == "u2"
