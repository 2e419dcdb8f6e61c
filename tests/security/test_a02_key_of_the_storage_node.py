"""A rented node's root with the key that it gets to the storage node: it gets and puts objects, and no more."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from burstd.domain.plugins.stager import StagerError, StoreRefused, UnfinishedUpload
from burstd.domain.storage_node import StorageNodeAddress
from burstd.node.ssh.key_pair import read_public_key
from burstd.testing.store_world import CLUSTER
from burstd.transfer.content_store.manifest import object_key
from burstd.transfer.protocol.client import ObjectServerClient
from burstd.transfer.protocol.ssh_objects import SshObjectTransport
from staging.ssh.stager import SshSettings, SshStager
from staging.ssh.storage_node import LaunchedSshStager
from tests.contract.stores import SshWorld
from tests.lab.ssh_store import DATA, SshStore

pytestmark = pytest.mark.boxes
HOME = "/home/burst/.ssh/authorized_keys"
OTHERS = object_key("out/7/other", hashlib.sha256(b"of another job").hexdigest())
INPUT = object_key("in", hashlib.sha256(b"input").hexdigest())


@pytest.fixture(scope="module")
def storage() -> Iterator[SshStore]:
    if os.geteuid() != 0:
        pytest.skip("boxes need root")
    with SshStore() as made, made.reach():
        yield made


@pytest.fixture
def stager(storage: SshStore, tmp_path: Path) -> Iterator[SshStager]:
    made = SshWorld(storage, tmp_path).stager(CLUSTER)
    assert isinstance(made, SshStager)
    with closing(made):
        made.put(OTHERS, b"of another job")
        made.put(INPUT, b"input")
        yield made


@pytest.fixture
def stolen(stager: SshStager, storage: SshStore, tmp_path: Path) -> Callable[..., list[str]]:
    """The words of an OpenSSH program with the key that a node was given."""
    key = tmp_path / "stolen"
    key.touch(0o600)
    key.write_text(str(stager.node_access().facts["key"]), encoding="ascii")

    def words(program: str, *options: str) -> list[str]:
        return [
            program, "-F", "none", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
            "-o", f"UserKnownHostsFile={storage.known_hosts}", *options, f"{storage.user}@{storage.address}",
        ]  # fmt: skip

    return words


def _ran(words: list[str], text: str = "") -> str:
    done = subprocess.run(words, input=text.encode(), capture_output=True, timeout=60, check=False)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def test_the_key_runs_nothing_else(stolen: Callable[..., list[str]], storage: SshStore) -> None:
    assert "uid=" not in _ran([*stolen("ssh"), "id"])
    assert "uid=" not in _ran(stolen("ssh", "-tt"), "id\nexit\n")
    assert "uid=" not in _ran([*stolen("ssh", "-T"), f"cat {HOME}; id"])
    assert "sftp>" not in _ran(stolen("sftp"), "ls -l\n")
    asked = stolen("ssh", "-W", f"{storage.address}:22")
    assert "SSH-2.0" not in _ran(asked, "SSH-2.0-x\r\n")
    there = stolen("ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-R", "2222:127.0.0.1:22")
    assert "forwarding failed" in _ran(there)


def test_a_node_lists_removes_and_replaces_nothing(stager: SshStager, stolen: Callable[..., list[str]]) -> None:
    process = subprocess.Popen([*stolen("ssh"), "any"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    client = ObjectServerClient(process.stdout, process.stdin)
    asked: list[Callable[[], object]] = [
        lambda: list(client.objects("")),
        lambda: list(client.unfinished()),
        lambda: client.delete([OTHERS]),
        lambda: client.abort([UnfinishedUpload("x", "", 0.0)]),
        lambda: client.copy(INPUT, OTHERS),
        lambda: client.put(OTHERS, b"a lie"),
        lambda: client.put(OTHERS, b""),
        lambda: client.put("out/7/other/name", b"no digest"),
        client.free_bytes,
    ]
    try:
        for call in asked:
            with pytest.raises(StoreRefused):
                call()
        client.put(OTHERS, b"of another job")
        assert client.get(INPUT) == b"input"
    finally:
        client.close()
        process.wait(10)
    assert stager.get(OTHERS) == b"of another job"
    assert sorted(o.key for o in stager.objects("")) == sorted([OTHERS, INPUT])
    assert list(stager.unfinished()) == []


def test_placing_and_collecting_work(stager: SshStager) -> None:
    transport = SshObjectTransport(stager.node_access().facts)
    with closing(transport):
        key = object_key("out/8/n1", hashlib.sha256(b"made").hexdigest())
        transport.put(key, b"made")
        transport.put(key, b"made")
        assert transport.present([key, OTHERS]) == {key: 4, OTHERS: 14}
        assert transport.get(INPUT) == b"input"
    assert stager.get(key) == b"made"
    stager.delete([key])


@pytest.mark.parametrize("before", ["", "other", "whole"])
def test_its_line_is_kept_and_no_other_with_that_key(storage: SshStore, tmp_path: Path, before: str) -> None:
    """An update of burstd, another's lines and one that the site has written by hand: one line, one restricted."""
    keys = read_public_key(storage.key)
    storage.box.run(["sh", "-c", f"cat >{HOME}"], input=f"{keys} head\n")
    stale = {"": "", "other": 'command="old \\"x\\"" ', "whole": ""}[before]
    if before:
        storage.box.run(
            ["sh", "-c", f'printf %s "$1" >>{HOME}', "sh", f"{stale}{read_public_key(storage.node_key)} mine"]
        )
    with closing(SshWorld(storage, tmp_path).stager(CLUSTER)) as made:
        assert isinstance(made, SshStager)
        for _ in range(2):
            made.node_access()
            made._prepare_server()
        first, second = storage.box.run(["cat", HOME]).stdout.splitlines()
        assert first == f"{keys} head"
        assert second.startswith('restrict,command="python3 -I ')
        assert read_public_key(storage.node_key) in second
        assert "/serve-" not in second, "the line must outlive versions"


