"""What a call's end means: the real boto3 against servers and credentials that misbehave."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.parsers import ResponseParserError

from burstd.domain.errors import AuthFailed, CloudUnavailable, NotAllowed, OutcomeUnknown, ProviderError, RateLimited
from providers.aws.calls import AwsCalls
from tests.providers.aws.ec2 import settings

_SECRET = "wJalrXUtnFEMI"
_REFUSAL = "<Response><Errors><Error><Code>{}</Code><Message>no</Message></Error></Errors></Response>"
_HTML = f"<html><body>log in, {_SECRET}<br></body></html>"
Talk = Callable[[socket.socket], None]


class Server:
    """Takes one connection after the other, reads one request of each, and leaves the rest to ``talk``."""

    def __init__(self, talk: Talk, tls: ssl.SSLContext | None = None) -> None:
        self.heard: list[bytes] = []
        self._talk, self._tls = talk, tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._closing = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            plain, _ = self._listener.accept()
            if self._closing:
                plain.close()
                return
            with plain:
                try:
                    with self._tls.wrap_socket(plain, server_side=True) if self._tls else plain as peer:
                        said = b""
                        while b"Action=" not in said:
                            more = peer.recv(65536)
                            if not more:
                                break
                            said += more
                        self.heard.append(said)
                        self._talk(peer)
                except OSError:
                    continue  # The client hung up.

    def close(self) -> None:
        """Wakes the thread by a last connection."""
        self._closing = True
        with socket.create_connection(("127.0.0.1", self.port)):
            self._thread.join(10)
        self._listener.close()
        assert not self._thread.is_alive()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    running: list[Server] = []

    def start(talk: Talk, tls: ssl.SSLContext | None = None) -> Server:
        running.append(Server(talk, tls))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes boto3's configuration; at first it has keys."""
    for name in [one for one in os.environ if one.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("NO_PROXY", "*")

    def write(text: str) -> None:
        (tmp_path / "config").write_text(f"[default]\n{text}\n")

    write("aws_access_key_id = A\naws_secret_access_key = B")
    return write


def answer(status: str, body: str) -> Talk:
    said = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    return lambda peer: peer.sendall(said.encode())


def error_of_call(url: str, *, changes: bool = True) -> ProviderError:
    calls = AwsCalls(settings(endpoint_url=url, timeout_s=5))
    how, operation = (calls.mutate, "terminate_instances") if changes else (calls.query, "describe_instances")
    with pytest.raises(ProviderError) as caught:
        how("ec2", operation, InstanceIds=["i-12345678"])
    calls.close()
    assert _SECRET not in f"{caught.value} {caught.value.__cause__}"
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        ("200 OK", _HTML, OutcomeUnknown),
        ("200 OK", "<TerminateInstancesResponse><unclosed>", OutcomeUnknown),
        ("200 OK", "", OutcomeUnknown),
        ("302 Found", "", OutcomeUnknown),
        ("403 Forbidden", "<html>no</html>", OutcomeUnknown),
        ("407 Proxy Authentication Required", _HTML, OutcomeUnknown),
        ("503 Service Unavailable", _HTML, OutcomeUnknown),
        ("503 Service Unavailable", _REFUSAL.format("ServiceUnavailable"), OutcomeUnknown),
        ("503 Service Unavailable", _REFUSAL.format("Unavailable"), CloudUnavailable),
        ("503 Service Unavailable", _REFUSAL.format("RequestLimitExceeded"), RateLimited),
        ("403 Forbidden", _REFUSAL.format("UnauthorizedOperation"), NotAllowed),
    ],
)
def test_answers(serve: Callable[..., Server], status: str, body: str, kind: type[ProviderError]) -> None:
    server = serve(answer(status, body))
    error = error_of_call(f"http://127.0.0.1:{server.port}")
    assert type(error) is kind
    assert len(str(error)) > 10
    assert len(server.heard) == 1, "what changes something is sent once"


def test_a_read_whose_answer_is_none_of_amazons(serve: Callable[..., Server]) -> None:
    server = serve(answer("200 OK", _HTML))
    assert type(error_of_call(f"http://127.0.0.1:{server.port}", changes=False)) is CloudUnavailable


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    return made, context


