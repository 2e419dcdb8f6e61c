"""Mounts, put together: the socket for burstd-prolog, the streams and the controller."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import structlog

from burstd.domain.claim import Claim
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.mounts import MountRule, MountsView, contains, public_trees, user_trees
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.mounts.controller import MountController, Streams
from burstd.runtime.workers import Workers
from burstd.settings import Settings
from burstd.settings.mounts import MountSettings
from burstd.slurm.hooks.prolog_client import HOOK, NODES
from burstd.slurm.hooks.stage_server import StageCall, StageReply, StageServer, await_reply
from burstd.transfer.privsep.errors import UserWorkerError, account

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MountContext:
    """What mounts work with."""

    streams: Streams
    workers: Workers
    clock: Clock
    pools: Callable[[], Mapping[str, Pool]]
    slurm_uid: Callable[[], int | None]
    """SlurmUser's, once slurmctld has told it."""


class MountService:
    """Implements the reconciler's MountSubsystem."""

    def __init__(self, settings: Settings, context: MountContext, stack: ExitStack) -> None:
        """Listens until ``stack`` is closed. Raises StageSocketFailed."""
        self._context = context
        self._spool = settings.daemon.spool_dir
        self.settings = settings.mounts
        """In force; replaced whole, from the deciding thread."""
        self._rules: tuple[MountRule, ...] = ()
        self._published: str | None = None
        self._spool_error = ""
        self.reload(settings.mounts)
        self.controller = MountController(
            context.streams, context.workers, context.clock, rules=lambda: self._rules, pools=context.pools
        )
        self._server = StageServer(settings.prolog_socket, self._caller_allowed, self._handle_call)
        self._server.start()
        stack.callback(self._server.close)

    def reload(self, settings: MountSettings) -> None:
        """Goes by other settings. Mounts that stand are left until their user's last job is over."""
        self.settings = settings
        self._rules = settings.rules()

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim], *, doubt: bool = False) -> float:
        """One loop's share; returns when the next is due, in burstd's time. ``doubt``: the record may lack machines."""
        if (slurm_uid := self._context.slurm_uid()) is not None:
            self._server.allow_connect(slurm_uid)
        self._publish_nodes()
        return self.controller.step(slurm, claims, doubt=doubt)

    def view(self) -> MountsView:
        """How the mounts stand, as of the last step."""
        return self.controller.view()

    def shows_path(self, claim: Claim, path: str, user: str) -> bool:
        """Whether a path on the claim's node is the same file on the head, for a user. From any thread."""
        try:
            home = account(user).home
        except UserWorkerError:
            return False
        rules, path = self._rules, os.path.normpath(path)
        trees = (*user_trees(rules, claim.pool, user, home), *public_trees(rules, claim.pool))
        return any(contains(tree.path, path) for tree in trees)

    def alarms(self) -> list[str]:
        """What needs a person."""
        found = [self._spool_error] if self._spool_error else []
        refusals = self.controller.view().refusals
        for first in list(refusals)[:1]:
            more = f" ({len(refusals)} jobs in all)" if len(refusals) > 1 else ""
            found.append(f"job {first} cannot start: {refusals[first]}{more}")
        return found

    def _publish_nodes(self) -> None:
        """Tells burstd-prolog which nodes have mounts: on others no job waits for burstd."""
        shown = [
            slot
            for pool in self._context.pools().values()
            if any(rule.is_shown_in(pool.name) for rule in self._rules)
            for slot in pool.slots
        ]
        text = "".join(f"{slot}\n" for slot in shown)
        if text == self._published:
            return
        file = self._spool / NODES
        unfinished = file.with_suffix(".new")
        try:
            if text:
                unfinished.write_text(text, encoding="utf-8")
                unfinished.chmod(0o644)
                unfinished.replace(file)
            else:
                file.unlink(missing_ok=True)
        except OSError as error:
            self._spool_error = f"burstd-prolog does not learn which nodes have mounts: {file}: {error.strerror}"
            return
        self._published, self._spool_error = text, ""

    def _handle_call(self, call: StageCall) -> StageReply:
        if call.hook != HOOK:
            return StageReply("refused", f"burstd answers no {call.hook} here")
        return await_reply(
            lambda resolve: self._context.workers.post(lambda: self.controller.handle_prolog(call, resolve))
        )

    def _caller_allowed(self, uid: int) -> bool | None:
        slurm_uid = self._context.slurm_uid()
        if uid in (0, os.geteuid(), slurm_uid):
            return True
        return None if slurm_uid is None else False
