"""The interface of what makes a machine into a Slurm node. burstd/node/ does it over ssh; tests/virtual/ plays it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from burstd.domain.claim import Claim
from burstd.domain.cloud.offer import FabricTest, Pool
from burstd.domain.launch_failure import LaunchFault
from burstd.domain.missing_home import MissingHome


class NodeValidator(Protocol):
    """Validates and starts nodes. Calls block, come from several threads, and may be repeated after a crash."""

    def validate(self, claim: Claim, pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]) -> str:
        """Reaches the claim's machine, compares it with what the pool promises, hands over the cluster's secrets.

        ``console`` reads the instance's console log, where the provider has one; ``reached`` is called once the
        machine answers. Returns one sentence on what was checked. Raises NodeNotReady (try again later) or
        NodeRefused (never use this machine).
        """
        ...

    def start_slurmd(self, claim: Claim, pool: Pool, watch: str = "") -> None:
        """Starts slurmd under the slot's name; slurmctld expects it by now. Raises as ``validate`` does.

        ``watch``: a script of the provider's (NodeWatch) by which the machine is to learn of its end, and drain itself.
        """
        ...

    def registration_fault(self, claim: Claim) -> str:
        """Why slurmctld does not have a slurmd that was started, by its log; empty: unknown. Raises as above."""
        ...

    def launch_fault(self, claim: Claim, number: str, *, held: bool) -> LaunchFault | None:
        """Why a job (Slurm's number) did not start on the claim's machine, by slurmd's log; None: not a word of it.

        ``held``: Slurm holds it, as no process of it was started. Raises as above.
        """
        ...

    def missing_homes(self) -> Sequence[MissingHome]:
        """Homes that the latest validated machines of pools did not have, as far as they were asked for."""
        ...

    def test_fabric(self, first: Claim, second: Claim, test: FabricTest) -> str:
        """Measures the network between the machines of two claims; one sentence on what it came to.

        Raises NodeRefused where it is too slow, or cannot be measured, and NodeNotReady.
        """
        ...

    def probe(self, claim: Claim) -> None:
        """Returns once the claim's own machine answers, whatever it says. Raises NodeNotReady where it does not."""
        ...

    def retain_only(self, claim_ids: Collection[str]) -> None:
        """Forgets what was learned of the machines of all claims but these, which live."""
        ...

    def alarms(self) -> Sequence[str]:
        """What needs a person: machines that cannot be entered any more."""
        ...
