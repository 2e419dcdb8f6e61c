"""The division of GPUs among projects: the reference table, and random trees against a slow oracle."""

from __future__ import annotations

from fractions import Fraction
from math import floor, lcm
from random import Random

import pytest

from burstd.domain.project import FairShare, Project
from burstd.planner.projects.division import divide, usage_weights
from tests.examples import examples

F = Fraction


def project(name: str, quota: Fraction | int, **fields: object) -> Project:
    return Project(name, account=name, quota=F(quota), partitions=("gpu",), **fields)  # type: ignore[arg-type]


REFERENCE = {name: project(name, quota) for name, quota in {"a": 4, "b": 2, "c": 2, "d": 8}.items()}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((16, 16, 16, 0), (8, 4, 4, 0)),
        ((16, 16, 16, 4), (6, 3, 3, 4)),
        ((16, 16, 16, 8), (4, 2, 2, 8)),
        ((16, 0, 16, 0), (11, 0, 5, 0)),
        ((16, 1, 16, 0), (10, 1, 5, 0)),
        ((0, 0, 0, 3), (0, 0, 0, 3)),
        ((F(1, 2), 16, F(5, 2), 9), (F(1, 2), 4, F(5, 2), 9)),
    ],
)
def test_the_reference_table(asked: tuple[Fraction, ...], expected: tuple[Fraction, ...]) -> None:
    assert tuple(divide(REFERENCE, dict(zip("abcd", map(F, asked), strict=True)), F(16)).values()) == expected


def test_priority_weight_limit_and_tree() -> None:
    projects = {
        "lab": project("lab", 0),
        "lab-1": project("lab-1", 2, parent="lab", weight=F(3)),
        "lab-2": project("lab-2", 2, parent="lab", weight=F(1), limit=F(4)),
        "first": project("first", 0, priority=1, limit=F(3)),
        "spare": project("spare", 0),
    }
    asked = {name: F(20) for name in ("lab-1", "lab-2", "first", "spare")}
    # first goes before others with what quotas leave; spare has no weight, and gets what nobody else asks for.
    shares = divide(projects, asked, F(19))
    assert shares == {"lab": 16, "lab-1": 12, "lab-2": 4, "first": 3, "spare": 0}
    assert divide(projects, asked | {"lab-1": F(2)}, F(19)) == {
        "lab": 6, "lab-1": 2, "lab-2": 4, "first": 3, "spare": 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "total", "parts", "expected"),
    [
        # One GPU of four shards: what the two quotas of one shard leave is a shard for each.
        ((4, 4), 4, (4, 4), (2, 2)),
        # Jobs of half a GPU each: nobody gets a quarter more but for what is left over.
        ((8, 8), 6, (2, 2), (3, 3)),
        ((8, 8), 7, (2, 2), (4, 3)),
        # In whole GPUs, and one of them in shards.
        ((16, 16), 13, (1, 1), (8, 5)),
        ((16, 16), 13, (1, 4), (7, 6)),
    ],
)
def test_shards_are_divided_where_jobs_ask_for_shards(
    asked: tuple[int, int], total: int, parts: tuple[int, int], expected: tuple[int, int]
) -> None:
    """All in quarters of a GPU."""
    projects = {name: project(name, F(1, 4)) for name in "ab"}
    demands = {name: F(some, 4) for name, some in zip("ab", asked, strict=True)}
    shares = divide(projects, demands, F(total, 4), parts=dict(zip("ab", parts, strict=True)))
    assert tuple(4 * share for share in shares.values()) == tuple(map(F, expected))


def test_quotas_beyond_what_is_there_are_cut_in_proportion() -> None:
    assert divide(REFERENCE, dict.fromkeys("abcd", F(8)), F(8)) == {"a": 2, "b": 1, "c": 1, "d": 4}


def test_usage_moves_what_is_beyond_the_quota_and_never_the_quota() -> None:
    projects = {"a": project("a", 4), "b": project("b", 4)}
    how = FairShare(usage_half_life_s=1000.0, usage_factor=1.0)
    assert usage_weights(projects, {}, FairShare(), F(16)) is None
    weights = usage_weights(projects, {"a": 16 * 1000.0 / 0.6931}, how, F(16))
    assert weights == {"a": F(0), "b": F(1)}
    assert divide(projects, {"a": F(16), "b": F(16)}, F(16), weights) == {"a": 4, "b": 12}


Tree = tuple[dict[str, Project], dict[str, Fraction], Fraction]


def random_tree(seed: int, *, whole: bool = False) -> Tree:
    """Any tree: quotas that fit, or not; in whole GPUs, or in parts."""
    draw = Random(seed)  # noqa: S311  examples, not secrets

    def gpus() -> Fraction:
        return F(draw.randrange(13)) if whole else F(draw.randrange(40), draw.choice((1, 2, 3, 4, 7)))

    names = [f"p{n}" for n in range(draw.randint(1, 10))]
    projects = {}
    for n, name in enumerate(names):
        quota = draw.choice((F(0), gpus()))
        projects[name] = Project(
            name,
            quota=quota,
            weight=draw.choice((None, gpus())),
            limit=draw.choice((None, quota + gpus())),
            priority=draw.randrange(3),
            parent=draw.choice(("", *names[:n])),
        )
    return projects, {name: gpus() for name in names_of_leaves(projects)}, gpus() * draw.randint(1, 8)


