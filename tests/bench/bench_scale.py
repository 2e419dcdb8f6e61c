"""4,000 nodes asked for by 100,000 jobs: ``python -m tests.bench.bench_scale [--slots 4000] [--jobs 100000]``, 8 min.

burstd's own observer, core, executor, database on disk and threads, in real time, over the text of Slurm's commands
(scale_slurm.py). The cloud takes ``--boot`` seconds until a machine answers; until then an attempt to enter it takes
seconds in vain. Prints the states, and in the end what is to be compared with the bars.

``--ssh N`` (root): N of the machines are entered by ssh, by burstd's validator. One real sshd answers for them, and
what scripts do there is played.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import paramiko

from burstd.daemon.loop import MIN_PAUSE_S
from burstd.db import Store
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.instance import TAG_CLAIM, Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import FabricTest, Offer, OfferRule, Pool
from burstd.domain.errors import NodeNotReady
from burstd.domain.plugins.policy import Policy
from burstd.domain.plugins.provider import Idempotency, LaunchOutcome, LaunchRequest
from burstd.domain.slurm.shape import Shape
from burstd.node.ssh.host_keys import HostKeyPolicy
from burstd.node.ssh.process import SshProcess
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from burstd.planner.timeouts import Tuning
from burstd.reconciler.context import LoopContext, PollIntervals
from burstd.reconciler.decisions import RuntimeConfig
from burstd.reconciler.executor import MACHINES
from burstd.reconciler.quarantine import Quarantine
from burstd.reconciler.reconciler import Reconciler
from burstd.runtime import logs
from burstd.runtime.clock import SteadyClock
from burstd.runtime.wake import Wake
from burstd.runtime.workers import ThreadWorkers
from burstd.settings.sections import DaemonSettings
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.scheduler import CommandScheduler
from policies import backlog, idle, limits
from tests.bench.scale_slurm import CPUS, MEMORY_MIB, ScaleSlurm
from tests.lab.boxes import ip
from tests.lab.ssh_store import SshStore

NOT_YET_S, VALIDATION_S, SLURMD_S = 3.0, 3.0, 2.0
"""An attempt to enter a machine that boots; what is done on one that has booted."""
_NETWORK = "10.78.0.0/16"
_LOGINS = 50
_PLAYED = f"""
case $SSH_ORIGINAL_COMMAND in
*'say clock'*) sleep {VALIDATION_S}; date +clock=%s; cat /facts ;;
*'slurmds()'*) sleep {SLURMD_S} ;;
*) cat >/dev/null ;;
esac
"""
_FACTS = f"uid=0\ncpus={CPUS}\nmemory_mib={MEMORY_MIB}\nfree_mib=50000\nslurmd=slurm 24.11.5\nmunge=munge-0.5\nend=1\n"
_SSHD = """
UsePAM no
MaxStartups 1000
PerSourcePenalties no
ForceCommand . /played
"""
LAUNCH_S = 1.0
"""Of the cloud, for each thousand machines."""
RUNS_AFTER = 0.25
"""Of the boot: so long a machine is PENDING."""
BARS = {"all asked, s": 60.0, "all open, s": 420.0, "loop p99, s": 2.0, "memory at most, MB": 600.0}


class SlowCloud:
    """Has as many machines as anybody wants, after a while."""

    idempotency = Idempotency.TOKEN
    settle_s = 0.0
    name = "slow"

    def __init__(self, pool: Pool, boot_s: float) -> None:
        self._pool = pool
        self.boot_s = boot_s
        self.launched: dict[str, tuple[float, LaunchRequest]] = {}
        """By claim: when, and what."""

    def offers(self) -> Sequence[Offer]:
        return [
            Offer(self.name, "r", zone, "m8", spot=False, shape=self._pool.shape, price=Decimal(price))
            for price, zone in enumerate("abc", 1)
        ]

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        time.sleep(LAUNCH_S * len(requests) / 1000)
        now = time.monotonic()
        for request in requests:
            self.launched.setdefault(request.claim_id, (now, request))
        return [LaunchOutcome(r.claim_id, self._instance(r.claim_id)) for r in requests]

    def _instance(self, claim_id: str) -> Instance:
        _, request = self.launched[claim_id]
        state = InstanceState.PENDING if self.age(claim_id) < RUNS_AFTER * self.boot_s else InstanceState.RUNNING
        number = int(request.tags[TAG_CLAIM].removeprefix("c"))
        address = f"10.78.{number // 250}.{1 + number % 250}"
        return Instance(f"i-{number}", self.name, state, claim_id, request.tags, request.name, address=address)

    def age(self, claim_id: str) -> float:
        """Seconds since it was launched."""
        return time.monotonic() - self.launched[claim_id][0]

    def instances(self) -> Iterator[Instance]:
        yield from [self._instance(claim_id) for claim_id in list(self.launched)]

    def terminate(self, instance_ids: Sequence[str]) -> None:
        raise AssertionError(f"{len(instance_ids)} machines are ended while jobs wait")

    def leftovers(self) -> Iterator[Leftover]:
        yield from ()

    def remove(self, leftovers: Sequence[Leftover]) -> None: ...

    def close(self) -> None: ...


Machines: TypeAlias = "Callable[[SlowCloud, ScaleSlurm], SlowMachines]"


class SlowMachines:
    """Machines that take their time, in threads of burstd's."""

    def __init__(self, cloud: SlowCloud, slurm: ScaleSlurm) -> None:
        self._cloud, self._slurm = cloud, slurm

    def validate(
        self, claim: Claim, _pool: Pool, _console: Callable[[], str] | None, reached: Callable[[], None]
    ) -> str:
        self._wait_boot(claim)
        reached()
        time.sleep(VALIDATION_S)
        return f"{claim.address} is as it should be"

    def _wait_boot(self, claim: Claim) -> None:
        if self._cloud.age(claim.id) < self._cloud.boot_s:
            time.sleep(NOT_YET_S)
            raise NodeNotReady(f"{claim.address} does not answer on port 22 (no answer)")

    def start_slurmd(self, claim: Claim, _pool: Pool, _watch: str = "") -> None:
        time.sleep(SLURMD_S)
        self._slurm.register(claim.slot, claim.address)

    def registration_fault(self, _claim: Claim) -> str:
        return ""

    def launch_fault(self, claim: Claim, number: str, *, held: bool) -> None: ...

    def missing_homes(self) -> tuple[()]:
        return ()

    def test_fabric(self, first: Claim, second: Claim, test: FabricTest) -> str:
        raise AssertionError(f"no pool has {test.command} for {first.slot} and {second.slot}")

    def probe(self, claim: Claim) -> None: ...

    def retain_only(self, claim_ids: Collection[str]) -> None: ...

    def alarms(self) -> tuple[str, ...]:
        return ()


