"""burstctl debug: what is in the archive, what is not and why, and no secret anywhere."""

from __future__ import annotations

import base64
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.cli.scrub import Scrubber
from tests.api.fake_backend import PLAN, FakeBackend
from tests.api.world import JOBS, SLURM, SNAPSHOT
from tests.security.fuzz import fuzzed

from .conftest import NOBODY, Run, as_user

KEY = "\n".join(base64.b64encode(bytes(range(n, n + 48))).decode() for n in range(4))
BEGIN = "-----BEGIN OPENSSH PRIVATE KEY-----"
SECRETS = {
    "token file": "tok-4f1c9d0be77a",
    "webhook": "https://chat.example/x9/in-8c1f7e",
    "private key": KEY.splitlines()[1],
    "password in a URL": "hunter2hunter2",
    "AWS id": "AKIAIOSFODNN7EXAMPLE",
    "AWS key": "/wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY",
    "environment": "s3cr3t-of-the-environment",
    "key of a plug-in": "k-11223344",
    "environment of a framework": "v-55667788",
    "another key": "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ",
}
SAID = f"""
cloud-init: password: {SECRETS["password in a URL"]}, token {SECRETS["token file"]}
export AWS_ACCESS_KEY_ID={SECRETS["AWS id"]} AWS_SECRET_ACCESS_KEY="{SECRETS["AWS key"]}"
{BEGIN}
{SECRETS["another key"]}
-----END OPENSSH PRIVATE KEY-----
{KEY}
GET https://ada:{SECRETS["password in a URL"]}@git.example/x {SECRETS["webhook"]} SITE={SECRETS["environment"]}
"""
SETTINGS = """
cluster = "ada"
[daemon]
state_dir = "{folder}"
[notify.webhooks.chat]
url_file = "{folder}/url"
token_file = "{folder}/token"
[providers.sky]
api_key = "{plugin}"
proxy = "http://ada:{password}@proxy.example"
[frameworks.torch.environment]
SITE_VALUE = "{framework}"
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site's settings and secrets, and programs that print them all."""
    for name, content in (
        ("url", SECRETS["webhook"]),
        ("token", SECRETS["token file"]),
        ("ssh_key", f"{BEGIN}\n{KEY}"),
    ):
        (tmp_path / name).write_text(content + "\n")
        (tmp_path / name).chmod(0o600)
    printed = tmp_path / "printed"
    printed.write_text(f"gpu1 {SAID.strip()}\njob 101\nanother line\n")
    for program in ("scontrol", "journalctl"):
        (tmp_path / program).write_text(f"#!/bin/sh\ncat {printed}\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SITE_PASSWORD", SECRETS["environment"])
    file = tmp_path / "burstd.toml"
    file.write_text(
        SETTINGS.format(
            folder=tmp_path, plugin=SECRETS["key of a plug-in"], password=SECRETS["password in a URL"],
            framework=SECRETS["environment of a framework"],
        )
    )  # fmt: skip
    return file


def members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None
            assert entry.mode == 0o600
            found[entry.name.partition("/")[2]] = file.read().decode()
    return found


def test_all_is_in_it_but_the_secrets(run: Run, backend: FakeBackend, settings: Path, tmp_path: Path) -> None:
    own = replace(JOBS[0], name=f"--token={SECRETS['token file']}", comment=SAID)
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=(own, *JOBS[1:]))), PLAN)
    backend.alarms = (SAID,)
    backend.validator.logs = {"gpu1": SAID}
    archive = tmp_path / "report.tar.gz"
    outcome = run("debug", "101", "-o", str(archive), "--config", str(settings))
    assert (outcome.code, archive.stat().st_mode & 0o777) == (0, 0o600), outcome.err
    found = members(archive)
    assert {
        "versions.txt", "status.json", "job.json", "explain.json", "events.json", "slurm-job.txt", "gpu1/node.json",
        "gpu1/events.json", "gpu1/slurm-node.txt", "gpu1/console.txt", "gpu1/slurmd.log", "settings.json",
        "journal.txt", "NOT-IN-IT.txt",
    } <= found.keys()  # fmt: skip
    leaks = [(name, what) for name, text in found.items() for what, secret in SECRETS.items() if secret in text]
    assert leaks == []
    assert json.loads(found["job.json"])["id"] == "101"
    assert json.loads(found["settings.json"])["frameworks"]["torch"]["environment"] == {"SITE_VALUE": "***"}
    assert "proxy.example" in found["settings.json"]
    assert "cloud-init: password: ***, token ***" in found["gpu1/console.txt"]
    assert "another line" not in found["journal.txt"]
    assert "job 101" in found["journal.txt"]
    assert "check.json: " in found["NOT-IN-IT.txt"]
    assert "gpu2/console.txt: gpu2 does not answer\n" in found["NOT-IN-IT.txt"]
    again = run("debug", "101", "-o", str(archive), "--config", str(settings))
    assert (again.code, "cannot be made: File exists" in again.err) == (1, True)


def test_users_get_what_they_may_see(run: Run, settings: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    settings.chmod(0o600)
    for path in tmp_path.parents:
        path.chmod(path.stat().st_mode | 0o055)
    archive = tmp_path / "own.tar.gz"
    # What it needs is loaded by root, who may read it.
    assert run("debug", "101", "-o", str(tmp_path / "all.tar.gz"), "--config", str(tmp_path / "none.toml")).code == 0
    with as_user(NOBODY):
        assert run("debug", "102", "-o", str(archive)).code == 4
        assert run("debug", "moon9", "-o", str(archive)).code == 5
        assert not archive.exists()
        assert run("debug", "101", "-o", str(archive), "--config", str(settings)).code == 0
    found = members(archive)
    assert {"job.json", "explain.json", "events.json", "gpu1/node.json"} <= found.keys()
    assert "gpu1/console.txt" not in found
    assert "gpu1/console.txt: This is for root" in found["NOT-IN-IT.txt"]
    assert f"settings.json: {settings} cannot be read: Permission denied" in found["NOT-IN-IT.txt"]


def test_without_burstd_the_rest_is_in_it(run: Run, settings: Path, tmp_path: Path) -> None:
    archive = tmp_path / "report.tar.gz"
    settings.unlink()
    words = ("debug", "gpu1", "-o", str(archive), "--config", str(settings), "--json")
    outcome = run(*words, socket=tmp_path / "none.sock")
    missing = json.loads(outcome.out)["not_in_it"]
    assert missing["status.json"].startswith(f"There is no socket {tmp_path}/none.sock")
    assert missing["check.json"] == f"{settings} cannot be read: No such file or directory"
    assert {"journal.txt", "gpu1/slurm-node.txt", "NOT-IN-IT.txt"} <= members(archive).keys()


@fuzzed
@given(st.text(max_size=200), st.text(max_size=20).filter(str.strip))
def test_fuzz_scrubbing(text: str, secret: str) -> None:
    scrubber = Scrubber({}, (), {"SITE_TOKEN": f"{secret}12345678"})
    assert f"{secret}12345678" not in scrubber.text(f"{text}{secret}12345678{text}")
