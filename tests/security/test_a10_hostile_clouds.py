"""What a cloud, or who stands in its place, may answer: it costs a bounded time and memory, and gets no credentials."""

from __future__ import annotations

import itertools
import json
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from burstd.model.bounded import ANSWER_BYTES, TooMuch, whole
from burstd.model.errors import CloudUnavailable, OutcomeUnknown, ProviderError
from providers.aws.calls import Calls as AwsCalls
from providers.openshift.calls import Calls as OpenShiftCalls
from providers.openshift.quantities import quantity
from providers.openstack.calls import Calls as OpenStackCalls
from providers.openstack.settings import OpenStackSettings
from tests.doubles.lying_http import Lie, LyingServer, bomb, deep, endless, lying
from tests.providers.aws.ec2 import settings as aws_settings
from tests.providers.openshift.things import settings as openshift_settings
from tests.providers.openstack.stub import serving

_MIB = 1 << 20
_JSON = {"Content-Type": "application/json"}
Ask = Callable[[bool], object]
AskOf = Callable[[LyingServer], AbstractContextManager[Ask]]


@contextmanager
def _openstack(server: LyingServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    for name in ("OS_CLOUD", "OS_CLIENT_CONFIG_FILE", "OS_AUTH_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("openstack.config.loader.CONFIG_FILES", [])
    with serving() as stub:
        stub.catalog["compute"] = f"{server.url}/compute/v2.1"
        calls = OpenStackCalls(
            OpenStackSettings(
                cloud="stub",
                clouds_yaml=stub.clouds_yaml(folder, compute_endpoint_override=f"{server.url}/compute/v2.1"),
                networks=["n"],
                flavors=["*"],
                timeout_s=10.0,
            )
        )

        def ask(changes: bool) -> object:
            if changes:
                return calls.tell("compute", "POST", "/servers", "make a server", body={})
            return list(calls.pages("compute", "/servers", "servers", "list servers"))

        yield ask
        calls.close()


@contextmanager
def _openshift(server: LyingServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    monkeypatch.setenv("NO_PROXY", "*")
    words = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "t0"}}],
    }
    (folder / "kubeconfig").write_text(json.dumps(words))
    calls = OpenShiftCalls(openshift_settings(kubeconfig=folder / "kubeconfig", timeout_s=10.0))

    def ask(changes: bool) -> object:
        if changes:
            return calls.ask("POST", calls.place("pods"), {}, what="make a pod")
        return calls.listed(calls.place("pods"), what="list pods")

    yield ask
    calls.close()


@contextmanager
def _aws(server: LyingServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    (folder / "config").write_text("[default]\naws_access_key_id = A\naws_secret_access_key = B\n")
    for name, value in (("AWS_CONFIG_FILE", folder / "config"), ("AWS_SHARED_CREDENTIALS_FILE", folder / "none")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("providers.aws.calls._READ_ATTEMPTS", 1)
    calls = AwsCalls(aws_settings(endpoint_url=server.url, timeout_s=10))

    def ask(changes: bool) -> object:
        if changes:
            return calls.tell("ec2", "terminate_instances", InstanceIds=["i-12345678"])
        return list(calls.pages("ec2", "describe_instances", "Reservations"))

    yield ask
    calls.close()


def _lying(lie: Callable[[], Lie]) -> AbstractContextManager[LyingServer]:
    """What Nova has is told as it is: else nothing is asked of it."""
    link = {"rel": "self", "href": "/compute/v2.1/"}
    about = {"id": "v2.1", "status": "CURRENT", "links": [link], "version": "2.96", "min_version": "2.1"}
    honest = json.dumps({"version": about}).encode()
    return lying(lambda path: Lie(headers=_JSON, body=[honest]) if path.rstrip("/").endswith("/v2.1") else lie())


READERS = {"openstack": _openstack, "openshift": _openshift, "aws": _aws}


@pytest.fixture(params=READERS)
def ask_of(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AskOf:
    return lambda server: READERS[request.param](server, tmp_path, monkeypatch)


@pytest.mark.parametrize("lie", [endless, bomb, deep], ids=["endless", "bomb", "deep"])
@pytest.mark.parametrize("changes", [False, True], ids=["read", "change"])
def test_an_answer_without_a_limit(ask_of: AskOf, lie: Callable[[], Lie], *, changes: bool) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with _lying(lie) as server, ask_of(server) as ask:
        with pytest.raises(OutcomeUnknown if changes else CloudUnavailable) as refused:
            ask(changes)
        assert len(str(refused.value)) < 1100
        assert server.sent < ANSWER_BYTES + 32 * _MIB
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 3 * (ANSWER_BYTES >> 10)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_given_no_credentials(ask_of: AskOf, status: int) -> None:
    with lying(lambda _: Lie(body=[b"{}"])) as elsewhere:
        away = Lie(status, {"Location": f"{elsewhere.url}/there", "Content-Length": "0"})
        with _lying(lambda: away) as server, ask_of(server) as ask:
            for changes in (False, True):
                with pytest.raises(ProviderError):
                    ask(changes)
        assert server.asked
        assert (elsewhere.asked, elsewhere.tokens) == ([], [])


def _reservations(token: str) -> bytes:
    return (
        f"<DescribeInstancesResponse><reservationSet/><nextToken>{token}</nextToken></DescribeInstancesResponse>"
    ).encode()


def _pods(token: str) -> bytes:
    return json.dumps({"items": [], "metadata": {"resourceVersion": "1", "continue": token}}).encode()


def _servers(token: str) -> bytes:
    return json.dumps({"servers": [], "servers_links": [{"rel": "next", "href": f"?marker={token}"}]}).encode()


@pytest.mark.parametrize("tokens", [("a",), ("a", "b"), ("a", "b", "c", "d")], ids=len)
@pytest.mark.parametrize("name", READERS)
def test_a_list_that_comes_back_to_its_beginning(
    name: str, tokens: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = {"openstack": _servers, "openshift": _pods, "aws": _reservations}[name]
    turn = itertools.cycle(tokens)
    with (
        _lying(lambda: Lie(headers=_JSON, body=[page(next(turn))])) as server,
        READERS[name](server, tmp_path, monkeypatch) as ask,
    ):
        with pytest.raises(CloudUnavailable, match=r"no end|is the same"):
            ask(False)
        assert len(server.asked) <= len(tokens) + 3


@pytest.mark.parametrize("said", ["1e999999", "9" * 5000, "1e-999999", "1E99999999999", "nan", "inf", "²", "1_0"])
def test_quantities_that_are_none(said: str) -> None:
    with pytest.raises(CloudUnavailable) as refused:
        quantity(said)
    assert len(str(refused.value)) < 1100


def test_an_answer_that_takes_its_time() -> None:
    with pytest.raises(TooMuch):
        whole([b"x", b"y"], seconds=-1.0)
    assert whole([b"x", b"y"], most=2) == b"xy"
    with pytest.raises(TooMuch):
        whole([b"x", b"y"], most=1)
