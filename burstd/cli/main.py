"""burstctl: puts the commands together."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from burstd.cli.plain_text import safe_text
from burstd.cli.session import DEFAULT_SOCKET, ExitCode, GlobalOptions, JsonOption, answered_sockets

_MAX_ERROR_CHARS = 500
_HELP = ["-h", "--help"]
_VALIDATION_PREFIX = "Value error, "
"""Before the words of a check, by Pydantic, with which Typer reads options."""
COMMANDS: Mapping[str, tuple[str, str]] = {
    "status": (
        "commands.status:status",
        "Nodes wanted, booting, open and leaving; waiting jobs and why they wait; the cost per hour.",
    ),
    "top": ("commands.top:top", "Jobs, nodes, GPUs, money and alarms on the whole screen, live; ? lists its keys."),
    "scale": ("commands.plan:scale", "Pin a pool's number of nodes, or take the pins back."),
    "explain": (
        "commands.job:explain",
        "Why a job does or does not start: its options, their cost, and what would start it.",
    ),
    "wait": ("commands.wait:wait", "Wait until your jobs have ended, and say what they wait for."),
    "quote": (
        "commands.quote:quote",
        "What a job would meet before you submit it: each way to run it, with start, end, cost, and what selects it.",
    ),
    "port-forward": (
        "commands.ports:port_forward",
        "Bring a port of your running job to 127.0.0.1 here, until the job ends or Ctrl-C.",
    ),
    "notebook": (
        "commands.notebook:notebook",
        "Start Jupyter as a job, wait until it answers, and show it to your browser, until it ends or Ctrl-C.",
    ),
    "code": (
        "commands.notebook:code",
        "Start VS Code (code-server) as a job and show it to your browser, until it ends or Ctrl-C.",
    ),
    "web": ("commands.web:web", "Show burstd's pages to your browser, until Ctrl-C."),
    "plan": ("commands.plan:plan", "What the next loop would do, from a fresh snapshot; changes nothing."),
    "simulate": (
        "offline.simulate:simulate",
        "Replay a trace of jobs through the policies: waits, cloud hours and cost of each chain. Needs no daemon.",
    ),
    "hold": ("commands.plan:hold", "Boot no node and terminate no wanted node until unhold."),
    "unhold": ("commands.plan:unhold", "Go on after hold."),
    "bill": (
        "commands.bill:app",
        "What machines cost, in whole days (UTC), dearest first, and for what; running ones count up to now.",
    ),
    "compare": (
        "commands.compare:compare",
        "Times and costs of jobs on the site's own nodes beside those on clouds, measured or estimated.",
    ),
    "history": ("commands.history:history", "Demand, machines, waits and money over time."),
    "backup": (
        "offline.record:backup",
        "Copy the record to FILE (mode 0600), also while burstd runs. Run it as root or as burstd's user.",
    ),
    "restore": (
        "offline.record:restore",
        "Put a backup in the place of the record, which is kept beside it. burstd must not run.",
    ),
    "confirm": (
        "commands.plan:confirm",
        "Say that the record, or the head's clock, is right, where an alarm of burstctl status doubts it.",
    ),
    "init": (
        "setup.commands:init",
        "Put burstd into the running Slurm: settings, slurm.conf, services, and a job to try it.",
    ),
    "uninit": (
        "setup.commands:uninit",
        "Take back what burstctl init did, once no machine is left: services, slurm.conf, the sandbox.",
    ),
    "check": (
        "checks.check:check",
        "Compare the running Slurm with what the pools need, and nodes in service with what they must be.",
    ),
    "slurm-config": (
        "offline.config:slurm_config",
        "Print the lines that slurm.conf (with --gres: gres.conf) needs for the configured pools.",
    ),
    "debug": (
        "commands.debug:debug",
        "Put all about a job or node into one archive (.tar.gz, mode 600) for a report, without secrets.",
    ),
    "node": ("commands.node:app", "Nodes and the machines behind them."),
    "job": ("commands.job:app", "Jobs of the burst partitions."),
    "route": (
        "commands.ports:app",
        "Web addresses of ports of your running jobs, on clouds that have them (OpenShift).",
    ),
    "event": ("commands.event:app", "What happened, in order."),
    "stage": ("commands.stage:app", "The data of jobs: what is on its way, what is held, who takes up what."),
    "volume": ("commands.volume:app", "Disks in clouds that stay when the jobs that use them end."),
    "project": ("commands.project:app", "Projects: quotas of GPUs, and shares of what others leave."),
    "provider": ("commands.provider:app", "The clouds: their state, their offers, whether launches would work."),
    "notify": ("commands.notify:app", "Messages to people: alarms, budgets, jobs."),
    "policy": ("commands.policy:app", "The policies that decide which nodes are booted and terminated."),
    "config": ("offline.config:app", "The settings, burstd.toml."),
}
"""Where each command is, and its line in the list of commands, which is printed without loading any of them."""

GROUPS = {
    "Jobs": ("explain", "wait", "quote", "job", "notebook", "code", "port-forward", "route", "stage", "volume"),
    "The site": ("status", "top", "web", "node", "event", "provider", "project", "history", "plan"),
    "Money": ("bill", "compare"),
    "Steering": ("scale", "hold", "unhold", "policy", "confirm", "notify"),
    "Setup and trouble": (
        "init", "uninit", "check", "debug", "config", "slurm-config", "simulate", "backup", "restore",
    ),
}  # fmt: skip
"""The list of commands."""

_CONTEXT_SETTINGS: Mapping[str, dict[str, Any]] = {
    # Words of these are sbatch's, of quote from the first that is no option of burstctl's. The h of -Jhello asks for no
    # help.
    "quote": {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["--help"]},
    "notebook": {"ignore_unknown_options": True, "help_option_names": ["--help"]},
    "code": {"ignore_unknown_options": True, "help_option_names": ["--help"]},
}


class LazyGroup(TyperGroup):
    """Knows of its commands their names and lines; loads the module of the one that is chosen."""

    def invoke(self, ctx: Any) -> Any:
        """What the command that is chosen returns."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(_VALIDATION_PREFIX)
            raise

    def format_commands(self, _: Any, formatter: Any) -> None:
        """The list of commands, in groups."""
        widest = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{widest}}", COMMANDS[name][1]) for name in names if name in COMMANDS])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Name, command and remaining words, as TyperGroup has them."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if command is None else load_command(str(command.name)), rest


