"""The OpenShift provider and a real Kubernetes API server that does not answer, forgets, or knows it no more."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.errors import AuthFailed, CloudUnavailable, OutcomeUnknown, RateLimited
from burstd.testing.cloud_world import (
    CLUSTER,
    launch_and_wait,
    launch_outcome,
    launch_request,
    live_instances,
    prepare_and_launch,
    recorded_requests,
)
from tests.contract.looks import count_by_type, launch_until_running, listed_state, remove_everything, wait_for_state
from tests.lab.kubernetes.proxy import says
from tests.lab.kubernetes.world import CLAIMS, END, LAUNCH, LIST, PATIENT, WATCH, Ground, OpenShiftWorld, ground
from tests.lab.proxy import Act, Answer, Asked, Forward, delay_until, drop_connection, followed, lose_answer, muffled

pytestmark = pytest.mark.clouds

RUNNING, PENDING, ERROR = InstanceState.RUNNING, InstanceState.PENDING, InstanceState.ERROR


@pytest.fixture
def world(openshift_world: OpenShiftWorld) -> OpenShiftWorld:
    return openshift_world


class TestAnswersThatDoNotCome:
    @pytest.mark.parametrize("watched", [False, True])
    def test_a_frozen_api_server_makes_no_orphan(self, world: OpenShiftWorld, watched: bool) -> None:
        """What it makes later is found by its claim, and asked for again it is not made again. Nothing looks gone."""
        provider = world.provider(CLUSTER, timeout_s=2, **(PATIENT if watched else {}))
        (kept,) = launch_until_running(world, provider, "c0")
        asked = recorded_requests(world, provider, "c1")
        with world.plane.frozen("kube-apiserver"):
            if watched:
                assert [one.id for one in provider.instances()] == [kept.id]
            (outcome,) = provider.launch(asked)
            assert isinstance(outcome.result, OutcomeUnknown), repr(outcome.result)
            with pytest.raises(CloudUnavailable):
                list(provider.instances())
        (again,) = world.provider(CLUSTER).launch(asked)
        assert isinstance(again.result, Instance), repr(again.result)
        world.until(lambda: [one.state for one in live_instances(provider)] == [RUNNING] * 2)
        assert world.pods() == [kept.id, again.result.id]
        remove_everything(world, provider)

    @pytest.mark.parametrize("act", [lose_answer, drop_connection], ids=["its answer", "it"])
    def test_a_launch_that_is_lost(self, world: OpenShiftWorld, act: Act) -> None:
        provider = world.provider(CLUSTER)
        asked = recorded_requests(world, provider, "c1")
        world.proxy.order(LAUNCH, act)
        (outcome,) = provider.launch(asked)
        assert isinstance(outcome.result, OutcomeUnknown), repr(outcome.result)
        uids = [world.pod(name)["metadata"]["uid"] for name in world.pods()]
        (again,) = provider.launch(asked)
        assert isinstance(again.result, Instance), repr(again.result)
        assert world.pod(again.result.id)["metadata"]["uid"] in (
            uids or [world.pod(again.result.id)["metadata"]["uid"]]
        )
        assert world.pods() == [again.result.id]
        remove_everything(world, provider)

    def test_a_call_that_is_carried_out_after_its_repeat(self, world: OpenShiftWorld) -> None:
        """However late it comes, there is one pod of the name; after that one's end the late one is found and ended."""
        provider, patient = world.provider(CLUSTER, timeout_s=1), world.provider(CLUSTER)
        asked = recorded_requests(world, provider, "c1")
        late, done = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]
        for number in range(2):
            world.proxy.order(LAUNCH, delay_until(late[number], done[number]))
            (outcome,) = provider.launch(asked)
            assert isinstance(outcome.result, OutcomeUnknown), repr(outcome.result)
        (made,) = (one.result for one in patient.launch(asked))
        assert isinstance(made, Instance), repr(made)
        (uid,) = world.uids()
        late[0].set()
        assert done[0].wait(30)
        assert world.uids() == {uid}
        remove_everything(world, patient)
        late[1].set()
        assert done[1].wait(30)
        world.until(lambda: [one.claim_id for one in live_instances(patient)] == ["c1"])
        remove_everything(world, patient)
        assert world.pods() == []

    def test_an_end_whose_answer_is_lost(self, world: OpenShiftWorld) -> None:
        """It is told, and may be repeated."""
        provider = world.provider(CLUSTER)
        made = launch_until_running(world, provider, "c1", "c2")
        world.proxy.order(END, lose_answer)
        with pytest.raises(OutcomeUnknown):
            provider.terminate([one.id for one in made])
        provider.terminate([one.id for one in made])
        world.until(lambda: world.pods() == [])

    def test_scratch_whose_answers_are_lost(self, world: OpenShiftWorld) -> None:
        """Whichever of its calls it was, asked again there is one machine with one volume, which goes with it."""
        provider = world.provider(CLUSTER, scratch={"storage_class": ""})
        for number, kind in enumerate((f"POST {CLAIMS}", LAUNCH, f"PATCH {CLAIMS}/NAME")):
            for act in (lose_answer, drop_connection):
                world.proxy.order(kind, act)
                claim = f"c{number}{act.__name__.replace('_', '-')}"
                launch_outcome(world, provider, claim)
                again = launch_outcome(world, provider, claim)
                assert isinstance(again, Instance), repr(again)
        names = [one.id for one in live_instances(provider)]
        assert len(names) == 6
        assert world.claims() == names
        remove_everything(world, provider)
        world.until(lambda: world.claims() == [])

    @pytest.mark.parametrize("wrong", ["port", "authority"])
    def test_a_server_that_cannot_be_reached(self, world: OpenShiftWorld, wrong: str) -> None:
        """Nothing was sent: neither where nobody listens, nor where the certificate is somebody else's."""
        asked = launch_request(world, world.provider(CLUSTER), "c1")
        provider = world.provider(CLUSTER, kubeconfig=world.astray(wrong))
        (outcome,) = prepare_and_launch(provider, [asked])
        assert type(outcome.result) is CloudUnavailable, repr(outcome.result)
        with pytest.raises(CloudUnavailable):
            list(provider.instances())
        assert world.pods() == []


