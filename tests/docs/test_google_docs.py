"""docs/providers/google.md: its settings load and pass the check on the lab's Compute Engine, with its role."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from typer.testing import CliRunner

from burstd.cli.main import app
from providers.google.settings import GoogleBootDisk, GoogleSettings
from tests.docs.blocks import shell_blocks
from tests.lab.google.world import GoogleWorld
from tests.lab.programs import PROJECT

pytestmark = pytest.mark.clouds

DOCUMENT = PROJECT / "docs" / "providers" / "google.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
(SETTINGS,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[GoogleWorld]:
    made = GoogleWorld(tmp_path, rsa.generate_private_key(65537, 2048))
    made.project.add_image("slurm-node-1", "slurm-node")
    yield made
    made.close()


def check(world: GoogleWorld, folder: Path) -> dict[str, dict[str, object]]:
    """``burstctl provider check`` with the document's settings."""
    key = world.settings("mysite").credentials_file
    assert key is not None
    key.chmod(0o600)
    text = SETTINGS.replace('kind = "google"', f'kind = "google"\nendpoint = "{world.server.url}"')
    file = folder / "burstd.toml"
    file.write_text(text.replace("/etc/burstd/google.json", str(key)), encoding="utf-8")
    said = CliRunner().invoke(app, ["provider", "check", "google", "--here", "--json", "--config", str(file)])
    answer = json.loads(said.stdout)
    assert said.exit_code == (0 if answer["ok"] else 1)
    return {finding["subject"]: finding for finding in answer["findings"]}


def test_every_key_is_described() -> None:
    rows = re.findall(
        r"^\| ((?:`[\w.]+`(?:, )?)+) \|", TEXT.partition("| key of `[providers.NAME]` |")[2], re.MULTILINE
    )
    keys = {key for cell in rows for key in re.findall(r"`([\w.]+)`", cell)}
    fields = {*GoogleSettings.model_fields, *(f"disk.{key}" for key in GoogleBootDisk.model_fields), "kind"} - {"disk"}
    assert fields <= keys
    assert {key for key in keys if key.partition(".")[0] in fields | {"disk"}} == fields


def test_the_settings_are_right(tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    file.write_text(SETTINGS, encoding="utf-8")
    said = CliRunner().invoke(app, ["config", "check", "--no-files", str(file)])
    assert "is right: 2 pools, 80 slots, 1 provider, policies backlog, idle, limits." in " ".join(said.stdout.split())


def test_the_check_finds_nothing_wrong_with_such_a_project(world: GoogleWorld, tmp_path: Path) -> None:
    found = check(world, tmp_path)
    assert [one for one in found.values() if one["ok"] is False] == []
    assert found["rights to start"]["ok"]
    assert found["machine type n1-standard-4+nvidia-tesla-t4:1"]["ok"]


def test_the_check_names_what_is_missing(world: GoogleWorld, tmp_path: Path) -> None:
    world.rights -= {"compute.instances.delete"}
    world.withdraw_image("slurm-node-1")
    found = check(world, tmp_path)
    assert found["rights to end"]["text"] == "missing: compute.instances.delete"
    assert "role.yaml" in str(found["rights to end"]["remedy"])
    assert found["image family:slurm-node"]["ok"] is False


def test_all_commands_say_that_they_were_not_tried() -> None:
    assert all(block.text.startswith("# not tried\n") for block in shell_blocks(DOCUMENT))
