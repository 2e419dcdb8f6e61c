"""Host keys as consoles show them, and their memory; burstd's own key."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from burstd.node.ssh.host_keys import HostKeyFiles, HostKeyPolicy, HostKeys, parse_console_host_keys
from burstd.node.ssh.key_pair import KeyUnusable, ensure_ssh_key

ED = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFwfrPGWuoLnWLEcyLEHyHJRvY0Iqm9HCjhDL+vCdFtP"
OLD = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBgFpYsIvbJXrDmYrUvVbN7S5m+uPaVMqNQ1ROFrUfW2"
EC = (
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBDtvPmEBH5FcFbnODyoWU7oHI6PzKBz7vtMUJkr4"
    "Kr0Yd0TYcQWVGf0O6qWFxRxSOPDGiIFsnl8+wJtsdpNFIxQ="
)
BEGIN, END = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"


@pytest.mark.parametrize(
    ("console", "keys"),
    [
        ("", set()),
        ("[    0.000000] Linux version 6.1\n", set()),
        (f"{BEGIN}\n{ED} root@m1\n", set()),  # the end has not come so far
        (f"noise\n{BEGIN}\n{ED} root@m1\n{END}\nm1 login: ", {ED}),
        (f"{BEGIN}\r\n{ED} root@m1\r\n{EC} root@m1\r\n{END}\r\n", {ED, EC}),
        (f"ci-info: {BEGIN}\nec2: {ED}\n<14>Nov 21 cloud-init: {EC} root@m1\nec2: {END}\n", {ED, EC}),
        (f"{BEGIN}\n{OLD}\n{END}\nreboot\n{BEGIN}\n{ED}\n{END}\n", {ED}),  # only the latest boot counts
        (f"{BEGIN}\n{ED[:60]}[   12.3] eth0: link up\n{ED[60:]} root@m1\n{EC}\n{END}\n", {EC}),  # broken by the kernel
        (f"{BEGIN}\n{ED.replace('ed25519', 'rsa', 1)}\n{END}\n", set()),  # says one type and is another
        (f"{BEGIN}\nssh-ed25519 AAAA\n{END}\n", set()),
        (f"{ED} root@m1\n{END}\n", set()),
    ],
)
def test_keys_of_a_console(console: str, keys: set[str]) -> None:
    assert parse_console_host_keys(console) == keys


def test_which_keys_are_accepted() -> None:
    assert not HostKeys(HostKeyPolicy.CONSOLE).accepts_key(ED)
    assert HostKeys(HostKeyPolicy.FIRST_USE).accepts_key(ED)
    assert not HostKeys(HostKeyPolicy.FIRST_USE, frozenset({OLD})).accepts_key(ED)
    assert HostKeys(HostKeyPolicy.CONSOLE, frozenset({OLD, ED})).accepts_key(ED)


def test_pins_outlive_the_process_and_end_with_the_claim(tmp_path: Path) -> None:
    pins = HostKeyFiles(tmp_path / "pins")
    assert pins.load_keys("c1") is None
    pins.retain_only(["c1"])
    known = HostKeys(HostKeyPolicy.CONSOLE, frozenset({ED, EC}))
    pins.save_keys("c1", known)
    pins.save_keys("c2", HostKeys(HostKeyPolicy.FIRST_USE, frozenset({ED})))
    assert HostKeyFiles(tmp_path / "pins").load_keys("c1") == known
    pins.retain_only(["c2"])
    assert pins.load_keys("c1") is None
    half, dead = tmp_path / "pins" / f".c3.{os.getpid()}", tmp_path / "pins" / ".c4.1"
    half.touch()
    dead.touch()
    pins.retain_only(["c2"])
    assert (half.exists(), dead.exists()) == (True, False), "what a thread writes this moment is left alone"
    assert pins.load_keys("c2") == HostKeys(HostKeyPolicy.FIRST_USE, frozenset({ED}))
    with pytest.raises(ValueError, match="no claim id"):
        pins.load_keys("../c2")


def test_our_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "id_ed25519"
    before = os.umask(0)
    try:
        line = ensure_ssh_key(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    shown = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True).stdout
    assert line.split()[:2] == shown.split()[:2]
    beside = path.with_name("id_ed25519.pub")
    assert beside.read_text(encoding="ascii") == line + "\n"
    beside.unlink()
    assert ensure_ssh_key(path) == line
    assert sorted(p.name for p in path.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [(b"nonsense", 0o600, "move it away"), (b"", 0o600, "move it away"), (b"any", 0o640, "chmod 600")],
)
def test_a_key_that_cannot_be_used(tmp_path: Path, content: bytes, mode: int, message: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(KeyUnusable, match=message):
        ensure_ssh_key(path)
    assert path.read_bytes() == content
