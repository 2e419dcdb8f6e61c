"""burstctl init, uninit: burstd into a running Slurm, and out again.

Each step is in the journal before it is taken. An init that was cut off, and one that fails, are undone by what the
journal says; so is one that ended well, by uninit.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

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
    fitting,
    parse_key,
    parse_pool,
)
from burstd.cli.setup.deep import choose_user
from burstd.cli.setup.head import (
    Head,
    SetupRefused,
    read_head,
    require_root,
    restart_slurmctld,
    systemctl,
    wait_until,
)
from burstd.cli.setup.journal import Journal, only_one, read_text
from burstd.cli.setup.prepare import Wanted, kept_settings, new_settings
from burstd.cli.setup.steps import SETTINGS, Steps, undo
from burstd.domain.errors import BurstdError
from burstd.domain.snapshot import NOT_READ_YET
from burstd.share import share_path
from burstd.slurm.config.merge import MergeRefused

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from burstd.cli.setup.machines_left import LeftInClouds

_SERVICES = ("burstd.socket", "burstd.service")
_POOL_EXAMPLE = "name=gpu,nodes=4,type=g5.xlarge,cpus=4,memory=15000,gres=gpu:a10g:1"
_ALLOWED_TYPES = {"aws": "instance_types", "azure": "instance_types", "google": "machine_types", "openstack": "flavors"}
"""Key of a provider with the types that the site allows: those of the pools, where nothing else is said."""
_ANSWER_TIMEOUT_S = 60.0
_POLL_S = 0.2


@with_client
def init(
    burstd: ApiClient,
    provider: Annotated[str, typer.Option(metavar="KIND", help=f"{', '.join(KINDS[:-1])} or {KINDS[-1]}.")] = "",
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
    keep: Annotated[
        bool, typer.Option("--keep", help="Take burstd.toml as it is; also after a change of its pools.")
    ] = False,
    deep: Annotated[bool, typer.Option(help="Try a job at the end.")] = True,
    user: Annotated[str, typer.Option(help="Whose job to try.")] = "",
) -> None:
    """Put burstd into the running Slurm: settings, slurm.conf, services, and a job to try it.

    Asks for what the options do not say. Shows each change to a file of Slurm first; burstctl uninit takes all back.
    """
    out = ConsoleOutput()
    try:
        require_root()
        with only_one():
            fitting("address", address)
            if user:
                choose_user(burstd, user)
            _undo_unfinished(burstd, out)
            head = read_head()
            if keep:
                wanted = kept_settings(head)
            else:
                answers = _answers(
                    provider, keys, pool, image=image, partition=partition, trees=trees, nodes=nodes, budget=budget,
                    yes=yes,
                )  # fmt: skip
                wanted = new_settings(head, answers, address, replace_settings=force)
            _show(out, head, wanted)
            if dry_run:
                return
            if not yes:
                confirm(burstd, "Do all this, and restart slurmctld? Running jobs go on.")
            _install(burstd, head, wanted, out)
        if deep:
            from burstd.cli.checks.check import check_deep

            check_deep(burstd, SETTINGS, user)
    except (SetupRefused, AnswerRefused, MergeRefused, BurstdError, OSError) as error:
        code = ExitCode.FORBIDDEN if os.geteuid() else ExitCode.NEGATIVE
        burstd.fail(code, f"{str(error).rstrip('.')}.")


def _undo_unfinished(burstd: ApiClient, out: ConsoleOutput) -> None:
    journal = Journal.load()
    if journal is not None and not journal.finished:
        out.line("An init before this one did not end: what it did is undone first.")
        _stop_burstd(burstd, journal, out)
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
    from burstd.settings import PluginRegistry

    for option, text in (("partition", partition), ("image", image), ("budget", budget)):
        fitting(option, text)
    chosen = tuple(parse_pool(text) for text in pools)
    values = dict(parse_key(text) for text in keys)
    if not kind:
        kind = "sandbox" if yes else typer.prompt(f"Provider ({', '.join(KINDS)})", "sandbox")
    if kind not in KINDS:
        raise AnswerRefused(f"there is no provider {kind!r}: choose one of {', '.join(KINDS)}")
    if not chosen and kind != "sandbox" and not yes:
        chosen = (parse_pool(typer.prompt(f"Pool, as {_POOL_EXAMPLE}")),)
    if not chosen and kind != "sandbox":
        raise AnswerRefused(f"{kind} needs a pool: --pool {_POOL_EXAMPLE}")
    if kind in _ALLOWED_TYPES:
        values.setdefault(_ALLOWED_TYPES[kind], [pool.type for pool in chosen])
    plugin = PluginRegistry.installed().load_plugin("providers", kind)
    trees = trees and getattr(plugin, "has_ssh", True)  # the others' machines can show none
    if not yes:
        if kind != "sandbox":
            values |= {key: _asked(key, field) for key, field in _open_keys(plugin.settings, values).items()}
            text = image or typer.prompt("Image of the machines (empty: the provider's own)", "", show_default=False)
            image = fitting("image", text)
        partition = fitting("partition", typer.prompt("Partition for jobs in the cloud", partition))
        trees = trees and typer.confirm("Show users' home directories on nodes", default=True)
        nodes = nodes or typer.prompt("Most nodes at a time (0: all of the pools)", 0)
        text = budget or typer.prompt("Most that a month may cost (empty: no budget)", "", show_default=False)
        budget = fitting("budget", text)
    amount, _, currency = budget.partition(" ")
    return Answers(
        kind, values, image or ("node" if kind == "sandbox" else ""),
        chosen or SANDBOX_POOLS, partition, TREES if trees else {}, nodes, amount, currency or "EUR",
    )  # fmt: skip


def _open_keys(settings: type[Any], values: Mapping[str, Any]) -> dict[str, FieldInfo]:
    """Keys of a provider without a default that are not given."""
    fields: dict[str, FieldInfo] = settings.model_fields
    return {name: field for name, field in fields.items() if field.is_required() and name not in values}


def _asked(key: str, field: FieldInfo) -> Any:
    """A list is asked for as words with commas between them."""
    several = get_origin(field.annotation) is tuple
    said = str(typer.prompt(f"{key}{' (several: with commas)' if several else ''}"))
    return [word.strip() for word in said.split(",")] if several else parse_key(f"{key}={said}")[1]


def _install(burstd: ApiClient, head: Head, wanted: Wanted, out: ConsoleOutput) -> None:
    _require_writable(wanted.changes)
    before = Journal.load()
    journal = before or Journal(slurmctld_log=str(head.log or ""))
    journal.partitions += [name for name in wanted.partitions if name not in head.partitions]
    journal.save()
    steps = Steps(journal, head, out)
    if before is not None:
        for path, text in wanted.files.items():
            steps.create(path, text)
        steps.change(wanted.changes)
        steps.enable(*wanted.sockets)
        systemctl("reload-or-restart", "burstd.service")
    else:
        try:
            _carry_out(burstd, steps, head, wanted, out)
        except BaseException as error:
            out.line(("It failed, and is undone", "bold red"), f": {error or type(error).__name__}")
            _stop_burstd(burstd, journal, out)
            undo(journal, out)
            if isinstance(error, SetupRefused | OSError | subprocess.CalledProcessError):
                raise SetupRefused("burstd is not installed into Slurm, whose files are as they were") from None
            raise
        journal.finished = True
        journal.save()
    if "SlurmctldHost[1]" in head.config or "enable_configless" not in head.config.get("SlurmctldParameters", ""):
        files = " and ".join(map(str, wanted.changes))
        out.line(f"Copy {files} to hosts that have copies of them, and run 'scontrol reconfigure'.")


def _require_writable(paths: Iterable[Path]) -> None:
    """Raises SetupRefused, before anything is changed. Root is refused by a file system that is read-only."""
    for folder in sorted({folder for path in paths for folder in (path.parent, path.resolve().parent)}):
        if not os.access(folder, os.W_OK):
            raise SetupRefused(
                f"{folder} cannot be written: mount it for writing, or, where a tool makes slurm.conf, put what "
                "'burstctl slurm-config' prints into its source"
            )


def _carry_out(burstd: ApiClient, steps: Steps, head: Head, wanted: Wanted, out: ConsoleOutput) -> None:
    """In the order that Slurm wants: slurmctld finds burstd's programs when it starts, burstd finds its partition."""
    steps.make_group("burstd")
    units = [p.name for p in sorted(share_path("systemd").iterdir()) if p.name != "burstd-node-watch.service"]
    steps.install_units([unit for unit in units if wanted.sandbox is not None or "sandbox" not in unit])
    if wanted.sandbox is not None:
        steps.make_sandbox(wanted.sandbox)
    if wanted.text is not None:
        steps.replace_settings(wanted.text)
    for path, text in wanted.files.items():
        steps.create(path, text)
    steps.merge(wanted.changes)
    out.line("restarting slurmctld")
    restart_slurmctld(head.log)
    steps.enable(*wanted.sockets, *_SERVICES)
    wait_until(
        lambda: _answers_status(burstd) and _clouds_asked(burstd),
        _ANSWER_TIMEOUT_S,
        lambda: "burstd does not answer: see journalctl -u burstd",
    )
    for pool in burstd.get_json("/status")["pools"]:  # an uninit that left the record has pinned them at 0
        burstd.request_status("DELETE", f"/pools/{pool['name']}/pin")


