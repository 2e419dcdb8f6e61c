"""The agent by signed URLs, from a server that fails as servers do."""

from __future__ import annotations

import datetime
import hashlib
import http.server
import os
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from burstd.domain.plugins.stager import NoSuchObject, StagerError, StoreBusy, StoreRefused, StoreSpaceGone
from burstd.domain.staging import ObjectRange
from burstd.transfer.content_store.manifest import ManifestEntry
from burstd.transfer.content_store.object_folder import ObjectFolder
from burstd.transfer.protocol.transports import HttpObjectTransport
from tests.reach import let_others_in
from tests.transfer.agent_rig import AgentAnsweredError, AgentRig, directory, small

MIB = 1 << 20


class Server(http.server.ThreadingHTTPServer):
    """A store by HTTP, which fails as it is told."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder: ObjectFolder) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.failures: list[str] = []
        """What the next requests meet, the last first: a status, how the connection ends, nothing if empty."""
        self.seen: Counter[str] = Counter()
        self.signed = 0
        self.asks: list[dict[str, Any]] = []
        self.connections = 0
        self.scheme = "http"
        self.others: dict[str, bytes] = {}
        """Objects that no folder of ours would give."""

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """As burstd answers the agent."""
        self.asks.append(question)
        if "present" in question:
            return {"present": dict(self.folder.present(question["present"]))}
        ask = question["sign"]
        base = f"{self.scheme}://127.0.0.1:{self.server_address[1]}"
        self.signed += len(ask["keys"])
        return {"urls": {key: f"{base}/{key}?sig={ask['method']}%2B" for key in ask["keys"]}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the interface's
        pass

    def _turn(self) -> str:
        """The key, empty where the request is answered already."""
        path, _, query = self.path.partition("?")
        assert query == f"sig={self.command}%2B"
        self.server.seen[self.command] += 1
        failure = self.server.failures.pop() if self.server.failures else ""
        if failure == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"x" * 10)
        if failure in {"cut", "hangup"}:
            self.close_connection = True
            return ""
        if failure:
            body = b"<Error><Code>Why</Code></Error>"
            self.send_response(int(failure))
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(body)
            return ""
        return path[1:]

    def do_GET(self) -> None:
        key = self._turn()
        if not key:
            return
        try:
            body = self.server.others.get(key) or self.server.folder.get(key)
        except NoSuchObject:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = self._turn()
        if key:
            self.server.folder.put(key, body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = ObjectFolder(tmp_path / "store")
    folder.ensure_root()
    with Server(folder) as made:
        serving = threading.Thread(target=made.serve_forever, args=(0.02,))
        serving.start()
        yield made
        made.shutdown()
        serving.join()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_there_and_back_through_all_that_passes(server: Server, tmp_path: Path) -> None:
    let_others_in(tmp_path)
    rig = AgentRig(tmp_path / "node", {"kind": "http"}, server.answer)
    rig.store = server.folder
    bodies = [os.urandom(MIB + n) for n in range(30)]
    pieces = tuple(ObjectRange(rig.put(body), 0, len(body)) for body in bodies)
    size = sum(map(len, bodies))
    tree = rig.tree(
        [directory(), ManifestEntry(b"f", "f", 0o644, 5, size, pieces=pieces), small(b"s", pieces[0].key, 3, 9)]
    )
    server.failures = ["cut", "", "", "", "500", "", "", "hangup", "403", "", "", "429", "cut", "", "503"]
    done = rig.deliver("1", tree)
    assert (rig.job("1") / "in/data/f").read_bytes() == b"".join(bodies)
    assert done["fetched"] < size + 5000
    # URLs are asked for together, connections are kept.
    assert len([ask for ask in server.asks if "sign" in ask]) < 8
    assert server.connections < 16

    out = rig.job("1") / "out"
    content = os.urandom(70 * MIB)
    (out / "big").write_bytes(content)
    os.chown(out / "big", rig.uid, rig.uid)
    server.failures = ["503", "hangup", "403"]
    first = rig.collect("1", ["big"])
    entry = rig.entries(first["trees"][0], "out/1/gpu1")[0]
    assert (first["sent"] > 70 * MIB, rig.content(entry, "out/1/gpu1") == content) == (True, True)
    puts = server.seen["PUT"]
    assert rig.collect("1", ["big"])["sent"] == 0
    assert server.seen["PUT"] == puts

    server.folder.delete([f"in/{pieces[7].key[:2]}/{pieces[7].key}"])
    rig.uid += 1
    with pytest.raises(AgentAnsweredError) as caught:
        rig.deliver("2", tree)
    assert (caught.value.kind, caught.value.keys) == ("damaged", [pieces[7].key])


@pytest.mark.parametrize(
    ("failures", "error", "says"),
    [
        (["403", "403"], StoreRefused, r"403 Forbidden \(Why\)"),
        (["404"], NoSuchObject, "404"),
        (["507"], StoreSpaceGone, "507"),
        (["503"] * 6, StoreBusy, "503"),
        (["hangup"] * 6, StoreBusy, "cannot be reached"),
        (["cut"] * 6, StoreBusy, "after 10 of 100 bytes"),
    ],
)
def test_what_does_not_pass(server: Server, failures: list[str], error: type[StagerError], says: str) -> None:
    transport = HttpObjectTransport(server.answer, wait_s=0.001)
    server.failures = list(failures)
    with pytest.raises(error, match=says) as caught:
        transport.get("in/ab/abcd")
    assert server.failures == []
    assert "sig=" not in str(caught.value)
    server.folder.put("in/ab/abcd", b"text")
    assert transport.get("in/ab/abcd") == b"text"
    transport.close()


def test_an_object_that_is_too_large_and_a_server_that_is_gone(server: Server) -> None:
    transport = HttpObjectTransport(server.answer, wait_s=0.001)
    server.others["in/ab/large"] = bytes(33 * MIB)
    with pytest.raises(StoreRefused, match="larger than 33554432 bytes"):
        transport.get("in/ab/large")
    server.shutdown()
    server.server_close()
    with pytest.raises(StoreBusy, match="cannot be reached from the node"):
        transport.get("in/ab/x")
    transport.close()


def test_a_certificate_that_nobody_vouches_for(server: Server, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(1))
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    file = tmp_path / "pem"
    file.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + made.public_bytes(Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.scheme = "https"
    server.folder.put("in/ab/abcd", hashlib.sha256(b"").digest())
    transport = HttpObjectTransport(server.answer, wait_s=0.001)
    with pytest.raises(StoreRefused, match="is not to be trusted"):
        transport.get("in/ab/abcd")
    assert server.seen["GET"] == 0
    transport.close()
