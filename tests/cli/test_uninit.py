"""burstctl uninit, and an init that fails: what must not be lost, and what must not be left. It runs in tests/docs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from burstd.cli.main import app
from burstd.cli.output import ConsoleOutput
from burstd.cli.setup import commands, journal, steps
from burstd.cli.setup.head import SetupRefused
from burstd.cli.setup.journal import Journal
from burstd.db import Store
from burstd.domain.claim import ClaimState
from burstd.slurm.config.merge import BEGIN, END
from tests.db.samples import ManualClock, planned
from tests.db.test_volumes import created

SITE = "ClusterName=site\nNodeName=n1\n"
MERGED = f"ClusterName=site\n{BEGIN}\nNodeName=burst-cpu1\n{END}\nNodeName=n1\n"


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A head without systemd and Slurm: its /etc/burstd, with burstd.toml, and a record beside it."""
    settings = tmp_path / "burstd.toml"
    settings.write_text(f'cluster = "lab"\n[daemon]\nstate_dir = "{tmp_path}"\n', encoding="utf-8")
    monkeypatch.setattr(journal, "JOURNAL", tmp_path / "init.json")
    for module in (steps, commands):
        monkeypatch.setattr(module, "SETTINGS", settings)
        monkeypatch.setattr(module, "systemctl", lambda *_, **__: None)
    monkeypatch.setattr(steps, "OLD_SETTINGS", tmp_path / "burstd.toml.old")
    monkeypatch.setattr(steps, "restart_slurmctld", lambda _: None)
    monkeypatch.setattr(steps, "controller_up", lambda: True)
    monkeypatch.setattr(steps, "_LEFT_BY_BURSTD", ())
    monkeypatch.setattr(commands, "require_root", lambda: None)
    with Store.open(tmp_path / "burstd.db", ManualClock()):
        pass
    return tmp_path


def uninit(*words: str) -> tuple[int, str]:
    """Exit code and what was said, of a daemon that does not run."""
    done = CliRunner().invoke(app, ["--socket", "/nowhere/control.sock", "uninit", "--yes", *words])
    return done.exit_code, done.output


def test_a_record_with_machines_is_not_purged_while_burstd_does_not_run(etc: Path) -> None:
    with Store.open(etc / "burstd.db", ManualClock()) as store:
        store.adopt_claim(replace(planned(), state=ClaimState.BOOTING, instance_id="i-17"))
    assert uninit("--purge") == (
        1,
        (
            "burstctl: burstd does not answer, and nobody ends these then:\n  gpu001: sandbox i-17, booting\n"
            "start it first: systemctl start burstd; then run this again; for a record of machines that are gone, "
            "move it away first.\n"
        ),
    )


def test_a_record_with_volumes_is_not_purged(etc: Path) -> None:
    with Store.open(etc / "burstd.db", ManualClock()) as store:
        created(store, ManualClock())
    assert uninit("--purge") == (
        1,
        (
            "burstctl: --purge removes the record, and these cost money then until somebody finds them:\n"
            "  volume corpus of ann: north d-1\nremove them with 'burstctl volume remove', or leave --purge out.\n"
        ),
    )


def test_an_empty_record_is_purged_and_one_that_cannot_be_read_is_not(etc: Path) -> None:
    record = (etc / "burstd.db").read_bytes()
    (etc / "burstd.db").write_bytes(b"no database")
    code, said = uninit("--purge")
    assert (code, said.partition(":")[2].partition(":")[0]) == (1, " whether machines are left is not known")
    (etc / "burstd.db").write_bytes(record)
    assert uninit("--purge") == (
        0, f"{etc} stays, with what you put there: burstd.db, burstd.db.lock\nburstd is out of Slurm.\n"
    )  # fmt: skip


def test_two_do_not_work_at_once(etc: Path) -> None:
    with journal.only_one():
        assert uninit("--purge") == (
            1, "burstctl: another 'burstctl init' or 'burstctl uninit' is at work here; wait for its end.\n"
        )  # fmt: skip
    assert (etc / "burstd.toml").exists()
    assert uninit("--purge")[0] == 0


def test_what_the_administrator_put_beside_the_settings_stays(etc: Path) -> None:
    (etc / "policies").mkdir()
    for name in ("aws.keys", "burstd.toml.old"):
        (etc / name).touch()
    code, said = uninit("--purge")
    (line,) = (line for line in said.splitlines() if "stays" in line)
    assert (code, line.partition(": ")[2].split(", ")) == (0, sorted(path.name for path in etc.iterdir()))
    assert {"aws.keys", "burstd.db"} <= {path.name for path in etc.iterdir()}
    assert not {"burstd.toml", "burstd.toml.old", "policies"} & {path.name for path in etc.iterdir()}


