"""burstctl init, uninit: burstd into a running Slurm, and out again.

Each step is in the journal before it is taken. An init that was cut off, and one that fails, are undone by what the
journal says; so is one that ended well, by uninit.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.api.answers.text import plural
from burstd.cli.output import ConsoleOutput
from burstd.cli.session import ApiClient, DaemonUnreachable, ExitCode, confirm, with_client
from burstd.cli.setup.answers import (
    KINDS,
    SANDBOX_POOLS,
    TREES,
    AnswerRefused,
    Answers,
    parse_key,
    parse_pool,
)
from burstd.cli.setup.head import (
    Head,
    SetupRefused,
    read_head,
    require_root,
    restart_slurmctld,
    systemctl,
)
from burstd.cli.setup.journal import Journal, read_text
from burstd.cli.setup.prepare import make_settings, plan_sandbox, slurm_changes
from burstd.cli.setup.steps import SETTINGS, Steps, undo
from burstd.share import share_path
from burstd.slurm.config.merge import MergeRefused

if TYPE_CHECKING:
    from burstd.domain.cloud.offer import Pool
    from providers.sandbox.trial import Trial

_SERVICES = ("burstd.socket", "burstd.service")
_OLD_SETTINGS = SETTINGS.with_name("burstd.toml.old")
_MOUNTS = "burstd-mount-worker.socket"
_POOL_EXAMPLE = "name=gpu,nodes=4,type=g5.xlarge,cpus=4,memory=15000,gres=gpu:a10g:1"
_ANSWER_TIMEOUT_S = 60.0
_POLL_S = 0.2


@with_client
def init(
    burstd: ApiClient,
    provider: Annotated[str, typer.Option(metavar="KIND", help="sandbox, aws, openstack or openshift.")] = "",
    keys: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="A key of the provider's; may be repeated.")
    ] = [],  # noqa: B006 - Typer copies it
    pool: Annotated[
        list[str],
        typer.Option(
            metavar="WORDS",
            help="name=gpu,nodes=4,type=g5.xlarge and, where the cloud does not say, cpus=, memory=, gres=.",
        ),
    ] = [],  # noqa: B006
    image: Annotated[str, typer.Option(help="The image of the machines, as the provider names it.")] = "",
    partition: Annotated[str, typer.Option(help="The partition for jobs in the cloud.")] = "burst",
    trees: Annotated[bool, typer.Option(help="Show users' home directories on nodes.")] = True,
    nodes: Annotated[int, typer.Option(min=0, help="Most nodes at a time; 0: all of the pools.")] = 0,
    budget: Annotated[str, typer.Option(metavar="AMOUNT", help="Most that a month may cost: 500, or '500 USD'.")] = "",
    address: Annotated[str, typer.Option(metavar="HOST", help="slurmctld as machines in the cloud reach it.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take the defaults and ask nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a burstd.toml that is there.")] = False,
    deep: Annotated[bool, typer.Option(help="Try a job at the end.")] = True,
    user: Annotated[str, typer.Option(help="Whose job to try.")] = "",
) -> None:
    """Put burstd into the running Slurm: settings, slurm.conf, services, and a job to try it.

    Asks for what the options do not say. Shows each change to a file of Slurm first; burstctl uninit takes all back.
    """
    out = ConsoleOutput()
    try:
        require_root()
        _undo_unfinished(burstd, out)
        head = read_head()
        answers = _answers(
            provider, keys, pool, image=image, partition=partition, trees=trees, nodes=nodes, budget=budget, yes=yes
        )
        _install(burstd, head, answers, address, out, yes=yes, dry_run=dry_run, force=force)
        if deep and not dry_run:
            from burstd.cli.offline.config import check_deep

            check_deep(burstd, SETTINGS, user)
    except (SetupRefused, AnswerRefused, MergeRefused) as error:
        code = ExitCode.FORBIDDEN if os.geteuid() else ExitCode.NEGATIVE
        burstd.fail(code, f"{error}.")


def _undo_unfinished(burstd: ApiClient, out: ConsoleOutput) -> None:
    journal = Journal.load()
    if journal is not None and not journal.finished:
        out.line("An init before this one did not end: what it did is undone first.")
        if _answers_status(burstd):
            _end_machines(burstd, journal, out)
        undo(journal, out)


def _answers(
    kind: str,
    keys: Sequence[str],
    pools: Sequence[str],
    *,
    image: str,
    partition: str,
    trees: bool,
    nodes: int,
    budget: str,
    yes: bool,
) -> Answers:
    """From the options, and from questions for what they leave open. Raises AnswerRefused."""
    if not kind:
        kind = "sandbox" if yes else typer.prompt(f"Provider ({', '.join(KINDS)})", "sandbox")
    if kind not in KINDS:
        raise AnswerRefused(f"there is no provider {kind!r}: choose one of {', '.join(KINDS)}")
    chosen = tuple(parse_pool(text) for text in pools)
    if not chosen and kind != "sandbox" and not yes:
        chosen = (parse_pool(typer.prompt(f"Pool, as {_POOL_EXAMPLE}")),)
    if not chosen and kind != "sandbox":
        raise AnswerRefused(f"{kind} needs a pool: --pool {_POOL_EXAMPLE}")
    if not yes:
        partition = typer.prompt("Partition for jobs in the cloud", partition)
        trees = typer.confirm("Show users' home directories on nodes", trees)
        budget = budget or typer.prompt("Most that a month may cost (empty: no budget)", "", show_default=False)
    amount, _, currency = budget.partition(" ")
    return Answers(
        kind, dict(parse_key(text) for text in keys), image or ("node" if kind == "sandbox" else ""),
        chosen or SANDBOX_POOLS, partition, TREES if trees else {}, nodes, amount, currency or "EUR",
    )  # fmt: skip


def _install(
    burstd: ApiClient,
    head: Head,
    answers: Answers,
    address: str,
    out: ConsoleOutput,
    *,
    yes: bool,
    dry_run: bool,
    force: bool,
) -> None:
    if SETTINGS.exists() and not force:
        raise SetupRefused(
            f"{SETTINGS} is there already: change it, and put what 'burstctl slurm-config' prints into slurm.conf; "
            f"or have a new one written with --force, which keeps this one as {_OLD_SETTINGS}"
        )
    trial = plan_sandbox(head) if answers.kind == "sandbox" else None
    text, settings, pools = make_settings(head, answers, address, trial)
    conf, gres = slurm_changes(settings, pools, head)
    changes = {**conf, **gres}
    _show(out, head, text, changes, trial)
    if dry_run:
        return
    if not yes:
        confirm(burstd, "Do all this, and restart slurmctld? Running jobs go on.")
    journal = Journal(
        partitions=[name for name in _partitions(pools) if name not in head.partitions],
        slurmctld_log=str(head.log or ""),
    )
    journal.save()
    steps = Steps(journal, head, out)
    try:
        _carry_out(burstd, steps, head, text, changes, trial, mounts=bool(answers.trees), out=out)
    except BaseException as error:
        out.line(("It failed, and is undone", "bold red"), f": {error or type(error).__name__}")
        undo(journal, out)
        if isinstance(error, SetupRefused | OSError | subprocess.CalledProcessError):
            raise SetupRefused("burstd is not installed into Slurm, whose files are as they were") from None
        raise
    journal.finished = True
    journal.save()


def _carry_out(
    burstd: ApiClient,
    steps: Steps,
    head: Head,
    text: str,
    changes: Mapping[Path, str],
    trial: Trial | None,
    *,
    mounts: bool,
    out: ConsoleOutput,
) -> None:
    """In the order that Slurm wants: slurmctld finds burstd's programs when it starts, burstd finds its partition."""
    steps.make_group("burstd")
    units = [p.name for p in sorted(share_path("systemd").iterdir()) if p.name != "burstd-node-watch.service"]
    steps.install_units([unit for unit in units if trial is not None or "sandbox" not in unit])
    if trial is not None:
        steps.make_sandbox(trial)
    if SETTINGS.exists():
        SETTINGS.rename(_OLD_SETTINGS)
    steps.create(SETTINGS, text)
    steps.merge(changes)
    out.line("restarting slurmctld")
    restart_slurmctld(head.log)
    steps.enable(*([_MOUNTS] if mounts else []), *_SERVICES)
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    while not _answers_status(burstd):
        if time.monotonic() > deadline:
            raise SetupRefused("burstd does not answer: see journalctl -u burstd")
        time.sleep(_POLL_S)
    for pool in burstd.get_json("/status")["pools"]:  # an uninit that left the record has pinned them at 0
        burstd.request_status("DELETE", f"/pools/{pool['name']}/pin")


