"""burstctl notebook, code: a program with pages for the browser, as a job whose port is brought here."""

from __future__ import annotations

import os
import secrets
import select
import socket as sockets
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from burstd.api.answers.text import parse_duration
from burstd.cli.commands.ports import HOST, HUNG_UP, carry_port, connect_or_fail
from burstd.cli.commands.wait import wait_for_start
from burstd.cli.job_programs import CODE, NOTEBOOK, Program, Session, batch_script, parse_session
from burstd.cli.job_socket import JobRefused, JobSocket
from burstd.cli.plain_text import print_json_line
from burstd.cli.session import ApiClient, DaemonUnreachable, ExitCode, with_client
from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.slurm.commands.run import SlurmCommands

_PORTS = range(20000, 32768)
"""Ports that the kernel gives to nobody by itself (net.ipv4.ip_local_port_range)."""
_LEAST_IDLE_S = 120.0
_READY_CHECK_S = 1.0
_ANSWER_TIMEOUT_S = 10.0
_INTERRUPTED = 130


def _command(program: Program, text: str) -> Callable[..., None]:
    """The command of a program, with its help."""

    def run(
        burstd: ApiClient,
        words: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="SBATCH-OPTIONS",
                help="Default: the burst partitions, and a time limit of two hours.",
            ),
        ] = None,
        job: Annotated[str, typer.Option("--job", metavar="JOB", help="Attach again to this one of yours.")] = "",
        idle: Annotated[str, typer.Option(metavar="TIME", help="It ends when it was unused for so long.")] = "30m",
        directory: Annotated[
            Path | None, typer.Option("--dir", metavar="DIR", help="Where it works; default: the same as here.")
        ] = None,
        port: Annotated[
            int | None, typer.Option(min=0, max=65535, help="Port of 127.0.0.1 here; 0: any free one.")
        ] = None,
        command: Annotated[
            str, typer.Option(metavar="WORDS", help="Run this, as the shell reads it; default: what is on the PATH.")
        ] = "",
        module: Annotated[
            list[str] | None, typer.Option("--module", metavar="NAME", help="Load this module first; may be repeated.")
        ] = None,
        keep: Annotated[bool, typer.Option("--keep", help="Ctrl-C leaves the job running, and asks nothing.")] = False,
    ) -> None:  # fmt: skip
        if job and words:
            burstd.fail(ExitCode.USAGE, "--job attaches to a job that is there: leave sbatch's options out.")
        try:
            idle_s = parse_duration(idle)
        except ValueError as error:
            burstd.fail(ExitCode.USAGE, f"--idle: {error}.")
        if idle_s < _LEAST_IDLE_S:
            burstd.fail(ExitCode.USAGE, f"--idle: {_LEAST_IDLE_S / 60:.0f}m at least.")
        number = job
        if not job:
            variable = f"BURSTCTL_{program.name.upper()}"
            modules = module or os.environ.get(f"{variable}_MODULES", "").split()
            command = command or os.environ.get(variable, "")
            session = Session(program, secrets.choice(_PORTS), secrets.token_hex(24))
            script = batch_script(
                session, idle_s=int(idle_s), partitions=_burst_partitions(burstd), modules=modules, command=command
            )
            where = [] if directory is None else [f"--chdir={directory.absolute()}"]
            number = _submit(burstd, [*where, *(words or ())], script)
        try:
            _serve(burstd, program, number, port, submitted=not job)
        except KeyboardInterrupt:
            _interrupted(burstd, program, number, keep=keep)

    run.__name__, run.__doc__ = program.name, text
    return with_client(run)


notebook = _command(
    NOTEBOOK,
    """Start Jupyter as a job, wait until it answers, and show it to your browser, until it ends or Ctrl-C.

    The printed address has a token of its own. A kernel that computes nothing for --idle is ended, then Jupyter and its
    job. Options of sbatch may stand among those of burstctl: burstctl notebook --gres=gpu:1 -t 4:00:00
    """,
)
code = _command(
    CODE,
    """Start VS Code (code-server) as a job and show it to your browser, until it ends or Ctrl-C.

    It asks for the password that is printed. It ends when no page of it was open for --idle (code-server 4.106 or
    later). Options of sbatch may stand among those of burstctl: burstctl code --gres=gpu:1 -t 4:00:00
    """,
)


def _burst_partitions(burstd: ApiClient) -> list[str]:
    pools = burstd.get_json("/status").get("pools", ())
    return list(dict.fromkeys(str(name) for pool in pools for name in pool["partitions"]))


