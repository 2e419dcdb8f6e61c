"""docs/providers/azure.md: its settings load and pass the check on the cloud that plays Azure; its roles are those."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from burstd.cli.main import app
from burstd.share import share_path
from burstd.testing.cloud_world import CLUSTER
from providers.azure.settings import AzureDisk, AzureSettings
from tests.docs.blocks import shell_blocks
from tests.lab.azure.names import DEFINITION, GROUP, SECURITY_GROUP, SUBNET
from tests.lab.programs import PROJECT

if TYPE_CHECKING:
    from tests.lab.azure.world import AzureWorld

pytestmark = pytest.mark.clouds

DOCUMENT = PROJECT / "docs" / "providers" / "azure.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
(SETTINGS,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AzureWorld]:
    from tests.lab.azure.world import AzureWorld

    made = AzureWorld(tmp_path)
    yield made
    made.close()


def test_every_key_is_described() -> None:
    table = re.findall(
        r"^\| ((?:`[\w.]+`(?:, )?)+) \|", TEXT.partition("| key of `[providers.NAME]` |")[2], re.MULTILINE
    )
    keys = {key for cell in table for key in re.findall(r"`([\w.]+)`", cell)}
    fields = {*AzureSettings.model_fields, *(f"disk.{key}" for key in AzureDisk.model_fields), "kind"} - {"disk"}
    assert fields <= keys
    assert {key for key in keys if key.islower() and key.partition(".")[0] in fields | {"disk"}} == fields


def test_the_settings_are_right(tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    file.write_text(SETTINGS, encoding="utf-8")
    said = CliRunner().invoke(app, ["config", "check", "--no-files", str(file)])
    assert "is right: 2 pools, 80 slots, 1 provider, policies backlog, idle, limits." in " ".join(said.stdout.split())


def test_the_check_finds_nothing_wrong_with_such_a_subscription(world: AzureWorld, tmp_path: Path) -> None:
    words = world.words(CLUSTER)
    world.cloud.features["SecurityType"] = "TrustedLaunch"
    text = SETTINGS
    for key in ("subscription", "location", "tenant", "client_id", "secret_file"):
        text = re.sub(rf'^{key} = ".*"$', f'{key} = "{words[key]}"', text, flags=re.MULTILINE)
    for key, name in (("subnet", SUBNET), ("security_group", SECURITY_GROUP), ("resource_group", GROUP)):
        text = re.sub(rf'^{key} = ".*"$', f'{key} = "{name}"', text, flags=re.MULTILINE)
    text = re.sub(r'^image = "/.*"$', f'image = "{DEFINITION}"', text, flags=re.MULTILINE)
    here = "".join(f'{key} = "{words[key]}"\n' for key in ("endpoint", "authority", "ca_file", "price_url"))
    file = tmp_path / "burstd.toml"
    file.write_text(text.replace('kind = "azure"\n', f'kind = "azure"\n{here}'), encoding="utf-8")
    (tmp_path / f"{CLUSTER}.secret").chmod(0o600)
    said = CliRunner().invoke(app, ["provider", "check", "azure", "--here", "--json", "--config", str(file)])
    answer = json.loads(said.stdout)
    assert [one for one in answer["findings"] if not one["ok"]] == []
    assert (said.exit_code, answer["ok"]) == (0, True)


def test_no_command_has_been_tried_and_each_is_at_least_a_command(tmp_path: Path) -> None:
    for block in shell_blocks(DOCUMENT):
        assert block.text.startswith("# not tried\n"), f"line {block.line}"
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


def test_the_roles_are_where_the_page_says(tmp_path: Path) -> None:
    for name in ("role", "role-subscription"):
        role = json.loads(share_path("config", "azure", f"{name}.json").read_text(encoding="utf-8"))
        assert role["IsCustom"]
        assert role["Actions"] == sorted(role["Actions"])
        assert role["Name"].replace("mysite", "$cluster") in TEXT