class TestCredentials:
    def test_a_token_that_is_withdrawn_and_replaced(self, world: OpenShiftWorld) -> None:
        """Machines stay as they are; the new one is taken from its file without a word to burstd."""
        token, file = world.lasting_token(), world.new_file()
        file.write_text(token, encoding="utf-8")
        provider = world.provider(CLUSTER, kubeconfig=world.kubeconfig({"tokenFile": str(file)}))
        launch_until_running(world, provider, "c1")
        world.withdraw(token)
        with pytest.raises(AuthFailed) as caught:
            list(provider.instances())
        assert "kubeconfig" in str(caught.value)
        assert token not in "".join(traceback.format_exception(caught.value))
        assert type(launch_outcome(world, provider, "c2")) is AuthFailed
        file.write_text(world.lasting_token(), encoding="utf-8")
        assert [one.claim_id for one in live_instances(provider)] == ["c1"]
        assert isinstance(launch_outcome(world, provider, "c2"), Instance)
        remove_everything(world, provider)

    def test_one_that_is_wrong(self, world: OpenShiftWorld) -> None:
        provider = world.provider(CLUSTER, kubeconfig=world.kubeconfig({"token": "not-the-secret"}))
        with pytest.raises(AuthFailed) as caught:
            list(provider.instances())
        assert "not-the-secret" not in "".join(traceback.format_exception(caught.value))
        assert any(one.ok is False and one.remedy for one in provider.check([world.image]))