def _submit(burstd: ApiClient, words: Sequence[str], script: str) -> str:
    """The job's number. The script goes through a pipe: arguments are for everybody to see."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", *words], input=script, stdout=subprocess.PIPE, text=True, check=False
        )
    except FileNotFoundError:
        burstd.fail(ExitCode.NEGATIVE, "sbatch is not installed here: run this where you submit jobs.")
    if done.returncode:
        raise typer.Exit(ExitCode.NEGATIVE)
    return done.stdout.strip().partition(";")[0]


def _serve(burstd: ApiClient, program: Program, job: str, port: int | None, *, submitted: bool) -> None:
    """Returns when it is over."""
    session = _session(burstd, job)
    if session is None or session.program is not program:
        if submitted:
            _cancel(burstd, job)
            burstd.fail(ExitCode.USAGE, f"Job {job} was to run a script of yours, and is cancelled: give options only.")
        burstd.fail(ExitCode.NEGATIVE, f"Job {job} is none that you started by burstctl {program.name}.")
    if submitted and not burstd.json:
        typer.echo(f"Job {job} is submitted.")
    if not wait_for_start(burstd, job):
        _fail_early(burstd, program, job)
    daemon = JobSocket(burstd.path, {"kind": "port", "job": job, "port": session.port, "node": ""})
    monitor, answer = connect_or_fail(burstd, daemon)

    def announce(here: int) -> None:
        address, password = session.address(HOST, here), "" if program.query else session.token
        if burstd.json:
            found = {"host": HOST, "port": here, "job": job, "node": answer.get("node")}
            print_json_line({**found, "url": address, "password": password})
            return
        typer.echo(f"{address}\n" + (f"Password: {password}\n" if password else ""), nl=False)
        typer.echo(
            f"Where the browser is on another machine, run there first: ssh -N -L {here}:{HOST}:{here} "
            f"{sockets.gethostname()}\nIts job ends by itself when nobody uses it, at its time limit, and with Ctrl-C."
        )

    with monitor:
        _await_answer(burstd, program, job, daemon, monitor)
        why = carry_port(burstd, daemon, monitor, session.port if port is None else port, port is not None, announce)
    if why == HUNG_UP:
        why = f"burstd hung up; when it runs again: burstctl {program.name} --job {job}"
    burstd.fail(ExitCode.NEGATIVE, why)


def _session(burstd: ApiClient, job: str) -> Session | None:
    """By the job's script, which Slurm shows to its owner."""
    try:
        return parse_session(SlurmCommands()("scontrol", "write", "batch_script", job, "-"))
    except SchedulerRefused as error:
        burstd.fail(ExitCode.NEGATIVE, f"{error}.")
    except SchedulerUnavailable as error:
        burstd.fail(ExitCode.UNREACHABLE, f"{error}.")


def _await_answer(burstd: ApiClient, program: Program, job: str, daemon: JobSocket, monitor: sockets.socket) -> None:
    """Returns once the program answers over HTTP; ends burstctl where the job ends first."""
    while not _answers(daemon):
        if select.select([monitor], [], [], _READY_CHECK_S)[0]:
            _fail_early(burstd, program, job)


def _fail_early(burstd: ApiClient, program: Program, job: str) -> NoReturn:
    burstd.fail(
        ExitCode.NEGATIVE,
        f"{program.name} did not answer before job {job}, or burstd, ended. What the job wrote is in slurm-{job}.out, "
        f"and until its node has gone also here: burstctl job logs {job}",
    )


def _answers(daemon: JobSocket) -> bool:
    try:
        connection, _ = daemon.connect(hold=False)
    except (JobRefused, DaemonUnreachable):
        return False
    with connection:
        connection.settimeout(_ANSWER_TIMEOUT_S)
        try:
            connection.sendall(b"GET /api HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
        except OSError:
            return False


def _interrupted(burstd: ApiClient, program: Program, job: str, *, keep: bool) -> NoReturn:
    """Ctrl-C: ends the job unless the person at the terminal, or ``--keep``, says otherwise."""
    if not keep and sys.stdin.isatty():
        sys.stderr.write(f"\nEnd job {job}? [Y/n] ")
        sys.stderr.flush()
        try:
            keep = sys.stdin.readline().strip().lower() in ("n", "no")
        except KeyboardInterrupt:
            keep = False
    if not keep:
        _cancel(burstd, job)
    text = f"goes on: burstctl {program.name} --job {job}" if keep else "is cancelled"
    typer.echo(f"Job {job} {text}.", err=True)
    raise typer.Exit(_INTERRUPTED)


def _cancel(burstd: ApiClient, job: str) -> None:
    try:
        SlurmCommands()("scancel", job)
    except (SchedulerRefused, SchedulerUnavailable) as error:
        burstd.fail(ExitCode.UNREACHABLE, f"Job {job} may go on: {error}.")