def load_command(name: str) -> Any:
    """The command, or group of commands, of this name in COMMANDS."""
    module, attribute = COMMANDS[name][0].split(":")
    found = getattr(import_module(f"burstd.cli.{module}"), attribute)
    alone = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name, context_settings=_CONTEXT_SETTINGS.get(name))(found)
    command = typer.main.get_group(alone).commands[name]
    for one in getattr(command, "commands", {}).values():
        one.short_help = (one.help or "").partition("\n\n")[0]  # else the list cuts it off
    return command


app = typer.Typer(
    name="burstctl",
    cls=LazyGroup,
    help="See and steer burstd, which makes clouds look like one more Slurm partition.",
    epilog="Exit codes: 0 ok, 1 a negative answer, 2 usage, 3 burstd unreachable, 4 forbidden, 5 not found.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": _HELP},
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import PackageNotFoundError, version  # takes long to load

        try:
            typer.echo(f"burstctl {version('burstd')}")
        except PackageNotFoundError:
            typer.echo("burstctl, not installed")
        raise typer.Exit


@app.callback()
def global_options(
    ctx: typer.Context,
    json: JsonOption = False,
    socket: Annotated[
        Path, typer.Option(envvar="BURSTD_SOCKET", metavar="PATH", help="The daemon's control socket.")
    ] = DEFAULT_SOCKET,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What every command takes, before it or after it."""
    del show_version
    ctx.obj = GlobalOptions(json, socket)


for _name, (_, _line) in COMMANDS.items():
    app.command(_name, short_help=_line)(lambda: None)


def print_help(words: Sequence[str]) -> None:
    """Where the words ask for help with a command, prints it and ends.

    Typer would read the options before the command first, with Pydantic, which takes longer to load than all the rest.
    """
    if words and words[0] in COMMANDS and words[-1] in _HELP:
        given = GlobalOptions(json=False, socket=Path(os.environ.get("BURSTD_SOCKET") or DEFAULT_SOCKET))
        load_command(words[0]).main(list(words[1:]), f"burstctl {words[0]}", help_option_names=_HELP, obj=given)


def main() -> None:
    """The console script."""
    # Most commands are over before there is any garbage; to look for it all the same takes a quarter of their time.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    try:
        print_help(sys.argv[1:])
        app()
    except Exception as error:  # the one place where a bug becomes a sentence
        if os.environ.get("BURSTCTL_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}"
        if answered_sockets and answered_sockets[-1] != DEFAULT_SOCKET:
            message = (
                f"the answer from {answered_sockets[-1]} cannot be shown ({what}): is it burstd there, of this version?"
            )
        else:
            message = f"failed unexpectedly: {what}"
        sys.stderr.write(
            f"burstctl: {safe_text(message[:_MAX_ERROR_CHARS])}\nSet BURSTCTL_TRACEBACK=1 to see where, and "
            f"report it.\n"
        )
        sys.exit(ExitCode.NEGATIVE)


if __name__ == "__main__":
    main()
