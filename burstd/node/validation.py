"""The two steps that make a machine a node: prove it and hand over the cluster's secrets; start slurmd.

Both may be cut off at any point and repeated: what is done already is found done.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

import structlog

from burstd.domain.cloud.offer import GpuTest
from burstd.domain.cloud.quoting import one_line
from burstd.domain.framework import Framework
from burstd.domain.plugins.shell import CommandShell, CommandTimedOut, ConnectionLost
from burstd.domain.slurm.shape import Gres
from burstd.node.checks import GPU_TOOLS, failed_checks
from burstd.node.errors import CommandFailed, NoConfiguration, SlurmdNotStarted, StepsRunning
from burstd.node.expected import CheckFailure, ExpectedMachine
from burstd.node.facts import MachineFacts, read_facts
from burstd.node.frameworks import FRAMEWORKS, framework_failures
from burstd.planner.lifecycle.listing import abbreviated_list

log = structlog.get_logger(__name__)

PROGRAM_LIMIT_S = 60.0
"""How long each of the site's check programs may take."""
_PROGRAM_WAIT_S = PROGRAM_LIMIT_S + 10.0
_ANSWER_S = 5.0
_NO_ANSWER = -1
_WARNING = 1
"""Exit status of a plug-in of Nagios."""
_EX_TEMPFAIL = 75
"""Exit status of a script that could not so far: EX_TEMPFAIL of sysexits.h."""
NVIDIA_DEVICES = "/dev/nvidia[0-9]*"
_WORD = re.compile(r"^[A-Za-z0-9_.,:/=@%+-]+$")


@dataclass(frozen=True, slots=True)
class ValidationRequest:
    """What a machine must be, and what it is given when it is. ``gpu_devices``: pattern of the GPUs' device files."""

    expected: ExpectedMachine
    munge_key: bytes = field(repr=False)
    credential: Callable[[int], str]
    """A fresh credential of the head's munged, that the machine's munged must believe, for this user's eyes only."""
    wall: Callable[[], float]
    """The head's clock, in seconds since 1970."""
    gpu_devices: str = NVIDIA_DEVICES
    check_commands: Mapping[str, str] = field(default_factory=dict)
    """The site's own checks: name -> shell command that ends with 0 where all is well."""
    check_programs: Mapping[str, bytes] = field(default_factory=dict)
    """More of them: name -> a program that ends as Nagios' plug-ins do."""
    gpu_test_limit_s: float = 0.0
    gpu_min_gb_s: float = 0.0
    frameworks: tuple[Framework, ...] = ()
    """What jobs may ask for, and must work there."""
    reused_as: str = ""
    """The node that a machine is to be that was another one; empty: it is new, or has had jobs as this node."""
    node_json: str = ""
    """The content of its /etc/burstd/node.json."""


@dataclass(frozen=True, slots=True)
class Unattended:
    """When a machine that hears nothing of burstd powers itself off, in whole seconds; 0: never."""

    after_s: int
    job_dir: str = ""
    """While jobs have data there ..."""
    data_s: int = 0
    """... it stays so much longer."""


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """What came of it. With failures the machine was given nothing."""

    failures: tuple[CheckFailure, ...]
    warnings: tuple[CheckFailure, ...]
    """Differences that are allowed."""
    facts: MachineFacts
    seconds: float


def validate_machine(
    request: ValidationRequest, connect: Callable[[], CommandShell], on_reached: Callable[[], None] = lambda: None
) -> ValidationResult:
    """Connects, has the machine say what it is, judges that, and where all is well hands the secrets over.

    ``reached`` is called once it answers. Raises what ``connect`` raises, CommandFailed (munge), StepsRunning,
    ConnectionLost, CommandTimedOut.
    """
    began = time.monotonic()
    with connect() as session:
        on_reached()
        if request.reused_as:
            _clear_users(session, request)
        _cut_gpus(session, request.expected.mig)
        facts = read_facts(session, request.expected.facts_request(request.gpu_devices), wall=request.wall)
        differences = failed_checks(facts, request.expected)
        # Each of these takes longer than the one before: with a failure nothing more is asked.
        for more in (_gpu_failures, _framework_failures, _failed_commands, _failed_programs):
            if all(difference.allowed for difference in differences):
                differences += more(session, request)
        failures = tuple(difference for difference in differences if not difference.allowed)
        if not failures:
            _limit_gpu_memory(session, request.expected)
            _deliver_secrets(session, request, facts.uid)
    warnings = tuple(difference for difference in differences if difference.allowed)
    return ValidationResult(failures, warnings, facts, time.monotonic() - began)