def names_of_leaves(projects: dict[str, Project]) -> list[str]:
    parents = {p.parent for p in projects.values()}
    return [name for name in projects if name not in parents]


class Oracle:
    """The rule again, as slow as it reads: the rest is handed out in rounds while somebody gets all it asks for."""

    def __init__(
        self, projects: dict[str, Project], demands: dict[str, Fraction], parts: dict[str, int] | None = None
    ) -> None:
        self.projects, self.demands, self.parts = projects, demands, parts or {}

    def below(self, name: str) -> list[str]:
        return sorted(p.name for p in self.projects.values() if p.parent == name)

    def quota(self, name: str) -> Fraction:
        return self.projects[name].quota or sum(map(self.quota, self.below(name)), F(0))

    def demand(self, name: str) -> Fraction:
        below = self.below(name)
        asked = sum(map(self.demand, below), F(0)) if below else self.demands[name]
        limit = self.projects[name].limit
        return asked if limit is None else min(asked, limit)

    def entitled(self, name: str) -> Fraction:
        below = sum(map(self.entitled, self.below(name)), F(0))
        return min(self.demand(name), max(self.projects[name].quota, below))

    def shares(self, parent: str, there: Fraction) -> dict[str, Fraction]:
        some = self.below(parent)
        found = {name: self.entitled(name) for name in some}
        if sum(found.values(), F(0)) >= there:
            found = self.hand_out(dict(found), dict(found), there)
        else:
            left = there - sum(found.values(), F(0))
            for priority in (2, 1, 0):
                for weighted in (True, False):
                    weights = {}
                    for name in some:
                        own = self.projects[name].weight
                        weight = self.quota(name) if own is None else own
                        if self.projects[name].priority == priority and (weight > 0) == weighted:
                            weights[name] = weight if weighted else F(1)
                    asked = {name: self.demand(name) - found[name] for name in weights}
                    more = self.hand_out(asked, weights, left)
                    left -= sum(more.values(), F(0))
                    found |= {name: found[name] + more[name] for name in more}
        for name in some:
            found |= self.shares(name, found[name])
        return found

    def part(self, name: str) -> Fraction:
        """The largest part of a GPU that all jobs below it are multiples of."""
        return F(1, lcm(self.parts.get(name, 1), *(self.part(child).denominator for child in self.below(name))))

    def hand_out(
        self, asked: dict[str, Fraction], weights: dict[str, Fraction], there: Fraction
    ) -> dict[str, Fraction]:
        got = {name: F(0) for name in asked}
        open_to = {name for name in asked if asked[name]}
        while open_to:
            part = {name: there * weights[name] / sum(weights[n] for n in open_to) for name in open_to}
            content = {name for name in open_to if asked[name] <= part[name]}
            if not content:
                break
            for name in content:
                got[name] = asked[name]
                there -= asked[name]
            open_to -= content
        else:
            return got
        for name in open_to:
            got[name] = floor(part[name] / self.part(name)) * self.part(name)
        rest = there - sum((got[name] for name in open_to), F(0))
        for name in sorted(open_to, key=lambda name: (got[name] - part[name], name)):
            one = min(self.part(name), asked[name] - got[name], rest)
            got[name] += one
            rest -= one
        return got


@pytest.mark.slow
def test_random_trees_against_the_oracle() -> None:
    for seed in range(examples(4_000)):
        projects, demands, total = random_tree(seed)
        lot = Random(-seed)  # noqa: S311  examples, not secrets
        parts = {name: lot.choice((1, 1, 2, 4)) for name in names_of_leaves(projects)} if seed % 2 else {}
        shares = divide(projects, demands, total, parts=parts)
        oracle = Oracle(projects, demands, parts)
        assert shares == oracle.shares("", total), seed
        leaves = names_of_leaves(projects)
        assert sum((shares[name] for name in leaves), F(0)) <= total, seed
        for name, share in shares.items():
            assert 0 <= share <= oracle.demand(name), seed
        fits = sum((oracle.entitled(name) for name in oracle.below("")), F(0)) <= total
        if fits and all(projects[name].limit is None for name in projects if name not in leaves):
            assert all(shares[name] >= min(projects[name].quota, oracle.demand(name)) for name in leaves), seed
        asked = sum((oracle.demand(name) for name in oracle.below("")), F(0))
        given = sum((shares[name] for name in oracle.below("")), F(0))
        assert given == min(total, asked), f"seed {seed}: something is left unused"


@pytest.mark.slow
def test_more_weight_never_means_less() -> None:
    for seed in range(examples(4_000)):
        projects, demands, total = random_tree(seed, whole=True)
        draw = Random(seed)  # noqa: S311  examples, not secrets
        name, some, more = draw.choice(sorted(projects)), draw.randrange(20), draw.randint(1, 20)
        before, after = (divide(projects, demands, total, {name: F(weight)})[name] for weight in (some, some + more))
        assert after >= before, seed
