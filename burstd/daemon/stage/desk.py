"""The desk: where each job's data stands, what is due next, and what Slurm's hooks are told. In the deciding thread.

All that matters is in the store; what is kept here is found out again after a crash: transfers that were under way
begin anew and skip what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TypeVar

import structlog

from burstd.core.directives import parse
from burstd.core.staging import Rates, TransferLimits, Waiting, ready_at, seen, turns
from burstd.daemon.stage.progress import Meter, Reading
from burstd.daemon.stage.runs import Answer, Run, Runs
from burstd.daemon.stage.work import Cancelled, Collected, Ended, Sent, StageFailed, Task, Transfers
from burstd.daemon.workers import Workers
from burstd.model.claim import Claim
from burstd.model.claim import ClaimState as C
from burstd.model.clock import Clock
from burstd.model.data import DataView, Staging
from burstd.model.data import StageState as S
from burstd.model.errors import BurstdError
from burstd.model.offer import Pool
from burstd.model.snapshot import SlurmView, Unavailable
from burstd.slurm.job_facts import JobFacts
from burstd.slurm.stage_server import StageCall, StageReply
from burstd.store import Store

T = TypeVar("T")
log = structlog.get_logger(__name__)

GONE_AFTER_S = 20.0
"""A job that Slurm's listings have not shown for so long, twice at least, has ended unheard."""
RETRY_S = 2.0
SLOWEST_RETRY_S = 300.0
_OK = StageReply("ok")
_UNTIL_CLEARED = (S.WAITING, S.SENDING, S.STAGED, S.PLACING, S.HOME)
_OUTPUT = (S.PLACED, S.COLLECTING, S.BRINGING)
_ON_MACHINE = frozenset({C.OPEN, C.CLOSING, C.READY})


@dataclass(frozen=True, slots=True)
class StageRules:
    """What the settings say. Times in seconds."""

    job_dir: str
    store: str
    limits: TransferLimits
    retries: int = 8


