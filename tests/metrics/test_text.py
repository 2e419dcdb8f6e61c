"""The names that are exported, which are an interface; and what hostile names do to the text: nothing."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from burstd.domain.billing.costs import BudgetLine
from burstd.domain.claim import ClaimState
from burstd.domain.idle_gpus import IdleJob, IdleNode
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Target
from burstd.domain.project import Project, ProjectsView, Share
from burstd.domain.snapshot import CircuitBreaker, Snapshot, Unavailable
from burstd.metrics.counters import Counters, finding_label
from burstd.metrics.exposition import render
from burstd.metrics.families import FAMILIES, MAX_LABEL_SETS, LabelLimit, bounded, label_value
from burstd.metrics.figures import reason_label, snapshot_figures
from tests.api.world import CLAIMS, NOW, SLURM, SNAPSHOT, job
from tests.metrics.conftest import Promtool

INTERFACE = [
    "burstd_info{version}",
    "burstd_leader",
    "burstd_loop_seconds",
    "burstd_snapshot_age_seconds",
    "burstd_slurm_up",
    "burstd_slurm_rpc_seconds{command}",
    "burstd_provider_up{provider}",
    "burstd_provider_requests_total{provider,call,outcome}",
    "burstd_claims{pool,provider,market,state}",
    "burstd_slots{pool}",
    "burstd_launch_seconds{pool,phase}",
    "burstd_starting_oldest_seconds{pool}",
    "burstd_launch_failures_total{provider,type,zone,reason}",
    "burstd_breaker_open{provider,type,zone}",
    "burstd_pending_jobs{pool,reason}",
    "burstd_pending_oldest_seconds{pool}",
    "burstd_cost_per_hour{pool,provider,currency}",
    "burstd_spent_total{pool,currency}",
    "burstd_budget_used_ratio{budget}",
    "burstd_idle_machines{pool}",
    "burstd_idle_gpus{pool}",
    "burstd_idle_gpus_cost_per_hour{pool,currency}",
    "burstd_idle_cost_total{pool,currency}",
    "burstd_interruptions_total{provider,type,zone}",
    "burstd_unhealthy_total{provider,type,finding}",
    "burstd_leaks_total",
    "burstd_quota_gpus{project}",
    "burstd_quota_used{project}",
    "burstd_quota_fair{project}",
    "burstd_user_mistakes_total{kind}",
    "burstd_staging_bytes_total{direction}",
]
"""Dashboards and alerts of others name them: what stands here changes with a new version of burstd only."""
HOSTILE = (
    'quote"', "back\\slash", "line\nfeed", "{{7*7}}", '"><img onerror=alert(1)>', "<script>", "x" * 70_000,
    "\udcff\udcfe", "\u202eright to left", "nul\x00", '",evil="1', "# EOF\n", "ü" * 300,
)  # fmt: skip


def _with_labels(name: str, labels: tuple[str, ...]) -> str:
    return f"{name}{{{','.join(labels)}}}" if labels else name


def test_the_names_are_as_promised() -> None:
    assert [_with_labels(f.name, f.labels) for f in FAMILIES.values()] == INTERFACE
    assert {label for family in FAMILIES.values() for label in family.labels}.isdisjoint(
        {"user", "job", "node", "account"}
    )


def test_the_table_of_the_documentation_is_the_same() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(burstd_[a-z_]+)` \| (\w+) \| ([a-z, ]*?) ?\| (.+) \|$", text, re.MULTILINE)
    assert rows == [(f.name, f.kind, ", ".join(f.labels), f.help) for f in FAMILIES.values()]


def _world() -> tuple[Snapshot, Plan]:
    """Hostile words wherever the site, a cloud or a node may put any."""
    claims = tuple(
        replace(
            CLAIMS[0], id=f"c{number}", pool=word, offer=replace(CLAIMS[0].offer, zone="z"), state=ClaimState.PLANNED
        )
        for number, word in enumerate(HOSTILE)
    )
    projects = {word: Project(word, account="a", quota=Fraction(1, 3)) for word in HOSTILE}
    shares = {word: Share(Fraction(1), Fraction(1), Fraction(0), Fraction(1)) for word in HOSTILE}
    snapshot = replace(
        SNAPSHOT,
        claims=(*SNAPSHOT.claims, *claims),
        breakers=tuple(CircuitBreaker(f"sky/r/{word}/{word}/spot", "capacity", 1, NOW + 9) for word in HOSTILE),
        projects=ProjectsView(projects),
        slurm=replace(SLURM, jobs=tuple(job(str(n), word, reason=word) for n, word in enumerate(HOSTILE))),
    )
    budgets = [BudgetLine("project", word, "month", "EUR", Decimal(10), Decimal(4), Decimal(5)) for word in HOSTILE] + [
        BudgetLine("user", "eve", "month", "EUR", Decimal(10), Decimal(4), Decimal(5))
    ]
    idle = tuple(IdleJob("1", 0, 1, 1, NOW, 900.0, nodes=(IdleNode("gpu1", 1, Decimal(1), word),)) for word in HOSTILE)
    return snapshot, Plan(target=Target(budgets=tuple(budgets), shares=shares), idle_gpus=idle)


def _busy() -> Counters:
    """Each counter has counted something."""
    counters = Counters()
    for family in FAMILIES.values():
        if family.kind != "gauge":
            for word in HOSTILE if family.labels else ("",):
                counters._add(family.name, 1.5, *(word for _ in family.labels))
    return counters


def test_promtool_finds_no_fault_in_it_whatever_things_are_called(promtool: Promtool) -> None:
    shown = render(_busy().registry, _world(), "1.0")
    text = shown.body(NOW, NOW, compress=False)
    promtool("check", "metrics", text=text)
    assert gzip.decompress(shown.body(NOW, NOW, compress=True)) == text
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    names = {f"{name}_total" if family.type == "counter" else name for name, family in families.items()}
    assert names == set(FAMILIES)
    values = {value for family in families.values() for sample in family.samples for value in sample.labels.values()}
    assert max(map(len, values)) == 100
    assert "evil" not in {label for f in families.values() for s in f.samples for label in s.labels}
    assert not any(value == "eve" or ":eve" in value for value in values), "users are no labels"
    assert {s.labels["reason"] for s in families["burstd_pending_jobs"].samples} == {"other"}


def test_it_says_how_old_the_snapshot_is_though_nothing_is_rendered() -> None:
    shown = render(Counters().registry, (replace(SNAPSHOT, now=NOW), Plan()), "1.0")
    assert b"\nburstd_snapshot_age_seconds 75.000\n" in shown.body(NOW + 75, NOW - 500, compress=False)
    before_the_first_loop = render(Counters().registry, None, "1.0").body(NOW, NOW - 500, compress=False)
    assert b"\nburstd_snapshot_age_seconds 500.000\n" in before_the_first_loop


def test_the_gauges_are_what_the_snapshot_has() -> None:
    idle_nodes = (IdleNode("gpu1", 2, Decimal("1.53"), "EUR"), IdleNode("cn7", 1, Decimal(0), ""))
    idle = IdleJob("101", 0, 3, 4, NOW, 900.0, nodes=idle_nodes)
    text = render(Counters().registry, (SNAPSHOT, Plan(idle_gpus=(idle,))), "1.0").plain.decode()
    shown = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    expected = {
        'burstd_info{version="1.0"}': 1,
        "burstd_slurm_up": 1,
        'burstd_provider_up{provider="sky"}': 0,
        'burstd_provider_up{provider="sandbox"}': 1,
        'burstd_claims{market="on-demand",pool="gpu",provider="sandbox",state="in_service"}': 2,
        'burstd_slots{pool="gpu"}': 8,
        'burstd_starting_oldest_seconds{pool="gpu"}': 51,
        'burstd_starting_oldest_seconds{pool="cpu"}': 0,
        'burstd_breaker_open{provider="sandbox",type="g8",zone="b"}': 1,
        # 103, 106 (of h100, which the pool lacks) and the three tasks of 104; 107 is no job of a pool.
        'burstd_pending_jobs{pool="gpu",reason="Resources"}': 4,
        'burstd_pending_jobs{pool="none",reason="Resources"}': 1,
        'burstd_pending_jobs{pool="gpu",reason="JobHeldUser"}': 1,
        'burstd_pending_oldest_seconds{pool="gpu"}': 119,
        'burstd_cost_per_hour{currency="EUR",pool="gpu",provider="sandbox"}': 5 * 3.06,
        'burstd_idle_machines{pool="gpu"}': 1,
        'burstd_idle_machines{pool="cpu"}': 0,
        'burstd_idle_gpus{pool="gpu"}': 2,
        'burstd_idle_gpus{pool="cpu"}': 0,
        'burstd_idle_gpus{pool="none"}': 1,
        'burstd_idle_gpus_cost_per_hour{currency="EUR",pool="gpu"}': 1.53,
    }
    assert {name: shown.get(name) for name in expected} == pytest.approx(expected)
    no_slurm = render(Counters().registry, (replace(SNAPSHOT, slurm=Unavailable("down", 0.0)), Plan()), "1.0")
    assert b"\nburstd_slurm_up 0.0\n" in no_slurm.plain


@pytest.mark.parametrize(
    ("kind", "name", "amounts", "expected"),
    [
        ("", "", (100, 40, 40), {("site",): 0.8}),
        ("project", "atlas", (10, 12, 0), {("project:atlas",): 1.2}),
        ("project", "none", (0, 0, 0), {("project:none",): 1.0}),
        ("user", "eve", (10, 5, 0), {}),
    ],
)
def test_the_part_of_a_budget_that_is_used(
    kind: str, name: str, amounts: tuple[int, int, int], expected: object
) -> None:
    limit, spent, committed = map(Decimal, amounts)
    budget = BudgetLine(kind, name, "month", "EUR", limit, spent, committed)
    figures = {n: values for n, values, _ in snapshot_figures(SNAPSHOT, Plan(target=Target(budgets=(budget,))))}
    assert figures["burstd_budget_used_ratio"] == pytest.approx(expected)


def test_a_family_has_five_hundred_label_sets_at_most() -> None:
    many = bounded({(f"p{number:05}",): 1.0 for number in range(10_000)}, lambda one, other: one + other)
    assert len(many) == MAX_LABEL_SETS
    assert (many["p00000",], many["other",]) == (1.0, 10_000 - 499)
    limit = LabelLimit()
    admitted = [limit.admit((f"p{number}", "x")) for number in range(10_000)]
    assert len(set(admitted)) == MAX_LABEL_SETS
    assert admitted[-1] == ("other", "other")
    assert limit.admit(("p7", "x")) == ("p7", "x"), "what was there before goes on"


def test_values_whose_names_become_the_same_are_joined() -> None:
    long = "x" * 100
    assert bounded({(f"{long}1",): 1.0, (f"{long}2",): 5.0}, max) == {(long,): 5.0}
    assert label_value("a\u202eb\x00c\n") == "a?b?c?"


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("Resources", "Resources"),
        ("", "None"),
        ("(Priority)", "Priority"),
        ("ReqNodeNotAvail, Reserved for maintenance", "ReqNodeNotAvail"),
        ("QOSMaxGRESPerUser", "QOS*"),
        ("AssocGrpGRES", "Assoc*"),
        ("MaxCpuPerAccount", "Max*"),
        ("because I say so", "other"),
    ],
)
def test_the_reason_of_a_pending_job_is_of_a_fixed_list(reason: str, label: str) -> None:
    assert reason_label(reason) == label


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("unhealthy, Xid 79 on GPU 0000:3b:00.0 at 2026-11-24T10:00:00Z, jobs are requeued", "Xid 79"),
        ("unusable, 3 MiB are free in /tmp at 2026-11-24T10:00:00Z, jobs end first", "# MiB are free in /tmp"),
    ],
)
def test_a_finding_is_named_without_what_differs_from_node_to_node(text: str, label: str) -> None:
    assert finding_label(text) == label