def _answers_status(burstd: ApiClient) -> bool:
    try:
        status, _ = burstd.request_status("GET", "/nodes")
    except DaemonUnreachable:
        return False
    return status == 200


def _clouds_asked(burstd: ApiClient) -> bool:
    """Whether burstd has an answer, or an error, of each cloud since its start."""
    names = [provider["name"] for provider in burstd.get_json("/providers")["providers"]]
    answers = (burstd.request_status("GET", f"/providers/{name}/offers")[1] for name in names)
    return all(answer.get("error") != NOT_READ_YET for answer in answers)


def _show(out: ConsoleOutput, head: Head, wanted: Wanted) -> None:
    version = "{}.{:02}.{}".format(*head.version)
    out.line(f"Slurm {version}, cluster {head.config.get('ClusterName', '')}, SlurmUser {head.slurm_user.pw_name}.")
    if wanted.sandbox is not None:
        out.line(
            f"The sandbox makes machines of Debian {wanted.sandbox.suite} on this host, in {wanted.sandbox.subnet}. "
            "Root in such a machine is root here."
        )
    for name in wanted.partitions:
        if wanted.text is not None and name in head.partitions:
            out.line(f"Partition {name} is there already: burstd's nodes join its own. Name another with --partition.")
    for note in wanted.notes:
        out.command(note)
    out.blank()
    settings = {} if wanted.text is None else {SETTINGS: wanted.text}
    for path, new in {**settings, **wanted.files, **wanted.changes}.items():
        before, name = read_text(path).splitlines(), str(path) if path.exists() else "/dev/null"
        for line in difflib.unified_diff(before, new.splitlines(), name, str(path), lineterm="", n=1):
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
        with only_one():
            journal = Journal.load()
            if journal is None and not purge:
                out.line("There is nothing to undo: burstctl init did nothing here.")
                return
            if not yes:
                confirm(burstd, "End all machines of burstd, and take it out of Slurm?")
            _stop_burstd(burstd, journal, out, purge=purge)
            undo(journal or Journal(finished=True), out, purge=purge)
    except SetupRefused as error:
        burstd.fail(ExitCode.FORBIDDEN if os.geteuid() else ExitCode.NEGATIVE, f"{error}.")
    out.line("burstd is out of Slurm.")


