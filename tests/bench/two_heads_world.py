"""Two heads without a Slurm and without machines: real daemons beside a played site.

Each head is a process that runs burstd's own ``main``: standby, lock, PostgreSQL, loop, threads, sockets. In the
process that began them are the sandbox cloud, asked by HTTP, and tests/virtual's slurmctld and machines, in real
time. What a head asks of these two goes by a socket, as by a command of Slurm or ssh, and is done though the head is
killed meanwhile.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

import uvicorn

from burstd.daemon import app, components, main
from burstd.db import StoreReader
from burstd.domain.claim import Claim
from burstd.domain.cloud.instance import TAG_CLAIM
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import BurstdError, NodeNotReady
from burstd.domain.plugins.shell import Shell
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.shape import Shape
from burstd.node.validator import SlurmNodeValidator
from burstd.runtime.clock import SteadyClock
from burstd.slurm.commands.run import SlurmCommands
from providers.sandbox.cloud.app import make_app
from providers.sandbox.cloud.cloud import SandboxCloud
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog, SandboxInstanceType
from providers.sandbox.cloud.inventory.resources import SandboxInstanceState, SandboxMachine
from tests.crash.faults import SLURM_CHANGES
from tests.doubles.immediate_disks import ImmediateDisks
from tests.doubles.lone_daemon import lone_heads
from tests.e2e.two_heads import FAULTS, HEADS, LEADS, WAITS, Account, account, head_status, kill_leaders
from tests.lab.patience import patience_s
from tests.virtual.clock import VirtualClock
from tests.virtual.job import JobSpec
from tests.virtual.machines import Machines
from tests.virtual.power import SlurmConf
from tests.virtual.slurm import NodeSpec, SimSlurm
from tests.virtual.validator import SimValidator

SLOTS = tuple(f"c{number}" for number in range(1, 9))
SHAPE = Shape(4, 8000)
STEP_S = 0.02
"""How often the world looks what is due."""
SLURM_S = 0.01
"""Of a command of Slurm, half of it before slurmctld does what it asks."""
VALIDATE_S, START_SLURMD_S = 0.2, 0.1
"""Of burstd's on a machine."""
BOOT_S = 0.3
_CONF = SlurmConf(resume_timeout_s=300.0, suspend_timeout_s=1.0, power_interval_s=0.2)
# A process that has imported burstd, and becomes a head whenever one is wanted: most of a start is to import.
_CONTEXT = multiprocessing.get_context("forkserver")
# Two applications made at once by two threads have wrong models of what they are asked.
_ONE_AT_A_TIME = threading.Lock()
_SETTINGS = """
[sampler]
enabled = false
[policies.idle]
keep_alive_s = 0.3
"""


class PlayedSite(ImmediateDisks):
    """Slurm, machines and cloud. Calls of heads come from many threads; the machines' side waits for one lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Taken after the cloud's own, never before it."""
        self.clock = VirtualClock(time.time())
        self.slurm = SimSlurm(self.clock, [NodeSpec(SLOTS, SHAPE, ("burst",))], _CONF)
        self.machines = Machines(self.clock, self.slurm)
        self._validator = SimValidator(self.machines)
        kind = SandboxInstanceType("cpu.m", SHAPE.cpus, SHAPE.memory_mib, Decimal(1))
        catalog = SandboxCatalog(
            (kind,), {"z1": {kind.name: 2 * len(SLOTS)}}, addresses="10.3.0.0/20", boot_s=BOOT_S, stop_s=BOOT_S,
            ended_shown_s=5.0,
        )  # fmt: skip
        self.cloud = _WatchedCloud(catalog, time.time, self, pause=time.sleep)
        self.cloud.before_end = self._check_no_job_runs
        self.ended_under_jobs: list[str] = []

    # What a MachineBackend does.

    def start(self, machine: SandboxMachine) -> None:
        """It boots."""
        with self.lock:
            self.machines.boot(machine.address, BOOT_S)

    def stop(self, machine: SandboxMachine) -> None:
        """It is switched off."""
        with self.lock:
            self.machines.end(machine.address)

    def console(self, machine: SandboxMachine) -> str:
        """It writes nothing."""
        del machine
        return ""

    def _check_no_job_runs(self, address: str) -> None:
        with self.lock:
            machine = self.machines.running_at(address)
            jobs = [job for job in self.slurm.active if job.state is JobState.RUNNING]
            self.ended_under_jobs += [job.id for job in jobs if machine is not None and machine.node in job.nodes]

    # Time.

    def step(self) -> None:
        """Does what is due."""
        self.cloud.advance()
        with self.lock:
            self.clock.advance_to(time.time())

    # What heads ask.

    def answer(self, room: str, name: str, words: Sequence[Any], named: Mapping[str, Any]) -> object:
        """One call of a head's, of Slurm or of what is done on machines."""
        target: object = self.slurm
        before = after = SLURM_S / 2
        if room == "machines":
            target = self._validator
            before, after = {"validate": VALIDATE_S, "start_slurmd": START_SLURMD_S}.get(name, 0.0), 0.0
        time.sleep(before)
        with self.lock:
            found = getattr(target, name)(*words, **named)
        time.sleep(after)
        return found


