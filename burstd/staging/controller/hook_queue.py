"""Between the server's threads, in which Slurm's hooks wait, and the staging controller in the deciding thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from burstd.runtime.workers import Workers
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.controller.controller import StagingController

WAIT_S = 20.0
"""After so long a client has to ask again, so that neither side waits for a dead one."""
CROWDED_WAIT_S = 1.0
"""How long one waits at most while very many others do."""


class HookQueue:
    """``handle`` is called in a thread of the server's for each call."""

    def __init__(
        self, controller: StagingController, workers: Workers, check: Callable[[StageCall], StageReply]
    ) -> None:
        self._controller = controller
        self._workers = workers
        self._check = check

    def handle_call(self, call: StageCall) -> StageReply:
        """Answers one call of a hook; blocks as long as the hook has to wait, WAIT_S at most."""
        if call.hook == "check":
            return self._check(call)
        if call.hook == "paths":
            # slurmctld answers nobody else meanwhile.
            return StageReply("ok", env=self._controller.job_environment(call.job_id))
        pending_reply: Future[StageReply] = Future()

        def resolve(reply: StageReply) -> None:
            if not pending_reply.done():
                pending_reply.set_result(reply)

        self._workers.post(lambda: self._controller.handle_hook(call, resolve))
        try:
            return pending_reply.result(WAIT_S if call.may_wait else CROWDED_WAIT_S)
        except FutureTimeoutError:
            return StageReply("again")
