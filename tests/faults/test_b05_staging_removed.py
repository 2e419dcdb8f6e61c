"""[staging] is taken out of the settings while jobs have data: nobody would keep the nodes that hold their output."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from burstd.daemon import app
from burstd.daemon.settings_in_force import PolicyReloader, load_and_check
from burstd.domain.staging import Directives, Staging
from burstd.domain.staging import StageState as S
from burstd.settings import SettingsError

SETTINGS = """\
cluster = "x"
[daemon]
state_dir = "{folder}"
runtime_dir = "{folder}"
spool_dir = "{folder}"
[slurm]
interface = "commands"
[node]
munge_key = "{folder}/key"
"""
STAGING = """\
[staging]
store = "near"
[staging.stores.near]
kind = "shared"
path = "{folder}/store"
"""
REFUSED = "staging: it is gone while 1 job(s) have data on record (jobs 7): put it back"


def test_burstd_neither_reloads_nor_starts_without_staging_while_a_job_has_data(tmp_path: Path) -> None:
    toml = tmp_path / "burstd.toml"
    (tmp_path / "store").mkdir(mode=0o755)
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "key").write_text("k" * 40)
    toml.touch(mode=0o644)
    without, whole = (text.format(folder=tmp_path) for text in (SETTINGS, SETTINGS + STAGING))
    toml.write_text(whole)
    with ExitStack() as stack:
        parts = app.assemble(load_and_check(toml), stack)
        desk = PolicyReloader(load_and_check(toml), parts.reconciler, parts.store, parts.reload)
        parts.store.make_staging(Staging("7", "ada", 1, 1, Directives(), S.WAITING, 1.0, 1.0, store="near"))
        toml.write_text(without)
        told = desk.reload("test")
        assert not told.done
        assert REFUSED in told.text
        toml.write_text(whole)
        assert desk.reload("test").done
        toml.write_text(without)
    with ExitStack() as stack, pytest.raises(SettingsError) as refused:
        app.assemble(load_and_check(toml), stack)
    assert REFUSED in str(refused.value)
    toml.write_text(whole)
    with ExitStack() as stack:
        parts = app.assemble(load_and_check(toml), stack)
        parts.store.transition_staging("7", S.WAITING, S.CLEARED, "test")
        desk = PolicyReloader(load_and_check(toml), parts.reconciler, parts.store, parts.reload)
        toml.write_text(without)
        assert desk.reload("test").done
    with ExitStack() as stack:
        assert app.assemble(load_and_check(toml), stack).staging is None
