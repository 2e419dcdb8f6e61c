"""What a job needs of nodes of a shape: how many, and what each gives or lacks. And feature expressions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.slurm.shape import Gres, Shape
from burstd.planner.demand.feature_expression import node_counts, parse_constraint
from burstd.planner.demand.gres import GresCounts, lacking_gres, subtract_gres
from burstd.planner.demand.job_requirements import NodeShare, PartitionDefaults, resource_requirements

from .worlds import V100, job

GPU = Shape(16, 64_000, V100)
SMALL = Shape(4, 8000)


@pytest.mark.parametrize(
    ("case", "asked", "shape", "expected"),
    [
        ("one CPU", {}, SMALL, (1, NodeShare(1, 0))),
        ("tasks spread over as many nodes as it takes", {"cpus": 10}, SMALL, (3, NodeShare(4, 0))),
        ("the fewest nodes asked for", {"cpus": 4, "nodes": 2}, SMALL, (2, NodeShare(2, 0))),
        ("CPUs of each node", {"cpus": 2, "nodes": 2, "cpus_per_node": 3}, SMALL, (2, NodeShare(3, 0))),
        ("memory of each node", {"memory_mib": 8000}, SMALL, (1, NodeShare(1, 8000))),
        ("memory of each CPU", {"cpus": 2, "memory_mib": 3000, "memory_per_cpu": True}, SMALL, (1, NodeShare(2, 6000))),
        (
            "memory of each CPU spreads the CPUs",
            {"cpus": 4, "memory_mib": 4000, "memory_per_cpu": True},
            SMALL,
            (2, NodeShare(2, 8000)),
        ),
        (
            "GPUs of each node",
            {"gres_per_node": (Gres("gpu", "", 2),)},
            GPU,
            (1, NodeShare(1, 0, (Gres("gpu", "", 2),))),
        ),
        (
            "GPUs of the job, spread",
            {"gres_per_job": (Gres("gpu", "v100", 6),)},
            GPU,
            (2, NodeShare(1, 0, (Gres("gpu", "v100", 3),))),
        ),
        ("counts of features make nodes", {"constraint": "[a*2&b*3]"}, SMALL, (5, NodeShare(1, 0))),
    ],
)
def test_nodes_of_a_shape(case: str, asked: dict[str, Any], shape: Shape, expected: tuple[int, NodeShare]) -> None:
    wanted = resource_requirements(job(**asked))
    nodes = wanted.nodes_needed(shape)
    assert isinstance(nodes, int), case
    assert (nodes, wanted.share_per_node(nodes)) == expected, case


@pytest.mark.parametrize(
    ("case", "asked", "shape", "lacking"),
    [
        ("CPUs of one node", {"cpus": 8, "cpus_per_node": 8}, SMALL, "8 CPUs (a node has 4)"),
        ("memory", {"memory_mib": 9000}, SMALL, "9000 MiB of memory (a node has 8000)"),
        (
            "memory of a CPU",
            {"memory_mib": 9000, "memory_per_cpu": True},
            SMALL,
            "9000 MiB per CPU (a node has 8000 MiB)",
        ),
        ("a GPU", {"gres_per_node": (Gres("gpu", "", 1),)}, SMALL, "gpu:1"),
        ("a GPU of the type", {"gres_per_node": (Gres("gpu", "a100", 1),)}, GPU, "gpu:a100:1"),
        ("enough GPUs", {"gres_per_node": (Gres("gpu", "v100", 5),)}, GPU, "gpu:v100:5 (a node has 4)"),
        ("GPUs at all", {"gres_per_job": (Gres("gpu", "", 5),)}, SMALL, "gpu:5"),
        ("room on the most nodes", {"cpus": 10, "nodes_max": 2}, SMALL, "5 CPUs (needed on each of 2 node(s))"),
    ],
)
def test_what_a_shape_lacks(case: str, asked: dict[str, Any], shape: Shape, lacking: str) -> None:
    assert resource_requirements(job(**asked)).nodes_needed(shape) == lacking, case


def test_the_partitions_default_memory() -> None:
    assert resource_requirements(job(cpus=2), PartitionDefaults(1000, memory_per_cpu=True)).share_per_node(
        1
    ) == NodeShare(2, 2000)
    assert resource_requirements(job(memory_mib=1), PartitionDefaults(1000)).share_per_node(1) == NodeShare(1, 1)


@given(st.integers(1, 500), st.integers(1, 20), st.integers(1, 64))
def test_the_nodes_give_all_cpus_that_are_asked_for(cpus: int, nodes: int, each: int) -> None:
    wanted = resource_requirements(job(cpus=cpus, nodes=nodes))
    count = wanted.nodes_needed(Shape(each, 1000))
    assert isinstance(count, int)
    assert count >= nodes
    assert count * wanted.share_per_node(count).cpus >= cpus
    assert wanted.share_per_node(count).cpus <= each


def test_gres_without_a_type_take_what_is_left_over() -> None:
    there = GresCounts((Gres("gpu", "v100", 2), Gres("gpu", "a100", 1)))
    both = (Gres("gpu", "", 2), Gres("gpu", "v100", 1))
    assert lacking_gres(there, both) == ""
    assert lacking_gres(there, (Gres("gpu", "", 3), Gres("gpu", "v100", 1))) == "gpu:3 (a node has 3)"
    left = subtract_gres(there, both)
    assert left == {("gpu", "v100"): 0, ("gpu", "a100"): 0}


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("", [set()], []),
        ("a", [{"a"}, {"a", "b"}], [{"b"}]),
        ("a&b", [{"a", "b"}], [{"a"}]),
        ("a|b", [{"a"}, {"b"}], [{"c"}]),
        ("a|b&c", [{"a", "c"}, {"b", "c"}], [{"a"}]),
        ("a|(b&c)", [{"a"}, {"b", "c"}], [{"b"}]),
        ("a & (b|c)", [{"a", "c"}], [{"a"}]),
        ("[a|b]", [{"a"}, {"b"}], [{"c"}]),
        ("c&[a|b]", [{"a", "c"}], [{"a"}, {"c"}]),
        ("a*1", [{"a"}], [{"b"}]),
        ("rack=1&x86-64.v3", [{"rack=1", "x86-64.v3"}], [{"rack=1"}]),
    ],
)
def test_one_node_meets_a_constraint(text: str, yes: list[set[str]], no: list[set[str]]) -> None:
    constraint = parse_constraint(text)
    assert not constraint.problem
    assert all(constraint.met_by_one_node(features) for features in yes)
    assert not any(constraint.met_by_one_node(features) for features in no)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a&", "unexpected end"),
        ("(a", "unexpected end"),
        ("[a|b", "unexpected end"),
        ("a)", "unexpected ')'"),
        ("!a", "unexpected '!'"),
        ("a,b", "unexpected ','"),
        ("a*b", "'b' is not a number of nodes"),
        ("a*0", "'0' is not a number of nodes"),
        ("(a*2)*3", "nested counts"),
        ("(a]", "expected ')', found ']'"),
        ("&".join(["[a|b]"] * 7), "too many alternatives"),
    ],
)
def test_what_is_not_understood_holds_for_no_node(text: str, problem: str) -> None:
    constraint = parse_constraint(text)
    assert constraint.problem == f"invalid constraint {text!r}: {problem}"
    assert not constraint.met_by_one_node({"a", "b"})
    assert not constraint.may_use({"a", "b"})


def test_counts_say_how_many_nodes_of_which_kind() -> None:
    [alternative] = parse_constraint("c&[a*2&(b|d)*1]").alternatives
    found = node_counts(alternative, 4)
    assert [count for count, _ in found] == [2, 1, 1]
    assert [e.holds({"c", "d"}) for _, e in found] == [False, True, True]
    assert parse_constraint("a*3").min_nodes == 3
    assert [len(a) for a in parse_constraint("[a|b*2]").alternatives] == [1, 1]


@given(st.text(alphabet="ab&|*()[]2 !", max_size=12))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    constraint = parse_constraint(text)
    assert constraint.min_nodes >= 1
    if constraint.problem:
        assert not constraint.met_by_one_node({"a", "b"})
