"""User data: what cloud-init is told, and what is never told."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from burstd.node.user_data import TemplateUnusable, UserDataValues, default_template, render_user_data
from burstd.share import share_path

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFwfrPGWuoLnWLEcyLEHyHJRvY0Iqm9HCjhDL+vCdFtP burstd"
VALUES = UserDataValues("lab", "gpu", "sandbox", PUBLIC)
SECRET = bytes(range(7, 135))


def settings(text: str) -> dict[str, str]:
    """The top-level lines of our template, which are all ``key: value``."""
    lines = (line for line in text.splitlines() if line and line[0] not in "# -")
    parts = (line.partition(":") for line in lines)
    return {key: value.strip() for key, _, value in parts}


def test_the_template_that_comes_with_burstd() -> None:
    text = render_user_data(VALUES)
    assert text == render_user_data(VALUES)  # word for word: a launch that is repeated must be the same
    assert text.startswith("#cloud-config\n")
    keys = settings(text)
    assert keys["disable_root"] == "false"
    assert keys["ssh_deletekeys"] == "true"
    assert keys["ssh_genkeytypes"] == "[ed25519]"
    assert f"  - {json.dumps(PUBLIC)}\n" in text
    assert not keys.keys() & {"timezone", "packages", "mounts", "runcmd"}
    assert not any(line.startswith("$") for line in text.splitlines())


def test_what_a_site_adds_cannot_break_out_of_its_place() -> None:
    odd = 'a: b\n- "$HOME" {x}\nruncmd: [evil]'
    values = UserDataValues(
        "lab", "gpu", "sandbox", PUBLIC, timezone="Europe/Berlin", packages=["jq"],
        mounts=[["head:/home", "/home", "nfs"]], commands=[["sh", "-c", odd], "plain"], extra={"swap": {"size": 0}},
    )  # fmt: skip
    keys = settings(render_user_data(values))
    assert json.loads(keys["timezone"]) == "Europe/Berlin"
    assert json.loads(keys["packages"]) == ["jq"]
    assert json.loads(keys["mounts"]) == [["head:/home", "/home", "nfs"]]
    assert json.loads(keys["runcmd"]) == [["sh", "-c", odd], "plain"]
    assert json.loads(keys["swap"]) == {"size": 0}


PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "extra",
    [
        {"ssh_keys": {"ed25519_private": PRIVATE}},
        {"bootcmd": ["echo AAAA > /etc/munge/munge.key"]},
        {"bootcmd": ["export AWS_SECRET_ACCESS_KEY=x"]},
        {"password": "guess"},
        {"swap": {"hashed_passwd": "$6$x"}},
        {"bootcmd": [SECRET.hex()]},
        {"bootcmd": [base64.b64encode(SECRET).decode()]},
        {"bootcmd": [base64.b64encode(b"x" + SECRET + b"y").decode()]},
        {"bootcmd": [base64.b64encode(b"xy" + SECRET).decode()]},
    ],
)
def test_secrets_are_refused_and_not_repeated(extra: Mapping[str, object]) -> None:
    with pytest.raises(TemplateUnusable, match="secret") as caught:
        render_user_data(UserDataValues("lab", "gpu", "sandbox", PUBLIC, extra=extra), secrets=[SECRET])
    said = str(caught.value)
    assert PRIVATE not in said
    assert SECRET.hex() not in said


def test_a_secret_of_plain_text_is_found() -> None:
    with pytest.raises(TemplateUnusable, match="a secret of the cluster"):
        render_user_data(
            UserDataValues("lab", "gpu", "sandbox", PUBLIC, extra={"bootcmd": ["correct horse"]}),
            secrets=[b"correct horse\n"],
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#cloud-config\nkey: ${unknown}\n", r"placeholder \$\{unknown\}"),
        ("#cloud-config\nruncmd: [echo $(hostname)]\n", r"write \$\$"),
        ("#!/bin/sh\necho\n", "#cloud-config"),
        ("#cloud-config\n" + "# long\n" * 3000, "clouds take 16384"),
    ],
)
def test_a_template_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "own.yaml.in"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TemplateUnusable, match=message):
        render_user_data(VALUES, file)


def test_what_powers_a_machine_off_has_its_place_in_every_template(tmp_path: Path) -> None:
    """At the boot with ours; a site's own that is older has it done before all other commands."""
    values = replace(VALUES, power_off_after_s=7200, commands=("true",))
    ours = yaml.safe_load(render_user_data(values))
    assert ours["bootcmd"][1][:3] == ["cloud-init-per", "instance", "burstd-unattended"]
    assert "sleep 7200" in ours["bootcmd"][1][-1]
    assert ours["runcmd"] == ["true"]
    older = tmp_path / "older"
    older.write_text("#cloud-config\n${extra}\n", encoding="utf-8")
    command, last = yaml.safe_load(render_user_data(values, older))["runcmd"]
    assert "sleep 7200" in command[-1]
    assert last == "true"
    never = replace(values, power_off_after_s=0)
    assert "poweroff" not in render_user_data(never) + render_user_data(never, older)


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TemplateUnusable, match="cannot be read"):
        render_user_data(VALUES, tmp_path / "missing")


def test_files_that_come_with_burstd() -> None:
    assert default_template() == share_path("config", "cloud-init", "node.yaml.in")
    with pytest.raises(FileNotFoundError, match="no-such-file is neither"):
        share_path("config", "no-such-file")