@pytest.mark.slow
def test_tls_that_breaks_after_the_request(
    serve: Callable[..., Server], certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, context = certificate
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))

    def plain(peer: socket.socket) -> None:
        with socket.socket(fileno=os.dup(peer.fileno())) as below:
            below.sendall(b"HTTP/1.1 504 gateway\r\n\r\n")

    server = serve(plain, context)
    error = error_of_call(f"https://127.0.0.1:{server.port}")
    assert type(error) is OutcomeUnknown
    assert "SSL" in str(error)
    assert b"Action=TerminateInstances" in server.heard[0]


@pytest.mark.slow
def test_a_server_that_is_not_trusted_has_heard_nothing(
    serve: Callable[..., Server], certificate: tuple[Path, ssl.SSLContext]
) -> None:
    server = serve(answer("200 OK", ""), certificate[1])
    assert type(error_of_call(f"https://127.0.0.1:{server.port}")) is CloudUnavailable
    assert server.heard == []


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert type(error_of_call(f"http://127.0.0.1:{port}")) is CloudUnavailable


_PAST = (
    f'{{"Version":1,"AccessKeyId":"A","SecretAccessKey":"{_SECRET}","SessionToken":"C",'
    '"Expiration":"2020-01-01T00:00:00Z"}'
)


@pytest.mark.parametrize(
    ("script", "names"),
    [
        (f"echo '{_PAST}'", "RuntimeError"),
        (f"echo garbage {_SECRET}", "JSONDecodeError"),
        (f"echo {_SECRET} >&2; exit 1", "custom-process"),
        ("", "gone.sh"),
    ],
    ids=["expired", "garbage", "failing", "missing"],
)
def test_a_credential_process_that_gives_none(
    serve: Callable[..., Server], configured: Callable[[str], None], tmp_path: Path, script: str, names: str
) -> None:
    """Nothing is sent, and nothing of its output is told."""
    file = tmp_path / ("get.sh" if script else "gone.sh")
    if script:
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    configured(f"credential_process = {file}")
    server = serve(answer("200 OK", ""))
    error = error_of_call(f"http://127.0.0.1:{server.port}")
    assert type(error) is AuthFailed
    assert names in str(error)
    assert server.heard == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "kind"), [("AccessDenied", AuthFailed), ("Throttling", RateLimited), ("InternalFailure", CloudUnavailable)]
)
def test_a_role_that_may_not_be_taken(
    serve: Callable[..., Server], configured: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, code: str,
    kind: type[ProviderError],
) -> None:  # fmt: skip
    """The refusal is that of boto3's own call: the credentials are amiss, not a right for this type."""
    said = _REFUSAL.format(code).replace("Response", "ErrorResponse").replace("<Errors>", "").replace("</Errors>", "")
    sts, ec2 = serve(answer("403 Forbidden", said)), serve(answer("200 OK", ""))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{sts.port}")
    keys = f"aws_access_key_id = A\naws_secret_access_key = {_SECRET}"
    configured(f"{keys}\n[profile role]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = default")
    monkeypatch.setenv("AWS_PROFILE", "role")
    assert type(error_of_call(f"http://127.0.0.1:{ec2.port}")) is kind
    assert sts.heard
    assert ec2.heard == []


@pytest.mark.parametrize("sent", [True, False])
def test_what_botocore_lets_through(monkeypatch: pytest.MonkeyPatch, sent: bool) -> None:
    """By a client that breaks before or behind the sending."""
    calls = AwsCalls(settings())

    class Client:
        def describe_instances(self) -> None:
            if sent:
                calls._before_send()
            raise ResponseParserError(_SECRET)

        def run_instances(self) -> None:
            self.describe_instances()

    def make(*_: Any) -> Client:
        return Client()

    monkeypatch.setattr(calls, "_make", make)
    with pytest.raises(CloudUnavailable if sent else AuthFailed, match="ResponseParserError") as asked:
        calls.query("ec2", "describe_instances")
    with pytest.raises(OutcomeUnknown if sent else AuthFailed) as told:
        calls.mutate("ec2", "run_instances")
    assert _SECRET not in f"{asked.value}{told.value}"