def test_a_key_that_does_more_is_refused(storage: SshStore, tmp_path: Path) -> None:
    """The head's own, none, and one that another file lets in: the message has the remedy."""
    world = SshWorld(storage, tmp_path)
    for how, told in (
        ({"node_key_file": None}, "ssh-keygen -q"),
        ({"node_key_file": storage.key}, "same key"),
        ({"node_key_file": tmp_path / "none"}, "cannot be read"),
    ):
        with closing(world.stager(CLUSTER, **how)) as made:
            made.put(INPUT, b"input")  # the head itself needs no key of nodes
            with pytest.raises(StoreRefused, match=told):
                made.node_access()
    elsewhere = f"{HOME}2"  # sshd reads it too
    storage.box.run(
        ["sh", "-c", f"cat >{elsewhere}; mv {HOME} {HOME}.away; ln -s /dev/null {HOME}"],
        input=f"{read_public_key(storage.node_key)}\n{read_public_key(storage.key)}\n",
    )
    try:
        with closing(world.stager(CLUSTER)) as made, pytest.raises(StagerError, match="restrict,command=") as caught:
            made.node_access()
        assert "PRIVATE" not in str(caught.value)
    finally:
        storage.box.run(["sh", "-c", f"rm {elsewhere} {HOME}; mv {HOME}.away {HOME}"])


def test_a_launched_node_gives_nodes_the_key_that_is_theirs(storage: SshStore) -> None:
    settings = SshSettings.model_validate({"path": DATA, "launch": [{"provider": "sky"}]})
    assert settings.node_spec is not None
    place = StorageNodeAddress(
        storage.address, storage.port, storage.user, str(storage.key), str(storage.node_key), str(storage.known_hosts)
    )
    with closing(LaunchedSshStager("near", CLUSTER, settings, settings.node_spec)) as made:
        made.node_ready(place)
        reach = made.node_access()
    assert reach.facts["key"] == storage.node_key.read_text(encoding="ascii")