def _clear_users(session: CommandShell, request: ValidationRequest) -> None:
    """Removes what users of the node that it was have left in memory and in temporary directories."""
    done = session.script(_script("reuse.sh"), request.reused_as, input=request.node_json.encode(), timeout_s=60.0)
    if done.rc == _EX_TEMPFAIL:
        raise StepsRunning(f"the machine cannot be {request.reused_as} so far: {done.last_line}")
    if done.rc != 0:
        raise CommandFailed(
            f"the machine cannot be cleared of its former users: {done.last_line}", rc=done.rc, err=done.err,
            cause="reuse",
        )  # fmt: skip


def _cut_gpus(session: CommandShell, mig: Sequence[Gres]) -> None:
    """Cuts each GPU of the machine into these parts (MIG), unless that is done. slurmd does not run yet."""
    if not mig:
        return
    profiles = ",".join(profile for g in mig for profile in [g.type] * g.count)
    done = session.script(_script("mig.sh"), profiles, timeout_s=120.0)
    if done.rc != 0:
        raise CommandFailed(
            f"the GPUs cannot be cut into {','.join(map(str, mig))}: {done.last_line}", rc=done.rc, err=done.err,
            cause="mig",
        )  # fmt: skip


def _limit_gpu_memory(session: CommandShell, expected: ExpectedMachine) -> None:
    """Brings the machine what limits jobs to their shards' part of a GPU's memory."""
    limit = expected.gpu_memory_limit
    if limit == "none":
        return
    hook = _script("gpu_memory_prolog.sh").encode()
    done = session.script(_script("gpu_memory_limit.sh"), limit, str(expected.shards_per_gpu), input=hook)
    if done.rc != 0:
        raise CommandFailed(
            f"nothing can limit GPU memory there: {done.last_line}", rc=done.rc, err=done.err, cause="gpu_memory_limit"
        )


_MISSING = " is missing: "
"""What gpu_test.py says of the driver and programs that are not there."""


def _gpu_failures(session: CommandShell, request: ValidationRequest) -> Iterator[CheckFailure]:
    """GPUs that do not compute, where the pool wants that tested."""
    expected, limit_s = request.expected, request.gpu_test_limit_s
    parts = sum(g.count for g in expected.mig) or 1
    wanted = expected.shape.gpus() * parts
    if expected.gpu_test not in (GpuTest.SHORT, GpuTest.LONG) or not wanted or "gpu_test" in expected.skip:
        return
    arguments = [f"{limit_s:g}"]
    if expected.gpu_test is GpuTest.LONG:
        arguments += ["long", *([f"{request.gpu_min_gb_s:g}"] if request.gpu_min_gb_s else [])]
    try:
        done = session.run(
            ["python3", "-I", "-", *arguments], input=_script("gpu_test.py").encode(), timeout_s=limit_s + _ANSWER_S
        )
    except CommandTimedOut:
        raise CommandFailed(
            f"the GPUs do not end their test of {limit_s:.0f} s", rc=_NO_ANSWER, err="", cause="gpu_test"
        ) from None
    lines = [one_line(line, 400) for line in done.out.splitlines()]
    if done.rc != 0 or "end" not in lines:
        remedy = "The test needs python3 in the image; else set gpu_test = 'basic' for the pool"
        # Where it has printed nothing it has not begun.
        cause = "" if lines else GPU_TOOLS
        yield CheckFailure("gpu_test", "an answer", f"'{done.last_line}'", remedy, cause=cause)
        return
    failed = [line.removeprefix("failed ") for line in lines if line.startswith("failed ")]
    well = sum(line.startswith("ok ") and line not in ("ok dcgmi", "ok nvbandwidth") for line in lines)
    if failed or well < wanted:
        found = abbreviated_list(failed) if failed else f"{well} that nvidia-smi lists"
        remedy = "Give the machine back and try another; where all are like this look at the image's driver"
        allowed = "gpu_test" in expected.may_differ
        cause = GPU_TOOLS if failed and all(_MISSING in why for why in failed) else ""
        yield CheckFailure("gpu_test", f"{wanted} GPUs that compute", found, remedy, allowed, cause)


def _framework_failures(session: CommandShell, request: ValidationRequest) -> Iterator[CheckFailure]:
    expected = request.expected
    if FRAMEWORKS in expected.skip:
        return
    for failure in framework_failures(session, request.frameworks, gpus=bool(expected.shape.gpus())):
        yield replace(failure, allowed=FRAMEWORKS in expected.may_differ)


def _failed_commands(session: CommandShell, request: ValidationRequest) -> Iterator[CheckFailure]:
    for name, command in request.check_commands.items():
        done = session.script(command, timeout_s=60.0)
        if done.rc != 0:
            remedy = "This is a check of the site: see check_commands in the settings"
            yield CheckFailure(name, f"success of '{command}'", f"'{done.last_line}' (exit status {done.rc})", remedy)