class TestWatch:
    def test_one_that_is_cut_in_the_middle(self, world: OpenShiftWorld) -> None:
        """What has happened meanwhile is learned, without a list, and nothing looks gone that is there."""
        provider, other = world.provider(CLUSTER, **PATIENT), world.provider(CLUSTER)
        gone, kept = launch_until_running(world, provider, "c1", "c2")
        again, heard = threading.Event(), list[bytes]()
        cut_short(world, overheard(again, heard))
        other.terminate([gone.id])
        (new,) = launch_and_wait(world, other, "c3")
        world.until(lambda: gone.id not in world.pods())
        again.set()
        world.until(lambda: all(word in b"".join(heard) for word in (b'"DELETED"', new.id.encode())))
        while [one.id for one in provider.instances()] != [kept.id, new.id]:
            assert kept.id in {one.id for one in provider.instances()}
        remove_everything(world, provider)

    def test_an_answer_that_is_ahead_of_it(self, world: OpenShiftWorld) -> None:
        """What was launched is listed, and what is listed is there, however late the watch is."""
        until = threading.Event()
        world.proxy.order(WATCH, muffled(until))
        provider = world.provider(CLUSTER, **PATIENT)
        assert list(provider.instances()) == []
        made = launch_outcome(world, provider, "c1")
        assert isinstance(made, Instance)
        assert listed_state(provider, made) is PENDING
        until.set()
        wait_for_state(world, provider, made, RUNNING)
        remove_everything(world, provider)

    def test_calls_do_not_grow_with_machines_or_looks(self, world: OpenShiftWorld) -> None:
        """One list, one watch, whatever is asked then."""
        provider = world.provider(CLUSTER, **PATIENT)
        watches = world.asked[WATCH]
        list(provider.instances())
        world.until(lambda: world.asked[WATCH] > watches)
        before = world.asked.copy()
        made = launch_until_running(world, provider, "c1", "c2", "c3")
        for _ in range(20):
            assert len(list(provider.instances())) == 3
        provider.terminate([one.id for one in made])
        world.until(lambda: list(provider.instances()) == [])
        asked = world.asked - before
        assert (asked[LIST], asked[WATCH]) == (0, 0)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A control plane that remembers of the past what etcd does, and takes twenty changes at a time."""
    flags = {"kube-apiserver": ["--enable-priority-and-fairness=false", "--max-mutating-requests-inflight=20"]}
    with ground(tmp_path_factory.mktemp("forgetful"), watch_cache=False, flags=flags) as made:
        yield made


class TestGone:
    """410, by a real compaction of etcd."""

    @pytest.fixture
    def world(self, forgetful: Ground, tmp_path: Path) -> Iterator[OpenShiftWorld]:
        made = OpenShiftWorld(forgetful, tmp_path)
        yield made
        assert made.proxy.outstanding == []
        made.close()

    def test_a_watch_that_goes_on_from_too_long_ago(self, world: OpenShiftWorld) -> None:
        """Nothing that happened is missed, and nothing looks gone."""
        provider, other = world.provider(CLUSTER, **PATIENT), world.provider(CLUSTER)
        gone, kept = launch_until_running(world, provider, "c1", "c2")
        again, heard = threading.Event(), list[bytes]()
        cut_short(world, overheard(again, heard))
        other.terminate([gone.id])
        (new,) = launch_and_wait(world, other, "c3")
        world.until(lambda: gone.id not in world.pods())
        world.plane.compact()
        again.set()
        world.until(lambda: bool(heard))
        while [one.id for one in provider.instances()] != [kept.id, new.id]:
            assert kept.id in {one.id for one in provider.instances()}
        assert b'"type":"ERROR"' in heard[0]
        assert b'"code":410' in heard[0]
        world.until(lambda: world.proxy.streams_open == 1)
        wait_for_state(world, provider, new, RUNNING)
        remove_everything(world, provider)

    def test_a_list_that_goes_on_from_too_long_ago(self, world: OpenShiftWorld) -> None:
        """It is begun again: every machine once."""
        provider = world.provider(CLUSTER)
        made = launch_and_wait(world, provider, *(f"c{number}" for number in range(world.page + 1)))
        lists = world.asked[LIST]
        world.proxy.order(LIST, followed(lambda: forget(world)))
        assert Counter(one.id for one in provider.instances()) == Counter(one.id for one in made)
        assert world.asked[LIST] == lists + 4
        remove_everything(world, provider)

    def test_a_list_that_breaks_off(self, world: OpenShiftWorld) -> None:
        """Half of it is no list."""
        provider = world.provider(CLUSTER)
        launch_and_wait(world, provider, *(f"c{number}" for number in range(world.page + 1)))
        world.proxy.order(LIST, lambda asked, forward: forward(asked))
        world.proxy.order(LIST, says(503, "etcdserver: leader changed"))
        with pytest.raises(CloudUnavailable):
            list(provider.instances())
        remove_everything(world, provider)

    def test_too_many_changes_at_a_time(self, world: OpenShiftWorld) -> None:
        """The API server's own 429: while others last, a change is refused, and nothing is done of it."""
        provider = world.provider(CLUSTER, timeout_s=3, side_by_side=32)
        asked = recorded_requests(world, provider, *(f"c{number:02}" for number in range(32)))
        with world.plane.frozen("etcd"):
            outcomes = [one.result for one in provider.launch(asked)]
        refused = [one for one in outcomes if isinstance(one, RateLimited)]
        assert all(one.retry_after_s > 0 for one in refused)
        found = count_by_type(outcomes)
        assert found == {"RateLimited": len(refused), "OutcomeUnknown": 32 - len(refused)}
        assert len(refused) >= 12
        world.until(lambda: len(world.pods()) <= 32 - len(refused))
        (first,) = (one for one, made in zip(asked, outcomes, strict=True) if made is refused[0])
        assert first.name not in world.pods()
        world.until(lambda: isinstance(provider.launch([first])[0].result, Instance))
        # Fewer at a time.
        remove_everything(world, world.provider(CLUSTER))


def overheard(until: threading.Event, heard: list[bytes]) -> Act:
    """It is passed on only then; what is answered is noted."""

    def act(asked: Asked, forward: Forward) -> Answer:
        until.wait(30)
        answer = forward(asked)

        def pieces() -> Iterator[bytes]:
            for piece in answer.stream or ():
                heard.append(piece)
                yield piece

        return replace(answer, stream=pieces())

    return act


def cut_short(world: OpenShiftWorld, then: Act) -> None:
    """The one watch breaks, once it is there; what is done with the next."""
    world.until(lambda: world.proxy.streams_open == 1)
    world.proxy.order(WATCH, then)
    assert world.proxy.cut_streams() == 1


def forget(world: OpenShiftWorld) -> None:
    """Something happens, and what was before it is forgotten."""
    world.create("configmaps", "ConfigMap", "passing", {})
    world.plane.compact()
