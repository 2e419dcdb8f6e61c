"""docs/providers/aws.md: its settings load and pass the check on the mock of EC2; its commands work there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3
import pytest
from typer.testing import CliRunner

from burstd.cli.main import app
from burstd.share import share_path
from providers.aws.settings import AwsRootVolume, AwsSettings
from tests.docs.blocks import shell_blocks
from tests.lab.aws.mock import Account, Ec2Mock, User, policy_for
from tests.lab.programs import PROJECT

pytestmark = pytest.mark.clouds

DOCUMENT = PROJECT / "docs" / "providers" / "aws.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
BLOCKS = shell_blocks(DOCUMENT)
UNTRIED = "# not tried"
CLUSTER, REGION = "mysite", "eu-north-1"
INSTALLED = "/opt/burstd/lib/python3*/site-packages/burstd/share/config"
PROGRAM = os.environ.get("BURSTD_AWS_CLI", "")
(SETTINGS,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def mock() -> Iterator[Ec2Mock]:
    with Ec2Mock() as made:
        yield made


@pytest.fixture
def account(mock: Ec2Mock) -> Account:
    return mock.account(region=REGION)


def check(
    mock: Ec2Mock, user: User, file: Path, things: Mapping[str, list[str]], patch: pytest.MonkeyPatch
) -> dict[str, dict[str, object]]:
    """``burstctl provider check`` with the document's settings, its ids replaced by those that there are."""
    text = SETTINGS.replace('kind = "aws"', f'kind = "aws"\nendpoint_url = "{mock.url}"')
    for prefix, ids in things.items():
        old = dict.fromkeys(re.findall(rf"{re.escape(prefix)}[\w/.-]*", text))
        for before, after in zip(old, ids, strict=True):
            text = text.replace(before, after)
    file.write_text(text, encoding="utf-8")
    for name, value in mock.environment(user).items():
        patch.setenv(name, value)
    said = CliRunner().invoke(app, ["provider", "check", "aws", "--here", "--json", "--config", str(file)])
    answer = json.loads(said.stdout)
    assert said.exit_code == (0 if answer["ok"] else 1)
    return {finding["subject"]: finding for finding in answer["findings"]}


def test_every_key_is_described() -> None:
    table = re.findall(
        r"^\| ((?:`[\w.]+`(?:, )?)+) \|", TEXT.partition("| key of `[providers.NAME]` |")[2], re.MULTILINE
    )
    keys = {key for cell in table for key in re.findall(r"`([\w.]+)`", cell)}
    fields = {*AwsSettings.model_fields, *(f"root.{key}" for key in AwsRootVolume.model_fields), "kind"} - {"root"}
    assert fields <= keys
    assert {key for key in keys if key.islower() and key.partition(".")[0] in fields | {"root"}} == fields


def test_the_settings_are_right(tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    file.write_text(SETTINGS, encoding="utf-8")
    said = CliRunner().invoke(app, ["config", "check", "--no-files", str(file)])
    assert "is right: 2 pools, 80 slots, 1 provider, policies backlog, idle, limits." in " ".join(said.stdout.split())


def test_the_check_finds_nothing_wrong_with_such_an_account(
    mock: Ec2Mock, account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = mock.user(account, CLUSTER, policy_for(CLUSTER))
    things = {
        "subnet-": [*account.subnets.values()], "sg-": [account.security_group], "burstd-mysite-node": [user.role],
        "/burstd/mysite": [account.image_parameter], "https://sqs": [user.queue],
    }  # fmt: skip
    found = check(mock, user, tmp_path / "burstd.toml", things, monkeypatch)
    assert [f for f in found.values() if f["ok"] is False] == []
    assert found["ec2:RunInstances"]["ok"]


@pytest.mark.skipif(not PROGRAM, reason="BURSTD_AWS_CLI does not name the aws program")
def test_the_commands_from_the_first_to_the_last(
    mock: Ec2Mock, account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "bin" / "aws"
    wrapper.parent.mkdir()
    # Not by the environment: some services have it look elsewhere.
    wrapper.write_text(f'#!/bin/sh\nexec {PROGRAM} --endpoint-url {mock.url} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    *setting_up, taking_away = [block.text for block in BLOCKS if not block.text.startswith(UNTRIED)]

    def run(*texts: str) -> None:
        script = "\n".join(texts).replace(INSTALLED, str(share_path("config"))).replace("/tmp/", f"{tmp_path}/")  # noqa: S108
        path = f"{wrapper.parent}:{Path(sys.executable).parent}:/usr/bin:/bin"
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script], env={**mock.environment(account), "PATH": path},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    run(*setting_up, "declare -p AWS_DEFAULT_REGION cluster subnets group queue >/tmp/made")
    made = dict(
        re.findall(r'^declare -\S+ (\w+)="(.*)"$', (tmp_path / "made").read_text(encoding="utf-8"), re.MULTILINE)
    )
    keys = (tmp_path / "aws.keys").read_text(encoding="utf-8").splitlines()
    assert keys[0] == "[default]"
    assert [line.partition(" = ")[0] for line in keys[1:]] == ["aws_access_key_id", "aws_secret_access_key"]
    policy = json.loads((tmp_path / "burstd-policy.json").read_text(encoding="utf-8"))
    assert policy == policy_for(CLUSTER)
    # A user of the mock's own, for it knows no keys but those it gave; with the document's policy and things.
    user = mock.user(account, "another", policy)
    things = {
        "subnet-": made["subnets"].split(), "sg-": [made["group"]], "/burstd/mysite": [account.image_parameter],
        "https://sqs": [made["queue"]],
    }  # fmt: skip
    found = check(mock, user, tmp_path / "burstd.toml", things, monkeypatch)
    assert [f for f in found.values() if f["ok"] is False] == []
    run(". /tmp/made", taking_away)
    client = boto3.client("sqs", **mock.client_words(account, REGION))
    assert made["queue"] not in client.list_queues().get("QueueUrls", [])
