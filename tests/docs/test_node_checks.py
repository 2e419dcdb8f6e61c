"""docs/node-checks.md lists the checks that there are, and what comes of each Xid."""

from __future__ import annotations

from typing import get_args

from burstd.domain.health import FINDINGS, XIDS, Verdict
from burstd.node.checks import CHECK_NAMES, CHECKS
from burstd.settings.load import build_pools, parse_settings
from burstd.settings.sections import FindingName, NodeCheck, NodeSettings
from burstd.slurm.hostlist import expand
from tests.lab.programs import PROJECT

PAGE = (PROJECT / "docs/node-checks.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_checks() -> None:
    _, _, after = PAGE.partition("| check | a machine must have |\n|---|---|\n")
    table, _, _ = after.partition("\n\n")
    assert table.splitlines() == [f"| `{name}` | {what} |" for name, what in CHECKS.items()]


def test_checks_that_only_warn_are_those_of_the_page() -> None:
    names = "`, `".join(NodeSettings().may_differ[:-1])
    assert f"By default these are `{names}` and `{NodeSettings().may_differ[-1]}`" in " ".join(PAGE.split())
    assert set(get_args(NodeCheck)) == CHECK_NAMES


def test_the_table_of_xids_is_that_of_the_code() -> None:
    _, _, after = PAGE.partition("| verdict | Xids | what comes of it |\n|---|---|---|\n")
    rows = [row.split("|")[1:3] for row in after.partition("\n\n")[0].splitlines()]
    said = {
        xid: verdict.strip(" `")
        for verdict, xids in rows
        for part in xids.split(",")
        if part.strip()
        for first, _, last in [part.strip().partition("-")]
        for xid in range(int(first), int(last or first) + 1)
    }
    assert said == XIDS
    assert {verdict.strip(" `") for verdict, _ in rows} == set(Verdict)


def test_the_example_of_a_site_s_own_verdict_is_taken() -> None:
    example = PAGE.partition("[health.xid]\n")[2].partition("```")[0]
    health = parse_settings(f'cluster = "x"\n[health.xid]\n{example}').health
    assert (health.xid, health.findings) == ({"63": Verdict.NOTE}, {"gpu_slow": Verdict.NOTE})


def test_the_table_of_findings_is_that_of_the_code() -> None:
    _, _, after = PAGE.partition("| finding | what | times | verdict |\n|---|---|---|---|\n")
    rows = after.partition("\n\n")[0].splitlines()
    assert rows == [f"| `{name}` | {f.what} | {f.times} | `{f.verdict}` |" for name, f in FINDINGS.items()]
    assert set(get_args(FindingName)) == set(FINDINGS)
    assert {f.check for f in FINDINGS.values()} <= CHECK_NAMES | {""}


def test_the_example_of_frameworks_is_taken() -> None:
    example = PAGE.partition("## Frameworks\n")[2].partition("```toml\n")[2].partition("```")[0]
    pool = "nodes = 'n1'\npartitions = ['p']\ncpus = 1\nmemory = '1G'\noffers = [{ provider = 'sky' }]\n"
    text = f"cluster = 'x'\n{example}{pool}[providers.sky]\nkind = 'sandbox'\n"
    pools = build_pools(parse_settings(text), expand)
    assert [framework.name for framework in pools["gpu"].frameworks] == [
        "pytorch-2.5-cuda12",
        "jax-ngc",
        "gromacs-2024",
    ]
