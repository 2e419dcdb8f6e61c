"""burstd-quotas where something is wrong. What it does on a real Slurm: test_projects.py, tests/e2e/test_units.py."""

from __future__ import annotations

import socket
from pathlib import Path

import psycopg
import pytest

from burstd.daemon.quotas import main
from burstd.db import Leadership
from tests.db.conftest import postgresql_server

__all__ = ["postgresql_server"]


def test_a_slurmctld_that_is_down_is_said_and_asked_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, asked = tmp_path / "scontrol", tmp_path / "asked"
    program.write_text(
        f"#!/bin/sh\necho $* $SLURM_CONF >>{asked}\n"
        "echo 'slurm_load_partitions error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    settings = tmp_path / "burstd.toml"
    settings.write_text(f'[slurm]\nbin_dir = "{tmp_path}"\nconf = "/srv/slurm.conf"\ninterface = 7\n')
    assert main(["--config", str(settings)]) == 1
    assert "slurmctld does not answer scontrol" in capsys.readouterr().err
    assert [line.split()[-1] for line in asked.read_text().splitlines()] == ["/srv/slurm.conf"]


@pytest.mark.parametrize("text", [None, "[slurm", "slurm = 3\n", "[slurm]\nbin_dir = 3\n"])
def test_settings_that_cannot_be_read_keep_nothing_from_it(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm is where PATH says; here it is nowhere."""
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = tmp_path / "burstd.toml"
    if text is not None:
        settings.write_text(text)
    assert main(["--config", str(settings)]) == 1
    (tmp_path / "scontrol").write_text("#!/bin/sh\n")
    (tmp_path / "scontrol").chmod(0o755)
    assert main(["--config", str(settings)]) == 0


@pytest.mark.slow
def test_of_two_heads_that_which_ends_changes_nothing_under_the_other(
    postgresql_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, asked = tmp_path / "scontrol", tmp_path / "asked"
    program.write_text(f"#!/bin/sh\necho $* >>{asked}\n")
    program.chmod(0o755)
    settings = tmp_path / "burstd.toml"
    text = f'cluster = "site"\n[daemon]\nstandby = true\ndatabase = "{{}}"\n[slurm]\nbin_dir = "{tmp_path}"\n'
    settings.write_text(text.format(postgresql_server))
    monkeypatch.setattr(socket, "gethostname", lambda: "head1")
    with psycopg.connect(postgresql_server, autocommit=True) as database:
        database.execute("DROP SCHEMA public CASCADE")
        database.execute("CREATE SCHEMA public")
        with Leadership.open(postgresql_server, "site", "head2") as other:
            assert other.try_lead("", "1")
            for host in ("head1", "head2"):
                with Leadership.open(postgresql_server, "site", host) as head:
                    head.write_head("", "", "1", ())
            assert main(["--config", str(settings)]) == 0
        assert "quotas stay as they are: head2 leads" in capsys.readouterr().out
        assert not asked.exists()
        database.execute("UPDATE head SET seen = seen - 3600 WHERE host = 'head2'")
        assert main(["--config", str(settings)]) == 0
        assert asked.exists()
    asked.unlink()
    settings.write_text(text.format(f"postgresql://burstd@/postgres?host={tmp_path}"))
    assert main(["--config", str(settings)]) == 1
    assert "another head may lead" in capsys.readouterr().err
    assert not asked.exists()
