"""The desk: hears Slurm's hooks, brings the data of each job on by what is due, and answers. In the deciding thread.

All that matters is in the store; what is kept here is found out again after a crash: transfers that were under way
begin anew and skip what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from burstd.db import Store
from burstd.domain.claim import Claim
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.domain.staging import DataView, Directives, Staging
from burstd.domain.staging import StageState as S
from burstd.planner.staging.transfer_schedule import TransferLimits, Waiting, turns
from burstd.runtime.workers import Workers
from burstd.slurm.commands.job_facts import JobFacts
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.controller.decision import (
    BEFORE,
    DEALLOCATED,
    STARTING,
    Fate,
    ended_as,
    ending,
    fate,
    lost_teardown,
    outcome,
    owed,
    reply,
    starts_over,
)
from burstd.staging.controller.isolation import Isolation
from burstd.staging.controller.job_runs import AFTER, Answer, Life, Run, Runs
from burstd.staging.controller.recovery import write_down
from burstd.staging.controller.snapshot_view import unheard, views
from burstd.staging.controller.tasks import Transfers
from burstd.staging.directives.parser import parse
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.moves import RETRY_S, Moves, machines_of
from burstd.staging.movement.progress import Reading
from burstd.staging.submission.job_chains import Chain
from burstd.staging.submission.quota import Quotas, too_much, unlimited
from burstd.transfer.privsep.client import Account, account

log = structlog.get_logger(__name__)

_SLOWEST_QUESTION_S = 30.0


@dataclass(frozen=True, slots=True)
class StageRules:
    """What the settings say. Times in seconds."""

    folders: JobFolders
    store: str
    limits: TransferLimits
    retries: int = 8


class StageDesk:
    """``hear`` takes a hook's call, ``step`` brings everything on by what is due, ``views`` says how things stand."""

    def __init__(
        self,
        *,
        store: Store,
        workers: Workers,
        clock: Clock,
        transfers: Transfers,
        pools: Callable[[], Mapping[str, Pool]],
        rules: StageRules,
        accounts: Callable[[str], Account] = account,
        quotas: Quotas = unlimited,
    ) -> None:
        """``accounts`` tells of a user, or raises HandError."""
        self.rules = rules
        self._store = store
        self._workers = workers
        self._clock = clock
        self._transfers = transfers
        self._pools = pools
        self._runs = Runs()
        self._isolation = Isolation(store, clock)
        self._moves = Moves(store, workers, clock, transfers, lambda: self.rules.retries, self._isolation)
        self._chain = Chain(accounts)
        self._quotas = quotas
        self._seen: tuple[Staging, ...] | None = None
        """The records as the last step left them; None: something has changed since."""
        self._partitions: frozenset[str] = frozenset()

    # What Slurm asks.

    def hear(self, call: StageCall, answer: Answer) -> None:
        """One call of a hook; the answer may come much later. Only remembers: the next step acts."""
        with self._isolation.job(call.job_id):
            self._hear(call, answer)
            return
        why = self._isolation.rests(call.job_id)
        answer(StageReply("refused", why) if call.hook in STARTING else StageReply("busy", why))

    def _hear(self, call: StageCall, answer: Answer) -> None:
        run = self._runs.of(call.job_id)
        life = run.life
        if call.uid is not None:
            run.owner = (call.uid, call.gid)
        life.ended_as = ended_as(call.info.get("job_state", "")) or life.ended_as
        match call.hook:
            case "teardown":
                life.over, life.hurry, life.rest_until = True, life.hurry or call.hurry, 0.0
                # Slurm kills these at the same moment, and pre_run where the job is cancelled.
                run.drop("setup", *BEFORE)
                run.ask()
                answer(StageReply("ok"))
            case "setup" | "data_in" | "test_data_in" | "pre_run" | "data_out" | "test_data_out":
                if call.text:
                    run.directives = self._read(call)
                if call.hook in BEFORE:
                    # That of a life before this one: its client is dead.
                    run.drop(*AFTER)
                # A client that asks again waits for what is under way; but a pre_run may be that of a Slurm which has
                # forgotten the one before, and the nodes that it gave.
                if not run.wait_for(call.hook, answer, self._clock.now()) or call.hook == "pre_run":
                    run.begun = run.begun or call.hook == "setup"
                    run.ask()
            case _:
                answer(StageReply("ok"))

    def _read(self, call: StageCall) -> Directives:
        # Where a line has a %, Slurm gives the hooks a script of another name, with %j and the like filled in.
        directives, faults = parse(call.text, replaced=not call.script.endswith("/script"), submitted=True)
        if faults:
            log.error("directives that were let in cannot be read", job=call.job_id, faults=[str(f) for f in faults])
        return directives

    def _learn(self, run: Run) -> None:
        """Asks Slurm about a job, elsewhere: it may hold its locks while a hook waits."""
        if run.fresh or run.asking or self._clock.now() < run.ask_after:
            return
        question, user = run.wanted, run.uid
        run.asking = True

        def back(result: JobFacts | Exception | None) -> None:
            with self._isolation.job(run.job_id):
                run.asking = False
                if isinstance(result, Exception):
                    run.ask_pause = min(2 * run.ask_pause or RETRY_S, _SLOWEST_QUESTION_S)
                    run.ask_after = self._clock.now() + run.ask_pause
                    log.warning("slurm was not heard about a job", job=run.job_id, error=str(result))
                elif result is not None and (text := run.contradicted(result)):
                    run.ask_after = self._clock.now() + _SLOWEST_QUESTION_S
                    log.error("nothing is staged for a job", job=run.job_id, reason=text)
                    run.refuse(text, *STARTING)
                else:
                    run.told(result, question)

        self._workers.submit("stage:slurm", lambda: self._transfers.facts(run.job_id), back, user=user)

    # What is due.

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Brings on what is due and answers hooks. Returns when the next pause ends, in burstd's time.

        Raises StoreError; what could not be written is tried again by the next step.
        """
        now = self._clock.now()
        self._seen = None
        live = self._store.stagings()
        rows: dict[str, Staging | None] = {row.job_id: row for row in live}
        each = self._isolation.job
        self._runs.keep(rows, now, each)
        self._isolation.keep(rows.keys() | {run.job_id for run in self._runs.all()})
        broken = self._isolation.broken
        if isinstance(slurm, SlurmView):
            self._runs.listed(slurm, {row.job_id: row for row in live}, now, each)
        self._look_at_pools()
        self._chain.see(live, self._ending, now, each)
        machines = machines_of(claims)
        waiting: list[Waiting] = []
        moving: list[Waiting] = []
        for job_id in dict.fromkeys([*rows, *(run.job_id for run in self._runs.all() if run.hooks)]):
            if self._isolation.rests(job_id):
                continue
            with each(job_id):
                run = self._runs.of(job_id)
                self._learn(run)
                if run.deallocated:
                    run.answer(lambda hook: DEALLOCATED if hook == "pre_run" else None)
                row = rows[job_id] = self._bring_on(rows.get(job_id), run, machines)
                if row is None:
                    continue
                mine = Waiting(id=job_id, user=row.user, size_bytes=run.life.size or 0, since=row.created)
                if row.state is S.SENDING:
                    moving.append(mine)
                elif self._waits_for_its_turn(row, run):
                    waiting.append(mine)
        for job_id in turns(waiting, moving, self.rules.limits):
            with each(job_id):
                if (row := rows[job_id]) is not None:
                    rows[job_id] = self._send(row, self._runs.of(job_id), [r for r in rows.values() if r is not None])
        for run in self._runs.all():
            if run.hooks:
                with each(run.job_id):
                    self._answer(rows.get(run.job_id), run)
        if self._isolation.broken == broken:
            self._seen = tuple(row for row in rows.values() if row is not None)
        return self._due(now)

    def _due(self, now: float) -> float:
        due = float("inf")
        for run in self._runs.all():
            if not self._isolation.rests(run.job_id):
                with self._isolation.job(run.job_id):
                    due = min(due, run.due(now))
        return min(due, self._isolation.due(now))

    def _send(self, row: Staging, run: Run, rows: Sequence[Staging]) -> Staging:
        others = ((other, self._runs.of(other.job_id).life) for other in rows)
        why, sure = too_much(row, run.life, others, self._quotas(row, run.life.sources), self._clock.now())
        if not why:
            return self._moves.send(row, run)
        if sure:
            return self._isolation.hold(row, why)
        run.life.rest_until = self._clock.now() + RETRY_S
        return row

    def rows(self) -> tuple[Staging, ...]:
        """The data of all jobs as recorded, oldest first; read once for each step. Raises StoreError."""
        if self._seen is None:
            self._seen = self._store.stagings()
        return self._seen

    def short_of_room(self) -> tuple[Staging, ...]:
        """Data for which the store had no room, as it was while it moved. Each failure is told once."""
        short = tuple(self._moves.short.values())
        self._moves.short.clear()
        return short

    def _look_at_pools(self) -> None:
        pools = self._pools().values()
        self._moves.slots = frozenset(slot for pool in pools for slot in pool.slots)
        self._partitions = frozenset(partition for pool in pools for partition in pool.partitions)

    def _bring_on(self, row: Staging | None, run: Run, machines: Mapping[str, Claim]) -> Staging | None:
        """As far as the data of one job can go now."""
        for _ in S:
            after = self._advance(row, run, machines) if row is not None else self._admit(run)
            if after is row:
                break
            row = after
        return row

    def _admit(self, run: Run) -> Staging | None:
        """Puts a job on record whose hooks ask for its input, or for output that is not on record."""
        facts, due = run.facts, ending(run)
        starts = not run.ended and any(hook in run.hooks for hook in STARTING)
        if not run.fresh or run.unknown or facts is None or not (starts or due):
            return None
        directives = run.directives
        before = self._store.find_staging(run.job_id)
        been = before is not None and run.facts_of(before) is not None
        if due and been and before is not None and not run.ran_elsewhere(before):
            return None  # Its output is home, and nothing of it is left.
        if directives is None and before is not None and been:
            # Slurm does not tell the script at every hook.
            directives = before.directives
        if directives is None and not due:
            return None
        now = self._clock.now()
        row = self._store.make_staging(
            Staging(
                job_id=run.job_id, user=facts.user, uid=facts.uid, gid=facts.gid, directives=directives or Directives(),
                state=S.WAITING, since=now, created=now, store=self.rules.store, account=facts.account,
                work_dir=facts.work_dir, reason=f"Slurm asked for its {'output' if due else 'input'}",
            )
        )  # fmt: skip
        run.life, run.begun = run.life if due else Life(), False
        return row

    def _advance(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> Staging | None:
        """One move, if any is due; the same record: none is."""
        if run.back:
            row = self._moves.settle(row, run)
            if row.state is S.CLEARED:
                run.life = Life()
                run.directives = run.directives if run.hooks else None
                return None
        if not run.fresh:
            return row
        # A setup is the first hook of a life; one that finds input which nobody was told of has begun this one.
        begun, run.begun = run.begun and row.state not in (S.WAITING, S.SENDING), False
        run.life.again = run.life.again or begun or starts_over(row, run)
        match fate(row, run):
            case Fate.GIVE_UP:
                return self._give_up(row, run, "Slurm was told to hurry: its output is given up")
            case Fate.COLLECT if not self._busy(run, machines):
                return self._collect(row, run)
            case Fate.CLEAR if not self._busy(run, machines) and self._clock.now() >= run.life.rest_until:
                if lost := lost_teardown(run):
                    log.warning("slurm has lost a teardown", job=run.job_id, reason=lost)
                    row = self._store.tell_staging(run.job_id, lost)
                self._moves.clear(row, run, machines)
            case Fate.RAN if run.facts is not None and not self._busy(run, machines):
                return write_down(self._store, row, run.facts)
            case Fate.OTHER if not self._busy(run, machines):
                # Slurm has started it again since, so what that run left was home. The run now goes on record anew.
                reason = "Slurm asks for the output of a later run than the one on record"
                self._store.move_staging(row.job_id, row.state, S.CLEARED, reason)
                run.life.times.clear()
                return None
            case Fate.ON if not run.tasks and self._clock.now() >= run.life.rest_until:
                return self._go_on(row, run, machines)
            case _:
                pass
        return row

    def _busy(self, run: Run, machines: Mapping[str, Claim]) -> bool:
        """Whether work is under way that is not wanted any more; it is told to end.

        A node that goes while it is cleared away has nothing left on it: nobody waits for its answer.
        """
        if "clear" not in run.tasks or not run.clearing <= {claim.id for claim in machines.values()}:
            run.stop()
        return bool(run.tasks)

    def _go_on(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> Staging:
        """The next step of data that is wanted, with nothing under way."""
        match row.state:
            case S.WAITING if before := self._chain.awaited(row):
                run.life.rest_until = self._clock.now() + RETRY_S
                reason = f"its input is what job {before} leaves, which is on its way home"
                return row if row.error == reason else self._store.touch_staging(row.job_id, reason, error=reason)
            case S.WAITING if self._on_premises(run):
                return self._store.move_staging(row.job_id, S.WAITING, S.STAGED, "it runs where its data is")
            case S.WAITING if not row.directives.stage_in:
                return self._store.move_staging(row.job_id, S.WAITING, S.STAGED, "it has no input")
            case S.WAITING if run.life.size is None:
                self._moves.look(row, run)
            case S.SENDING:
                return self._store.move_staging(
                    row.job_id, S.SENDING, S.WAITING, "it was broken off", estimated_ready=row.estimated_ready
                )
            case S.STAGED if "pre_run" in run.hooks:
                return self._allocated(row, run)
            case S.PLACING:
                return self._moves.place(row, run, machines)
            case S.COLLECTING:
                return self._moves.fetch(row, run, machines)
            case S.BRINGING:
                self._moves.bring(row, run)
            case S.HELD if row.resume == S.COLLECTING and not self._moves.left(row, run, machines):
                return self._store.move_staging(
                    row.job_id, S.HELD, S.COLLECTING, "there is no node any more from which output is missing"
                )
            case _:
                pass
        return row

    def _ending(self, job_id: str) -> bool:
        """Whether Slurm has asked for a job's output."""
        return ending(self._runs.of(job_id))

    def _allocated(self, row: Staging, run: Run) -> Staging:
        """The job has nodes."""
        nodes = run.facts.nodes if run.facts else ()
        if not nodes:
            run.ask(self._clock.now() + RETRY_S)
            return row
        unsent = any(wanted.name not in row.trees for wanted in row.directives.stage_in)
        if unsent and self._moves.cloud(nodes, self._clock.now()):
            return self._store.move_staging(
                row.job_id, S.STAGED, S.WAITING, "it was to run on premises and was given cloud nodes"
            )
        return self._store.move_staging(row.job_id, S.STAGED, S.PLACING, "Slurm gave it nodes", nodes=nodes)

    def _collect(self, row: Staging, run: Run) -> Staging:
        state, facts = outcome(row, run), run.facts_of(row)
        return self._store.move_staging(
            row.job_id, row.state, S.COLLECTING, f"the job has ended ({state or 'unheard'})",
            job_state=state, exit_code=facts.exit_code if facts and not run.unknown else "",
        )  # fmt: skip

    def _give_up(self, row: Staging, run: Run, reason: str, cause: str = "slurm") -> Staging:
        """The nodes are not kept for it from now on."""
        run.stop()
        run.life.rest_until = 0.0
        self._seen = None
        with self._store.batch():
            if row.state is S.PLACED:
                row = self._store.move_staging(
                    row.job_id, S.PLACED, S.COLLECTING, reason, cause=cause, job_state=outcome(row, run)
                )
            elif row.state is S.HELD:
                row = self._store.move_staging(row.job_id, S.HELD, S(row.resume), reason, cause=cause)
            return self._store.move_staging(row.job_id, row.state, S.HOME, reason, cause=cause, error="")

    def _waits_for_its_turn(self, row: Staging, run: Run) -> bool:
        idle = not run.tasks and self._clock.now() >= run.life.rest_until
        return row.state is S.WAITING and run.life.size is not None and run.fresh and idle and not run.back

    def _on_premises(self, run: Run) -> bool:
        if (facts := run.facts) is None:
            return False
        return self._partitions.isdisjoint(facts.partitions) and not self._moves.cloud(facts.nodes, self._clock.now())

    # What is told.

    def _answer(self, row: Staging | None, run: Run) -> None:
        env = self.rules.folders.environment(run.job_id)
        if rests := self._isolation.rests(run.job_id):
            run.answer(lambda hook: StageReply("refused", rests) if hook in STARTING else None)
            return
        said = run.answer(lambda hook: reply(row, run, hook, env))
        if any(hook in ("data_in", "test_data_in") and told.result == "ok" for hook, told in said.items()):
            self._tell_slurm(run, "nudged", lambda: self._transfers.nudge(run.job_id))

    def _tell_slurm(self, run: Run, what: str, tell: Callable[[], None]) -> None:
        def done(result: object) -> None:
            if isinstance(result, Exception):
                log.warning(f"a job could not be {what}", job=run.job_id, error=str(result))

        self._workers.submit("stage:slurm", tell, done, user=run.uid)

    def views(self) -> dict[str, DataView]:
        """How the data of each job stands, by the job's id in the queue."""
        found = views(
            self.rows(), self._runs.of, self._moves.rates, self._clock.now(),
            lambda row, run: self._moves.came(row, run.life, S.COLLECTING), self._isolation.job,
        )  # fmt: skip
        return found | unheard(found, self._runs.leaving(self._clock.now()))

    def readings(self) -> dict[str, tuple[Reading, ...]]:
        """The transfers under way, by job; from any thread."""
        return self._runs.readings()

    # What a person asks.

    def retry(self, job_id: str, by: str) -> str:
        """Lets a held one go on. A sentence on what came of it; empty: it is not held."""
        row = self._store.find_staging(job_id)
        if row is None or row.state is not S.HELD:
            return ""
        run = self._runs.of(job_id)
        run.life.rest_until = 0.0
        self._isolation.forget(job_id)
        self._seen = None
        if owed(row):
            self._store.move_staging(job_id, S.HELD, S(row.resume), f"{by} asked to try again", cause=by)
        # A job whose input was refused is held by Slurm, where only an administrator can release it: its hooks come
        # again then.
        self._tell_slurm(run, "released", lambda: self._transfers.release(job_id))
        return f"the data of job {job_id} goes on from {row.resume}"

    def discard(self, job_id: str, by: str) -> str:
        """Gives up what a job has left. A sentence on what came of it; empty: it has no data."""
        row = self._store.find_staging(job_id)
        if row is None or row.state is S.CLEARED:
            return ""
        run = self._runs.of(job_id)
        if row.state in (S.COLLECTING, S.BRINGING) or owed(row):
            self._give_up(row, run, f"{by} gave its output up", cause=by)
            return f"what is left of job {job_id}'s data is removed"
        if row.state is S.HOME:
            return f"the data of job {job_id} is home; nothing had to be given up"
        return f"job {job_id} has not ended, so there is nothing to give up: cancel it first"
