from __future__ import annotations

import json
import queue
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import kube_config

from burstd.domain.errors import AuthFailed, BadRequest, CloudUnavailable, NotAllowed, OutcomeUnknown
from providers.openshift.client.access import KubeconfigAccess
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.errors import ResourceVersionExpired
from tests.providers.openshift.server import PATIENCE_S, Asked, Said, Server, serving
from tests.providers.openshift.test_listing import until
from tests.providers.openshift.things import settings

PODS = "/api/v1/namespaces/burst/pods"
UNKNOWN = Said(401, {"kind": "Status", "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized"})
ANONYMOUS = Said(
    403,
    {
        "kind": "Status",
        "message": 'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group',
    },
)
EXPIRED = Said(410, {"kind": "Status", "reason": "Expired", "message": "the continue parameter is too old"})


def page(*names: str, more: str = "", at: str = "77") -> Said:
    return Said(200, {"metadata": {"resourceVersion": at, "continue": more}, "items": [{"n": one} for one in names]})


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture
def calls(server: Server, tmp_path: Path) -> Iterator[OpenShiftCalls]:
    made = OpenShiftCalls(
        settings(kubeconfig=server.kubeconfig(tmp_path / "kubeconfig", token="t0"), timeout_s=5, page=2)
    )
    yield made
    made.close()


def test_a_change_is_sent_once(server: Server, calls: OpenShiftCalls) -> None:
    server.says(Said(201, {"kind": "Pod"}))
    assert calls.request_json("POST", calls.path_of("pods"), {"a": 1}, {"x": "y z"}, what="make a pod") == {
        "kind": "Pod"
    }
    assert server.asked == [Asked("POST", f"{PODS}?x=y+z", "Bearer t0", {"a": 1})]
    assert calls.call_counts == {"POST pods": 1}


@pytest.mark.parametrize("status", [500, 503, 504, 429])
def test_nothing_is_repeated(server: Server, calls: OpenShiftCalls, status: int) -> None:
    server.says(*[Said(status, {}, headers={"Retry-After": "0"})] * 3)
    with pytest.raises(Exception, match=str(status)):
        calls.request_json("POST", calls.path_of("pods"), {}, what="make a pod")
    with pytest.raises(Exception, match=str(status)):
        calls.request_json("GET", calls.path_of("pods", "a"), what="look at a pod")
    assert len(server.asked) == 2


def test_a_lost_answer(server: Server, calls: OpenShiftCalls) -> None:
    server.says(Said(cut=True), Said(cut=True), Said(200, "<html>no JSON"), Said(200, "<html>no JSON"))
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            calls.request_json("DELETE", calls.path_of("pods", "a"), what="end a pod")
        with pytest.raises(CloudUnavailable):
            calls.request_json("GET", calls.path_of("pods", "a"), what="look at a pod")


