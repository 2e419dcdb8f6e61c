"""Every stager keeps the contract, on a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import httpx
import pytest

from burstd.domain.plugins.stager import StoreRefused
from burstd.testing.stager_contract import ConnectionContract, StagerContract
from burstd.testing.store_world import CLUSTER
from staging.shared import SharedSettings, SharedStager
from tests.contract.stores import S3World, SharedWorld, SshWorld, SwiftWorld
from tests.lab.s3_server import S3Server
from tests.lab.ssh_store import SshStore
from tests.lab.swift_server import SwiftServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node() -> Iterator[SshStore]:
    if os.geteuid() != 0:
        pytest.skip("boxes need root")
    with SshStore() as node:
        yield node


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3"), own_keys=["burst"]) as server:
        server.make_bucket("burst")
        server.make_bucket("not-ours")
        yield server


@pytest.fixture(scope="module")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwiftServer]:
    if os.geteuid() != 0:
        pytest.skip("boxes need root")
    with SwiftServer(tmp_path_factory.mktemp("swift")) as server:
        url, token = f"{server.storage_url}/burst", {"X-Auth-Token": server.token()}
        httpx.put(url, headers=token, timeout=30, trust_env=False).raise_for_status()
        yield server


class TestShared(StagerContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SharedWorld:
        return SharedWorld(tmp_path)

    def test_roots_lie_in_place(self, tmp_path: Path) -> None:
        """By whole parts of a path; the innermost root decides."""
        roots = {"/home": "/home", "/export/data": "/data", "/export/data/raw": "/raw"}
        stager = SharedStager("disk", CLUSTER, SharedSettings.model_validate({"path": tmp_path, "roots": roots}))
        seen = {
            "/home/ada/x y\udcff": "/home/ada/x y\udcff",
            "/home": "/home",
            "/export/data/set/1": "/data/set/1",
            "/export/data/raw/1": "/raw/1",
            "/homes/x": None,
            "/export": None,
            "/home/../etc/shadow": None,
        }
        assert {path: stager.in_place(path) for path in seen} == seen

    def test_a_link_in_the_store_leads_nowhere(self, tmp_path: Path) -> None:
        """What someone else may have put there is no object."""
        stager = SharedStager("disk", CLUSTER, SharedSettings(path=PurePosixPath(tmp_path)))
        stager.put("in/ab/x", b"x")
        (tmp_path / CLUSTER / "in/ab/link").symlink_to("/etc/passwd")
        assert [o.key for o in stager.objects("")] == ["in/ab/x"]
        assert stager.present(["in/ab/link"]) == {}


@pytest.mark.boxes
class TestSsh(StagerContract, ConnectionContract):
    @pytest.fixture
    def world(self, node: SshStore, tmp_path: Path) -> Iterator[SshWorld]:
        with node.reach():
            yield SshWorld(node, tmp_path)

    def test_a_key_that_ssh_ignores_as_others_may_read_it(self, world: SshWorld) -> None:
        """With which another user, to whom it does not belong, gets in."""
        key = world.folder / "open"
        key.write_bytes(world.node.key.read_bytes())
        key.chmod(0o640)
        with pytest.raises(StoreRefused) as raised:
            world.stager(CLUSTER, key_file=key).free_bytes()
        assert str(raised.value).endswith(
            f' cannot be entered as burst: Load key "{key}": bad permissions. Look at key_file {key}, at '
            f"known_hosts_file {world.node.known_hosts}, and at authorized_keys there"
        )


class TestS3(StagerContract, ConnectionContract):
    @pytest.fixture
    def world(self, s3: S3Server, tmp_path: Path) -> S3World:
        return S3World(s3, "burst", tmp_path)

    def test_a_bucket_that_is_not_there(self, world: S3World) -> None:
        """A put is not tried: this server would make the bucket."""
        stager = world.nowhere()
        for call in (lambda: stager.get("in/ab/x"), lambda: list(stager.objects(""))):
            with pytest.raises(StoreRefused, match="is not there: make it"):
                call()
        stager.close()


@pytest.mark.boxes
class TestSwift(StagerContract, ConnectionContract):
    @pytest.fixture
    def world(self, swift: SwiftServer, tmp_path: Path) -> SwiftWorld:
        return SwiftWorld(swift, "burst", tmp_path)
