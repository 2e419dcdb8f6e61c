"""The life of instances: pending, running, shutting-down, terminated, forgotten; and spot interruptions.

States: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import StateReason

from tests.lab.aws.hooks import Machines, NoMachines
from tests.lab.aws.worlds import MockInstance, World

_log = logging.getLogger(__name__)
PENDING, RUNNING, SHUTTING_DOWN, TERMINATED = ("pending", 0), ("running", 16), ("shutting-down", 32), ("terminated", 48)


class Clock:
    """Does things later, one at a time, in a thread of its own."""

    def __init__(self) -> None:
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._wake = threading.Condition()
        threading.Thread(target=self._run, name="clock", daemon=True).start()

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Calls it in so many seconds or a little later."""
        with self._wake:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), work))
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._wake.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, work = heapq.heappop(self._due)
            try:
                work()
            except Exception:  # noqa: BLE001 - whatever a machine's code raises, the other instances live on
                _log.exception("the mock's clock goes on")


class Life:
    """Moves instances of all accounts through their states, and tells the machines behind them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.machines: Machines = NoMachines()
        """What stands behind the instances."""

    def begins(self, world: World, made: MockInstance) -> None:
        """It was launched just now. Called under the world's lock."""
        _state(made, PENDING)
        self._clock.after(world.boot_s, lambda: self._boots(world, made))

    def ends(self, world: World, made: MockInstance, reason: str, code: str) -> None:
        """Asked for; again is no error. Called under the world's lock."""
        if made.instance.state in ("shutting-down", "terminated"):
            return
        _state(made, SHUTTING_DOWN)
        made.ended_by = (reason, code)
        _says(made)
        self._clock.after(world.stop_s, lambda: self._ended(world, made))

    def halted(self, world: World, made: MockInstance) -> None:
        """The machine switched itself off."""
        with world.lock:
            if made.instance.instance_initiated_shutdown_behavior == "terminate":
                text = "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
                self.ends(world, made, text, "Client.InstanceInitiatedShutdown")

    def warns(
        self,
        world: World,
        made: MockInstance,
        kind: Literal["interruption", "rebalance"],
        notice_s: float,
        *,
        queue: bool,
    ) -> None:
        """EC2 takes a spot instance back in ``notice_s`` seconds; a rebalance recommendation takes nothing."""
        if notice_s > 0 or kind == "rebalance":
            deadline = time.time() + notice_s if kind == "interruption" else None
            self._clock.after(0, lambda: self.machines.notice(made.id, kind, deadline))
            if queue:
                world.announce(made.id, kind)
        if kind == "interruption":
            self._clock.after(notice_s, lambda: self._interrupted(world, made))

    def console(self, instance_id: str) -> str:
        """What the machine wrote so far."""
        return self.machines.console(instance_id)

    def _boots(self, world: World, made: MockInstance) -> None:
        with world.lock:
            if made.instance.state != "pending":
                return
            _state(made, RUNNING)
            i = made.instance
            tags = world.backend.tags.get(made.id, {})
            known = INSTANCE_TYPES.get(i.instance_type, {})
            gpus = sum(one.get("Count", 0) for one in known.get("GpuInfo", {}).get("Gpus", []))
            words = (
                made.id,
                i.private_ip or "",
                made.user_data,
                i.instance_type,
                made.zone,
                tags.get("Name", ""),
                gpus,
                world.backend.amis[i.image_id].name,
            )
        self.machines.running(*words)

    def _ended(self, world: World, made: MockInstance) -> None:
        self.machines.ended(made.id)
        with world.lock:
            _takes_away(world, made)
            self._clock.after(world.gone_s, lambda: world.forget(made))

    def _interrupted(self, world: World, made: MockInstance) -> None:
        with world.lock:
            text = "Server.SpotInstanceTermination: Spot instance termination"
            self.ends(world, made, text, "Server.SpotInstanceTermination")


def _state(made: MockInstance, state: tuple[str, int]) -> None:
    made.instance._state.name, made.instance._state.code = state


def _says(made: MockInstance) -> None:
    text, code = made.ended_by
    by = "Server initiated" if code.startswith("Server.") else "User initiated"
    made.instance._reason = f"{by} ({time.strftime('%Y-%m-%d %H:%M:%S GMT', time.gmtime())})"
    made.instance.state_reason = StateReason(text, code)


def _takes_away(world: World, made: MockInstance) -> None:
    """Its volumes and network interfaces go, but for what the fault switch leaves behind."""
    instance, backend = made.instance, world.backend
    if world.faults.leaks("volume"):
        for mapping in instance.block_device_mapping.values():
            mapping.delete_on_termination = False
    keep_enis = world.faults.leaks("network-interface")
    enis: list[Any] = list(instance.nics.values())
    address = instance.private_ip
    for eni in enis:
        eni.delete_on_termination = False
    instance.teardown_defaults()
    for eni in enis:
        eni.instance = eni.attachment_id = eni.attach_time = None
        eni.status = "available"
        if not keep_enis:
            backend.enis.pop(eni.id, None)
            # Not given back to moto's pool: an address of a machine that just ended is not the next one's.
    _state(made, TERMINATED)
    made.last_address = address
    _says(made)
    request = world.spots.get(made.spot_request)
    if request is not None and not world.faults.leaks("spot-instances-request"):
        request.state, request.code = "closed", "instance-terminated-by-user"
        if made.ended_by[1].startswith("Server."):
            request.code = "instance-terminated-no-capacity"
