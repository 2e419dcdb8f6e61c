from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.errors import (
    BadRequest,
    CloudUnavailable,
    NotAllowed,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from providers.openshift.client.calls import KubeObject, Query
from providers.openshift.errors import KubernetesAlreadyExists
from providers.openshift.pods.images import ImageVersions
from providers.openshift.pods.launch import PodLauncher
from providers.openshift.pods.listing import PodListing
from providers.openshift.pods.volumes import ScratchVolumes
from tests.providers.openshift.script import ScriptedStream
from tests.providers.openshift.store import PODS, VOLUMES, FakeObjectStore
from tests.providers.openshift.test_pods import request
from tests.providers.openshift.things import BORN, CLUSTER, settings

OWN_DISK = {"scratch": {"storage_class": "fast", "size": "5G"}}


class Making(FakeObjectStore):
    """Things can be made and changed too. ``answers_nonsense``: to who makes them."""

    answers_nonsense = False

    def request_json(self, method: str, path: str, body: Any = None, *more: Any, **words: Any) -> KubeObject:
        if method == "POST":
            return self._make(path.rsplit("/", 1)[-1], body)
        if method != "PATCH":
            return super().request_json(method, path, body, *more, **words)
        found = super().request_json("GET", path)
        found["metadata"] |= body["metadata"]
        return found

    def watch(self, path: str, query: Query, *, what: str, quiet_s: float) -> Any:  # noqa: ARG002
        """Nothing is ever heard."""
        return ScriptedStream()

    def _make(self, kind: str, body: KubeObject) -> KubeObject:
        name = body["metadata"]["name"]
        self.sent.append((f"POST {kind}/{name}", body))
        if error := self.fails.pop(f"POST {kind}/{name}", None):
            raise error
        if name in self.things[kind]:
            raise KubernetesAlreadyExists(f"{kind} {name} already exists")
        about = {**body["metadata"], "uid": f"uid-{name}", "resourceVersion": "5", "creationTimestamp": BORN}
        self.has(kind, {**body, "metadata": about, "status": {"phase": "Pending"}})
        return {} if self.answers_nonsense else self.things[kind][name]


class Rig:
    made: ClassVar[list[Rig]] = []

    def __init__(self, **words: Any) -> None:
        self.made.append(self)
        said = settings(image="node:1", **words)
        self.store = Making(said)
        self.listing = PodListing("p", CLUSTER, said, self.store)
        scratch = ScratchVolumes(said, self.store)
        self.launching = PodLauncher(said, self.store, self.listing, ImageVersions(said, self.store), scratch)

    def launch(self, *names: str, claim: str = "") -> list[Instance | ProviderError]:
        asked = [request(name, claim=claim) for name in names]
        outcomes = self.launching.launch_pods(asked)
        assert [one.claim_id for one in outcomes] == [one.claim_id for one in asked]
        return [one.result for one in outcomes]

    def calls(self) -> list[str]:
        return [said for said, _ in self.store.sent]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while Rig.made:
        Rig.made.pop().listing.close()


def machine(result: Instance | ProviderError) -> str:
    assert isinstance(result, Instance), result
    return result.id


def test_a_pod_is_one_call_and_known_at_once() -> None:
    rig = Rig()
    first, second = rig.launch("a", "b")
    assert isinstance(first, Instance)
    assert (first.id, first.state, first.claim_id, first.zone) == ("a", InstanceState.PENDING, "claim-a", "gpu")
    assert machine(second) == "b"
    assert sorted(rig.calls()) == ["POST pods/a", "POST pods/b"]
    assert rig.listing.find("a") is not None


def test_one_of_several_fails_alone() -> None:
    rig = Rig()
    rig.store.fails["POST pods/b"] = NotAllowed("no")
    a, b, c = rig.launch("a", "b", "c")
    assert (machine(a), machine(c)) == ("a", "c")
    assert isinstance(b, NotAllowed)


def test_the_machine_of_an_earlier_try_is_found() -> None:
    rig = Rig()
    rig.launch("a")
    assert [machine(one) for one in rig.launch("a")] == ["a"]
    assert rig.store.names(PODS) == ["a"]


def test_what_is_in_the_way_decides() -> None:
    rig = Rig()
    rig.launch("a")
    (other,) = rig.launch("a", claim="another")
    assert isinstance(other, BadRequest)
    rig.store.things[PODS]["a"]["metadata"]["deletionTimestamp"] = BORN
    (going,) = rig.launch("a")
    assert isinstance(going, OutcomeUnknown)
    rig.store.things[PODS].clear()
    rig.store.fails["POST pods/a"] = KubernetesAlreadyExists("it was there")
    assert isinstance(rig.launch("a")[0], OutcomeUnknown)


@pytest.mark.parametrize("why", [KubernetesAlreadyExists("it is there"), QuotaExceeded("exceeded quota")])
@pytest.mark.parametrize(
    "error", [CloudUnavailable("down"), RateLimited("slow down", retry_after_s=7), NotAllowed("no")]
)
def test_what_cannot_be_looked_at_may_be_the_machine(why: ProviderError, error: ProviderError) -> None:
    """A proxy may have sent the request twice."""
    rig = Rig(**OWN_DISK)
    rig.launch("a")
    rig.store.fails |= {"POST pods/a": why, "GET pods/a": error}
    (result,) = rig.launch("a")
    assert isinstance(result, OutcomeUnknown)
    assert (result.retry_after_s, str(error) in str(result)) == (error.retry_after_s, True)
    assert rig.store.names(VOLUMES) == ["a"]
    assert [machine(one) for one in rig.launch("a")] == ["a"]


def test_what_is_no_answer_says_nothing_of_what_was_made() -> None:
    rig = Rig()
    rig.listing.refresh()
    rig.store.answers_nonsense = True
    assert isinstance(rig.launch("a")[0], OutcomeUnknown)
    rig.store.sent.clear()
    rig.listing.refresh()
    assert rig.calls() == ["LIST pods"]
    assert rig.listing.find("a") is not None


def test_a_quota_may_be_full_of_the_very_machine() -> None:
    rig = Rig()
    rig.launch("a")
    rig.store.fails |= {f"POST pods/{name}": QuotaExceeded("exceeded quota") for name in "ab"}
    a, b = rig.launch("a", "b")
    assert machine(a) == "a"
    assert isinstance(b, QuotaExceeded)


def test_after_a_lost_answer_the_list_is_asked_for() -> None:
    rig = Rig()
    rig.listing.refresh()
    rig.store.fails["POST pods/a"] = OutcomeUnknown("lost")
    assert isinstance(rig.launch("a")[0], OutcomeUnknown)
    rig.store.sent.clear()
    rig.listing.refresh()
    assert "LIST pods" in rig.calls()


def test_a_disk_of_its_own_is_made_before_the_pod_and_owned_by_it() -> None:
    rig = Rig(**OWN_DISK)
    assert [machine(one) for one in rig.launch("a")] == ["a"]
    assert rig.calls() == [f"POST {VOLUMES}/a", "POST pods/a", f"GET {VOLUMES}/a"]
    made = rig.store.things[VOLUMES]["a"]
    assert made["spec"]["storageClassName"] == "fast"
    assert made["spec"]["resources"]["requests"] == {"storage": "5120Mi"}
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "a", "uid-a")
    usual = Rig(scratch={"storage_class": ""})
    usual.launch("a")
    assert "storageClassName" not in usual.store.things[VOLUMES]["a"]["spec"]


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (NotAllowed("no"), False),
        (QuotaExceeded("exceeded quota"), False),
        (BadRequest("no"), False),
        (RateLimited("slow down"), True),
        (OutcomeUnknown("lost"), True),
    ],
)
def test_without_a_pod_there_is_no_disk(error: ProviderError, kept: bool) -> None:
    rig = Rig(**OWN_DISK)
    rig.store.fails["POST pods/a"] = error
    assert type(rig.launch("a")[0]) is type(error)
    assert rig.store.names(VOLUMES) == (["a"] if kept else [])
    assert [machine(one) for one in rig.launch("a")] == ["a"]


@pytest.mark.parametrize("error", [KubernetesAlreadyExists("it is there"), QuotaExceeded("exceeded quota")])
def test_the_disk_of_an_earlier_try_is_used(error: ProviderError) -> None:
    rig = Rig(**OWN_DISK)
    rig.store.fails["POST pods/a"] = OutcomeUnknown("lost")
    rig.launch("a")
    rig.store.fails[f"POST {VOLUMES}/a"] = error
    assert [machine(one) for one in rig.launch("a")] == ["a"]


def test_no_pod_is_asked_for_without_its_disk() -> None:
    rig = Rig(**OWN_DISK)
    for error, told in (
        (OutcomeUnknown("lost"), CloudUnavailable),
        (QuotaExceeded("exceeded quota"), QuotaExceeded),
        (KubernetesAlreadyExists("it was there"), CloudUnavailable),
    ):
        rig.store.fails[f"POST {VOLUMES}/a"] = error
        assert type(rig.launch("a")[0]) is told
    rig.store.has(VOLUMES, {"metadata": {"name": "a", "uid": "u", "labels": {}}})
    assert isinstance(rig.launch("a")[0], BadRequest)
    assert rig.store.names(PODS) == []
    assert rig.store.names(VOLUMES) == ["a"]