def test_nobody_listens(server: Server, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        file = server.kubeconfig(tmp_path / "kubeconfig", token="t0")
        words = json.loads(file.read_text())
        words["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{free.getsockname()[1]}"
        file.write_text(json.dumps(words))
        calls = OpenShiftCalls(settings(kubeconfig=file))
        with pytest.raises(CloudUnavailable):
            calls.request_json("POST", calls.path_of("pods"), {}, what="make a pod")


@pytest.mark.parametrize("first", [UNKNOWN, ANONYMOUS], ids=["401", "anonymous"])
def test_credentials_are_read_again_once(server: Server, tmp_path: Path, first: Said) -> None:
    token = tmp_path / "token"
    token.write_text("t0")
    calls = OpenShiftCalls(settings(kubeconfig=server.kubeconfig(tmp_path / "kubeconfig", tokenFile=str(token))))
    server.says(page("a"))
    calls.list_objects(calls.path_of("pods"), what="list pods")
    token.write_text("t1")
    server.says(first, Said(201, {"kind": "Pod"}))
    calls.request_json("POST", calls.path_of("pods"), {}, what="make a pod")
    assert [one.token for one in server.asked] == ["Bearer t0", "Bearer t0", "Bearer t1"]
    server.says(first, first)
    with pytest.raises(AuthFailed, match="kubeconfig") as caught:
        calls.request_json("POST", calls.path_of("pods"), {}, what="make a pod")
    assert type(caught.value) is AuthFailed
    assert "t1" not in str(caught.value)
    assert len(server.asked) == 5
    calls.close()


def test_a_right_that_lacks_is_no_reason_to_ask_again(server: Server, calls: OpenShiftCalls) -> None:
    server.says(Said(403, {"kind": "Status", "message": 'User "b" cannot list resource "pods" in API group ""'}))
    with pytest.raises(NotAllowed):
        calls.list_objects(calls.path_of("pods"), what="list pods")
    assert len(server.asked) == 1


BROKEN: list[tuple[str, str]] = [
    ("users: [{name: u, user: {token: s3cret}", "cannot use kubeconfig"),
    (json.dumps({"current-context": "other", "contexts": [], "clusters": [], "users": []}), "other"),
    ("", "cannot use kubeconfig"),
]


@pytest.mark.parametrize(("text", "words"), BROKEN, ids=["no-yaml", "no-context", "empty"])
def test_a_kubeconfig_that_is_of_no_use(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(AuthFailed, match=words) as caught:
        OpenShiftCalls(settings(kubeconfig=file)).request_json("GET", PODS, what="list pods")
    assert "s3cret" not in str(caught.value)


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AuthFailed, match="nowhere"):
        OpenShiftCalls(settings(kubeconfig=tmp_path / "nowhere")).request_json("GET", PODS, what="list pods")


def plug_in(folder: Path, *, hangs: str) -> dict[str, Any]:
    """A user whose program waits for the file ``go``: at first, or when the token that it made is to be made anew."""
    made = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    old, new = ({"token": "old", "expirationTimestamp": "2020-01-01T00:00:00Z"}, {"token": "new"})
    skip = (
        "true"
        if hangs == "first"
        else f"mkdir {folder}/been 2>/dev/null && exec echo '{json.dumps({**made, 'status': old})}'"
    )
    words = f"{skip}; while [ ! -e {folder}/go ]; do sleep 0.05; done; echo '{json.dumps({**made, 'status': new})}'"
    return {
        "exec": {"apiVersion": made["apiVersion"], "command": "sh", "args": ["-c", words], "interactiveMode": "Never"}
    }


@pytest.mark.parametrize("hangs", ["first", "later"])
def test_a_program_for_tokens_that_hangs_is_an_error_in_time(server: Server, tmp_path: Path, hangs: str) -> None:
    user = plug_in(tmp_path, hangs=hangs)
    calls = OpenShiftCalls(settings(kubeconfig=server.kubeconfig(tmp_path / "kubeconfig", **user), timeout_s=0.3))
    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(calls.request_json, "GET", PODS, what="list pods") for _ in range(2)]:
            with pytest.raises(AuthFailed, match=r"within 0 s"):
                one.result(timeout=PATIENCE_S)
    assert server.asked == []
    (tmp_path / "go").touch()
    server.says(Said(200, {}))

    def asked() -> bool:
        with suppress(AuthFailed):
            calls.request_json("GET", PODS, what="list pods")
        return bool(server.asked)

    until(asked)
    assert [one.token for one in server.asked] == ["Bearer new"]
    calls.close()


def test_who_reads_the_same_certificate_waits_until_its_file_is_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider and a store begin at the same time."""
    file = server.kubeconfig(tmp_path / "kubeconfig", token="t")
    words = json.loads(file.read_text())
    data = b64encode(b"of the lab").decode()
    words["clusters"][0]["cluster"] = {"server": "https://127.0.0.1", "certificate-authority-data": data}
    file.write_text(json.dumps(words))
    inside, further = threading.Event(), threading.Event()

    def slowly(name: str, mode: str = "r") -> Any:
        if mode == "wb":
            inside.set()
            assert further.wait(PATIENCE_S)
        return Path(name).open(mode)

    def read() -> bytes:
        return Path(KubeconfigAccess(file, "", 2, 2 * PATIENCE_S).configuration.ssl_ca_cert).read_bytes()

    monkeypatch.setattr(kube_config, "open", slowly, raising=False)
    monkeypatch.setattr(RESTClientObject, "__init__", lambda *_: None)
    monkeypatch.setattr(RESTClientObject, "pool_manager", None, raising=False)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read)
        assert inside.wait(PATIENCE_S)
        second = pool.submit(read)
        wait([second], 0.2)
        further.set()
        assert [one.result(PATIENCE_S) for one in (first, second)] == [b"of the lab"] * 2


def test_a_list_is_whole(server: Server, calls: OpenShiftCalls) -> None:
    server.says(page("a", "b", more="c0"), page("c"))
    items, at = calls.list_objects(calls.path_of("pods"), {"labelSelector": "a=b,c"}, what="list pods")
    assert ([one["n"] for one in items], at) == (["a", "b", "c"], "77")
    first, second = (one.path for one in server.asked)
    assert first == f"{PODS}?labelSelector=a%3Db%2Cc&limit=2"
    assert second == f"{first}&continue=c0"
    assert calls.call_counts == {"LIST pods": 2}


def test_a_list_whose_moment_is_forgotten_is_read_once_more(server: Server, calls: OpenShiftCalls) -> None:
    server.says(page("a", "b", more="c0"), EXPIRED, page("a", "z", more="c1", at="90"), page("c", at="90"))
    assert list(calls.pages(calls.path_of("pods"), what="list pods")) == [{"n": one} for one in "azc"]
    server.says(page("a", "b", more="c0"), EXPIRED, page("a", "b", more="c0"), EXPIRED)
    with pytest.raises(ResourceVersionExpired):
        calls.list_objects(calls.path_of("pods"), what="list pods")


SHORT: list[tuple[str, list[Said]]] = [
    ("later-page-down", [page("a", more="c0"), Said(503, "")]),
    ("no-list", [Said(200, {"kind": "Status"})]),
    ("no-version", [Said(200, {"items": [], "metadata": {}})]),
    ("round", [page("a", more="c0"), page("a", more="c0")]),
    ("elsewhere", [Said(302, "", headers={"Location": "/login"})]),
]


@pytest.mark.parametrize(("name", "answers"), SHORT, ids=[row[0] for row in SHORT])
def test_no_list_is_a_short_one(server: Server, calls: OpenShiftCalls, name: str, answers: list[Said]) -> None:
    server.says(*answers)
    with pytest.raises(CloudUnavailable):
        calls.list_objects(calls.path_of("pods"), what="list pods")
    assert server.answers == []


def test_the_clock_is_the_servers(server: Server, tmp_path: Path) -> None:
    """Also where that of burstd's machine is put right, or wrong, after the last answer."""
    then = datetime(2040, 1, 1, tzinfo=UTC)
    file, times = server.kubeconfig(tmp_path / "kubeconfig"), {"clock": 7.0, "date": then.timestamp() - 300}
    made = OpenShiftCalls(settings(kubeconfig=file), clock=lambda: times["clock"], date=lambda: times["date"])
    times["clock"] += 1
    assert made.server_time() == then.timestamp() - 299

    for second in (0, 1):
        said = format_datetime(then + timedelta(seconds=second), usegmt=True)
        server.says(page("a")._replace(headers={"Date": said}))
        made.list_objects(made.path_of("pods"), what="list pods")
        assert made.server_time() == then.timestamp() + second
    times["date"] += 86400
    times["clock"] += 5
    assert made.server_time() == then.timestamp() + 6
    made.close()


class Tap:
    """A stream that a test fills."""

    def __init__(self) -> None:
        self.pieces: queue.Queue[bytes | type[StopIteration] | None] = queue.Queue()

    def __iter__(self) -> Iterator[bytes | None]:
        while True:
            one = self.pieces.get(timeout=PATIENCE_S)
            if one is StopIteration:
                return
            assert one is None or isinstance(one, bytes)
            yield one


EVENTS: list[Any] = [{"type": "ADDED", "object": {"metadata": {"name": "é" * 40000}}}, {"type": "X", "object": {}}]


def test_events_come_as_they_are_said_however_they_are_cut(server: Server, calls: OpenShiftCalls) -> None:
    tap = Tap()
    server.says(Said(stream=iter(tap)))
    stream = iter(calls.watch(calls.path_of("pods"), {"resourceVersion": "7"}, what="watch pods", quiet_s=5))
    assert server.asked[0].path == f"{PODS}?resourceVersion=7&watch=true"
    for event in EVENTS:
        text = json.dumps(event, ensure_ascii=False).encode() + b"\n"
        for piece in (text[:7], text[7:50001], text[50001:]):
            if piece:
                tap.pieces.put(piece)
        assert next(stream) == event
    tap.pieces.put(StopIteration)
    assert list(stream) == []
    assert calls.call_counts == {"WATCH pods": 1}


@pytest.mark.parametrize("how", ["cut", "silent", "nonsense", "refused", "lost"])
def test_a_watch_that_breaks_says_so(server: Server, calls: OpenShiftCalls, how: str) -> None:
    tap = Tap()
    answers = {"refused": Said(503, ""), "lost": EXPIRED}
    server.says(answers.get(how, Said(stream=iter(tap))))
    if how in ("cut", "nonsense"):
        tap.pieces.put(None if how == "cut" else b"<html>\n")
    quiet_s = 0.05 if how == "silent" else 5
    with pytest.raises(ResourceVersionExpired if how == "lost" else CloudUnavailable):
        list(calls.watch(calls.path_of("pods"), {}, what="watch pods", quiet_s=quiet_s))
    tap.pieces.put(StopIteration)


def test_a_watch_can_be_closed_by_another_thread(server: Server, calls: OpenShiftCalls) -> None:
    tap = Tap()
    server.says(Said(stream=iter(tap)))
    stream = calls.watch(calls.path_of("pods"), {}, what="watch pods", quiet_s=PATIENCE_S * 6)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, stream)
        stream.close()
        assert reading.result(timeout=PATIENCE_S) == []
    stream.close()
    tap.pieces.put(StopIteration)


def test_a_path_is_made_of_names_only(calls: OpenShiftCalls) -> None:
    assert calls.path_of("pods", "../secrets/x", "log") == f"{PODS}/..%2Fsecrets%2Fx/log"
    assert calls.path_of("routes", api="route.openshift.io/v1") == (
        "/apis/route.openshift.io/v1/namespaces/burst/routes"
    )


def test_a_command_that_cannot_be_run_says_why(server: Server, calls: OpenShiftCalls) -> None:
    status = {"kind": "Status", "reason": "BadRequest", "message": "container node is waiting to start"}
    server.says(Said(400, status), UNKNOWN, Said(400, status))
    for _ in range(2):
        with pytest.raises(BadRequest, match="waiting to start"):
            calls.exec_socket("a", ["sh", "-c", "a b"])
    assert server.asked[0].path == (
        f"{PODS}/a/exec?command=sh&command=-c&command=a+b&stdin=true&stdout=true&stderr=true"
    )
    assert server.asked[0].token == "Bearer t0"
