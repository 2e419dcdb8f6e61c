"""burstctl config"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.cli.output import ConsoleOutput, plural, print_json
from burstd.cli.scale import print_result
from burstd.cli.session import ExitCode, JsonOption, SocketOption, api_client

if TYPE_CHECKING:
    from burstd.settings import SettingsFault

app = typer.Typer(help="The settings, burstd.toml.", no_args_is_help=True)
DEFAULT_CONFIG = Path("/etc/burstd/burstd.toml")
ConfigOption = Annotated[Path, typer.Option("--config", envvar="BURSTD_CONFIG", metavar="FILE", help="The settings.")]


@app.command("check")
def check_config(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="[FILE]", envvar="BURSTD_CONFIG", help="The file.")] = DEFAULT_CONFIG,
    files: Annotated[bool, typer.Option(help="Also check the files that it names: keys, their modes.")] = True,
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Check a settings file whole, with its plug-ins; the daemon need not run."""
    # pydantic and the plug-ins take longer to load than the other commands take.
    from burstd.settings import (  # noqa: PLC0415
        PluginRegistry,
        SettingsError,
        build_pools,
        load_settings,
        make_policies,
        resolve_plugins,
    )
    from burstd.slurm.hostlist import expand  # noqa: PLC0415

    burstd = api_client(ctx, json, socket)
    try:
        settings = load_settings(file, check_files=files)
        plugins = PluginRegistry.installed(settings.policies.folder, settings.policies.timeout_s)
        make_policies(settings, resolve_plugins(settings, plugins, check_files=files), plugins)
        made = build_pools(settings, expand)
    except SettingsError as error:
        if burstd.json:
            print_json({"ok": False, "file": str(file), "faults": _faults_json(error.faults)})
        else:
            ConsoleOutput().line(str(error))
        raise typer.Exit(ExitCode.NEGATIVE) from None
    slots = sum(len(pool.slots) for pool in made.values())
    if burstd.json:
        print_json({"ok": True, "file": str(file), "faults": [], "warnings": _faults_json(settings.warnings)})
    else:
        for warning in settings.warnings:
            ConsoleOutput().line(f"warning: {warning}")
        parts = [plural(len(made), "pool"), plural(slots, "slot"), plural(len(settings.providers), "provider")]
        staging = settings.staging
        if staging.enabled:
            parts.append(f"staging through {staging.store} ({staging.stores[staging.store].kind})")
        chain = ", ".join(settings.policies.chain) or "none"
        ConsoleOutput().line(f"{file} is right: {', '.join(parts)}, policies {chain}.")


@app.command("reload")
def reload_config(ctx: typer.Context, json: JsonOption = False, socket: SocketOption = None) -> None:
    """Have the daemon reload its settings; it refuses faulty ones and keeps the old ones."""
    burstd = api_client(ctx, json, socket)
    print_result(burstd, burstd.request("POST", "/reload"))


def _faults_json(faults: Sequence[SettingsFault]) -> list[dict[str, object]]:
    return [{"key": dotted_key(fault.path), "line": fault.line, "text": fault.text} for fault in faults]


def dotted_key(path: tuple[str | int, ...]) -> str:
    """``pools.gpu.offers[0]``."""
    from burstd.settings.toml_source import dotted_key as text  # noqa: PLC0415

    return text(path)
