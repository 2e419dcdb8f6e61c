"""config/openshift against what the check asks for and what pods are: nothing lacks, nothing is superfluous."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from burstd.share import share_path
from providers.openshift import errors
from providers.openshift.checks import namespace
from providers.openshift.checks.rights import RIGHTS
from providers.openshift.pods import manifest


def things(name: str) -> list[dict[str, Any]]:
    text = share_path("config", "openshift", f"{name}.yaml").read_text(encoding="utf-8")
    return [one for one in yaml.safe_load_all(text) if one]


def given(name: str) -> Iterator[tuple[str, str, str]]:
    """Group, resource, verb of every rule."""
    for one in things(name):
        for rule in one.get("rules", ()):
            for resource in rule["resources"]:
                yield from ((group, resource, verb) for group in rule["apiGroups"] for verb in rule["verbs"])


@pytest.mark.parametrize(("name", "everywhere"), [("role", False), ("clusterrole-nodes", True)])
def test_the_check_asks_for_what_the_files_give(name: str, everywhere: bool) -> None:
    rights = [right for right in RIGHTS if right.everywhere is everywhere]
    asked = [(right.group, right.resource, verb) for right in rights for verb in right.verbs]
    assert sorted(asked) == sorted(given(name))


def test_no_file_gives_secrets_and_beyond_the_namespace_there_is_but_a_look() -> None:
    assert not [
        one for name in ("role", "clusterrole-nodes", "scc") for one in given(name) if {"*", "secrets"} & set(one)
    ]
    assert {verb for _, _, verb in given("clusterrole-nodes")} == {"list"}


@pytest.mark.parametrize("name", ["role", "clusterrole-nodes", "scc"])
def test_bindings_bind_the_role_of_their_file_to_burstds_account(name: str) -> None:
    there = things(name)
    roles = {(one["kind"], one["metadata"]["name"]) for one in there}
    bound = [one for one in there if one["kind"].endswith("Binding")]
    assert [(one["roleRef"]["kind"], one["roleRef"]["name"]) in roles for one in bound] == [True]
    account = things("role")[0]
    assert account["kind"] == "ServiceAccount"
    who = {"kind": "ServiceAccount", **{key: account["metadata"][key] for key in ("name", "namespace")}}
    assert all(one["subjects"] == [who] for one in bound)


def test_messages_name_files_that_are_there() -> None:
    for path in (namespace.ROLE, namespace.NODES, namespace.SCC, errors.ROLE, errors.SCC):
        assert share_path(*path.split("/")).is_file()


def test_the_constraints_allow_what_pods_ask_for_and_nothing_else() -> None:
    scc = things("scc")[0]
    assert scc["kind"] == "SecurityContextConstraints"
    assert sorted(scc["allowedCapabilities"]) == sorted(manifest.CAPABILITIES)
    assert not [key for key, value in scc.items() if key.startswith("allow") and value is True]
    assert "hostPath" not in scc["volumes"]
