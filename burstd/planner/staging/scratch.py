"""Scratch for which no machine that a job may get has room."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.node import Node
from burstd.domain.units import size_text


def scratch_fault(
    wanted: int, partitions: Collection[str], pools: Mapping[str, Pool], nodes: Mapping[str, Node]
) -> str:
    """Why no machine ever has so many bytes of scratch, as a clause; empty: one may have them.

    ``partitions``: where the job may run; none: that is not known, and all count. What ``nodes`` of the site have, and
    pools that do not say it, nobody knows.
    """

    def is_for_job(served: Collection[str]) -> bool:
        return not partitions or not set(served).isdisjoint(partitions)

    serving = [pool for pool in pools.values() if is_for_job(pool.partitions)]
    most = max(serving, key=lambda pool: pool.scratch, default=None)
    if most is None or wanted <= most.scratch or not all(pool.scratch for pool in serving):
        return ""
    slots = {slot for pool in pools.values() for slot in pool.slots}
    if any(node.name not in slots and is_for_job(node.partitions) for node in nodes.values()):
        return ""
    names = f"pool{'s' if len(serving) > 1 else ''} {', '.join(pool.name for pool in serving)}"
    where = f", in pool {most.name}" if len(serving) > 1 else ""
    return (
        f"scratch of {size_text(wanted)} is impossible: the most that a machine of {names} has is "
        f"{size_text(most.scratch)}{where}; ask for less"
    )
