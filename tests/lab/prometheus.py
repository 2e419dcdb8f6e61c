"""Debian's Prometheus and Alertmanager beside a site's burstd: in its head's network, with the rules that burstd ships.

What the rules wait for is shortened, so that a run of seconds sees alerts fire and clear.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from burstd.share import share_path
from tests.lab.base_site import BaseSite

METRICS = "127.0.0.1:9797"
TARGETS = "/run/burstd/nodes.json"
SETTINGS = f'[metrics]\nlisten = "{METRICS}"\nfile_sd = "{TARGETS}"\n'
"""Of burstd.toml."""
PROGRAMS = ("prometheus", "prometheus-alertmanager")
_PROMETHEUS, _ALERTMANAGER = "127.0.0.1:9090", "127.0.0.1:9093"
_SHORTER = {
    "> 60": "> 3", "> 900": "> 1", "> 3600": "> 2", "> 0.2 *": "> 0.02 *", "> 5": "> 0", "[1h]": "[8s]", "[1d]": "[8s]",
}  # fmt: skip


def shortened_rules() -> dict[str, Any]:
    """The shipped rules without waiting times, with small bounds and windows."""
    rules: dict[str, Any] = yaml.safe_load(share_path("config", "prometheus", "burstd.rules.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
            for long, short in _SHORTER.items():
                rule["expr"] = rule["expr"].replace(long, short)
    return rules


class LabPrometheus:
    """Both programs, between ``with`` and its end."""

    def __init__(self, site: BaseSite, folder: Path) -> None:
        self._site, self._folder = site, folder
        self._running: list[subprocess.Popen[bytes]] = []
        self.fired: set[str] = set()
        """What ``wait_fired`` has seen."""

    def __enter__(self) -> Self:
        (self._folder / "rules.yml").write_text(yaml.safe_dump(shortened_rules()))
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": ["rules.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [_ALERTMANAGER]}]}]},
            "scrape_configs": [
                {"job_name": "burstd", "static_configs": [{"targets": [METRICS]}]},
                {
                    "job_name": "burst-nodes",
                    "file_sd_configs": [{"files": [str(self._site.cluster.head.path(TARGETS))]}],
                },
            ],
        }
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        receivers = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
        (self._folder / "alertmanager.yml").write_text(yaml.safe_dump(receivers))
        self._start(
            "prometheus",
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address={_PROMETHEUS}",
        )
        self._start(
            "prometheus-alertmanager",
            f"--config.file={self._folder}/alertmanager.yml",
            f"--storage.path={self._folder}/alerts",
            f"--web.listen-address={_ALERTMANAGER}",
            "--cluster.listen-address=",
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running:
            process.kill()
            process.wait(30)

    def _in_head_network(self, *words: str) -> list[str]:
        process = self._site.cluster.head.process
        assert process is not None
        return ["nsenter", f"--target={process.pid}", "--net", "--", *words]

    def _start(self, program: str, *options: str) -> None:
        assert shutil.which(program), program
        with (self._folder / f"{program}.log").open("wb") as log:
            command = self._in_head_network(program, *options)
            self._running.append(subprocess.Popen(command, stdout=log, stderr=log))

    def _get(self, address: str, path: str) -> Any:
        """What it answers; None while it does not."""
        done = subprocess.run(
            self._in_head_network("curl", "-sSg", "--max-time", "10", f"http://{address}{path}"),
            capture_output=True,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout.startswith((b"{", b"[")) else None

    def alerts(self) -> dict[str, Mapping[str, str]]:
        """The alerts that fire, by name, with their annotations."""
        answer = self._get(_PROMETHEUS, "/api/v1/alerts") or {"data": {"alerts": []}}
        return {
            alert["labels"]["alertname"]: alert["annotations"]
            for alert in answer["data"]["alerts"]
            if alert["state"] == "firing"
        }

    def wait_fired(self, *alerts: str) -> None:
        """Until each fires, or has fired in this run: one whose window is short may be over when it is asked for."""

        def fired(alert: str) -> bool:
            return self.value(f'count_over_time(ALERTS{{alertname="{alert}",alertstate="firing"}}[1h])') is not None

        self.wait(lambda: all(map(fired, alerts)), f"{', '.join(alerts)} have fired")
        self.fired.update(alerts)

    def wait_over(self, *alerts: str) -> None:
        """Until none of them fires."""
        self.wait(lambda: self.alerts().keys().isdisjoint(alerts), f"{', '.join(alerts)} are over")

    def received_alerts(self) -> set[str]:
        """The names of those that Alertmanager has."""
        return {alert["labels"]["alertname"] for alert in self._get(_ALERTMANAGER, "/api/v2/alerts") or ()}

    def node_targets(self) -> dict[str, Mapping[str, str]]:
        """The burst nodes that Prometheus scrapes, by name, with their labels."""
        answer = self._get(_PROMETHEUS, "/api/v1/targets?state=active") or {"data": {"activeTargets": []}}
        labels = [target["labels"] for target in answer["data"]["activeTargets"]]
        return {found["node"]: found for found in labels if found["job"] == "burst-nodes"}

    def value(self, expression: str) -> float | None:
        """What an expression without blanks comes to now; None: nothing."""
        answer = self._get(_PROMETHEUS, f"/api/v1/query?query={expression}")
        result = answer["data"]["result"] if answer is not None else []
        return float(result[0]["value"][1]) if result else None

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> float:
        """Returns how many seconds it took until it was so."""
        begun = time.monotonic()
        try:
            self._site.wait(condition, timeout_s, what)
        except AssertionError as error:
            logs = "".join((self._folder / f"{name}.log").read_text()[-1500:] for name in PROGRAMS)
            raise AssertionError(f"{error}\nfiring: {sorted(self.alerts())}\n{logs}") from None
        return time.monotonic() - begun