class _WatchedCloud(SandboxCloud):
    before_end: Callable[[str], None]

    def terminate(self, instance_id: str) -> None:
        for machine in self.machines():
            if machine.id == instance_id and machine.state is SandboxInstanceState.RUNNING:
                self.before_end(machine.address)
        super().terminate(instance_id)


def _serve_heads(site: PlayedSite, listener: Listener) -> None:
    while True:
        line = listener.accept()
        threading.Thread(target=_serve_head, args=(site, line), daemon=True).start()


def _serve_head(site: PlayedSite, line: Connection) -> None:
    try:
        while True:
            call = line.recv()
            try:
                answer = (True, site.answer(*call))
            except BurstdError as error:
                answer = (False, error)
            line.send(answer)
    except (EOFError, ConnectionError):
        line.close()  # The head was killed.


# In a head's process.


class _Line:
    """To the played site, from all threads of a head."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._mine = threading.local()

    def call(self, room: str, name: str, *words: object, **named: object) -> Any:
        if not hasattr(self._mine, "line"):
            self._mine.line = Client(self._address, "AF_UNIX")
        self._mine.line.send((room, name, words, named))
        done, found = self._mine.line.recv()
        if not done:
            raise found
        return found


class _AskedSlurm:
    """A Scheduler. What changes Slurm is done by a head that is sure, as it is with Slurm's commands."""

    def __init__(self, line: _Line, commands: SlurmCommands) -> None:
        self._line, self._commands = line, commands

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*words: object, **named: object) -> Any:
            if name in SLURM_CHANGES:
                self._commands("scontrol", "update", name)
            return self._line.call("slurm", name, *words, **named)

        return call


class _AskedMachines(SlurmNodeValidator):
    line: _Line

    def validate(self, claim: Claim, pool: Pool, console: object, reached: Callable[[], None]) -> str:
        del console
        said: str = self.line.call("machines", "validate", claim, pool, None, int)
        reached()
        return said

    def start_slurmd(self, claim: Claim, pool: Pool, watch: str = "") -> None:
        self.line.call("machines", "start_slurmd", claim, pool, watch)

    def registration_fault(self, claim: Claim) -> str:
        said: str = self.line.call("machines", "registration_fault", claim)
        return said

    def probe(self, claim: Claim) -> None:
        self.line.call("machines", "probe", claim)

    def connect(self, claim: Claim) -> Shell:
        raise NodeNotReady(f"{claim.slot} is played, and has no shell")


