from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from burstd.domain.cloud.instance import InstanceState, Leftover
from burstd.domain.errors import BadRequest, CloudUnavailable, NotAllowed, OutcomeUnknown
from providers.openshift.leftovers import POD, ROUTE, SERVICE, VOLUME, OpenShiftLeftovers
from providers.openshift.pods.listing import PodListing
from tests.providers.openshift.store import PODS, ROUTES, SERVICES, VOLUMES, FakeObjectStore
from tests.providers.openshift.things import CLUSTER, Pod, going, over, running, settings


def thing(name: str, of: str, cluster: str = CLUSTER) -> Any:
    """Of the claim of the pod of that name."""
    made = running(of, cluster=cluster)["metadata"]
    return {"metadata": {**made, "name": name, "uid": f"uid-{name}"}}


def dead(name: str = "node-1") -> Pod:
    made = over("Failed", 137, "OOMKilled")
    made["metadata"] = running(name)["metadata"]
    return made


class Rig:
    def __init__(self, *pods: Pod, kinds: Sequence[str] = (PODS, VOLUMES, SERVICES, ROUTES)) -> None:
        said = settings(relist_s=0)
        self.store = FakeObjectStore(said, kinds)
        self.store.has(PODS, *pods)
        self.listing = PodListing("p", CLUSTER, said, self.store)
        self.leftovers = OpenShiftLeftovers("p", CLUSTER, said, self.store, self.listing)

    def found(self) -> set[tuple[str, str, str]]:
        return {(left.kind, left.id, left.attached_to) for left in self.leftovers.list_leftovers()}


def left(kind: str, name: str) -> Leftover:
    return Leftover(kind, name, "p", "")


def test_things_are_told_with_the_pod_that_uses_them() -> None:
    rig = Rig(running("a"), going("b"), dead("d"))
    rig.store.has(VOLUMES, *(thing(name, name) for name in "abd"), thing("gone", "gone"), thing("t", "a", "other"))
    rig.store.has(SERVICES, thing("s", "a"))
    rig.store.has(ROUTES, thing("r", "x"))
    assert rig.found() == {
        (VOLUME, "a", "a"), (VOLUME, "b", "b"), (VOLUME, "d", "d"), (VOLUME, "gone", ""),
        (SERVICE, "s", "a"), (ROUTE, "r", ""), (POD, "d", ""),
    }  # fmt: skip
    assert {one.claim_id for one in rig.leftovers.list_leftovers() if one.id == "gone"} == {"claim-gone"}


def test_a_dead_pod_is_an_instance_that_ended_and_a_leftover() -> None:
    rig = Rig(dead("d"))
    (made,) = rig.listing.instances()
    assert (made.state, "OOMKilled" in made.error) == (InstanceState.TERMINATED, True)
    rig.leftovers.remove(list(rig.leftovers.list_leftovers()))
    assert rig.store.names(PODS) == []


@pytest.mark.parametrize("kind", [ROUTES, SERVICES, VOLUMES])
def test_without_the_right_to_ways_in_there_are_none(kind: str) -> None:
    """And dead pods are removed all the same; volumes cost money."""
    rig = Rig(dead("d"))
    rig.store.fails[f"LIST {kind}"] = NotAllowed("cannot list")
    if kind == VOLUMES:
        with pytest.raises(NotAllowed):
            rig.found()
    else:
        assert rig.found() == {(POD, "d", "")}


def test_plain_kubernetes_has_no_routes() -> None:
    rig = Rig(kinds=(PODS, VOLUMES, SERVICES))
    rig.store.has(SERVICES, thing("s", "gone"))
    assert rig.found() == {(SERVICE, "s", "")}
    rig.leftovers.remove([left(ROUTE, "r"), left(SERVICE, "s")])
    assert rig.store.deleted() == ["services/s"]


@pytest.mark.parametrize("kind", [PODS, VOLUMES, SERVICES, ROUTES])
def test_a_list_that_fails_is_no_empty_list(kind: str) -> None:
    rig = Rig(dead("d"))
    rig.store.fails[f"LIST {kind}"] = CloudUnavailable("down")
    with pytest.raises(CloudUnavailable):
        rig.found()


def test_nothing_goes_where_one_is_not_ours() -> None:
    rig = Rig()
    rig.store.has(VOLUMES, thing("a", "x"), thing("b", "y", "other"))
    with pytest.raises(BadRequest, match="volume b"):
        rig.leftovers.remove([left(VOLUME, "a"), left(VOLUME, "b")])
    with pytest.raises(BadRequest, match="secret"):
        rig.leftovers.remove([left(VOLUME, "a"), left("secret", "s")])
    assert rig.store.deleted() == []


def test_what_is_in_use_by_now_stays() -> None:
    """A pod of the same name and claim was made since."""
    rig = Rig(running("d"), dead("e"))
    rig.store.has(VOLUMES, thing("d", "d"), thing("e", "e"), thing("gone", "x"))
    rig.leftovers.remove([left(POD, "d"), left(VOLUME, "d"), left(POD, "e"), left(VOLUME, "e"), left(VOLUME, "gone")])
    assert rig.store.deleted() == ["persistentvolumeclaims/e", "persistentvolumeclaims/gone", "pods/e"]


def test_what_is_gone_is_no_error_and_the_rest_is_tried() -> None:
    rig = Rig()
    rig.store.has(VOLUMES, thing("a", "x"), thing("b", "y"))
    rig.store.fails["DELETE persistentvolumeclaims/a"] = OutcomeUnknown("no answer")
    with pytest.raises(OutcomeUnknown):
        rig.leftovers.remove([left(VOLUME, "a"), left(VOLUME, "b"), left(VOLUME, "gone")])
    assert rig.store.names(VOLUMES) == ["a"]
    rig.leftovers.remove([left(VOLUME, "a"), left(VOLUME, "a")])
    assert rig.store.names(VOLUMES) == []
