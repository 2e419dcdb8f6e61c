"""B15. Two heads: the second waits, says who leads, and takes over; what would be in its way is said before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.daemon import standby
from burstd.daemon.heads import (
    FORGOTTEN_AFTER_S,
    MISSED_AFTER_S,
    describe_head,
    differences,
    head_with_another_key,
    leader_alarms,
)
from burstd.daemon.settings_in_force import load_and_check
from burstd.db import HeadRow
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.settings import SettingsError, parse_settings
from burstd.slurm.hooks.stage_client import exchange_call
from tests.db.conftest import postgresql_server
from tests.doubles.lone_daemon import LoneDaemon, lone_heads
from tests.lab.patience import patience_s

__all__ = ["postgresql_server"]

ONE = HeadRow("head1", 3.0, json.dumps({"[pools]": "a", "[node]": "b"}), "key", "1.0", ())
TWO = replace(ONE, host="head2")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (TWO, []),
        (replace(TWO, settings_digest=json.dumps({"[pools]": "x", "[node]": "b", "[rates]": "c"})),
         ["head1 and head2 differ in [pools], [rates]: make them alike"]),
        (replace(TWO, key_digest=""),
         ["burstd's ssh key on head1 is not that of head2: shared_dir must be the same folder"]),
        (replace(TWO, version="1.1"), ["head1 has burstd 1.0, and head2 has 1.1"]),
        (replace(TWO, alarms=("provider sky cannot be asked: no",)),
         ["head2 could not take over: provider sky cannot be asked: no"]),
        (replace(TWO, age_s=MISSED_AFTER_S + 60),
         ["no standby waits to take over: head2 was last seen 2 min ago; see 'systemctl status burstd' there"]),
    ],
)  # fmt: skip
def test_a_leader_says_what_would_be_in_the_way_of_its_standby(other: HeadRow, said: list[str]) -> None:
    assert leader_alarms(ONE, (ONE, other), MISSED_AFTER_S) == said
    assert leader_alarms(ONE, (ONE,), MISSED_AFTER_S - 1) == []
    assert len(leader_alarms(ONE, (ONE,), MISSED_AFTER_S)) == 1
    # It led before, and has not been seen since.
    assert leader_alarms(ONE, (ONE, replace(TWO, version="1.1", age_s=9.0)), 5.0) == []


def test_a_head_with_another_ssh_key_must_not_lead() -> None:
    assert head_with_another_key("key", (ONE, TWO)) == ""
    assert head_with_another_key("", (ONE, TWO)) == "head1"
    assert head_with_another_key("key", (ONE, replace(TWO, key_digest="other"))) == "head2"
    gone = replace(ONE, key_digest="former", age_s=FORGOTTEN_AFTER_S + 1)
    assert head_with_another_key("key", (gone, replace(TWO, key_digest=""))) == ""


def test_what_a_head_says_of_itself_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    text = 'cluster = "lab"\n[daemon]\nstate_dir = "{0}"\n[policies]\nfolder = "{0}"\n[node]\n{1}'
    settings = parse_settings(text.format(tmp_path, ""))
    before = describe_head("head1", "1.0", settings)
    assert before.key_digest == ""
    public = ensure_ssh_key(tmp_path / "ssh_key")
    (tmp_path / "own.py").write_text("x = 1\n")
    one, two = (describe_head(host, "1.0", settings) for host in ("head1", "head2"))
    assert differences(one, two) == []
    assert public.split()[1] not in json.dumps(one.key_digest)
    (tmp_path / "own.py").write_bytes(b"# -*- coding: latin-1 -*-\n# f\xfcr\n")
    assert differences(one, describe_head("head1", "1.0", settings)) == [
        "head1 and head1 differ in the policies' files: make them alike"
    ]
    (tmp_path / "own.py").write_text("x = 1\n")
    changed = describe_head("head2", "1.0", parse_settings(text.format(tmp_path, "free_mib = 7\n")))
    assert differences(one, changed) == ["head1 and head2 differ in [node]: make them alike"]
    (tmp_path / "own.py").write_text("x = 2\n")
    assert differences(one, describe_head("head2", "1.0", settings)) == [
        "head1 and head2 differ in the policies' files: make them alike"
    ]


def test_a_standby_needs_a_database_and_a_folder_that_both_heads_reach() -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings('cluster = "lab"\n[daemon]\nstandby = true\n')
    assert [fault.text.partition(":")[0] for fault in refused.value.faults] == [
        "needs a database that both heads reach",
        "needs shared_dir, a folder on storage that both heads mount",
    ]
    parse_settings(
        'cluster = "lab"\n[daemon]\nstandby = true\ndatabase = "postgresql://db/burstd"\nshared_dir = "/s"\n'
    )


def test_what_a_standby_found_is_looked_at_again_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "CHECK_AGAIN_S", 0.0)
    settings = LoneDaemon(tmp_path).settings
    shared = tmp_path / "shared"
    store = f'[staging]\nstore = "near"\n[staging.stores.near]\nkind = "shared"\npath = "{shared}"\n'
    settings.write_text(settings.read_text().partition("[providers")[0] + store)
    checks, end = standby.TakeoverChecks(load_and_check(settings)), time.monotonic() + 60

    def wait(*, faulty: bool) -> None:
        while bool(checks.faults) != faulty:
            assert time.monotonic() < end, checks.faults
            checks.start_due()

    wait(faulty=True)
    slurm, store = checks.faults
    assert slurm.startswith("Slurm cannot be asked: ")
    assert store.startswith(f"store near cannot be asked: the folder {shared} is not there"), store
    shared.mkdir()
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nprintf '%s\\n' 'SlurmUser = root(0)' 'StateSaveLocation = /var'\n")
    scontrol.chmod(0o755)
    wait(faulty=False)


class Heads:
    """Two that can be asked."""

    def __init__(self, folder: Path, database: str) -> None:
        self.daemons = lone_heads(folder, database)

    def start(self, host: str, words: str) -> LoneDaemon:
        daemon = self.daemons[host]
        daemon.start(f"import socket; socket.gethostname = lambda: {host!r}", words=words)
        return daemon

    def burstctl(self, host: str, *words: str) -> subprocess.CompletedProcess[str]:
        socket_path = self.daemons[host].settings.parent / "run" / "control.sock"
        code = "import sys; sys.argv[0] = 'burstctl'; from burstd.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "BURSTD_SOCKET": str(socket_path)},
        )  # fmt: skip

    def wait_status(self, host: str, words: str) -> None:
        """Until ``burstctl status`` says this; a leader looks for its standby every ten seconds."""
        end = time.monotonic() + patience_s(30)
        while words not in (said := self.burstctl(host, "status").stdout):
            assert time.monotonic() < end, said


@pytest.fixture
def heads(tmp_path: Path, postgresql_server: str) -> Iterator[Heads]:
    made = Heads(tmp_path, postgresql_server)
    yield made
    for daemon in made.daemons.values():
        daemon.kill()


@pytest.mark.slow
def test_the_second_head_waits_says_who_leads_and_takes_over(heads: Heads) -> None:
    first = heads.start("head1", "burstd runs")
    second = heads.start("head2", "burstd waits as standby")
    told = heads.burstctl("head2", "status")
    assert (told.returncode, told.stderr) == (0, "")
    assert "standby on head2: the leader is head1 since " in " ".join(told.stdout.split())
    for words in (("hold", "a reason"), ("job", "logs", "1")):
        refused = heads.burstctl("head2", *words)
        assert (refused.returncode, refused.stdout) == (75, ""), words
        assert refused.stderr.startswith("burstctl: head2 is the standby: the leader is head1 since "), words
    # What Slurm's programs ask at the head of slurmctld is the leader's to answer.
    prolog = second.settings.parent / "run" / "prolog.sock"
    answer = exchange_call(str(prolog), b'{"hook": "status", "job": "1"}\n', 60)
    assert answer["text"] == "burstd answers no status here"
    first.kill()
    second.wait_for("burstd runs")
    assert "doubt" not in second.log_text()
    first = heads.start("head1", "burstd waits as standby")
    assert "the leader is head2 since" in " ".join(heads.burstctl("head1", "status").stdout.split())
    heads.wait_status("head2", "standby: head1, seen ")
    # The key that a head would lead with is another one: it leaves the cluster without a leader, and says so.
    key = first.settings.parent.parent / "shared" / "ssh_key"
    key.rename(key.with_name("former"))
    second.kill()
    first.wait_for("this head does not take over: its ssh key is another one")
    key.with_name("former").rename(key)
    first.wait_for("burstd runs")
    assert first.stop() == 0
