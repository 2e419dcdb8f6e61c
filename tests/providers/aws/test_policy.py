"""config/aws/iam-policy.json against the calls that providers/aws makes: nothing is missing, nothing superfluous."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from botocore import xform_name
from botocore.session import Session

from burstd.share import share_path
from providers.aws.checks import account, rights
from tests.lab.programs import PROJECT

POLICY = json.loads(share_path("config", "aws", "iam-policy.json").read_text(encoding="utf-8"))
SOURCES = sorted(set((PROJECT / "providers" / "aws").rglob("*.py")) - {Path(rights.__file__)})
"""Without the room that tries rights: it names what the others call."""
SERVICES = ("ec2", "pricing", "service-quotas", "sqs", "ssm", "sts")
PREFIX = {"service-quotas": "servicequotas"}
SINGLE = {"sqs:DeleteMessageBatch": "sqs:DeleteMessage"}
"""Actions that go by another name in policies."""
FREE = {"sts:GetCallerIdentity"}
"""Everybody may, whatever policies say."""
DEPENDENT = {
    "ec2:RunInstances",  # what CreateFleet does for its caller
    "ec2:CreateTags",  # at creation, by every call with TagSpecifications
    "iam:PassRole",  # of the machines' instance profile, by RunInstances and CreateFleet
}
"""What our calls need besides the action of their own name. Service-linked roles are made once, by an administrator."""
MOST_CHARACTERS = 6144
"""Of a managed policy, white space not counted."""


def operations() -> dict[str, str]:
    """Operation in snake case -> the action that allows it, for all services that are used."""
    session, found = Session(), dict[str, str]()
    for service in SERVICES:
        for name in session.get_service_model(service).operation_names:
            action = f"{PREFIX.get(service, service)}:{name}"
            found.setdefault(xform_name(name), SINGLE.get(action, action))
    return found


def called(sources: Sequence[Path] = SOURCES) -> set[str]:
    """Actions of the operations that the sources name, in calls or in tables."""
    known = operations()
    texts = {node.value for node in nodes(sources) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {known[text] for text in texts & known.keys()}


def nodes(sources: Sequence[Path] = SOURCES) -> Iterator[ast.AST]:
    for source in sources:
        yield from ast.walk(ast.parse(source.read_text(encoding="utf-8")))


def statements() -> Iterator[tuple[str, set[str], list[str], dict[str, Any]]]:
    for one in POLICY["Statement"]:
        actions, resources = one["Action"], one["Resource"]
        yield (
            one["Sid"],
            {actions} if isinstance(actions, str) else set(actions),
            [resources] if isinstance(resources, str) else resources,
            one.get("Condition", {}),
        )


def allowed() -> set[str]:
    return {action for _, actions, _, _ in statements() for action in actions}


VOLUMES = PROJECT / "providers" / "aws" / "volumes.py"
VOLUMES_POLICY = json.loads(share_path("config", "aws", "iam-policy-volumes.json").read_text(encoding="utf-8"))


def test_every_call_is_allowed_and_nothing_else() -> None:
    needed = (called([source for source in SOURCES if source != VOLUMES]) | DEPENDENT) - FREE
    assert (sorted(needed - allowed()), sorted(allowed() - needed)) == ([], [])


def test_the_policy_for_volumes_allows_what_these_need_on_the_clusters_own() -> None:
    more: set[str] = set()
    for one in VOLUMES_POLICY["Statement"]:
        more |= {one["Action"]} if isinstance(one["Action"], str) else set(one["Action"])
        conditions = {key.partition("/")[2]: value for key, value in one["Condition"]["StringEquals"].items()}
        assert "mysite" in conditions.values()
        volume = one["Resource"].endswith("volume/*")
        assert ("burstd-volume-cluster" in conditions) == volume, "no volume by the tag that leftovers bear"
    assert more == (called([VOLUMES]) - {"ec2:DescribeVolumes"}) | {"ec2:CreateTags"}


@pytest.mark.slow
def test_every_right_in_ec2_is_tried_by_the_check() -> None:
    tried = called([Path(rights.__file__)]) | {"ec2:CreateTags"}
    assert tried == {action for action in allowed() if action.startswith("ec2:")}


def test_every_call_names_a_service_of_the_table() -> None:
    calls = [
        node
        for node in nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("ask", "tell", "pages")
    ]
    named = {c.args[0].value for c in calls if len(c.args) > 1 and isinstance(c.args[0], ast.Constant)}
    assert "ec2" in named
    assert named <= set(SERVICES)


def test_what_is_changed_is_the_clusters_own() -> None:
    """Whatever is not mere looking needs the cluster's tag, on the thing or in the request."""
    unbound = {action for _, actions, _, condition in statements() if not condition for action in actions}
    changing = {a for a in unbound if not a.partition(":")[2].startswith(("Describe", "Get", "List"))}
    # Launches use images, subnets and the like, which bear no tag of ours; what they make is bound to it above.
    assert changing == {"ec2:CreateFleet", "ec2:RunInstances", "sqs:DeleteMessage", "sqs:ReceiveMessage"}
    for sid, actions, resources, condition in statements():
        if sid == "MakeFromAndIn":
            kinds = {r.rpartition("/")[0].rpartition(":")[2] for r in resources}
            assert kinds == {"capacity-reservation", "security-group", "subnet", "image", "snapshot"}
        elif actions & {"ec2:RunInstances", "ec2:TerminateInstances", "ec2:CreateTags", "ec2:CreateLaunchTemplate"}:
            tags = {k: v for k, v in condition["StringEquals"].items() if k.endswith("Tag/burstd-cluster")}
            assert list(tags.values()) == ["mysite"]
    bounds = {
        sid: condition for sid, actions, _, condition in statements() if actions & {"ec2:CreateTags", "iam:PassRole"}
    }
    assert set(bounds["TagWhatIsBeingMade"]["StringEquals"]["ec2:CreateAction"]) == {
        a.partition(":")[2] for a in allowed() if a.startswith(("ec2:Create", "ec2:Run"))
    } - {"CreateTags"}
    assert bounds["GiveMachinesTheirRole"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}


@pytest.mark.parametrize("action", sorted(allowed()))
def test_remedies_name_the_statement_that_allows_it(action: str) -> None:
    by_sid = {sid: actions for sid, actions, _, _ in statements()}
    assert action in by_sid[account.policy_statement(action)]


@pytest.mark.parametrize(
    ("resource", "sid"),
    [
        (resource, sid)
        for sid, actions, resources, _ in statements() if "ec2:RunInstances" in actions
        for resource in resources
    ],
)  # fmt: skip
def test_remedies_name_the_statement_of_the_thing_that_was_refused(resource: str, sid: str) -> None:
    thing = resource.replace("*:*", "eu-central-1:1").replace("*", "x-1")
    text = f"User: u is not authorized to perform: ec2:RunInstances on resource: {thing} because no policy allows it"
    assert f"statement {sid} of " in account.remedy_for_denied("ec2:RunInstances", text)


def test_it_is_short_enough_and_names_the_cluster_of_the_example() -> None:
    text = json.dumps(POLICY, separators=(",", ":"))
    assert len(text) <= MOST_CHARACTERS
    example = (PROJECT / "config" / "burstd.toml").read_text(encoding="utf-8")
    assert 'cluster = "mysite"' in example
    assert Path(account.POLICY) == Path("config/aws/iam-policy.json")
