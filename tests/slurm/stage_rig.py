"""A cluster with burst_buffer/lua, and what burstd answers to its hooks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from burstd.domain.slurm.job import ENDED_STATES, Job
from burstd.slurm.commands import jobs
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hooks.stage_server import StageCall, StageReply, StageServer
from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.lab.cluster import Cluster

PROJECT = Path(__file__).parents[2]
_CLIENT = "/opt/burstd-stage/stage_client.py"
# job_submit.lua is for 22.05, whose burst_buffer/lua does not name the job's owner.
_EXTRA = "BurstBufferType=burst_buffer/lua\nSchedulerParameters=batch_sched_delay=0,bf_interval=2\n"


@dataclass
class HookAnswers:
    """What burstd says, by hook; a hook that is not in ``say`` is answered at once. All calls are noted."""

    replies: dict[str, Callable[[StageCall], StageReply]] = field(default_factory=dict)
    calls: list[StageCall] = field(default_factory=list)
    again: int = 0
    _change: threading.Condition = field(default_factory=threading.Condition)
    _blocked: set[str] = field(default_factory=set)

    def block(self, hook: str) -> None:
        """This hook waits from now on."""
        self._blocked.add(hook)

    def unblock(self, hook: str) -> None:
        with self._change:
            self._blocked.discard(hook)
            self._change.notify_all()

    def __call__(self, call: StageCall) -> StageReply:
        with self._change:
            self.calls.append(call)
            self._change.notify_all()
            if not self._change.wait_for(lambda: call.hook not in self._blocked, 1.0):
                self.again += 1
                return StageReply("again")
        reply = self.replies.get(call.hook)
        return reply(call) if reply is not None else StageReply("ok", env=variables(call.job_id))

    def hooks_of_job(self, job: str) -> list[str]:
        """The hooks of a job in turn, each once where it asked again."""
        with self._change:
            hooks = [call.hook for call in self.calls if call.job_id == job]
        return [hook for i, hook in enumerate(hooks) if i == 0 or hooks[i - 1] != hook]

    def wait(self, hook: str, job: str, timeout_s: float = 20.0) -> StageCall:
        """The last such call, which may have to come yet."""
        with self._change:
            found = self._change.wait_for(lambda: hook in [c.hook for c in self.calls if c.job_id == job], timeout_s)
            assert found, f"{hook} of job {job} in {[(c.hook, c.job_id) for c in self.calls]}"
            return [c for c in self.calls if (c.hook, c.job_id) == (hook, job)][-1]


def variables(job: str) -> dict[str, str]:
    return {"BURST_IN": f"/burst/{job}/in put", "BURST_OUT": f"/burst/{job}/out=é"}


class StageRig:
    """The cluster, the answers, and the server, which may go and come."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.answers = HookAnswers()
        self.commands = SlurmCommands(lambda argv, env, s: cluster.head.run(argv, env=env, timeout=s, check=False))
        self._allowed = int(cluster.sh("id -u slurm"))
        self._server: StageServer | None = None

    def start(self) -> None:
        """burstd is there."""
        path = self.cluster.head.path("/run/burstd/stage.sock")
        self._server = StageServer(path, lambda uid: uid == self._allowed, self.answers)
        self._server.start()
        self._server.allow_connect(self._allowed)

    def stop(self) -> None:
        """burstd is away."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def fresh(self) -> None:
        """burstd is there and has heard nothing yet."""
        self.stop()
        self.answers = HookAnswers()
        self.start()

    def submit(
        self, body: str = "env | grep BURST_", options: str = "", directives: str = "#BURST stage_in /data"
    ) -> str:
        """Submits as ada; the job's number, or what sbatch said where it did not take the job."""
        script = self.cluster.head.path("/home/ada/job.sh")
        script.write_text(f"#!/bin/bash\n{directives}\n{body}\n", encoding="utf-8")
        command = f"sbatch --parsable -p onprem --mem=100 -o out.%A.%a {options} job.sh"
        return self.cluster.sh(command, "ada", check=False).strip()

    def job(self, number: str) -> Job | None:
        """The job as burstd reads it; None where it is not in the queue."""
        known = (j for j in jobs.read_jobs(self.commands, lambda t: t) if j.state not in ENDED_STATES)
        return next((j for j in known if j.id == number), None)

    def wait_job(self, number: str, condition: Callable[[Job | None], bool], timeout_s: float = 20.0) -> Job | None:
        """The job when the condition holds of it."""
        deadline = time.monotonic() + timeout_s
        while not condition(found := self.job(number)):
            assert time.monotonic() < deadline, (found, self.answers.hooks_of_job(number))
            time.sleep(0.1)
        return found

    def allocated(self, number: str) -> None:
        """Waits until the job has its node, and does what burstd does when the data are there: Slurm 22.05 looks at
        the job only at its next backfill else, up to half a minute later."""

        def look(job: Job | None) -> bool:
            self.cluster.sh(f"scontrol update jobid={number} comment=staged", check=False)
            return job is not None and len(job.node_list) == 1

        self.wait_job(number, look)

    def finished(self, jobs_of: int) -> None:
        """Waits until so many jobs have been torn down."""
        deadline = time.monotonic() + 30
        while len({c.job_id for c in self.answers.calls if c.hook == "teardown"}) < jobs_of:
            assert time.monotonic() < deadline, (
                [(c.hook, c.job_id) for c in self.answers.calls],
                self.cluster.sh("squeue -a; sinfo -N -o '%N %T %E'"),
            )
            time.sleep(0.05)

    def output(self, number: str, task: str = "4294967294") -> list[str]:
        """What a job wrote, from whichever node."""
        for name, _ in self.cluster.onprem:
            file = self.cluster.lab.box(name).path(f"/home/ada/out.{number}.{task}")
            if file.exists():
                return sorted(file.read_text(encoding="utf-8").splitlines())
        return []


@contextmanager
def stage_rig(release: str, state: Path) -> Iterator[StageRig]:
    """A cluster whose burst_buffer.lua, burst_buffer.conf and job_submit.lua are those that burstd brings."""
    try:
        ensure_rootfs(release)
    except SandboxError as error:
        if release == "bookworm":
            raise
        pytest.skip(f"{release}: {error}")
    files = ["burst_buffer.lua", "burst_buffer.conf", *(["job_submit.lua"] if release == "bookworm" else [])]
    head_files = [BoxFile(f"/etc/slurm/{name}", (PROJECT / "config/slurm" / name).read_text("utf-8")) for name in files]
    head_files.append(
        BoxFile("/usr/local/bin/burstd-stage", f'#!/bin/sh\nexec /usr/bin/python3 -SE {_CLIENT} "$@"\n', 0o755)
    )
    with Cluster(
        release,
        state=state,
        head_files=head_files,
        head_binds=[BindMount(PROJECT / "burstd/slurm/hooks/stage_client.py", _CLIENT)],
        extra_conf=_EXTRA + ("JobSubmitPlugins=lua\n" if release == "bookworm" else ""),
    ) as cluster:
        rig = StageRig(cluster)
        rig.start()
        try:
            yield rig
        finally:
            rig.stop()
