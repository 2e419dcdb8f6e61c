"""The division of GPUs among projects.

Each project gets the smaller of its quota and its demand. What is left goes to those that ask for more: the highest
priority first, in one priority in proportion to their weights, in whole GPUs (or in the parts of one that a project's
jobs ask for), rounded down and then one by one to the largest remainder. In a tree this is done among the roots, then
among the children of each with what it got. The rule is that of KAI-Scheduler (its docs/fairness).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from math import lcm, log
from types import MappingProxyType

from burstd.domain.project import FairShare, Project

_NONE = Fraction(0)


@dataclass(frozen=True, slots=True)
class _Claimant:
    """What a project takes part with in the division of what its parent has."""

    demand: Fraction
    """What it and those below it ask for, within their limits."""
    entitled: Fraction
    """Of it, what quotas cover."""
    weight: Fraction
    priority: int
    parts: int


def divide(
    projects: Mapping[str, Project],
    demands: Mapping[str, Fraction],
    total: Fraction,
    weights: Mapping[str, Fraction] | None = None,
    parts: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Fraction]:
    """What each project is to have, in GPUs; a parent has what those below it have together.

    ``demands``: what each leaf asks for; left out: nothing. ``total``: what there is. ``weights`` take the place of the
    projects' own (``usage_weights``). ``parts``: for each leaf, of a GPU, those that its jobs come in; left out: whole
    GPUs.

    No project gets more than its demand or its limit, all together not more than ``total``. Each gets the smaller of
    quota and demand at least, where the quotas that are asked for fit into ``total``; else these are cut in proportion.
    """
    children = _children(projects)
    downwards = _downwards(children)
    claimants: dict[str, _Claimant] = {}
    quotas = quotas_in_force(projects)
    for project in reversed(downwards):
        below = [claimants[child.name] for child in children.get(project.name, ())]
        demand = sum((c.demand for c in below), _NONE) if below else demands.get(project.name, _NONE)
        if project.limit is not None:
            demand = min(demand, project.limit)
        entitled = min(demand, max(project.quota, sum((c.entitled for c in below), _NONE)))
        weight = quotas[project.name] if project.weight is None else project.weight
        if weights is not None:
            weight = weights.get(project.name, weight)
        of_gpu = lcm(parts.get(project.name, 1), *(c.parts for c in below))
        claimants[project.name] = _Claimant(demand, entitled, weight, project.priority, of_gpu)
    shares = {"": total}
    for parent in ("", *(project.name for project in downwards)):
        siblings = [child.name for child in children.get(parent, ())]
        shares.update(zip(siblings, _among([claimants[name] for name in siblings], shares[parent]), strict=True))
    del shares[""]
    return shares


def quotas_in_force(projects: Mapping[str, Project]) -> dict[str, Fraction]:
    """The quota of each project; of a parent without one, what those below it have."""
    children = _children(projects)
    quotas: dict[str, Fraction] = {}
    for project in reversed(_downwards(children)):
        below = children.get(project.name, ())
        quotas[project.name] = project.quota or sum((quotas[child.name] for child in below), _NONE)
    return quotas


def usage_weights(
    projects: Mapping[str, Project], usage: Mapping[str, float], how: FairShare, total: Fraction
) -> dict[str, Fraction] | None:
    """Weights that favour those who used little: ``max(0, w + k(w - u))``. None: usage does not count.

    ``w`` is a project's part of its siblings' weights, ``u`` what it used of all that ``total`` GPUs could give, both
    between 0 and 1. The formula of KAI-Scheduler's time-based fair share. In hundredths, so that shares do not change
    in every loop.
    """
    if not how.usage_factor or not total:
        return None
    children, quotas = _children(projects), quotas_in_force(projects)
    used = dict(usage)
    for project in reversed(_downwards(children)):
        used[project.name] = sum((used[c.name] for c in children.get(project.name, ())), usage.get(project.name, 0.0))
    # What one GPU that is always used comes to.
    full = float(total) * how.usage_half_life_s / log(2)
    found: dict[str, Fraction] = {}
    for siblings in children.values():
        own = [float(quotas[p.name] if p.weight is None else p.weight) for p in siblings]
        for project, weight in zip(siblings, own, strict=True):
            part = weight / (sum(own) or 1.0)
            changed = max(0.0, part + how.usage_factor * (part - used[project.name] / full))
            found[project.name] = Fraction(round(changed * 100), 100)
    return found


def _children(projects: Mapping[str, Project]) -> dict[str, list[Project]]:
    """By parent, in the order of their names: the order of ties."""
    children: dict[str, list[Project]] = {}
    for name in sorted(projects):
        children.setdefault(projects[name].parent, []).append(projects[name])
    return children


def _downwards(children: Mapping[str, Sequence[Project]]) -> list[Project]:
    """Each project after its parent."""
    found = list(children.get("", ()))
    for project in found:
        found += children.get(project.name, ())
    return found


def _among(siblings: Sequence[_Claimant], there: Fraction) -> list[Fraction]:
    """What each of them gets of what there is."""
    entitled, parts = [sibling.entitled for sibling in siblings], [sibling.parts for sibling in siblings]
    left = there - sum(entitled, _NONE)
    if left <= 0:
        return _in_proportion(entitled, entitled, parts, there)
    shares = list(entitled)

    def priority(n: int) -> int:
        return -siblings[n].priority

    for _, equals in groupby(sorted(range(len(siblings)), key=priority), key=priority):
        numbers = list(equals)
        weighted = [n for n in numbers if siblings[n].weight]
        # Those without a weight share what is left over, in equal parts.
        for some, one in ((weighted, 0), ([n for n in numbers if not siblings[n].weight], 1)):
            asked = [siblings[n].demand - entitled[n] for n in some]
            weights = [siblings[n].weight + one for n in some]
            more = _in_proportion(asked, weights, [parts[n] for n in some], left)
            left -= sum(more, _NONE)
            for n, gpus in zip(some, more, strict=True):
                shares[n] += gpus
    return shares


def _in_proportion(
    asked: Sequence[Fraction], weights: Sequence[Fraction], parts: Sequence[int], there: Fraction
) -> list[Fraction]:
    """What there is in proportion to the weights, to none more than asked, in whole GPUs or parts of one by largest
    remainder.

    Who asks for less than its part gets it to the fraction, and the others share what that leaves.
    """
    # Whole numbers are a hundred times as fast as fractions.
    gpu = lcm(there.denominator, *(a.denominator for a in asked), *parts)
    scale = lcm(*(w.denominator for w in weights)) if weights else 1
    want, weight, left = [int(a * gpu) for a in asked], [int(w * scale) for w in weights], int(there * gpu)
    if sum(want) <= left:
        return list(asked)
    order = sorted((n for n in range(len(want)) if want[n]), key=lambda n: Fraction(want[n], weight[n]))
    gets, heavy = [0] * len(want), sum(weight[n] for n in order)
    for at, n in enumerate(order):
        if want[n] * heavy > left * weight[n]:
            order = order[at:]
            break
        gets[n] = want[n]
        left -= want[n]
        heavy -= weight[n]
    remainders: list[tuple[int, int]] = []
    rest = left
    for n in order:
        gets[n] = left * weight[n] // heavy // (gpu // parts[n]) * (gpu // parts[n])
        rest -= gets[n]
        remainders.append((gets[n] * heavy - left * weight[n], n))
    for _, n in sorted(remainders):
        one = min(gpu // parts[n], want[n] - gets[n], rest)
        gets[n] += one
        rest -= one
    return [Fraction(got, gpu) for got in gets]
