"""The alerts: promtool takes them, each fires and clears; and the dashboards name metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click import Group
from typer.main import get_command

from burstd.cli.main import app
from burstd.metrics.families import FAMILIES
from burstd.settings import parse_settings
from burstd.share import share_path
from tests.metrics.conftest import Promtool

RULES = share_path("config", "prometheus", "burstd.rules.yml")
TESTS = Path(__file__).parent / "burstd.rules.test.yml"
DASHBOARDS = sorted(share_path("config", "grafana").glob("*.json"))
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
_NAME = re.compile(r"\bburstd_[a-z_]+")
_LABELS = re.compile(r"(burstd_[a-z_]+)\{([^}]*)\}")
_SUFFIX = {"histogram": ("_bucket", "_sum", "_count")}
_OF_PROMETHEUS = {"job", "instance", "le"}


def _exported() -> dict[str, str]:
    """Name of each series, and its family."""
    found = {}
    for family in FAMILIES.values():
        for suffix in _SUFFIX.get(family.kind, ("",)):
            found[family.name + suffix] = family.name
    return found


def _unknown(expression: str) -> list[str]:
    """What an expression names that burstd does not export: metrics, and labels of them."""
    exported = _exported()
    found = [name for name in _NAME.findall(expression) if name not in exported]
    for name, matchers in _LABELS.findall(expression):
        labels = {match.strip() for match in re.findall(r"([a-z_]+)\s*[=!]", matchers)}
        if name in exported:
            found += sorted(labels - _OF_PROMETHEUS - set(FAMILIES[exported[name]].labels))
    return found


def test_promtool_takes_the_rules(promtool: Promtool) -> None:
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool("check", "rules", RULES)


def test_the_configurations_of_the_documentation_are_taken(promtool: Promtool, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    (config,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(config)
    assert "is valid" in promtool("check", "config", "--syntax-only", tmp_path / "prometheus.yml")
    (settings,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    metrics = parse_settings(f'cluster = "x"\n{settings}').metrics
    assert metrics.listen in config
    assert str(metrics.file_sd) in config
    assert {rule["alert"] for rule in ALERTS} == set(re.findall(r"Burstd[A-Z]\w+", text))


@pytest.mark.parametrize("alert", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_an_alert_says_what_is_to_be_done(alert: dict[str, dict[str, str]]) -> None:
    assert set(alert["annotations"]) == {"summary", "description", "remedy"}
    assert "burstctl " in alert["annotations"]["remedy"]
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert not _unknown(str(alert["expr"]))


def test_the_remedies_name_commands_that_there_are() -> None:
    for words in re.findall(r"burstctl ([a-z]+(?: [a-z]+)?)", " ".join(a["annotations"]["remedy"] for a in ALERTS)):
        command = get_command(app)
        for word in words.split():
            if isinstance(command, Group):
                command = command.commands[word]


@pytest.mark.slow
def test_each_alert_fires_and_clears(promtool: Promtool, tmp_path: Path) -> None:
    cases = yaml.safe_load(TESTS.read_text())
    looked_at: dict[str, list[bool]] = {}
    for case in cases["tests"]:
        for look in case["alert_rule_test"]:
            looked_at.setdefault(look["alertname"], []).append(bool(look.get("exp_alerts")))
            for expected in look.get("exp_alerts") or ():
                # The words are the rules' own: only that they are filled in is looked at, in the lab run.
                rule = next(rule for rule in ALERTS if rule["alert"] == look["alertname"])
                expected["exp_labels"]["severity"] = rule["labels"]["severity"]
    assert {name for name, looks in looked_at.items() if set(looks) == {True, False}} == {r["alert"] for r in ALERTS}
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({**cases, "rule_files": ["rules.yml"]}))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "tests.yml")


def _panels(dashboard: dict[str, object]) -> list[dict[str, object]]:
    panels = dashboard["panels"]
    assert isinstance(panels, list)
    return [panel for panel in panels if panel["type"] != "row"]


def _expressions(dashboard: dict[str, object]) -> list[str]:
    return [target["expr"] for panel in _panels(dashboard) for target in panel["targets"]]  # type: ignore[attr-defined]


def test_there_are_two_dashboards() -> None:
    assert [path.name for path in DASHBOARDS] == ["burstd-money.json", "burstd-operations.json"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported(path: Path, promtool: Promtool, tmp_path: Path) -> None:
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == path.stem
    assert dashboard["id"] is None
    assert dashboard["schemaVersion"] >= 36
    assert [variable["type"] for variable in dashboard["templating"]["list"]] == ["datasource"]
    panels = _panels(dashboard)
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        assert {"title", "type", "gridPos", "targets", "datasource", "fieldConfig"} <= panel.keys(), panel["title"]
        at = panel["gridPos"]
        assert isinstance(at, dict)
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in own) < 24
        assert not own & cells, f"{panel['title']} lies over another panel"
        cells |= own
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "5m").replace("$__range", "1d")}
        for number, text in enumerate(_expressions(dashboard))
    ]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "panels.yml")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_names_what_burstd_exports(path: Path) -> None:
    assert not [(text, wrong) for text in _expressions(json.loads(path.read_text())) if (wrong := _unknown(text))]


def test_the_dashboards_show_every_metric() -> None:
    shown = {
        name
        for path in DASHBOARDS
        for text in _expressions(json.loads(path.read_text()))
        for name in _NAME.findall(text)
    }
    exported = _exported()
    assert {exported[name] for name in shown} == set(FAMILIES)


def test_a_name_that_is_not_exported_is_found() -> None:
    assert _unknown("rate(burstd_nodes_total[5m])") == ["burstd_nodes_total"]
    assert _unknown('burstd_claims{pool="a", node="b"}') == ["node"]
