"""The head's clock beside a cloud's: a server that tells another time, and what burstctl check says of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from burstd.cli.checks.clock import clock_findings, offsets_of_clouds
from burstd.settings import PluginRegistry, parse_settings
from burstd.slurm.config.check import SlurmConfFinding

NOW = 1_800_000_000.0


class Sandbox(BaseHTTPRequestHandler):
    """Answers what a sandbox's clock is read from."""

    def do_GET(self) -> None:
        self.send_response_only(200)
        self.send_header("Date", formatdate(NOW, usegmt=True))
        self.end_headers()
        self.wfile.write(b'{"limit": 1, "used": 0}')

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
        """Says nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Sandbox) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("ahead", "found"),
    [(0.0, ""), (31.0, ""), (-30.0, ""), (421.0, "a clock 7 min ahead"), (-7200.0, "a clock 2.0 h behind")],
)
def test_the_heads_clock_is_compared(url: str, tmp_path: Path, ahead: float, found: str) -> None:
    token = tmp_path / "token"
    token.write_text("t", encoding="ascii")
    token.chmod(0o600)
    text = f'cluster = "ada"\n[providers.sky]\nkind = "sandbox"\nurl = "{url}"\ntoken_file = "{token}"\n'
    text += '[providers.away]\nkind = "sandbox"\nurl = "http://127.0.0.1:9"\n'
    offsets = offsets_of_clouds(parse_settings(text), PluginRegistry.installed(), ("sky", "away"), lambda: NOW + ahead)
    expected = SlurmConfFinding(
        "clock",
        "the time of provider sky within 30 s",
        found,
        "machines whose clocks are right are refused; munge takes no credential that is 300 s old or from the future",
        "set the head's clock (timedatectl set-ntp true, chronyc makestep)",
    )
    assert [*clock_findings(offsets, 30.0)] == ([expected] if found else [])