def _failed_programs(session: CommandShell, request: ValidationRequest) -> Iterator[CheckFailure]:
    """As Nagios' plug-ins do, 0 means well and 1 a warning; the first line is what is shown, up to a '|'."""
    for name, program in request.check_programs.items():
        done = session.script(_script("check.sh"), f"{PROGRAM_LIMIT_S:.0f}", input=program, timeout_s=_PROGRAM_WAIT_S)
        if done.rc != 0:
            said = next(iter(done.out.splitlines()), "").partition("|")[0].strip() or done.last_line
            remedy = f"This is a check of the site: see {name} in node.check_folder"
            yield CheckFailure(
                name, "exit status 0", f"'{one_line(said, 400)}' (exit status {done.rc})", remedy, done.rc == _WARNING
            )


def _deliver_secrets(session: CommandShell, request: ValidationRequest, uid: int) -> None:
    """Through the encrypted channel's standard input only: arguments can be read by every user of a machine."""
    content = request.credential(uid).strip().encode("ascii") + b"\n" + request.munge_key
    done = session.script(_script("munge.sh"), str(len(request.munge_key)), input=content, timeout_s=60.0)
    if done.rc != 0:
        raise CommandFailed(
            f"munge does not work on the machine: {done.last_line}", rc=done.rc, err=done.err, cause="munge"
        )


def start_slurmd(
    slot: str,
    connect: Callable[[], CommandShell],
    *,
    conf_server: str = "",
    options: Sequence[str] = (),
    command: Sequence[str] = (),
    watch: str = "",
    verdicts: str = "",
    unattended: Unattended | None = None,
) -> None:
    """Starts slurmd under the slot's name, unless it runs already. slurmctld must expect the node by now.

    To be repeated where slurmctld goes on waiting for the node: a slurmd that it takes no notice of is started anew.

    ``conf_server``: ``HOST[:PORT][,HOST...]`` of slurmctld, which sends the configuration; empty where the image has a
    slurm.conf. ``options``: more for slurmd. With systemd the unit slurmd.service is used, else slurmd is started
    directly. ``command`` is run instead of all that, with ``{slot}`` and ``{conf_server}`` filled in.
    ``watch``: a script by which the machine learns that its cloud takes it back; ``verdicts``: what comes of its
    faults (``verdict_table``). With either of them the machine watches itself, and drains the node (watch.sh).
    ``unattended``: when it powers itself off; None: never.

    Raises SlurmdNotStarted, NoConfiguration, ConnectionLost, CommandTimedOut, ValueError (a word that no option may
    hold) and what ``connect`` raises.
    """
    slurmd_arguments = [slot, *(["--conf-server", conf_server] if conf_server else []), *options]
    for word in slurmd_arguments:
        if not _WORD.match(word):
            raise ValueError(f"{word!r} is not allowed as an option of slurmd: use letters, digits and _.,:/=@%+-")
    with connect() as session:
        if watch or verdicts or unattended:
            # Before it can have jobs: burstd may be killed between the two.
            _start_watch(session, slot, watch, verdicts, unattended or Unattended(0))
        # Where slurmctld is down slurmd goes on asking for its configuration: that need not be waited for.
        if command:
            filled = [w.replace("{slot}", slot).replace("{conf_server}", conf_server) for w in command]
            done = session.run(filled, timeout_s=60.0)
        else:
            done = session.script(_script("slurmd.sh"), *slurmd_arguments, timeout_s=60.0)
    if done.rc != 0:
        kind = NoConfiguration if done.rc == _EX_TEMPFAIL else SlurmdNotStarted
        raise kind(f"slurmd did not start as {slot}: {done.last_line}")


def _start_watch(session: CommandShell, slot: str, script: str, verdicts: str, unattended: Unattended) -> None:
    """A machine that cannot watch is a node all the same: its cloud's queue, or its end, tells."""
    conditions = _script("gpu_states.sh") + _script("conditions.sh")
    parts = [part.encode() for part in (_script("watch.sh"), _script("kernel_log.sh"), conditions, verdicts)]
    lengths = [str(len(part)) for part in parts]
    try:
        words = [slot, *lengths, str(unattended.after_s), unattended.job_dir, str(unattended.data_s)]
        done = session.script(_script("watching.sh"), *words, input=b"".join([*parts, script.encode()]))
    except (CommandTimedOut, ConnectionLost) as error:
        log.warning("machine does not watch itself", slot=slot, error=str(error))
        return
    if done.rc != 0:
        log.warning("machine does not watch itself", slot=slot, error=done.last_line)


@cache
def _script(name: str) -> str:
    return files("burstd.node").joinpath("scripts", name).read_text(encoding="utf-8")
