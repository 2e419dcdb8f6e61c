"""burstd's sign of life for its machines, without which an idle one powers itself off (node/scripts/watch.sh).

It stands in the nodes' Extra, by one command for all. What somebody else has written there stays: such a node's machine
hears no sign, and never powers itself off.
"""

from __future__ import annotations

import structlog

from burstd.domain.claim import Cause
from burstd.domain.claim import ClaimState as S
from burstd.domain.errors import BurstdError
from burstd.domain.slurm.node import LIFE_SIGN
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.reconciler.context import LoopContext
from burstd.runtime.poller import RepeatedCall

log = structlog.get_logger(__name__)

LANE = "life signs"
_NODES = frozenset({S.READY, S.IN_SERVICE, S.DRAINING})


class LifeSigns:
    """Used in the deciding thread. Nothing is written while no machine needs a sign."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        self._call = RepeatedCall()
        self._error = ""
        self._foreign: set[str] = set()
        """Nodes whose Extra is somebody else's."""

    def step(self, snapshot: Snapshot) -> None:
        """Begins to write it where it is due."""
        slurm, every_s = snapshot.slurm, self._context.intervals.life_sign_s
        if not every_s or not isinstance(slurm, SlurmView) or self._call.is_busy(snapshot.now):
            return
        slots = sorted(claim.slot for claim in snapshot.claims if claim.state in _NODES)
        there = [node for slot in slots if (node := slurm.nodes.get(slot)) is not None]
        self._foreign |= {node.name for node in there if node.extra and not node.extra.startswith(LIFE_SIGN)}
        self._foreign -= {node.name for node in there if not node.extra or node.extra.startswith(LIFE_SIGN)}
        # Those that burstd leaves alone for an error of its own are in no view; Slurm may refuse them.
        apart = [c.slot for c in snapshot.quarantined_claims if c.state in _NODES and c.cause is not Cause.STORAGE]
        groups = [{node.name for node in there} - self._foreign, *({slot} - self._foreign for slot in apart)]
        if not any(groups):
            return
        sign = f"{LIFE_SIGN}{int(self._context.clock.wall())}}}"
        self._call.in_flight = True

        def done(result: Exception | None) -> None:
            if result is None:
                self._error = ""
                self._call.succeed(snapshot.now + every_s)
                return
            self._call.fail(self._context.clock.now(), self._context.intervals.call_retry_s)
            if isinstance(result, BurstdError):
                self._error = str(result)
            else:
                self._error = repr(result)
                log.error("the sign of life broke", exc_info=result)

        def write() -> None:
            for nodes in filter(None, groups):
                self._context.scheduler.set_extra(sorted(nodes), sign)

        self._context.workers.submit(LANE, write, done)

    def alarms(self) -> list[str]:
        """Idle machines power themselves off where this lasts."""
        return [f"machines hear nothing of burstd: {self._error}"] if self._error else []
