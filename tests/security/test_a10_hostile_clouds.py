"""What a cloud, or who stands in its place, may answer: it costs a bounded time and memory, and gets no credentials."""

from __future__ import annotations

import itertools
import json
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials as OAuthCredentials

from burstd.domain.cloud.read_limits import ANSWER_BYTES, AnswerTooLarge, read_bounded
from burstd.domain.errors import CloudUnavailable, OutcomeUnknown, ProviderError
from providers.aws.calls import AwsCalls
from providers.aws.provider import AwsProvider
from providers.azure.calls import AzureCalls
from providers.azure.provider import AzureProvider
from providers.azure.resources import MACHINES
from providers.google.calls import GoogleCalls
from providers.google.provider import GoogleProvider
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.client.quantities import parse_quantity
from providers.openshift.provider import OpenShiftProvider
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.provider import OpenStackProvider
from providers.openstack.settings import OpenStackSettings
from providers.parsing import malformed_as_unavailable
from tests.doubles.lying_http import HttpLie, LyingServer, bomb, deep, endless, lying_server
from tests.providers.aws.ec2 import settings as aws_settings
from tests.providers.azure.samples import settings as azure_settings
from tests.providers.google.things import settings as google_settings
from tests.providers.openshift.things import settings as openshift_settings
from tests.providers.openstack.stub import serving

pytestmark = pytest.mark.slow


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
                return calls.mutate("compute", "POST", "/servers", "make a server", body={})
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
            return calls.request_json("POST", calls.path_of("pods"), {}, what="make a pod")
        return calls.list_objects(calls.path_of("pods"), what="list pods")

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
            return calls.mutate("ec2", "terminate_instances", InstanceIds=["i-12345678"])
        return list(calls.pages("ec2", "describe_instances", "Reservations"))

    yield ask
    calls.close()