def _answers_status(burstd: ApiClient) -> bool:
    try:
        status, _ = burstd.request_status("GET", "/nodes")
    except DaemonUnreachable:
        return False
    return status == 200


def _partitions(pools: Sequence[Pool]) -> list[str]:
    return list(dict.fromkeys(name for pool in pools for name in pool.partitions))


def _show(out: ConsoleOutput, head: Head, text: str, changes: Mapping[Path, str], trial: Trial | None) -> None:
    version = "{}.{:02}.{}".format(*head.version)
    out.line(f"Slurm {version}, cluster {head.config.get('ClusterName', '')}, SlurmUser {head.slurm_user.pw_name}.")
    if trial is not None:
        out.line(
            f"The sandbox makes machines of Debian {trial.suite} on this host, in {trial.subnet}. Root in "
            "such a machine is root here."
        )
    out.blank()
    for path, new in {SETTINGS: text, **changes}.items():
        before = read_text(path)
        for line in difflib.unified_diff(
            before.splitlines(),
            new.splitlines(),
            str(path) if path.exists() else "/dev/null",
            str(path),
            lineterm="",
            n=1,
        ):
            style = "green" if line.startswith("+") else "red" if line.startswith("-") else ""
            out.command(line, style=style)
    out.blank()


@with_client
def uninit(
    burstd: ApiClient,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove burstd.toml, the record, and the sandbox's file systems.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
) -> None:
    """Take back what burstctl init did, once no machine is left: services, slurm.conf, the sandbox."""
    out = ConsoleOutput()
    try:
        require_root()
        journal = Journal.load()
        if journal is None and not purge:
            out.line("There is nothing to undo: burstctl init did nothing here.")
            return
        if not yes:
            confirm(burstd, "End all machines of burstd, and take it out of Slurm?")
        if journal is not None and (journal.finished or _answers_status(burstd)):
            _end_machines(burstd, journal, out)
        undo(journal or Journal(finished=True), out, purge=purge)
    except SetupRefused as error:
        burstd.fail(ExitCode.FORBIDDEN if os.geteuid() else ExitCode.NEGATIVE, f"{error}.")
    out.line("burstd is out of Slurm.")


