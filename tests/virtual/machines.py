"""Virtual machines: they boot, answer, run a slurmd, and die."""

from __future__ import annotations

from dataclasses import dataclass, field

from burstd.domain.errors import NodeNotReady, SchedulerUnavailable
from burstd.domain.launch_failure import LaunchFault
from burstd.domain.plugins.provider import Notice
from burstd.planner.lifecycle.spot_notices import missing_reason
from tests.virtual.clock import VirtualClock
from tests.virtual.slurm import SimSlurm

REGISTER_S = 0.3
"""From the start of slurmd to its registration."""
WATCH_S = 5.0
"""How often a machine looks whether its cloud takes it back."""


@dataclass(slots=True)
class Machine:
    """One machine. ``answers_from`` in burstd's time; infinite: it hangs while booting."""

    address: str
    booted: float
    answers_from: float
    validation_error: str = ""
    """What a proof finds wrong with it; empty: nothing."""
    registration_fault: str = ""
    """What the log of its slurmd says, which slurmctld does not take; empty: nothing."""
    launch_faults: dict[str, LaunchFault] = field(default_factory=dict)
    """By Slurm's number of a job, what the log of its slurmd says of a launch that failed."""
    slow_fabric: bool = False
    """It does not reach others of its job as fast as it should."""
    node: str = ""
    """The name under which its slurmd runs; empty: none does."""
    watches: bool = False
    """It looks by itself whether its cloud takes it back."""
    notice: Notice | None = None
    fault: str = ""
    """The reason for which it drains its node by itself; empty: it is well."""


class Machines:
    """All machines that run, by address."""

    def __init__(self, clock: VirtualClock, slurm: SimSlurm) -> None:
        self._clock = clock
        self._slurm = slurm
        self._running: dict[str, Machine] = {}

    def boot(self, address: str, answers_in_s: float, *, validation_error: str = "") -> Machine:
        """Switches a machine on."""
        now = self._clock.now()
        machine = self._running[address] = Machine(address, now, now + answers_in_s, validation_error)
        return machine

    def end(self, address: str) -> None:
        """The machine is no more, and its slurmd with it. May be repeated."""
        machine = self._running.pop(address, None)
        if machine is not None and machine.node:
            self._slurm.silence(machine.node, address)

    def running_at(self, address: str) -> Machine | None:
        """The machine that runs at this address, whether it answers or not."""
        return self._running.get(address)

    def answering(self, address: str) -> Machine:
        """The machine, where it answers. Raises NodeNotReady."""
        machine = self._running.get(address)
        if machine is None or self._clock.now() < machine.answers_from:
            raise NodeNotReady(f"nothing answers at {address or 'an address that is not known yet'}")
        return machine

    def announce(self, address: str, notice: Notice) -> None:
        """The cloud takes the machine back: one that watches sees it and drains its node."""
        machine = self._running.get(address)
        if machine is not None:
            machine.notice = notice
            self._clock.at(self._clock.now() + WATCH_S, lambda: self._watch(machine))

    def fall_ill(self, address: str, fault: str) -> None:
        """The kernel of the machine tells of a GPU: its watch drains the node, as soon as slurmctld answers."""
        machine = self._running[address]
        machine.fault = fault
        self._clock.at(self._clock.now() + WATCH_S, lambda: self._tell(machine))

    def _tell(self, machine: Machine) -> None:
        if self._running.get(machine.address) is not machine:
            return
        try:
            node = next(n for n in self._slurm.nodes() if n.name == machine.node)
            # As watch.sh: a node that is powered down has no machine.
            if not node.drained and not node.powered_down:
                self._slurm.drain([machine.node], machine.fault)
        except SchedulerUnavailable:
            pass
        self._clock.at(self._clock.now() + WATCH_S, lambda: self._tell(machine))

    def _watch(self, machine: Machine) -> None:
        if self._running.get(machine.address) is not machine or machine.notice is None:
            return
        if not machine.watches or not machine.node:
            return  # Seen when its watch begins.
        try:
            reason = missing_reason(next(n for n in self._slurm.nodes() if n.name == machine.node), machine.notice)
            if reason:
                self._slurm.drain([machine.node], reason)
        except SchedulerUnavailable:
            self._clock.at(self._clock.now() + WATCH_S, lambda: self._watch(machine))

    def start_slurmd(self, machine: Machine, node: str, *, watch: bool = False) -> None:
        """Starts slurmd, in place of one that runs; it registers a moment later if the machine lives."""
        if machine.node not in ("", node):
            self._slurm.silence(machine.node, machine.address)
        machine.node = node
        machine.watches = watch
        self._clock.at(self._clock.now() + WATCH_S, lambda: self._watch(machine))
        self._clock.at(self._clock.now() + REGISTER_S, lambda: self._register(machine))

    def _register(self, machine: Machine) -> None:
        if self._running.get(machine.address) is machine and not machine.registration_fault:
            self._slurm.register(machine.node, machine.address, machine.booted)
