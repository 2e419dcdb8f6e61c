"""Power saving as slurmctld 22.05 does it (node_mgr.c, power_save.c), with idle_on_node_suspend and CLOUD nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.virtual.clock import VirtualClock
from tests.virtual.node import SimNode

_Program = Callable[[Sequence[str]], None]


def _nothing(_nodes: Sequence[str]) -> None:
    """A program that does nothing."""


@dataclass(slots=True)
class Programs:
    """ResumeProgram, SuspendProgram and ResumeFailProgram: called with node names."""

    resume: _Program = _nothing
    suspend: _Program = _nothing
    resume_fail: _Program = _nothing


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """What matters here of slurm.conf, in seconds."""

    version: tuple[int, int, int] = (22, 5, 8)
    resume_timeout_s: float = 600.0
    suspend_timeout_s: float = 30.0
    power_interval_s: float = 1.0
    sched_delay_s: float = 0.5
    """From a change to the scheduling pass that it causes."""
    complete_s: float = 0.5
    """How long a job is COMPLETING."""
    ping_s: float = 33.0
    slurmd_timeout_s: float = 300.0
    requeue_delay_s: float = 121.0
    """How long a job that was requeued because of its node is kept from starting again."""
    return_to_service: int = 2
    gate: str = "burstd"


@dataclass(slots=True)
class PowerSaving:
    """The flags POWER_UP, POWERING_UP, POWER_DOWN, POWERING_DOWN and POWERED_DOWN, and who is called when."""

    clock: VirtualClock
    conf: SlurmConf
    nodes: Mapping[str, SimNode]
    programs: Programs
    alive: Callable[[], bool]
    """Whether slurmctld runs."""
    kill_jobs: Callable[[str], None]
    """Ends or requeues what runs on a node."""
    changed: Callable[[], None]
    """The scheduler should look again."""
    _scan_due: bool = False
    _wanted: set[str] = field(default_factory=set)
    """Nodes whose flags call for the next scan."""

    def power_up(self, names: Iterable[str]) -> None:
        """``scontrol update state=power_up``; silently nothing for nodes that are up or powering down, as in Slurm."""
        for name in names:
            node = self.nodes[name]
            if "POWERED_DOWN" not in node.flags and "POWERING_UP" in node.flags:
                node.flags.add("POWERED_DOWN")
            if "POWERED_DOWN" in node.flags:
                node.flags.add("POWER_UP")
                self._want(node)

    def wake_for_job(self, name: str) -> None:
        """The scheduler has placed a job on a powered-down node."""
        node = self.nodes[name]
        if "POWERED_DOWN" in node.flags:
            node.flags.add("POWER_UP")
            self._want(node)

    def power_down(self, names: Iterable[str], *, force: bool) -> None:
        """``scontrol update state=power_down`` or ``power_down_force``."""
        for name in names:
            node = self.nodes[name]
            if "POWERING_DOWN" in node.flags:
                continue
            if force:
                self.kill_jobs(name)
            if force or node.down:
                node.flags.discard("POWERING_UP")
            node.flags.discard("POWERED_DOWN")
            node.flags.add("POWER_DOWN")
            self._want(node)

    def resume(self, names: Iterable[str]) -> None:
        """``scontrol update state=resume``."""
        for name in names:
            node = self.nodes[name]
            node.flags -= {"DRAIN", "FAIL"}
            if "POWERING_DOWN" in node.flags:
                self._powered_down(node)
            node.down = False
            node.reason = ""
            node.changed()
        self.changed()

    def registered(self, node: SimNode, boot_time: float) -> None:
        """slurmd has said that it is there."""
        was_powering_up = "POWERING_UP" in node.flags
        known, node.last_response = node.last_response, self.clock.now()
        node.flags -= {"NOT_RESPONDING", "POWERING_UP", "POWERED_DOWN", "POWERING_DOWN"}
        _stop_alarm(node)
        if node.down and self.conf.return_to_service == 2:
            node.down, node.reason = False, ""
        elif not was_powering_up and known and boot_time > known and self.conf.return_to_service != 2:
            node.down, node.reason = True, node.reason or "Node unexpectedly rebooted"
            self.kill_jobs(node.name)
        node.boot_time, node.slurmd = boot_time, True
        node.last_busy = self.clock.wall()
        self._want(node)
        self.changed()

    def silenced(self, node: SimNode) -> None:
        """slurmd answers no more: seen at the next ping, the node is DOWN after SlurmdTimeout."""
        node.slurmd = False
        if "POWERED_DOWN" in node.flags or "POWERING_UP" in node.flags or "POWERING_DOWN" in node.flags:
            return
        _stop_alarm(node)
        node.alarm = self.clock.at_wall(self.clock.wall() + self.conf.ping_s, lambda: self._missed_ping(node))

    def _missed_ping(self, node: SimNode) -> None:
        if node.slurmd or node.flags & {"POWERED_DOWN", "POWERING_DOWN"}:
            return
        node.flags.add("NOT_RESPONDING")
        node.changed()
        rest = self.conf.slurmd_timeout_s - self.conf.ping_s
        node.alarm = self.clock.at_wall(self.clock.wall() + rest, lambda: self._dead(node))

    def _dead(self, node: SimNode) -> None:
        if node.slurmd or node.flags & {"POWERED_DOWN", "POWERING_DOWN"}:
            return
        if not self.alive():
            # A slurmctld that comes back pings anew.
            node.alarm = self.clock.at_wall(self.clock.wall() + self.conf.ping_s, lambda: self._dead(node))
            return
        node.reason = node.reason or "Not responding"
        self.set_down(node, node.reason)

    def set_down(self, node: SimNode, reason: str) -> None:
        """The node is DOWN; what ran there is requeued or ends as NODE_FAIL."""
        node.down, node.reason = True, reason
        node.changed()
        self.kill_jobs(node.name)
        if "POWER_DOWN" in node.flags:
            self._want(node)
        self.changed()

    def forget(self, node: SimNode) -> None:
        """A slurmctld without its state takes a cloud node for powered down, whatever runs behind it."""
        _stop_alarm(node)
        node.down, node.reason, node.address, node.slurmd = False, "", node.name, False
        node.flags = {"POWERED_DOWN"}
        node.boot_time = node.last_response = node.last_busy = 0.0
        node.changed()

    def idle(self, node: SimNode) -> None:
        """The last job has left the node: a power_down that waited for that goes on."""
        if "POWER_DOWN" in node.flags:
            self._want(node)

    def _want(self, node: SimNode) -> None:
        node.changed()
        self._wanted.add(node.name)
        if not self._scan_due:
            self._scan_due = True
            self.clock.at(self.clock.now() + self.conf.power_interval_s, self._scan)

    def restarted(self) -> None:
        """slurmctld is back: it goes through all nodes."""
        for node in self.nodes.values():
            if node.flags & {"POWER_UP", "POWER_DOWN"}:
                self._want(node)

    def _scan(self) -> None:
        """The loop that slurmctld runs over all nodes; here over those whose flags have changed."""
        self._scan_due = False
        if not self.alive():
            return
        names, self._wanted = sorted(self._wanted), set()
        woken, slept = [], []
        for name in names:
            node = self.nodes[name]
            if {"POWERED_DOWN", "POWER_UP"} <= node.flags:
                node.flags -= {"POWERED_DOWN", "POWER_UP"}
                node.flags |= {"POWERING_UP", "NOT_RESPONDING"}
                self._time(node, self.conf.resume_timeout_s, self._resume_timeout)
                woken.append(name)
            elif (
                "POWER_DOWN" in node.flags
                and not node.shares
                and not node.flags & {"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN"}
            ):
                node.flags -= {"POWER_DOWN", "NOT_RESPONDING", "DRAIN", "FAIL"}
                node.flags.add("POWERING_DOWN")
                node.down = False
                self._time(node, self.conf.suspend_timeout_s, self._suspend_timeout)
                slept.append(name)
            node.changed()
        if slept:
            self.programs.suspend(slept)
        if woken:
            self.programs.resume(woken)

    def _time(self, node: SimNode, seconds: float, action: Callable[[SimNode], None]) -> None:
        _stop_alarm(node)
        node.asked = self.clock.wall()
        node.alarm = self.clock.at_wall(node.asked + seconds, lambda: self._when_alive(node, action))

    def _when_alive(self, node: SimNode, action: Callable[[SimNode], None]) -> None:
        if self.alive():
            action(node)
        else:
            again = self.clock.wall() + self.conf.power_interval_s
            node.alarm = self.clock.at_wall(again, lambda: self._when_alive(node, action))

    def _suspend_timeout(self, node: SimNode) -> None:
        if "POWERING_DOWN" in node.flags:
            self._powered_down(node)
            self.changed()

    def _powered_down(self, node: SimNode) -> None:
        _stop_alarm(node)
        node.flags.discard("POWERING_DOWN")
        node.flags.add("POWERED_DOWN")
        node.address = node.name
        node.last_busy = 0.0
        node.changed()
        if "POWER_UP" in node.flags:  # Left behind by a registration that came before the scan.
            self._want(node)

    def _resume_timeout(self, node: SimNode) -> None:
        if not {"POWERING_UP", "NOT_RESPONDING"} <= node.flags:
            return
        node.flags -= {"DRAIN", "POWER_DOWN", "POWERING_UP"}
        node.flags.add("POWERED_DOWN")
        self.set_down(node, "ResumeTimeout reached")
        self.programs.resume_fail([node.name])


def _stop_alarm(node: SimNode) -> None:
    if node.alarm is not None:
        node.alarm.cancel()
        node.alarm = None