def _end_machines(burstd: ApiClient, journal: Journal, out: ConsoleOutput) -> None:
    """Closes the partitions that init made, and waits until no machine is left: running jobs are waited for."""
    for name in journal.partitions:
        subprocess.run(["scontrol", "update", f"partitionname={name}", "state=drain"], check=False, capture_output=True)
    try:
        status = burstd.request_status("GET", "/status")[1]
        for pool in status["pools"]:
            burstd.request("PUT", f"/pools/{pool['name']}/pin", {"nodes": 0, "kind": "exact"})
        said = ""
        while nodes := [n for n in burstd.request_status("GET", "/nodes")[1]["nodes"] if n["claim"]]:
            text = f"waiting for {plural(len(nodes), 'machine')} to end: " + ", ".join(
                f"{node['slot']} ({node['state']})" for node in nodes
            )
            if text != said:
                out.line(text)
            said = text
            time.sleep(_POLL_S)
    except DaemonUnreachable as error:
        raise SetupRefused(
            f"burstd does not answer, and machines may be running that nobody ends then: start it first "
            f"({str(error).partition(chr(10))[0]})"
        ) from None
    systemctl("disable", "--now", *reversed(_SERVICES), check=False)
    subprocess.run(["scontrol", "delete", "reservationname=burstd"], check=False, capture_output=True)
