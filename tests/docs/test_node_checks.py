"""docs/node-checks.md lists the checks that there are."""

from __future__ import annotations

from typing import get_args

from burstd.node.checks import CHECK_NAMES, CHECKS
from burstd.settings.sections import NodeCheck, NodeSettings
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
