"""Virtual machines: they boot, answer, run a slurmd, and die."""

from __future__ import annotations

from dataclasses import dataclass

from burstd.model.errors import NodeNotReady
from burstd.sim.clock import VirtualClock
from burstd.sim.slurm import SimSlurm

REGISTER_S = 0.3
"""From the start of slurmd to its registration."""


@dataclass(slots=True)
class Machine:
    """One machine. ``answers_from`` in burstd's time; infinite: it hangs while booting."""

    address: str
    booted: float
    answers_from: float
    refused: str = ""
    """What a proof finds wrong with it; empty: nothing."""
    node: str = ""
    """The name under which its slurmd runs; empty: none does."""


class Machines:
    """All machines that run, by address."""

    def __init__(self, clock: VirtualClock, slurm: SimSlurm) -> None:
        self._clock = clock
        self._slurm = slurm
        self._running: dict[str, Machine] = {}

    def boot(self, address: str, answers_in_s: float, *, refused: str = "") -> Machine:
        """Switches a machine on."""
        now = self._clock.now()
        machine = self._running[address] = Machine(address, now, now + answers_in_s, refused)
        return machine

    def end(self, address: str) -> None:
        """The machine is no more, and its slurmd with it. May be repeated."""
        machine = self._running.pop(address, None)
        if machine is not None and machine.node:
            self._slurm.silence(machine.node, address)

    def at(self, address: str) -> Machine | None:
        """The machine that runs at this address, whether it answers or not."""
        return self._running.get(address)

    def reach(self, address: str) -> Machine:
        """The machine, where it answers. Raises NodeNotReady."""
        machine = self._running.get(address)
        if machine is None or self._clock.now() < machine.answers_from:
            raise NodeNotReady(f"nothing answers at {address or 'an address that is not known yet'}")
        return machine

    def start_slurmd(self, machine: Machine, node: str) -> None:
        """Starts slurmd, in place of one that runs; it registers a moment later if the machine lives."""
        machine.node = node
        self._clock.at(self._clock.now() + REGISTER_S, lambda: self._register(machine))

    def _register(self, machine: Machine) -> None:
        if self._running.get(machine.address) is machine:
            self._slurm.register(machine.node, machine.address, machine.booted)
