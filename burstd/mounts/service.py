"""Mounts, put together: the socket for burstd-prolog, the streams and the controller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import structlog

from burstd.domain.claim import Claim
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.mounts import NOBODY_UID, MountRule, MountsView, SilentLine, contains, public_trees, user_trees
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.mounts.controller import MountController, Streams
from burstd.mounts.silent_lines import SilentLines
from burstd.mounts.unstarted import UnstartedJobs
from burstd.planner.mounts import line_text
from burstd.runtime.poller import Poller
from burstd.runtime.workers import Workers
from burstd.settings import Settings
from burstd.settings.mounts import MountSettings
from burstd.slurm.hooks.prolog_client import HOOK, NODES
from burstd.slurm.hooks.stage_server import StageCall, StageReply, StageServer, await_reply
from burstd.transfer.privsep.errors import UserWorkerError, account

log = structlog.get_logger(__name__)

_LINES_S = 5.0
_CHECK_S, _RECHECK_S = 600.0, 30.0
"""Slurm's settings are looked at so often; where they lack something or cannot be read, as are unknown homes."""


@dataclass(frozen=True, slots=True)
class MountContext:
    """What mounts work with."""

    streams: Streams
    workers: Workers
    clock: Clock
    pools: Callable[[], Mapping[str, Pool]]
    slurm_uid: Callable[[], int | None]
    """SlurmUser's, once slurmctld has told it."""
    unstarted: UnstartedJobs
    ssh_port: Callable[[], int]
    slurm_faults: Callable[[], Sequence[str]]
    """Asks Slurm what it lacks to show trees, a sentence each; in a worker. Raises SchedulerUnavailable."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Jobs that burstd held before it was restarted, as their trees could not be mounted, with the reason."""


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
        self._lines, self._lines_due = SilentLines(), float("-inf")
        self._homes: Mapping[str, str] = {}
        self._homes_asked: dict[str, float] = {}
        """By user, until when nobody is asked again."""
        self._silent: Mapping[str, SilentLine] = {}
        self._slots: Mapping[str, str] = {}
        """By claim id."""
        self._slurm_faults: Sequence[str] = ()
        self._slurm_check = Poller(
            context.workers, context.clock, "mounts:slurm", "Slurm's settings for mounts",
            interval_s=lambda: _CHECK_S, retry_s=lambda: _RECHECK_S,
        )  # fmt: skip
        self.reload(settings.mounts)
        self.controller = MountController(
            context.streams, context.workers, context.clock, rules=lambda: self._rules, pools=context.pools,
            held=context.held,
        )  # fmt: skip
        self._server = StageServer(settings.prolog_socket, self._caller_allowed, self._handle_call)
        self._server.start()
        stack.callback(self._server.close)

    def reload(self, settings: MountSettings) -> None:
        """Goes by other settings. Mounts that stand are left until their user's last job is over."""
        self.settings = settings
        self._rules = settings.rules()
        self._homes_asked.clear()
        self._slurm_faults = ()
        self._slurm_check.make_due()

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim], *, doubt: bool = False) -> float:
        """One loop's share; returns when the next is due, in burstd's time. ``doubt``: the record may lack machines."""
        if (slurm_uid := self._context.slurm_uid()) is not None:
            self._server.allow_connect(slurm_uid)
        self._publish_nodes()
        due = float("inf")
        self._find_silent_lines(claims)
        if isinstance(slurm, SlurmView):
            shown = {claim.slot: claim for claim in claims if self._shows_trees(claim.pool)}
            due = self._context.unstarted.step(slurm.jobs, shown)
            if any("{home}" in rule.path for rule in self._rules):
                self._find_homes(slurm)
            if self._rules:
                self._slurm_check.poll(self._context.slurm_faults, self._keep_slurm_faults)
                due = min(due, self._slurm_check.next_due())
        return min(due, self.controller.step(slurm, claims, doubt=doubt))

    def _find_silent_lines(self, claims: Sequence[Claim]) -> None:
        """Of nodes with mounts. At most every few seconds; the loop comes by more seldom where nothing happens."""
        now = self._context.clock.now()
        if now < self._lines_due:
            return
        self._lines_due = now + _LINES_S
        mounted = {claim_id for claim_id, _ in self._context.streams.streams()}
        ours = [claim for claim in claims if claim.id in mounted]
        self._slots = {claim.id: claim.slot for claim in ours}
        self._silent = (
            self._lines.step(ours, self._context.ssh_port(), self.settings.line_timeout_s, now) if ours else {}
        )

    def _find_homes(self, slurm: SlurmView) -> None:
        """Of users with pending jobs, in a worker: the account database may be slow."""
        now = self._context.clock.now()
        users = {job.user for job in slurm.jobs if job.state is JobState.PENDING}
        users = {user for user in users if now >= self._homes_asked.get(user, now)}
        if not users:
            return
        self._homes_asked |= dict.fromkeys(users, now + _RECHECK_S)

        def done(found: Mapping[str, str] | Exception) -> None:
            if isinstance(found, Exception):
                raise found
            self._homes = {**self._homes, **found}
            self._homes_asked |= dict.fromkeys(found, float("inf"))

        self._context.workers.submit("mounts:homes", lambda: _homes_of(users), done)

    def _keep_slurm_faults(self, found: Sequence[str]) -> None:
        self._slurm_faults = found if self._rules else ()
        if found:
            self._slurm_check.hasten(self._context.clock.now() + _RECHECK_S)

    def view(self) -> MountsView:
        """How the mounts stand, as of the last step."""
        return replace(
            self.controller.view(), unstarted=self._context.unstarted.jobs(), silent=self._silent,
            rules=self._rules, homes=self._homes,
        )  # fmt: skip

    def _shows_trees(self, pool: str) -> bool:
        return any(rule.is_shown_in(pool) for rule in self._rules)

    def shows_path(self, claim: Claim, path: str, user: str) -> bool:
        """Whether a path on the claim's node is the same file on the head, for a user. From any thread.

        By the trees that stand there for the user; where none do, by those that would.
        """
        try:
            who = account(user)
        except UserWorkerError:
            return False
        rules, path = self._rules, os.path.normpath(path)
        streams = self._context.streams.streams()
        own, public = streams.get((claim.id, who.uid)), streams.get((claim.id, NOBODY_UID))
        trees = own.trees if own is not None else user_trees(rules, claim.pool, user, who.home)
        trees += public.trees if public is not None else public_trees(rules, claim.pool)
        return any(contains(tree.path, path) for tree in trees)

    def alarms(self) -> list[str]:
        """What needs a person."""
        found = [*([self._spool_error] if self._spool_error else []), *self._slurm_faults]
        now = self._context.clock.now()
        found += [f"{self._slots[claim_id]}: {line_text(line, now)}" for claim_id, line in self._silent.items()]
        refusals = self.controller.view().refusals
        for first in list(refusals)[:1]:
            more = f" ({len(refusals)} jobs in all)" if len(refusals) > 1 else ""
            found.append(f"job {first} cannot start: {refusals[first]}{more}")
        return found

    def _publish_nodes(self) -> None:
        """Tells burstd-prolog which nodes have mounts: on others no job waits for burstd."""
        shown = [slot for pool in self._context.pools().values() if self._shows_trees(pool.name) for slot in pool.slots]
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


def _homes_of(users: Iterable[str]) -> dict[str, str]:
    found = {}
    for user in users:
        try:
            found[user] = account(user).home
        except UserWorkerError as error:
            log.info("a user's home is not known", user=user, error=str(error))
    return found
