"""Keys under their former names are taken for one version, with a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from burstd.settings import PluginRegistry, SettingsError, parse_settings, resolve_plugins
from burstd.settings.load import RENAMED_KEYS

FORMER = """cluster = "site"
[daemon]
prove_timeout_s = 170
tidy_every_s = 31
start_again_s = 21
[staging]
store = "home"
keep_node_h = 1
keep_node_cost = 3.5
hand_socket = "/run/burstd/other.sock"
[staging.stores.home]
kind = "shared"
path = "/data"
[policies]
chain = ["wait_aware", "broker"]
[policies.wait_aware]
own_machines = false
[policies.broker]
own_machines = false
"""
RENAMED = FORMER
for _former, _name in RENAMED_KEYS.items():
    RENAMED = RENAMED.replace(_former.rpartition(".")[2], _name.rpartition(".")[2])


def test_former_keys_give_the_same_settings_and_a_warning_each() -> None:
    former, renamed = parse_settings(FORMER), parse_settings(RENAMED)
    assert former.model_dump() == renamed.model_dump()
    assert former.tuning == renamed.tuning
    assert (former.tuning.validation_timeout_s, former.tuning.output_retention_s) == (170.0, 3600.0)
    assert former.worker_socket == Path("/run/burstd/other.sock")
    chain = resolve_plugins(former, PluginRegistry.installed(Path("/nowhere"), 5.0), check_files=False).policies
    assert [vars(policy.settings)["dedicated_nodes"] for policy in chain] == [False, False]
    assert renamed.warnings == ()
    lines = FORMER.splitlines()
    for warning, (old, name) in zip(former.warnings, RENAMED_KEYS.items(), strict=True):
        assert f"{old}: is now called {name};" in str(warning)
        assert lines[(warning.line or 0) - 1].startswith(old.rpartition(".")[2])


@pytest.mark.parametrize("former", RENAMED_KEYS)
def test_a_key_given_under_both_names_is_refused_by_both(former: str) -> None:
    name = RENAMED_KEYS[former]
    table, _, key = former.rpartition(".")
    both = re.sub(rf"(?m)^\[{re.escape(table)}\]$", rf"\g<0>\n{key} = 1", RENAMED)
    with pytest.raises(SettingsError) as raised:
        parse_settings(both)
    [fault] = raised.value.faults
    assert str(fault).endswith(f"{former}: is the former name of {name}, which is also set; remove {former}")


def test_a_fault_of_a_former_key_has_its_line() -> None:
    with pytest.raises(SettingsError, match=r"line 3: daemon.validation_timeout_s: must be greater than 0"):
        parse_settings(FORMER.replace("170", "-1"))


def test_a_table_that_is_none_is_refused_as_ever() -> None:
    with pytest.raises(SettingsError, match="daemon: must be a table"):
        parse_settings('cluster = "site"\ndaemon = 3\n')
