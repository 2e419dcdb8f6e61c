from __future__ import annotations

import pytest

from burstd.settings import diff_settings, parse_settings, settings_until_restart

BASE = """cluster = "x"
[pools.a]
nodes = "a1"
partitions = ["p"]
cpus = 1
memory = 1
offers = [{ provider = "c" }]
[providers.c]
kind = "cloud"
region = "r"
[policies]
chain = ["idle"]
[policies.idle]
after_s = 3
[daemon]
tick_s = 5
workers = 2
[slurm]
gate = "g"
"""


@pytest.mark.parametrize(
    ("old", "new", "at_once", "at_restart"),
    [
        ("", "", [], []),
        ("tick_s = 5", "tick_s = 6", ["daemon.tick_s: 5.0 -> 6.0"], []),
        ("after_s = 3", "after_s = 4", ["policies.idle.after_s: 3 -> 4"], []),
        ("cpus = 1", "cpus = 2", ["pools.a.cpus: 1 -> 2"], []),
        ('region = "r"', 'region = "s"', [], ["providers.c.region: r -> s"]),
        ('region = "r"', "", [], ["providers.c.region: r -> not set"]),
        ("workers = 2", "workers = 3", [], ["daemon.workers: 2 -> 3"]),
        ('gate = "g"', 'gate = "h"', [], ["slurm.gate: g -> h"]),
        ('cluster = "x"', 'cluster = "y"', [], ["cluster: x -> y"]),
    ],
)
def test_what_changes_at_once_and_what_waits(old: str, new: str, at_once: list[str], at_restart: list[str]) -> None:
    before, after = parse_settings(BASE), parse_settings(BASE.replace(old, new, 1))
    found = diff_settings(before, after)
    assert [str(c) for c in found.applied_now] == at_once
    assert [str(c) for c in found.at_restart] == at_restart
    assert found.texts() == [*at_once, *(f"{text} (waits for a restart)" for text in at_restart)]
    kept = settings_until_restart(before, after)
    assert [str(c) for c in diff_settings(before, kept).applied_now] == at_once
    assert diff_settings(before, kept).at_restart == ()


def test_what_waits_keeps_its_old_value_in_what_is_derived_from_it_too() -> None:
    before, after = (
        parse_settings(BASE),
        parse_settings(BASE.replace('"g"', '"h"').replace("tick_s = 5", "boot_timeout_s = 5")),
    )
    kept = settings_until_restart(before, after)
    assert (after.tuning.gate, kept.tuning.gate, kept.tuning.boot_timeout_s) == ("h", "g", 5.0)
    assert kept.source == after.source


def test_a_new_pool_comes_at_once() -> None:
    more = BASE.replace("[providers.c]", '[pools.b]\nnodes = "b1"\npartitions = ["p"]\ncpus = 1\nmemory = 1\n'
                        'offers = [{ provider = "c" }]\n[providers.c]')  # fmt: skip
    found = diff_settings(parse_settings(BASE), parse_settings(more))
    assert {c.key for c in found.applied_now} >= {"pools.b.nodes", "pools.b.cpus"}
    assert found.at_restart == ()
