"""Replays a trace with each number of GPUs (or CPUs) added to the site, without a cloud and with one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from burstd.simulate.buy_or_rent.alternatives import AddedReplay, added_replay
from burstd.simulate.buy_or_rent.prices import BuyOrRentError, Commitment, chosen_group, prices_of
from burstd.simulate.buy_or_rent.report import BuyOrRentReport, build_report
from burstd.simulate.policy_chains import NEVER, PolicyChain
from burstd.simulate.replay import replay_chains
from burstd.simulate.study import PreparedStudy


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be compared."""

    added: Sequence[int]
    """GPUs (or CPUs) beyond those of the site."""
    group: str = ""
    """Of ``[site.cost]``; empty: the only one."""
    commitments: tuple[Commitment, ...] = ()


def replay_buy_or_rent(
    prepared: PreparedStudy, question: Question, on_replay: Callable[[AddedReplay], None] = lambda _: None
) -> BuyOrRentReport:
    """Two replays for each number, and for none: bursting is by the study's first chain.

    Raises BuyOrRentError, ReplayError.
    """
    world, chain, unit = prepared.scenario, prepared.chains[0], prepared.workload.unit
    odd = [str(units) for units in question.added if units % world.node_size]
    if odd:
        raise BuyOrRentError(
            f"--compare: {', '.join(odd)} {prepared.unit_word} are no whole number of nodes with {world.node_size}"
            f" each; give multiples of it, or --{unit}s-per-node"
        )
    if chain.policies is None:
        raise BuyOrRentError(f"--policy {chain.name} has no cloud to compare with: give a chain that has, or immediate")
    group = chosen_group(world.tuning.site_costs, question.group, unit)
    if group is None and not question.commitments:
        raise BuyOrRentError(
            "--compare needs what more GPUs cost: [site.cost.NAME] in burstd.toml (--config), or --committed '1y=1.20'"
        )
    prices = prices_of(group, question.commitments, world.market.currency, world.tuning.rates, world.node_size)
    jobs = tuple(job for job in prepared.workload.jobs if world.can_run(job, unit))
    workload = replace(prepared.workload, jobs=jobs)
    replays: list[AddedReplay] = []
    for units in sorted({0, *question.added}):
        larger = replace(world, nodes=world.nodes + units // world.node_size)
        for one in (PolicyChain(NEVER, None), chain):
            (result,) = replay_chains(workload, larger, (one,))
            replays.append(added_replay(units, result, world.nodes, workload.window, burst=one is chain))
            on_replay(replays[-1])
    return build_report(prepared, chain.name, group, prices, replays)
