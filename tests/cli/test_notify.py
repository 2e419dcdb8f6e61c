"""``burstctl notify test``: what came of each way, and who may ask."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.api.client import ApiTestClient
from tests.api.fake_backend import FakeBackend
from tests.cli.conftest import NOBODY, Run


def test_it_says_what_came_of_each_way(run: Run, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("notify", "test")
    rows = [row.split() for row in found.out.splitlines()]
    assert rows == [["WAY", "SECONDS"], ["mail", "0.1", "sent"], ["program", "2.0", "not", "sent:", "by", "root"]]
    assert found.code == 1
    assert [way["way"] for way in json.loads(run("notify", "test", "--json").out)["ways"]] == ["mail", "program"]
    monkeypatch.setattr(backend, "test_notifications", lambda _by: [])
    found = run("notify", "test")
    assert (found.code, found.out.startswith("The settings have no way")) == (1, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_administrators_alone_send_one(control: Path) -> None:
    with ApiTestClient(control, NOBODY) as client:
        status, answer = client.request("POST", "/v1/notify/test")
    assert status == 403
    assert "This is for root" in answer["error"]