@contextmanager
def _google(server: LyingServer, _: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    token = OAuthCredentials("t0")  # type: ignore[no-untyped-call, unused-ignore]
    monkeypatch.setattr("google.auth.default", lambda scopes: (token, str(scopes)))
    calls = GoogleCalls(google_settings(endpoint=server.url, timeout_s=10))

    def ask(changes: bool) -> object:
        place: dict[str, Any] = {"project": "physics", "zone": "europe-west4-a"}
        if changes:
            return calls.mutate("compute.instances.delete", "end a machine", instance="7", **place)
        return list(calls.items("compute.instances.list", "list machines", **place))

    yield ask
    calls.close()


@contextmanager
def _azure(server: LyingServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    monkeypatch.setattr("providers.azure.access.AzureAccess.token", lambda _: "t0")
    calls = AzureCalls(azure_settings(endpoint=server.url, timeout_s=10))

    def ask(changes: bool) -> object:
        if changes:
            return calls.mutate("DELETE", calls.in_group(MACHINES, "m1"), "delete m1")
        return list(calls.pages(calls.in_group(MACHINES), "list machines"))

    yield ask
    calls.close()


def _lying(lie: Callable[[], HttpLie]) -> AbstractContextManager[LyingServer]:
    """What Nova has is told as it is: else nothing is asked of it."""
    link = {"rel": "self", "href": "/compute/v2.1/"}
    about = {"id": "v2.1", "status": "CURRENT", "links": [link], "version": "2.96", "min_version": "2.1"}
    honest = json.dumps({"version": about}).encode()
    return lying_server(
        lambda path: HttpLie(headers=_JSON, body=[honest]) if path.rstrip("/").endswith("/v2.1") else lie()
    )


READERS = {"openstack": _openstack, "openshift": _openshift, "aws": _aws, "azure": _azure, "google": _google}


@pytest.fixture(params=READERS)
def ask_of(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AskOf:
    return lambda server: READERS[request.param](server, tmp_path, monkeypatch)


@pytest.mark.parametrize("lie", [endless, bomb, deep], ids=["endless", "bomb", "deep"])
@pytest.mark.parametrize("changes", [False, True], ids=["read", "change"])
def test_an_answer_without_a_limit(ask_of: AskOf, lie: Callable[[], HttpLie], *, changes: bool) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with _lying(lie) as server, ask_of(server) as ask:
        with pytest.raises(OutcomeUnknown if changes else CloudUnavailable) as refused:
            ask(changes)
        assert len(str(refused.value)) < 1100
        assert server.sent < ANSWER_BYTES + 32 * _MIB
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 384 << 10


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_given_no_credentials(ask_of: AskOf, status: int) -> None:
    with lying_server(lambda _: HttpLie(body=[b"{}"])) as elsewhere:
        away = HttpLie(status, {"Location": f"{elsewhere.url}/there", "Content-Length": "0"})
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


def _instances(token: str) -> bytes:
    return json.dumps({"items": [], "nextPageToken": token}).encode()


def _servers(token: str) -> bytes:
    return json.dumps({"servers": [], "servers_links": [{"rel": "next", "href": f"?marker={token}"}]}).encode()


def _machines(token: str) -> bytes:
    more = f"ENDPOINT/subscriptions/s/providers/{MACHINES}?$skiptoken={token}" if token else ""
    return json.dumps({"value": [], "nextLink": more}).encode()


_PAGE_OF = {
    "openstack": _servers, "openshift": _pods, "aws": _reservations, "azure": _machines, "google": _instances,
}  # fmt: skip


def _at(server: LyingServer, page: bytes) -> bytes:
    """A page that leads on to the same server."""
    return page.replace(b"ENDPOINT", server.url.encode())


@pytest.mark.parametrize("tokens", [("a",), ("a", "b"), ("a", "b", "c", "d")], ids=len)
@pytest.mark.parametrize("name", READERS)
def test_a_list_that_comes_back_to_its_beginning(
    name: str, tokens: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = _PAGE_OF[name]
    turn = itertools.cycle(tokens)
    with (
        _lying(lambda: HttpLie(headers=_JSON, body=[_at(server, page(next(turn)))])) as server,
        READERS[name](server, tmp_path, monkeypatch) as ask,
    ):
        with pytest.raises(CloudUnavailable, match=r"no end|is the same"):
            ask(False)
        assert len(server.asked) <= len(tokens) + 3


_SLOW_S = 0.5


@pytest.mark.parametrize(
    ("bound", "most"), [("LIST_PAGES", 5), ("LIST_BYTES", 400), ("LIST_PARTS", 40), ("LIST_S", _SLOW_S)]
)
@pytest.mark.parametrize("name", READERS)
def test_a_list_whose_pages_are_always_new(
    name: str, bound: str, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"burstd.domain.cloud.read_limits.{bound}", most, raising=False)
    turn = itertools.count()
    last = 50_000  # more than any machine reads in the time

    def page() -> HttpLie:
        at = next(turn)
        return HttpLie(headers=_JSON, body=[_at(server, _PAGE_OF[name](f"t{at}" if at < last else ""))])

    with _lying(page) as server, READERS[name](server, tmp_path, monkeypatch) as ask:
        with pytest.raises(CloudUnavailable, match=r"the list has|takes more than"):
            ask(False)
        assert len(server.asked) < (last if bound == "LIST_S" else 20)


def _many(name: str, count: int) -> bytes:
    """A page with so many things, the last one."""
    if name == "aws":
        return b"<R><reservationSet>" + b"<item/>" * count + b"</reservationSet></R>"
    if name in ("azure", "openstack"):
        return json.dumps({"value" if name == "azure" else "servers": [{}] * count}).encode()
    return json.dumps({"items": [{}] * count, "metadata": {"resourceVersion": "1"}}).encode()


@pytest.mark.parametrize("name", READERS)
def test_a_list_of_too_many_things(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burstd.domain.cloud.read_limits.LIST_THINGS", 10, raising=False)
    sizes = iter([10, 11])
    with (
        _lying(lambda: HttpLie(headers=_JSON, body=[_many(name, next(sizes))])) as server,
        READERS[name](server, tmp_path, monkeypatch) as ask,
    ):
        ask(False)
        with pytest.raises(CloudUnavailable, match="more than 10 things"):
            ask(False)


@pytest.mark.parametrize("name", READERS)
def test_an_answer_of_very_many_parts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted before anything is made of them: some four MiB."""
    piece = b"<a/>" if name == "aws" else b"[],"
    lie = HttpLie(headers=_JSON, body=[b"<R>" if name == "aws" else b"[", piece * (1 << 20)])
    loaded = _counted(monkeypatch)
    with (
        _lying(lambda: lie) as server,
        READERS[name](server, tmp_path, monkeypatch) as ask,
        pytest.raises(CloudUnavailable),
    ):
        ask(False)
    assert not loaded


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Letters that this JSON, and any XML, is read from, by call."""
    loaded: list[int] = []
    loads = json.loads

    def counted(text: Any, **words: Any) -> Any:
        loaded.extend([len(text)] * (text[:6] in ("[[],[]", b"[[],[]")))
        return loads(text, **words)

    monkeypatch.setattr(json, "loads", counted)
    monkeypatch.setattr("botocore.parsers.BaseXMLResponseParser._parse_xml_string_to_dom", _refusing(loaded))
    return loaded


def _refusing(loaded: list[int]) -> Callable[[object, bytes], None]:
    def refuse(_: object, text: bytes) -> None:
        loaded.append(len(text))
        raise ValueError

    return refuse


_STRANGE = [
    [],
    [[]],
    "x",
    [1],
    {"servers": [[]], "items": [[]], "value": [[]]},
    {"servers": ["x"], "items": {}, "value": "x", "metadata": []},
]


@pytest.mark.parametrize("said", _STRANGE, ids=json.dumps)
@pytest.mark.parametrize("name", ["azure", "google", "openstack", "openshift"])
def test_an_answer_of_another_form(name: str, said: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lie = HttpLie(headers=_JSON, body=[json.dumps(said).encode()])
    with (
        _lying(lambda: lie) as server,
        READERS[name](server, tmp_path, monkeypatch) as ask,
        pytest.raises(CloudUnavailable, match="is no"),
    ):
        ask(False)


_SETTINGS: dict[Any, Callable[[], Any]] = {
    AwsProvider: aws_settings,
    AzureProvider: azure_settings,
    GoogleProvider: google_settings,
    OpenStackProvider: lambda: OpenStackSettings(networks=["n"], flavors=["*"]),
    OpenShiftProvider: openshift_settings,
}


@pytest.mark.parametrize("error", [AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError])
@pytest.mark.parametrize("kind", _SETTINGS)
def test_a_thing_of_another_form(kind: Any, error: type[Exception]) -> None:
    """Whatever its reader stumbles over is the cloud's fault, and the place is told."""

    class Calls:
        """Whatever is asked of it, one page has come and the next is of another form."""

        def __getattr__(self, name: str) -> Any:
            def fail(*_: object, **__: object) -> object:
                raise error("said")

            return fail

        def close(self) -> None:
            """There is nothing."""

    made = kind("x", "ada", _SETTINGS[kind](), Calls())
    for read in (made.offers, lambda: list(made.instances()), lambda: list(made.leftovers()), made.quotas):
        with pytest.raises(CloudUnavailable, match=f"another form.*{error.__name__} in "):
            read()


def test_a_page_of_another_form_after_a_good_one() -> None:
    @malformed_as_unavailable
    def pages() -> Iterator[int]:
        yield 1
        raise KeyError("said")

    listed = pages()
    assert next(listed) == 1
    with pytest.raises(CloudUnavailable, match=r"another form.*KeyError in pages"):
        next(listed)


@pytest.mark.parametrize("said", ["1e999999", "9" * 5000, "1e-999999", "1E99999999999", "nan", "inf", "²", "1_0"])
def test_quantities_that_are_none(said: str) -> None:
    with pytest.raises(CloudUnavailable) as refused:
        parse_quantity(said)
    assert len(str(refused.value)) < 1100


def test_an_answer_that_takes_its_time() -> None:
    with pytest.raises(AnswerTooLarge):
        read_bounded([b"x", b"y"], seconds=-1.0)
    assert read_bounded([b"x", b"y"], most=2) == b"xy"
    with pytest.raises(AnswerTooLarge):
        read_bounded([b"x", b"y"], most=1)
