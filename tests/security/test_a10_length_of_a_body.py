"""An object's body that ends early, or goes on, is never taken for the whole of it, whichever way it comes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from burstd.domain.plugins.stager import StoreBusy
from burstd.transfer.content_store.object_folder import ObjectFolder
from burstd.transfer.protocol.client import ObjectServerClient
from burstd.transfer.protocol.frames import HEADER, MAGIC, ReplyStatus
from burstd.transfer.protocol.transports import FolderObjectTransport, HttpObjectTransport
from staging.objects import user_s3, user_swift
from staging.objects.s3 import S3Settings, S3Stager
from staging.objects.swift import SwiftSettings, SwiftStager
from staging.objects.user_store import ByteCounter, UserObject, UserStore
from staging.objects.user_worker import _download
from tests.doubles.lying_http import HttpLie, LyingServer, lying_server

pytestmark = pytest.mark.slow


DUE, TAG = 100_000, "0" * 32
Get = Callable[[LyingServer, Path], int]
"""Has an object of DUE bytes fetched; how many came."""


def s3(server: LyingServer, folder: Path) -> int:
    (folder / "keys").write_text("A\nB\n")
    settings = S3Settings(bucket="mine", endpoint=server.url, access_key_file=folder / "keys", addressing="path")
    store = S3Stager("s3", "here", settings)
    try:
        return len(store.get("in/aa"))
    finally:
        store.close()


def swift(server: LyingServer, folder: Path) -> int:
    (folder / "key").write_text("B\n")
    settings = SwiftSettings(container="mine", auth_url=f"{server.url}/auth/v1.0", user="a:b", key_file=folder / "key")
    store = SwiftStager("swift", "here", settings)
    try:
        return len(store.get("in/aa"))
    finally:
        store.close()


def node(server: LyingServer, folder: Path) -> int:
    transport = HttpObjectTransport(
        lambda asked: {"urls": {key: f"{server.url}/{key}" for key in asked["sign"]["keys"]}}
    )
    transport._wait_s = 0.01
    try:
        return transport.get_into("in/aa", memoryview(bytearray(2 * DUE)))
    finally:
        transport.close()


def of_a_user(place: UserStore, folder: Path) -> int:
    with (folder / "came").open("w+b") as file:
        try:
            _download(place, UserObject("aa", DUE, 0, TAG), file.fileno(), 0, ByteCounter())
        finally:
            assert os.fstat(file.fileno()).st_size <= DUE, "no more is written than the object has"
        return os.fstat(file.fileno()).st_size


def users_s3(server: LyingServer, folder: Path) -> int:
    (folder / ".aws").mkdir()
    (folder / ".aws/credentials").write_text("[burst]\naws_access_key_id = A\naws_secret_access_key = B\n")
    (folder / ".aws/config").write_text(
        f"[profile burst]\nendpoint_url = {server.url}\nregion = x\ns3 =\n    addressing_style = path\n"
    )
    return of_a_user(user_s3.prepare()("mine"), folder)


def users_swift(server: LyingServer, folder: Path) -> int:
    file = folder / ".config/openstack/clouds.yaml"
    file.parent.mkdir(parents=True)
    auth = f"{{auth_url: '{server.url}/auth/v1.0', username: 'a:b', password: B}}"
    file.write_text(f"clouds: {{burst: {{auth_type: v1password, auth: {auth}}}}}\n")
    return of_a_user(user_swift.prepare()("mine"), folder)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Credentials are looked for here."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def fetched(get: Get, folder: Path, told: int, came: int) -> int:
    """From a server that says how long a body is, and sends another number of bytes."""

    def answer(path: str) -> HttpLie:
        if path.startswith("/auth"):
            return HttpLie(headers={"X-Storage-Url": f"{server.url}/v1/a", "X-Auth-Token": "t", "Content-Length": "0"})
        headers = {"ETag": f'"{TAG}"', "Last-Modified": "Wed, 01 Jan 2020 00:00:00 GMT", "Content-Length": str(told)}
        return HttpLie(headers=headers, body=[b"x" * came])

    with lying_server(answer) as server:
        return get(server, folder)


@pytest.mark.parametrize("get", [s3, swift, node, users_s3, users_swift])
@pytest.mark.parametrize("came", [0, 1, DUE - 1])
def test_a_body_that_ends_early(get: Get, came: int, home: Path) -> None:
    with pytest.raises((StoreBusy, OSError), match=f"{came} of {DUE} bytes|broke"):
        fetched(get, home, DUE, came)


@pytest.mark.parametrize("get", [users_s3, users_swift])
@pytest.mark.parametrize("came", [DUE - 1, DUE + 1, 40 * DUE])
def test_a_body_of_another_length_than_its_part(get: Get, came: int, home: Path) -> None:
    with pytest.raises(OSError, match=f"{DUE} bytes came"):
        fetched(get, home, came, came)


@pytest.mark.parametrize("get", [s3, swift, node, users_s3, users_swift])
def test_a_body_that_is_whole(get: Get, home: Path) -> None:
    assert fetched(get, home, DUE, DUE) == DUE


def test_an_answer_of_a_storage_node_that_ends_early() -> None:
    asked, to_node = os.pipe()
    from_node, says = os.pipe()
    client = ObjectServerClient(
        os.fdopen(from_node, "rb", 0), os.fdopen(to_node, "wb", 0), name="the node", timeout_s=20
    )
    os.write(
        says, MAGIC + HEADER.pack(0, ReplyStatus.OK, 0, 0) + HEADER.pack(1, ReplyStatus.OK, 0, DUE) + b"x" * (DUE // 2)
    )
    os.close(says)
    try:
        with pytest.raises(StoreBusy):
            client.get("in/aa")
    finally:
        client.close()
        os.close(asked)


@pytest.mark.parametrize("by_node", [False, True], ids=["head", "node"])
def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_node: bool) -> None:
    folder = ObjectFolder(tmp_path / "store")
    folder.put("in/aa", b"x" * DUE)
    real = os.fstat

    def fstat_then_shrink(descriptor: int) -> os.stat_result:
        about = real(descriptor)
        if about.st_size == DUE:
            os.truncate(tmp_path / "store/in/aa", DUE - 1)
        return about

    monkeypatch.setattr(os, "fstat", fstat_then_shrink)
    node = FolderObjectTransport(str(tmp_path / "store"))
    with pytest.raises(StoreBusy, match="changed its size"):
        node.get_into("in/aa", memoryview(bytearray(DUE))) if by_node else folder.get("in/aa")