class SshMachines(SlowMachines):
    """Some machines that burstd enters by ssh, among those that are played."""

    def __init__(self, cloud: SlowCloud, slurm: ScaleSlurm, validator: SlurmNodeValidator, every: int) -> None:
        """``every``: of so many one is entered by ssh."""
        super().__init__(cloud, slurm)
        self._validator, self._every = validator, every

    def _is_entered(self, claim: Claim) -> bool:
        return int(claim.id.removeprefix("c")) % self._every == 0

    def validate(self, claim: Claim, pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]) -> str:
        if not self._is_entered(claim):
            return super().validate(claim, pool, console, reached)
        self._wait_boot(claim)
        return self._validator.validate(claim, pool, console, reached)

    def start_slurmd(self, claim: Claim, pool: Pool, watch: str = "") -> None:
        if self._is_entered(claim):
            self._validator.start_slurmd(claim, pool, watch)
            self._slurm.register(claim.slot, claim.address)
        else:
            super().start_slurmd(claim, pool, watch)

    def retain_only(self, claim_ids: Collection[str]) -> None:
        self._validator.retain_only(claim_ids)


@contextmanager
def ssh_machines(folder: Path, slots: int, entered: int) -> Iterator[Machines]:
    """What makes them. In the end says what burstd's ssh process took for each of them.

    This thread, and those that it starts meanwhile, are on their network.
    """
    with SshStore(folder, release="trixie") as node, node.reach():
        ip("route", "add", _NETWORK, "via", node.address)
        node.box.run(["ip", "route", "add", "local", _NETWORK, "dev", "lo"])
        for path, text in {"/played": _PLAYED, "/facts": _FACTS, "/etc/ssh/sshd_config.d/bench.conf": _SSHD}.items():
            node.box.path(path).write_text(text, encoding="ascii")
        # It runs on burstd's processors, and is no part of burstd: behind one that is first in line for them.
        sshd = "$(cat /run/sshd.pid)"
        node.box.run(["sh", "-ec", f"pkill -HUP sshd; chrt -o -p 0 {sshd}; renice -n -20 -p {sshd}"])
        node.box.wait_ssh()
        munge_key = folder / "munge.key"
        munge_key.write_bytes(os.urandom(1024))
        site = ValidatorConfig(
            node.key, folder / "host_keys", munge_key, "head",
            host_key_policies={"slow": HostKeyPolicy.FIRST_USE}, users=(), compare_job_users=False,
            connect_timeout_s=60.0,  # a single host has the logins of all machines
        )  # fmt: skip
        with closing(SshProcess()) as process:
            validator = SlurmNodeValidator(
                site, slurm_version=lambda: (24, 11, 5), wall=time.time, credential=lambda _uid: "MUNGE:",
                ssh_process=process,
            )  # fmt: skip
            login_s = _login_s(node)
            yield lambda cloud, slurm: SshMachines(cloud, slurm, validator, slots // entered)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            process.close()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            each_s = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / entered
            _say(f"processor time of the ssh process: {1000 * each_s:.1f} ms a machine that is entered by ssh, "
                 f"{each_s / login_s:.2f} times that of a login by paramiko that runs one command")  # fmt: skip


def _login_s(node: SshStore) -> float:
    """Processor time of paramiko as it comes: a login and a command."""
    begun = time.process_time()
    for _ in range(_LOGINS):
        with paramiko.SSHClient() as client:
            client.load_host_keys(str(node.known_hosts))
            client.connect(node.address, username="root", key_filename=str(node.key), allow_agent=False,
                           look_for_keys=False)  # fmt: skip
            client.exec_command("true")[1].channel.recv_exit_status()
    return (time.process_time() - begun) / _LOGINS


@dataclass(frozen=True, slots=True)
class LoopTime:
    """One loop, in seconds by the clock and of the processor, and without what Slurm's commands took."""

    whole: float
    own: float
    cpu: float


class ScaleBench:
    """One burstd."""

    def __init__(self, slots: int, boot_s: float, folder: Path, machines: Machines, machine_workers: int) -> None:
        names = tuple(f"n{i:04}" for i in range(slots))
        pool = Pool("cloud", names, ("burst",), Shape(CPUS, MEMORY_MIB, features=frozenset({"cloud"})),
                    (OfferRule("slow"),))  # fmt: skip
        policies: list[Policy] = [
            backlog.BacklogPolicy(backlog.BacklogSettings()), idle.IdlePolicy(idle.IdleSettings()),
            limits.LimitsPolicy(limits.LimitsSettings()),
        ]  # fmt: skip
        self.slurm = ScaleSlurm(names)
        self.cloud = SlowCloud(pool, boot_s)
        clock, number, self.wake = SteadyClock(), itertools.count(), Wake()
        self.store = Store.open(folder / "burstd.db", clock)
        self.workers = ThreadWorkers(self.wake, DaemonSettings().workers, widths={MACHINES: machine_workers})
        context = LoopContext(
            cluster="bench",
            intervals=PollIntervals(),
            store=self.store,
            scheduler=CommandScheduler(SlurmCommands(self.slurm.run)),
            providers={"slow": self.cloud},
            validator=machines(self.cloud, self.slurm),
            workers=self.workers,
            clock=clock,
            user_data=lambda _pool, _provider: "#cloud-config\n",
            new_id=lambda: f"c{next(number)}",
            is_authentic=lambda _: True,
            quarantine=Quarantine(clock),
        )
        self.reconciler = Reconciler(context, RuntimeConfig({"cloud": pool}, policies, Tuning()))
        self.loops: list[LoopTime] = []

    def loop(self) -> None:
        """One, and the pause after it."""
        begun, cpu, slurm = time.perf_counter(), time.thread_time(), self.slurm.seconds
        pause = self.reconciler.step()
        whole = time.perf_counter() - begun
        self.loops.append(LoopTime(whole, whole - (self.slurm.seconds - slurm), time.thread_time() - cpu))
        time.sleep(MIN_PAUSE_S)
        self.wake.wait(pause)

    def states(self) -> Counter[str]:
        """Claims by state."""
        return Counter(claim.state.value for claim in self.store.claims())

    def close(self) -> None:
        """Lets go."""
        self.workers.close()
        self.store.close()
        self.slurm.close()


def run(
    slots: int, jobs: int, tasks: int, boot_s: float, limit_s: float, entered: int, machine_workers: int
) -> dict[str, float]:
    """The figures of ``BARS`` and more. ``entered``: machines that are entered by ssh."""
    with tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder, ExitStack() as stack:
        machines: Machines = SlowMachines
        if entered:
            machines = stack.enter_context(ssh_machines(Path(folder), slots, entered))
        bench = ScaleBench(slots, boot_s, Path(folder), machines, machine_workers)
        try:
            while bench.reconciler.latest is None or not isinstance(
                bench.reconciler.latest[0].clouds["slow"].offers, tuple
            ):
                bench.loop()
            bench.loops.clear()
            before = rss_mb()
            begun = time.monotonic()
            bench.slurm.submit(jobs, tasks)
            bench.wake()
            said = begun
            asked = 0.0
            while bench.states()[ClaimState.IN_SERVICE.value] < slots and time.monotonic() - begun < limit_s:
                bench.loop()
                if not asked and len(bench.cloud.launched) == slots:
                    asked = time.monotonic() - begun
                if time.monotonic() - said > 10:
                    said = time.monotonic()
                    _say(f"{said - begun:6.0f} s  {rss_mb():5.0f} MB  {bench.loops[-1]}  {dict(bench.states())}")
            opened = time.monotonic() - begun
            worst = sorted(one.whole for one in bench.loops)
            return {
                "all asked, s": asked or float("inf"),
                "all open, s": opened if bench.states()[ClaimState.IN_SERVICE.value] == slots else float("inf"),
                "loop p99, s": worst[min(len(worst) - 1, int(0.99 * len(worst)))],
                "loop longest, s": worst[-1],
                "loop median, s": statistics.median(worst),
                "loop p99 without Slurm's commands, s": statistics.quantiles([x.own for x in bench.loops], n=100)[98],
                "processor time of a loop, p99, s": statistics.quantiles([x.cpu for x in bench.loops], n=100)[98],
                "processor time of a loop, longest, s": max(one.cpu for one in bench.loops),
                "processor time of a loop, median, s": statistics.median(one.cpu for one in bench.loops),
                "loops": len(worst),
                "memory before, MB": before,
                "memory at most, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
                "database, MB": (Path(folder) / "burstd.db").stat().st_size / 1e6,
            }
        finally:
            bench.close()


def rss_mb() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Prints the figures; 1 where one misses its bar."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_scale", description=__doc__)
    parser.add_argument("--slots", type=int, default=4000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=100, help="of each array; 1: each job has a row of its own")
    parser.add_argument("--boot", type=float, default=120.0)
    parser.add_argument("--ssh", type=int, default=0, help="machines that are entered by ssh; root")
    parser.add_argument("--workers", type=int, default=DaemonSettings().machine_workers)
    parser.add_argument("--limit", type=float, default=900.0)
    asked = parser.parse_args()
    logs.set_up("text", "error")
    gc.freeze()  # as the daemon does
    load = os.getloadavg()[0]
    figures = run(asked.slots, asked.jobs, asked.tasks, asked.boot, asked.limit, asked.ssh, asked.workers)
    _say(f"{asked.slots} slots, {asked.jobs} jobs in arrays of {asked.tasks}")
    _say(f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after")
    for name, value in figures.items():
        bar = f"   bar {BARS[name]:.0f}{' MISSED' if value > BARS[name] else ''}" if name in BARS else ""
        _say(f"{name:40} {value:8.2f}{bar}")
    return 1 if any(figures[name] > bar for name, bar in BARS.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
