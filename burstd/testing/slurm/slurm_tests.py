"""What tests on a real Slurm have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from burstd.testing.slurm.cluster import ClusterUnderTest, find_node, wait_until


class SlurmTests:
    """Tests that share a cluster. The fixture ``cluster`` is the subclass's module's."""

    @pytest.fixture(autouse=True)
    def fresh(self, cluster: ClusterUnderTest) -> Iterator[None]:
        """Every test begins with all slots behind the gate and an empty queue."""
        cluster.scheduler.set_gate(cluster.slots)
        yield
        cluster.shell("scancel -u ada; scancel -u bob")
        wait_until(lambda: not cluster.scheduler.jobs(), "an empty queue")
        for reservation in cluster.scheduler.reservations():
            if reservation.job_id:
                cluster.scheduler.unbind(reservation.job_id)

    def registered_slots(self, cluster: ClusterUnderTest, count: int) -> Sequence[str]:
        """The first slots, with machines that are registered behind the gate."""
        slots = cluster.slots[:count]
        missing = [s for s in slots if s not in cluster.machines()]
        if missing:
            wait_until(lambda: all(find_node(cluster, s).powered_down for s in missing), f"{missing} powered down")
            cluster.scheduler.set_address(cluster.boot(missing))
            for slot in missing:
                cluster.start_slurmd(slot)
        wait_until(
            lambda: all(n.up and not n.busy for n in cluster.scheduler.nodes() if n.name in slots), f"{slots} up"
        )
        return slots
