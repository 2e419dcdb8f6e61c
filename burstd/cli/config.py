"""burstctl config"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from burstd.cli.output import Paper, plural, print_json
from burstd.cli.scale import say
from burstd.cli.session import Code, Json, Socket, session

app = typer.Typer(help="The settings, burstd.toml.", no_args_is_help=True)
DEFAULT = Path("/etc/burstd/burstd.toml")
File = Annotated[Path, typer.Option("--config", envvar="BURSTD_CONFIG", metavar="FILE", help="The settings.")]


@app.command("check")
def check_config(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="[FILE]", envvar="BURSTD_CONFIG", help="The file.")] = DEFAULT,
    files: Annotated[bool, typer.Option(help="Also look at the files that it names: keys, their modes.")] = True,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Check a settings file whole, with its plug-ins; the daemon need not run."""
    # pydantic and the plug-ins take longer to load than the other commands take.
    from burstd.settings import Plugins, SettingsError, load, make_policies, pools, resolve  # noqa: PLC0415
    from burstd.slurm.hostlist import expand  # noqa: PLC0415

    burstd = session(ctx, json, socket)
    try:
        settings = load(file, check_files=files)
        plugins = Plugins.installed(settings.policies.folder, settings.policies.timeout_s)
        make_policies(settings, resolve(settings, plugins, check_files=files), plugins)
        made = pools(settings, expand)
    except SettingsError as error:
        if burstd.json:
            print_json({"ok": False, "file": str(file), "faults": [
                {"key": dotted(fault.path), "line": fault.line, "text": fault.text} for fault in error.faults
            ]})  # fmt: skip
        else:
            Paper().line(str(error))
        raise typer.Exit(Code.NO) from None
    slots = sum(len(pool.slots) for pool in made.values())
    if burstd.json:
        print_json({"ok": True, "file": str(file), "faults": []})
    else:
        parts = [plural(len(made), "pool"), plural(slots, "slot"), plural(len(settings.providers), "provider")]
        staging = settings.staging
        if staging.on:
            parts.append(f"staging through {staging.store} ({staging.stores[staging.store].kind})")
        chain = ", ".join(settings.policies.chain) or "none"
        Paper().line(f"{file} is right: {', '.join(parts)}, policies {chain}.")


@app.command("reload")
def reload_config(ctx: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """Have the daemon read its settings again; faulty ones are refused and the old ones stay."""
    burstd = session(ctx, json, socket)
    say(burstd, burstd.ask("POST", "/reload"))


def dotted(path: tuple[str | int, ...]) -> str:
    """``pools.gpu.offers[0]``."""
    from burstd.settings.toml_source import dotted as text  # noqa: PLC0415

    return text(path)