def test_a_failed_init_does_not_leave_its_machines(etc: Path) -> None:
    unfinished = Journal(units=["burstd.socket", "burstd.service"])
    unfinished.save()
    with Store.open(etc / "burstd.db", ManualClock()) as store:
        store.make_claims([planned()])
    assert uninit()[0] == 1
    assert Journal.load() == unfinished
    replace(unfinished, units=["burstd.socket"]).save()  # burstd was never started
    assert uninit() == (0, "burstd is out of Slurm.\n")


def test_an_uninit_while_burstd_does_not_answer_goes_by_the_record(
    etc: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path_factory.mktemp("bin")
    (programs / "scontrol").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(programs))
    done = Journal(finished=True, units=["burstd.service"])
    done.save()
    (etc / "burstd.toml").write_text(
        f'cluster = "lab"\n[daemon]\nstate_dir = "{etc}"\n[providers.sandbox]\nkind = "aws"\nregion = "eu-central-1"\n',
        encoding="utf-8",
    )
    with Store.open(etc / "burstd.db", ManualClock()) as store:
        store.adopt_claim(replace(planned(), state=ClaimState.BOOTING, instance_id="i-17"))
        created(store, ManualClock())
    assert uninit() == (
        1,
        (
            "burstctl: burstd does not answer, and nobody ends these then:\n  gpu001: sandbox i-17, booting\n"
            "  volume corpus of ann: north d-1\n"
            "start it first: systemctl start burstd; where it does not start, end them at the cloud:\n"
            "  aws ec2 terminate-instances --region eu-central-1 --instance-ids i-17\n"
            "then run this again; for a record of machines that are gone, move it away first.\n"
        ),
    )
    assert Journal.load() == done
    (etc / "burstd.db").write_bytes(b"no database")
    code, said = uninit()
    assert (code, said.partition(":")[2].partition(":")[0]) == (1, " whether machines are left is not known")
    (etc / "burstd.db").unlink()
    with Store.open(etc / "burstd.db", ManualClock()):
        pass
    assert uninit() == (0, "burstd is out of Slurm.\n")


def test_an_uninit_that_failed_after_burstd_had_ended_goes_on(etc: Path) -> None:
    Journal(finished=True, units=["burstd.service"], emptied=True).save()
    (etc / "burstd.db").write_bytes(b"no database")
    assert uninit() == (0, "burstd is out of Slurm.\n")


def test_what_was_there_before_a_failed_init_comes_back(etc: Path) -> None:
    settings, conf, drop_in = etc / "burstd.toml", etc / "slurm.conf", etc / "burstd.service.d" / "slurm-user.conf"
    before = settings.read_text(encoding="utf-8")
    conf.write_text(MERGED, encoding="utf-8")
    failed = Journal(merged=[str(conf)], created=[str(drop_in)])
    steps.Steps(failed, None, ConsoleOutput()).replace_settings("new\n")  # type: ignore[arg-type]
    drop_in.parent.mkdir()
    drop_in.touch()
    (drop_in.parent / "override.conf").touch()  # the administrator's
    steps.undo(failed, ConsoleOutput())
    assert (settings.read_text(encoding="utf-8"), conf.read_text(encoding="utf-8")) == (before, SITE)
    assert [path.name for path in drop_in.parent.iterdir()] == ["override.conf"]
    assert Journal.load() is None


def test_a_slurm_conf_without_the_end_of_burstd_s_lines_stays_as_it_is(etc: Path) -> None:
    conf = etc / "slurm.conf"
    conf.write_text(MERGED.replace(END, ""), encoding="utf-8")
    done = Journal(finished=True, merged=[str(conf)])
    done.save()
    with pytest.raises(SetupRefused, match=f"{conf}: burstd's lines stand between"):
        steps.undo(done, ConsoleOutput())
    assert conf.read_text(encoding="utf-8") == MERGED.replace(END, "")
    assert Journal.load() == done


def test_an_init_that_cannot_write_slurm_conf_changes_nothing(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda folder, _mode: folder != etc)
    with pytest.raises(SetupRefused, match=f"^{etc} cannot be written: mount it for writing, or, where a tool"):
        commands._require_writable([etc / "slurm.conf", etc / "gres.conf"])
    commands._require_writable([etc.parent / "slurm.conf"])
