"""The prover of the virtual world: what burstd/node/ does over ssh is done to a virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Collection

from burstd.domain.claim import Claim
from burstd.domain.cloud.offer import FabricTest, Pool
from burstd.domain.errors import NodeRefused
from burstd.domain.launch_failure import LaunchFault
from burstd.domain.missing_home import MissingHome
from tests.virtual.machines import Machines


class SimValidator:
    """See burstd.domain.plugins.validator.NodeValidator."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def validate(self, claim: Claim, pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]) -> str:
        """See Prover."""
        del console
        machine = self._machines.answering(claim.address)
        reached()
        if machine.validation_error:
            raise NodeRefused(f"{claim.slot} on {claim.address}: {machine.validation_error}")
        return f"{pool.shape.cpus} CPUs, {pool.shape.memory_mib} MiB, {pool.shape.gpus()} GPUs as promised"

    def start_slurmd(self, claim: Claim, pool: Pool, watch: str = "") -> None:
        """See Prover."""
        del pool
        self._machines.start_slurmd(self._machines.answering(claim.address), claim.slot, watch=bool(watch))

    def registration_fault(self, claim: Claim) -> str:
        """See NodeValidator."""
        return self._machines.answering(claim.address).registration_fault

    def launch_fault(self, claim: Claim, number: str, *, held: bool) -> LaunchFault | None:
        """See NodeValidator."""
        del held
        return self._machines.answering(claim.address).launch_faults.get(number)

    def missing_homes(self) -> tuple[MissingHome, ...]:
        """See NodeValidator. Nobody has one."""
        return ()

    def test_fabric(self, first: Claim, second: Claim, test: FabricTest) -> str:
        """See NodeValidator."""
        ends = [self._machines.answering(claim.address) for claim in (first, second)]
        if any(machine.slow_fabric for machine in ends):
            raise NodeRefused(f"{first.slot} and {second.slot}: 0 GB/s, {test.min_gb_s} wanted", cause="fabric_test")
        return f"{test.min_gb_s} GB/s between {first.slot} and {second.slot}"

    def probe(self, claim: Claim) -> None:
        """See Prover."""
        self._machines.answering(claim.address)

    def retain_only(self, claim_ids: Collection[str]) -> None:
        """See Prover. Nothing was learned."""

    def alarms(self) -> tuple[str, ...]:
        """See Prover. Every machine can be entered."""
        return ()
