"""What keeps the package from being removed: machines and volumes on record, or a record that cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from burstd.cli.setup.machines_left import main
from burstd.db import Store
from burstd.domain.claim import ClaimState
from burstd.domain.volume import VolumeState
from tests.db.samples import ManualClock, planned
from tests.db.test_volumes import PLANNED


def _code(folder: Path) -> int:
    settings = folder / "burstd.toml"
    settings.write_text(f'cluster = "lab"\n[daemon]\nstate_dir = "{folder}"\n', encoding="utf-8")
    return main(settings)


def test_what_is_left_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _code(tmp_path) == 0  # burstd has never run
    with Store.open(tmp_path / "burstd.db", ManualClock()) as store:
        assert _code(tmp_path) == 0
        store.adopt_claim(replace(planned(), state=ClaimState.BOOTING, instance_id="i-17"))
        store.make_claims([planned("c2", "gpu002")])
        store.make_volume(PLANNED)
        store.make_volume(replace(PLANNED, id="v2", name="weights"))
        store.transition_volume(
            "v2", VolumeState.PLANNED, VolumeState.CREATING, "its job has a machine", provider="north"
        )
        assert capsys.readouterr().err == ""
        assert _code(tmp_path) == 1
    assert capsys.readouterr().err == (
        "  gpu001: sandbox i-17, booting\n  gpu002: sandbox no instance yet, planned\n"
        "  volume weights of ann: north no disk yet\n"
    )


@pytest.mark.parametrize("content", [b"no database", b""])
def test_a_record_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "burstd.db").write_bytes(content)
    assert _code(tmp_path) == 1
    assert capsys.readouterr().err.startswith("burstd's record cannot be read: ")
