"""burstctl: puts the commands together."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from burstd.cli.commands import (
    event,
    job,
    job_output,
    job_shell,
    node,
    plan,
    policy,
    ports,
    project,
    provider,
    stage,
    status,
    volume,
)
from burstd.cli.offline import config, record, simulate
from burstd.cli.output import safe_text
from burstd.cli.session import DEFAULT_SOCKET, ExitCode, GlobalOptions, JsonOption, answered_sockets

_MAX_ERROR_CHARS = 500

app = typer.Typer(
    name="burstctl",
    help="See and steer burstd, which makes clouds look like one more Slurm partition.",
    epilog="Exit codes: 0 ok, 1 a negative answer, 2 usage, 3 burstd unreachable, 4 forbidden, 5 not found.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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


app.command()(status.status)
app.command()(plan.scale)
app.add_typer(node.app, name="node")
job.app.command("logs")(job_output.job_logs)
job.app.command("shell")(job_shell.job_shell)
app.add_typer(job.app, name="job")
app.command()(job.explain)
app.command()(ports.port_forward)
app.add_typer(ports.app, name="route")
app.add_typer(event.app, name="event")
app.add_typer(stage.app, name="stage")
app.add_typer(volume.app, name="volume")
app.add_typer(project.app, name="project")
app.add_typer(provider.app, name="provider")
app.command()(plan.plan)
app.command()(simulate.simulate)
app.command()(plan.hold)
app.command()(plan.unhold)
app.command()(status.bill)
app.command()(record.backup)
app.command()(record.restore)
app.command()(plan.confirm)
app.add_typer(policy.app, name="policy")
app.add_typer(config.app, name="config")
app.command()(config.check)
app.command("slurm-config")(config.slurm_config)


def main() -> None:
    """The console script."""
    try:
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
