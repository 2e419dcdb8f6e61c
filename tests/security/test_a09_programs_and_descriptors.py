"""A program that lies on another machine is used only if it is burstd's, and empty files hold no descriptor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from burstd.domain.plugins.shell import CompletedCommand, Shell
from burstd.node.agent import NodeAgent
from burstd.transfer.content_store.manifest import ManifestEntry
from burstd.transfer.protocol.bundle import agent_zipapp
from staging.ssh.stager import SshSettings, SshStager
from tests.reach import let_others_in
from tests.transfer.agent_rig import AgentRig, directory
from tests.transfer.ground import root_only

_OTHERS = (b"", b"evil", b"#" * len(agent_zipapp()))


class Here:
    """A shell on this machine."""

    def script(self, text: str, *args: str, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002
        done = subprocess.run(
            ["sh", "-c", text, "sh", *args], input=input, capture_output=True, timeout=timeout_s, check=False
        )
        return CompletedCommand(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("other", _OTHERS, ids=len)
def test_an_agent_that_is_another_is_replaced(tmp_path: Path, other: bytes) -> None:
    shell = cast("Shell", Here())
    agent = NodeAgent(lambda _claim: shell, str(tmp_path / "folder"))
    agent._install_agent(shell)
    (file,) = (tmp_path / "folder").iterdir()
    assert file.read_bytes() == agent_zipapp()
    file.write_bytes(other)
    agent._install_agent(shell)
    assert file.read_bytes() == agent_zipapp()
    before = file.stat()
    agent._install_agent(shell)
    assert file.stat().st_ino == before.st_ino


@pytest.mark.parametrize("other", [b"", b"evil", None], ids=["empty", "short", "as long"])
def test_a_program_of_a_store_that_is_another_is_replaced(
    tmp_path: Path, other: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    settings = SshSettings(
        host="here", path=tmp_path / "store", key_file=tmp_path / "key", known_hosts_file=tmp_path / "known",
        python=sys.executable,
    )  # fmt: skip
    stager = SshStager("s", "c", settings)

    def here(command: str) -> Sequence[str]:
        return ["sh", "-c", command]

    monkeypatch.setattr(stager, "_argv", here)
    stager._prepare_server()
    (file,) = (tmp_path / "store/.programs").iterdir()
    good = file.read_bytes()
    file.write_bytes(b"#" * len(good) if other is None else other)
    stager._prepare_server()
    assert file.read_bytes() == good


@root_only
@pytest.mark.boxes
def test_empty_files_hold_no_descriptor(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    rig = AgentRig(tmp_path / "node", python=("prlimit", "--nofile=200:200", sys.executable))
    names = [b"%04d" % n for n in range(500)]
    rig.deliver("1", rig.tree([directory(), *(ManifestEntry(name, "f", 0o644, 5) for name in names)]))
    assert len([*(rig.job("1") / "in/data/").iterdir()]) == len(names)