def _run_command(
    argv: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Of what heads run beside their scheduler, nothing is there; what is to change Slurm has passed the guard."""
    del environment, timeout_s
    if argv[:2] == ("scontrol", "update"):
        return subprocess.CompletedProcess(argv, 0, "", "")
    raise FileNotFoundError


def run_head(host: str, settings: Path, log: Path, address: str) -> None:
    """burstd, as the head of this name, until it is killed."""
    with log.open("ab", buffering=0) as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    line = _Line(address)
    _AskedMachines.line = line
    # One machine plays both hosts, and has no Slurm.
    replaced: list[tuple[object, str, object]] = [
        (socket, "gethostname", lambda: host),
        (app, "run_locally", _run_command),
        (components, "scheduler", lambda _settings, _clock, commands: _AskedSlurm(line, commands)),
        (components, "SlurmNodeValidator", _AskedMachines),
    ]
    for module, name, value in replaced:
        setattr(module, name, value)
    sys.exit(main.main(["--config", str(settings)]))


class PlayedHeads:
    """Two heads and their site; see Heads of tests/e2e/two_heads.py."""

    def __init__(self, folder: Path, database: str) -> None:
        self.site = PlayedSite()
        self.database = database
        self._daemons = lone_heads(folder, database)
        self._address = str(folder / "site.sock")
        self._listener = Listener(self._address, "AF_UNIX")
        _CONTEXT.set_forkserver_preload([__name__])
        self._heads: dict[str, ForkServerProcess] = {}
        self.killed_among: Counter[str] = Counter()
        """The states of claims whenever a head was killed."""
        listening = socket.create_server(("127.0.0.1", 0))
        token = next(iter(self._daemons.values())).settings.with_name("secret").read_text().strip()
        config = uvicorn.Config(
            make_app(self.site.cloud, token), log_level="critical", access_log=False, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._ending = threading.Event()
        for work, words in (
            (self._server.run, ([listening],)), (_serve_heads, (self.site, self._listener)), (self._let_time_pass, ()),
        ):  # fmt: skip
            threading.Thread(target=work, args=words, daemon=True).start()
        for daemon in self._daemons.values():
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            text = daemon.settings.read_text().replace("http://127.0.0.1:9", url)
            # A launch whose heads are killed again and again is no sign of a bad cloud, which nothing is bought from.
            text = text.replace("[daemon]\n", "[daemon]\nlaunch_attempts = 100\n")
            daemon.settings.write_text(text.replace("c[1-4]", f"c[1-{len(SLOTS)}]") + _SETTINGS)

    def _let_time_pass(self) -> None:
        while not self._ending.wait(STEP_S):
            self.site.step()

    def __enter__(self) -> Self:
        for host, now in zip(HEADS, (LEADS, WAITS), strict=True):
            self.start_head(host)
            self.wait(lambda: self.status_of(host) == now, 60, f"{host} answers {now}")  # noqa: B023 - called at once
        for fault in FAULTS:
            self.site.cloud.inject_fault(fault)
        return self

    def __exit__(self, *_: object) -> None:
        for host in list(self._heads):
            self._end_head(host)
        self._server.should_exit = True
        self._ending.set()
        self._listener.close()

    def start_head(self, host: str) -> None:
        """See Heads."""
        daemon = self._daemons[host]
        head = self._heads[host] = _CONTEXT.Process(
            target=run_head, args=(host, daemon.settings, daemon.log, self._address)
        )
        head.start()

    def kill_head(self, host: str) -> None:
        """See Heads."""
        self._note_claims()
        self._end_head(host)

    def _end_head(self, host: str) -> None:
        head = self._heads.pop(host)
        head.kill()
        head.join()
        with self._daemons[host].log.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat()} killed\n")

    def _note_claims(self) -> None:
        with StoreReader.open(self.database, SteadyClock()) as reader:
            self.killed_among.update(claim.state.value for claim in reader.claims())

    def keep_logs(self, folder: Path) -> None:
        """What the heads have said, and when they were killed."""
        folder.mkdir(parents=True)
        for host, daemon in self._daemons.items():
            shutil.copy(daemon.log, folder / host)

    def status_of(self, host: str) -> int:
        """See Heads."""
        return head_status(self._daemons[host].settings.parent / "run" / "control.sock")

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """See Heads."""
        until = time.monotonic() + patience_s(timeout_s)
        while not condition():
            if time.monotonic() > until:
                logs = [daemon.log_text()[-3000:] for daemon in self._daemons.values()]
                raise AssertionError("\n".join([f"it never comes: {what}", *logs]))
            time.sleep(STEP_S)

    def submit(self, chance: random.Random) -> None:
        """One job or some."""
        nodes = chance.choice((1, 1, 2, 3))
        spec = JobSpec(nodes=nodes, cpus_per_node=chance.choice((2, 4)), exclusive=nodes > 1,
                       run_s=chance.choice((0.2, 1.0, 3.0)), array=chance.choice((0, 2)))  # fmt: skip
        with self.site.lock:
            self.site.slurm.submit(spec)

    def _at_rest(self) -> bool:
        alive = self._alive()
        with self.site.lock, StoreReader.open(self.database, SteadyClock()) as reader:
            return not alive and not self.site.slurm.active and not reader.claims()

    def _alive(self) -> list[str]:
        over = (SandboxInstanceState.TERMINATED,)
        parts = [part.id for kind in ("volume", "port") for part in self.site.cloud.list_resources(kind).items]
        return [one.id for one in self.site.cloud.machines() if one.state not in over] + parts

    def kill_leaders(self, kills: int, chance: random.Random, both: float) -> Account:
        """Kills the leader so often while jobs come, and waits until nothing is left to do."""
        took = kill_leaders(self, kills, chance, lambda: self.submit(chance), both=both)
        self.wait(self._at_rest, 90, "no job, no machine, no claim")
        made: dict[str, list[str]] = {}
        for machine in self.site.cloud.machines():
            made.setdefault(machine.request.tags[TAG_CLAIM], []).append(machine.id)
        with self.site.lock:
            restarted = {job.id: job.restarts + (job.state is not JobState.COMPLETED) for job in self.site.slurm.ended}
            restarted |= dict.fromkeys(self.site.ended_under_jobs, 1)
        return account(took, self.database, made, self._alive(), restarted)