def environment(job_dir: str, job_id: str) -> dict[str, str]:
    """What a job finds in its environment, the same everywhere."""
    home = f"{job_dir}/{job_id}"
    return {"BURST_IN": f"{home}/in", "BURST_OUT": f"{home}/out", "BURST_SCRATCH": f"{home}/scratch"}


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
    ) -> None:
        self.rules = rules
        self._store = store
        self._workers = workers
        self._clock = clock
        self._transfers = transfers
        self._pools = pools
        self._runs = Runs()
        self.rates = Rates()

    # What Slurm asks.

    def hear(self, call: StageCall, answer: Answer) -> None:
        """One call of a hook; the answer may come much later."""
        run = self._runs.of(call.job_id)
        match call.hook:
            case "teardown":
                # Said at once: whatever is still to be brought home is ours now, and Slurm may forget the job.
                run.torn, run.hurry = True, run.hurry or call.hurry
                row = self._store.find_staging(call.job_id)
                if row is None or row.state not in _OUTPUT or run.hurry:
                    run.stop()
                answer(_OK)
            case "data_in" | "pre_run" | "data_out":
                run.script, run.script_path = call.text or run.script, call.script or run.script_path
                # A client that asks again after a while has its answer from what is under way.
                if not run.wait_for(call.hook, answer):
                    self._learn(run, lambda facts: self._told(run, call.hook, facts))
            case _:
                answer(_OK)

    def _told(self, run: Run, hook: str, facts: JobFacts | None) -> None:
        """What Slurm knows of a job whose hook waits."""
        run.ask_after = self._clock.now() + RETRY_S
        if facts is None:
            if self._store.find_staging(run.job_id) is None:
                run.answer(lambda _hook: _OK)
            return
        run.facts = facts
        row = self._store.find_staging(run.job_id)
        if row is None or row.state is S.CLEARED:
            if hook == "data_out":
                run.answer(lambda _hook: _OK)
                return
            row = self._make(run, facts)
        if hook == "data_in":
            run.torn = run.hurry = False
            if row.state is S.PLACED:
                # It ran, and was requeued: what it left is brought home before it starts over.
                self._collect(row, facts, "REQUEUED")
            elif row.state is S.PLACING:
                self._store.move_staging(row.job_id, S.PLACING, S.WAITING, "the job was requeued before it ran")
        elif hook == "pre_run" and row.state is S.PLACED and row.nodes != facts.nodes:
            self._store.move_staging(row.job_id, S.PLACED, S.WAITING, "the job has other nodes now")
        elif hook == "data_out" and row.state in (S.PLACED, S.PLACING):
            # Requeued: it is pending again, and its nodes are known to us alone.
            self._collect(row, facts, "REQUEUED" if facts.state == "PENDING" else facts.state)

    def _make(self, run: Run, facts: JobFacts) -> Staging:
        # Where a line has a %, Slurm gives the hooks a script of another name, with %j and the like filled in.
        directives, faults = parse(run.script, replaced=not run.script_path.endswith("/script"))
        now = self._clock.now()
        if faults:
            log.error("directives that were let in cannot be read", job=run.job_id, faults=[str(f) for f in faults])
        return self._store.make_staging(
            Staging(
                job_id=run.job_id, user=facts.user, uid=facts.uid, gid=facts.gid, directives=directives,
                state=S.WAITING, since=now, created=now, store=self.rules.store, account=facts.account,
                work_dir=facts.work_dir, reason="Slurm asked for its input",
            )
        )  # fmt: skip

    def _collect(self, row: Staging, facts: JobFacts | None, state: str) -> None:
        self._store.move_staging(
            row.job_id, row.state, S.COLLECTING, f"the job has ended ({state or 'unheard'})",
            job_state=state, exit_code=facts.exit_code if facts else "",
        )  # fmt: skip

    # What is due.

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Begins what is due and answers hooks. Returns when the next pause ends, in burstd's time."""
        now = self._clock.now()
        rows = self._store.stagings()
        self._runs.keep(row.job_id for row in rows)
        if isinstance(slurm, SlurmView):
            self._runs.listed(slurm)
        machines = {c.slot: c for c in claims if c.state in _ON_MACHINE}
        waiting: list[Waiting] = []
        moving: list[Waiting] = []
        for row in rows:
            run = self._runs.of(row.job_id)
            if run.unheard and not run.asking and now >= run.ask_after:
                self._learn(run, run.unheard.pop())
            elif run.facts is None and not run.asking and now >= run.ask_after:
                self._learn(run, lambda facts, r=run: setattr(r, "facts", facts or r.facts))  # type: ignore[misc]
            if row.state is S.SENDING and run.task is not None:
                moving.append(_waiting(row, run))
            elif run.task is None and now >= run.rest_until:
                self._advance(row, run, machines, waiting)
        for job_id in turns(waiting, moving, self.rules.limits):
            self._send(self._store.staging(job_id), self._runs.of(job_id))
        for row in self._store.stagings():
            self._settle(row, self._runs.of(row.job_id))
        return self._runs.next_due(now)

    def _advance(self, row: Staging, run: Run, machines: Mapping[str, Claim], waiting: list[Waiting]) -> None:
        gone = run.torn or self._runs.vanished(row, self._clock.now(), GONE_AFTER_S)
        if gone and (row.state in _UNTIL_CLEARED or (row.state is S.HELD and not _owed(row)) or run.hurry):
            self._clear(row, run, machines)
            return
        match row.state:
            case S.WAITING:
                if self._on_premises_only(run):
                    self._store.move_staging(row.job_id, S.WAITING, S.STAGED, "it runs on premises, where its data is")
                elif not row.directives.stage_in:
                    self._store.move_staging(row.job_id, S.WAITING, S.STAGED, "it has no input")
                elif run.size is None:
                    self._look(row, run)
                else:
                    waiting.append(_waiting(row, run))
            case S.SENDING:
                self._store.move_staging(row.job_id, S.SENDING, S.WAITING, "it was under way when burstd ended")
            case S.STAGED if "pre_run" in run.hooks:
                nodes = run.facts.nodes if run.facts else ()
                if nodes:
                    self._store.move_staging(row.job_id, S.STAGED, S.PLACING, "Slurm gave it nodes", nodes=nodes)
                elif not run.asking:
                    self._learn(run, lambda facts: self._told(run, "pre_run", facts))
            case S.PLACING:
                self._place(row, run, machines)
            case S.PLACED if gone:
                self._collect(row, run.facts, run.facts.state if run.facts else "")
            case S.COLLECTING:
                self._fetch(row, run, machines)
            case S.BRINGING:
                self._bring(row, run, machines)
            case S.HOME if "data_in" in run.hooks:
                self._store.move_staging(row.job_id, S.HOME, S.WAITING, "the job starts over")
            case _:
                pass

    def _on_premises_only(self, run: Run) -> bool:
        burst = {partition for pool in self._pools().values() for partition in pool.partitions}
        return run.facts is not None and burst.isdisjoint(run.facts.partitions)

    def _slots(self) -> frozenset[str]:
        return frozenset(slot for pool in self._pools().values() for slot in pool.slots)

    # Transfers.

    def _look(self, row: Staging, run: Run) -> None:
        def done(found: object) -> None:
            run.size = found.size  # type: ignore[attr-defined]

        self._begin(row, run, "in", self._transfers.look, done, lane="stage:look")

    def _send(self, row: Staging, run: Run) -> None:
        now = self._clock.now()
        ready = row.estimated_ready or self._estimate(row, run, 0)
        row = self._store.move_staging(row.job_id, S.WAITING, S.SENDING, "its turn has come", estimated_ready=ready)

        def done(sent: Sent) -> None:
            self.rates = seen(self.rates, row.store, "in", sent.sent, self._clock.now() - now)
            self._store.move_staging(
                row.job_id, S.SENDING, S.STAGED, f"{sent.size} bytes are in the store, {sent.sent} had to be sent",
                trees=sent.trees, bytes_in=sent.size, bytes_sent=sent.sent, attempts=0,
            )  # fmt: skip

        self._begin(row, run, "in", self._transfers.send, done, lane="stage:in")

    def _place(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> None:
        slots = self._slots()
        cloud = [node for node in row.nodes if node in slots]
        missing = [node for node in cloud if node not in machines]
        if missing:
            self._hold(row, run, f"burstd has no machine for {', '.join(missing)}: look at burstctl status")
            return
        run.outstanding = len(cloud) + (len(cloud) < len(row.nodes))

        def placed(_result: object) -> None:
            run.outstanding -= 1
            if run.outstanding == 0:
                self._store.move_staging(row.job_id, S.PLACING, S.PLACED, "its data is on its nodes", attempts=0)

        for node in cloud:
            place = partial(self._transfers.place, claim=machines[node])
            self._begin(row, run, f"place {node}", place, placed, lane="stage:nodes")
        if len(cloud) < len(row.nodes):
            self._begin(row, run, "link", self._transfers.link, placed, lane="stage:look")

    def _fetch(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> None:
        """Output of the nodes to the store; of what is gone for good there is none any more."""
        slots = self._slots()
        done_before = {key.partition("/")[0] for key in row.outputs}
        cloud = [node for node in row.nodes if node in slots and node not in done_before]
        run.lost |= {node for node in cloud if node not in machines}
        there = [node for node in cloud if node in machines]
        if not there:
            reason = "its output is in the store" if row.outputs else "nothing has to be fetched from a cloud node"
            lost = f"; {', '.join(sorted(run.lost))} went before its output was fetched" if run.lost else ""
            self._store.move_staging(row.job_id, S.COLLECTING, S.BRINGING, reason + lost)
            return
        files = tuple(dict.fromkeys(f for f in (run.facts.std_out, run.facts.std_err) if f)) if run.facts else ()
        for node in there:

            def fetched(result: Collected, node: str = node) -> None:
                now = self._store.staging(row.job_id)
                # A node without output is on record too: it need not be asked again.
                trees = {f"{node}/{name}": tree for name, tree in result.trees.items()}
                run.warnings += result.warnings
                self.rates = seen(self.rates, row.store, "collect", result.sent, result.seconds)
                run.fetched.add(node)
                size = sum(tree.size for tree in trees.values())
                self._store.touch_staging(
                    row.job_id, f"{node}: {size} bytes of output are in the store",
                    outputs={**now.outputs, **trees}, bytes_out=now.bytes_out + size,
                )  # fmt: skip

            if node in run.fetched:
                continue
            collect = partial(self._transfers.collect, claim=machines[node], files=files)
            self._begin(row, run, f"collect {node}", collect, fetched, lane="stage:nodes")
        if run.task is None:
            self._store.move_staging(row.job_id, S.COLLECTING, S.BRINGING, "its output is in the store")

    def _bring(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> None:
        slots = self._slots()
        seconds = run.facts.seconds if run.facts else 0.0
        costs = [machines[n].offer.price * Decimal(seconds) / 3600 for n in row.nodes if n in machines]
        ended = Ended(
            lost=tuple(sorted(run.lost)), cost=f"{sum(costs):.4f}" if costs and seconds else "",
            on_premises=any(node not in slots for node in row.nodes), warnings=run.warnings,
        )  # fmt: skip

        def done(size: int) -> None:
            self._store.move_staging(
                row.job_id, S.BRINGING, S.HOME, f"{size} bytes of output are home", bytes_out=size, attempts=0
            )

        self._begin(row, run, "home", lambda task: self._transfers.bring(task, ended), done, lane="stage:home")

    def _clear(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> None:
        there = [machines[node] for node in row.nodes if node in machines]

        def done(_nothing: object) -> None:
            now = self._store.staging(row.job_id)
            if now.state not in _UNTIL_CLEARED and not run.hurry and _owed(now):
                return
            self._store.move_staging(
                row.job_id, now.state, S.CLEARED, "nothing of it is left in the store and on nodes"
            )
            if "data_in" in run.hooks:
                # Requeued while the run before was cleared away.
                self._learn(run, lambda facts: self._told(run, "data_in", facts))
            else:
                run.answer(lambda _hook: _OK)

        self._begin(row, run, "clear", lambda task: self._transfers.clear(task, there), done, lane="stage:clear")

    def _begin(
        self,
        row: Staging,
        run: Run,
        name: str,
        work: Callable[[Task], T],
        done: Callable[[T], None],
        *,
        lane: str,
    ) -> None:
        """Has a piece of work done; several may be under way for one job."""
        task = Task(row, Meter(name, name.partition(" ")[0]))
        run.begin(name, task)

        def back(result: T | Exception) -> None:
            run.end(name)
            if isinstance(result, Cancelled):
                return
            if isinstance(result, Exception):
                self._failed(row, run, result)
                return
            run.rest_until = 0.0
            done(result)

        self._workers.submit(lane, lambda: work(task), back)

    def _failed(self, row: Staging, run: Run, error: Exception) -> None:
        now = self._store.staging(row.job_id)
        if not isinstance(error, BurstdError):
            log.error("staging broke", job=row.job_id, exc_info=error)
        attempts = now.attempts + 1
        text = str(error)
        if not isinstance(error, StageFailed) or (error.again and attempts < self.rules.retries):
            pause = max(getattr(error, "retry_after_s", 0.0), min(RETRY_S * 2 ** (attempts - 1), SLOWEST_RETRY_S))
            run.rest_until = self._clock.now() + pause
            log.warning("staging is tried again", job=row.job_id, error=text, pause_s=round(pause, 1))
            self._store.touch_staging(
                row.job_id, f"tried again in {pause:.0f} s: {text}", attempts=attempts, error=text
            )
            return
        self._hold(now, run, text)

    def _hold(self, row: Staging, run: Run, error: str) -> None:
        resume = S.WAITING if row.state in _UNTIL_CLEARED else row.state
        if row.state is S.HOME:
            # Its data is safe; what could not be cleared is tried again for ever, and shown.
            run.rest_until = self._clock.now() + SLOWEST_RETRY_S
            self._store.touch_staging(row.job_id, error, error=error)
            return
        log.error("a job's data is held", job=row.job_id, state=row.state.value, error=error)
        self._store.move_staging(row.job_id, row.state, S.HELD, error, error=error, resume=resume.value)

    # What is told.

    def _settle(self, row: Staging, run: Run) -> None:
        def reply(hook: str) -> StageReply | None:
            if hook == "data_out":
                # Never refused: Slurm would not ask again. The job stays in STAGE_OUT until somebody decides.
                return None if row.state in (S.PLACING, *_OUTPUT) or _owed(row) else _OK
            if row.state is S.HELD:
                return StageReply("refused", row.error)
            if hook == "data_in" and row.state in (S.STAGED, S.PLACING, S.PLACED):
                return StageReply("ok", env=environment(self.rules.job_dir, row.job_id))
            return _OK if hook == "pre_run" and row.state is S.PLACED else None

        # A data_in that finds PLACED is a requeued job's until Slurm was asked about it.
        if run.asking:
            return
        run.answer(reply)

    def _learn(self, run: Run, told: Callable[[JobFacts | None], None]) -> None:
        """Asks Slurm about a job, elsewhere: it may hold its locks while a hook waits."""
        run.asking += 1

        def back(result: JobFacts | Exception | None) -> None:
            run.asking -= 1
            if isinstance(result, Exception):
                log.warning("slurm was not heard about a job", job=run.job_id, error=str(result))
                run.unheard.append(told)
                run.ask_after = self._clock.now() + RETRY_S
                return
            told(result)

        self._workers.submit("stage:slurm", lambda: self._transfers.facts(run.job_id), back)

    def _estimate(self, row: Staging, run: Run, ahead: int) -> float:
        return ready_at(self._clock.now(), run.size or 0, ahead, self.rates.of(row.store, "in"))

    def views(self) -> dict[str, DataView]:
        """How the data of each job stands, by the job's id in the queue."""
        found: dict[str, DataView] = {}
        ahead = 0
        for row in sorted(self._store.stagings(), key=lambda r: r.created):
            run = self._runs.of(row.job_id)
            ready = 0.0
            if row.state is S.WAITING:
                ready = self._estimate(row, run, ahead) if run.size else 0.0
                ahead += run.size or 0
            elif row.state is S.SENDING:
                reading = run.read("in")
                left = max((run.size or 0) - reading.done, 0) if reading else run.size or 0
                ready = ready_at(self._clock.now(), left, 0, self.rates.of(row.store, "in"))
                ahead += left
            state = S(row.resume) if row.state is S.HELD and _owed(row) else row.state
            view = DataView(state, ready, row.nodes, row.since, row.error)
            for job_id in {row.job_id, run.facts.queue_id if run.facts else row.job_id}:
                found[job_id] = view
        return found

    def readings(self) -> dict[str, tuple[Reading, ...]]:
        """The transfers under way, by job; from any thread."""
        return self._runs.readings()

    # What a person asks.

    def retry(self, job_id: str, by: str) -> str:
        """Lets a held one go on. A sentence on what came of it."""
        row = self._store.find_staging(job_id)
        if row is None or row.state is not S.HELD:
            return ""
        run = self._runs.of(job_id)
        run.rest_until = 0.0
        self._store.move_staging(job_id, S.HELD, S(row.resume), f"{by} asked to try again", cause=by, attempts=0)
        return f"the data of job {job_id} goes on from {row.resume}"

    def discard(self, job_id: str, by: str) -> str:
        """Gives up what a job's nodes still have. A sentence on what came of it."""
        row = self._store.find_staging(job_id)
        if row is None or row.state is S.CLEARED:
            return ""
        run = self._runs.of(job_id)
        run.stop()
        run.torn = run.hurry = True
        self._store.touch_staging(job_id, f"{by} gave its output up", cause=by)
        return f"what is left of job {job_id}'s data is removed"


def _owed(row: Staging) -> bool:
    """Whether a held one has output that is not home."""
    return row.state is S.HELD and row.resume in (S.COLLECTING, S.BRINGING)


def _waiting(row: Staging, run: Run) -> Waiting:
    return Waiting(id=row.job_id, user=row.user, size_bytes=run.size or 0, since=row.created)