def _stop_burstd(burstd: ApiClient, journal: Journal | None, out: ConsoleOutput, *, purge: bool = False) -> None:
    """Ends all machines, then burstd. Raises SetupRefused where something would be left that costs money.

    ``journal``: None where init did nothing here. ``purge``: the record is removed then.
    """
    unknown = journal is not None and journal.finished and not journal.emptied
    answers = _answers_status(burstd)
    if unknown and not answers:
        systemctl("stop", "burstd.service", check=False)  # it is to start nothing while its record is read
    left = _left_in_clouds(must_know=purge or (unknown and not answers))
    if purge and left.volumes:
        raise SetupRefused(
            "--purge removes the record, and these cost money then until somebody finds them:"
            f"{_listed(left.volumes)}\nremove them with 'burstctl volume remove', or leave --purge out"
        )
    if answers:
        _end_machines(burstd, () if journal is None else journal.partitions, out)
    elif unknown or journal is None or "burstd.service" in journal.units:
        _require_nothing_left(replace(left, volumes=left.volumes if unknown else ()))
    if answers or unknown:
        if journal is not None:
            journal.emptied = True
            journal.save()
        systemctl("disable", "--now", *reversed(_SERVICES), check=False)
        subprocess.run(["scontrol", "delete", "reservationname=burstd"], check=False, capture_output=True)


def _require_nothing_left(left: LeftInClouds) -> None:
    """Where burstd does not answer. Raises SetupRefused with what is left by its record, and what ends it."""
    if not left.machines and not left.volumes:
        return
    by_hand = f"; where it does not start, end them at the cloud:{_listed(left.ends)}\n" if left.ends else "; "
    raise SetupRefused(
        f"burstd does not answer, and nobody ends these then:{_listed((*left.machines, *left.volumes))}\n"
        f"start it first: systemctl start burstd{by_hand}then run this again; for a record of machines that are gone, "
        "move it away first"
    )


def _left_in_clouds(*, must_know: bool) -> LeftInClouds:
    """What the record has. Raises SetupRefused where it cannot be read, and ``must_know``."""
    from burstd.cli.setup.machines_left import LeftInClouds, left_in_clouds

    try:
        return left_in_clouds(SETTINGS) if SETTINGS.exists() else LeftInClouds()
    except BurstdError as error:
        if must_know:
            raise SetupRefused(
                f"whether machines are left is not known: {str(error).rstrip('.')}; to remove all the same, move "
                f"{SETTINGS} away first"
            ) from None
        return LeftInClouds()


def _listed(lines: Sequence[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)


def _end_machines(burstd: ApiClient, partitions: Sequence[str], out: ConsoleOutput) -> None:
    """Closes the partitions that init made, and waits until no machine is left: running jobs are waited for."""
    for name in partitions:
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
    except KeyboardInterrupt:
        closed = f"partitions {', '.join(partitions)} closed, " if partitions else ""
        out.line(
            f"Stopped, with {closed}and pools pinned to 0 nodes. 'burstctl uninit' goes on; to go back, use 'scontrol "
            "update partitionname=NAME state=up' and 'burstctl scale POOL --clear'."
        )
        raise
    except DaemonUnreachable as error:
        raise SetupRefused(
            f"burstd does not answer, and machines may be running that nobody ends then: start it first "
            f"({str(error).partition(chr(10))[0]})"
        ) from None
