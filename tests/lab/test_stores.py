"""The storage servers that tests and benchmarks use come up, hold objects, keep strangers out and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import openstack
import pytest
from botocore.exceptions import ClientError

from tests.lab.remains import remains
from tests.lab.s3_server import S3Server
from tests.lab.ssh_store import DATA, SshStore
from tests.lab.swift_server import SwiftServer

pytestmark = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

_PROJECT = Path(__file__).parents[2]
_BODY = os.urandom(3 << 20)
_ALL = """import sys
from pathlib import Path
from tests.lab.s3_server import S3Server
from tests.lab.ssh_store import SshStore
from tests.lab.swift_server import SwiftServer
folder = Path(sys.argv[1])
with S3Server(folder) as s3, SwiftServer(folder) as swift, SshStore(folder) as node:
    print(s3.pid, swift.box.process.pid, node.box.process.pid, node.network.name, *s3.sockets, flush=True)
    sys.stdin.read()
"""


def _namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def _processes(namespace: str) -> list[str]:
    """Of a pid namespace: a box's."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            inside = str((process / "ns/pid").readlink())
        except OSError:  # it ended meanwhile
            continue
        if inside == namespace:
            found.append(process.name)
    return found


def _wait(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_s3(tmp_path: Path) -> None:
    with S3Server(tmp_path, own_keys=["mine"]) as s3:
        for bucket in ("mine", "other"):
            s3.make_bucket(bucket)
        client = s3.client()
        client.put_object(Bucket="other", Key="a/b", Body=_BODY, Metadata={"sum": "1"})
        guest = s3.client(s3.keys["mine"])
        guest.put_object(Bucket="mine", Key="c", Body=b"c")
        with pytest.raises(ClientError, match="AccessDenied"):
            guest.get_object(Bucket="other", Key="a/b")
        s3.stop()
        s3.start()
        found = client.get_object(Bucket="other", Key="a/b")
        assert (found["Body"].read(), found["Metadata"]) == (_BODY, {"sum": "1"})
        assert [o["Key"] for o in client.list_objects_v2(Bucket="other")["Contents"]] == ["a/b"]
        server, sockets = s3.pid, s3.sockets
        assert all(file.is_socket() for file in sockets)
    assert remains("no-network", s3.folder) == []
    assert not any(file.exists() for file in (Path(f"/proc/{server}"), *sockets))


def test_swift(tmp_path: Path) -> None:
    with SwiftServer(tmp_path) as swift:
        cloud = openstack.connect(auth_type="admin_token", auth={"endpoint": swift.storage_url, "token": swift.token()})
        cloud.create_container("c")
        source = tmp_path / "source"
        source.write_bytes(_BODY)
        cloud.create_object("c", "whole", data=_BODY)
        cloud.create_object("c", "parts", filename=str(source), segment_size=1 << 20, use_slo=True)
        for name in ("whole", "parts"):
            assert cloud.get_object_raw("c", name).content == _BODY
        assert "slo" in httpx.get(swift.auth_url.replace("auth/v1.0", "info"), trust_env=False).json()
        denied = httpx.get(swift.storage_url, headers={"X-Auth-Token": "AUTH_tkmade-up"}, trust_env=False)
        assert denied.status_code == 401
        namespace = _namespace(swift.box.process.pid) if swift.box.process else ""
        assert len(_processes(namespace)) >= 7
    assert (remains(swift.network.name, swift.folder), _processes(namespace)) == ([], [])


def test_ssh_store(tmp_path: Path) -> None:
    with SshStore(tmp_path) as node, node.reach():
        for command, said in ((f"tee {DATA}/a", _BODY), (f"cat {DATA}/a", b""), ("id -un", b"")):
            done = subprocess.run([*node.ssh(), command], input=said, capture_output=True, check=False)
            assert (done.returncode, done.stderr) == (0, b""), command
            assert done.stdout == (b"burst\n" if command == "id -un" else _BODY)
        node.known_hosts.write_text(node.known_hosts.read_text().replace("AAAAC3NzaC1lZDI1NTE5AAAAI", "A" * 25))
        done = subprocess.run([*node.ssh(), "id"], capture_output=True, check=False)
        assert done.returncode == 255, "another host key is not taken"
        namespace = _namespace(node.box.process.pid) if node.box.process else ""
        assert _processes(namespace)
    assert (remains(node.network.name, node.folder), _processes(namespace)) == ([], [])


def test_all_end_with_a_killed_test(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _ALL, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_PROJECT) as process:
        assert process.stdout is not None
        try:
            s3, swift, node, network, *sockets = process.stdout.readline().split()
            boxes = [_namespace(int(swift)), _namespace(int(node))]
        finally:
            process.send_signal(signal.SIGKILL)
    _wait(lambda: not Path(f"/proc/{s3}").exists(), 10, "the S3 server ends")
    for file in sockets:
        Path(file).unlink()
    _wait(lambda: not any(_processes(box) for box in boxes), 10, "the boxes end")
    _wait(lambda: not remains(network, tmp_path / "swift"), 10, "Swift's folder goes")
    _wait(lambda: not remains(network, tmp_path / "ssh-store"), 10, "the node's folder and network go")
