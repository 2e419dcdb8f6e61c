"""Between the server's threads, in which Slurm's hooks wait, and the staging controller in the deciding thread."""

from __future__ import annotations

from collections.abc import Callable

from burstd.runtime.workers import Workers
from burstd.slurm.hooks.stage_server import WAIT_S, StageCall, StageReply, await_reply
from burstd.staging.controller.controller import StagingController

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
        return await_reply(
            lambda resolve: self._workers.post(lambda: self._controller.handle_hook(call, resolve)),
            WAIT_S if call.may_wait else CROWDED_WAIT_S,
        )
