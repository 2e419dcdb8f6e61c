"""burstctl slurm-config, burstctl check: what slurm.conf must have for the pools. The daemon need not run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.cli.config import DEFAULT_CONFIG, ConfigOption
from burstd.cli.output import ConsoleOutput, JsonObject, plural, print_json
from burstd.cli.session import ApiClient, ExitCode, JsonOption, SocketOption, api_client

if TYPE_CHECKING:
    from pathlib import Path

    from burstd.domain.cloud.offer import Pool
    from burstd.settings import Settings
    from burstd.slurm.commands.run import SlurmCommands
    from burstd.slurm.config.check import SlurmConfFinding
    from burstd.slurm.config.render import SlurmConfOptions

SlurmVersion = tuple[int, int, int]


def slurm_config(
    ctx: typer.Context,
    file: ConfigOption = DEFAULT_CONFIG,
    gres: Annotated[bool, typer.Option("--gres", help="The lines for gres.conf instead.")] = False,
    slurm: Annotated[
        str, typer.Option(metavar="VERSION", help="For this Slurm (24.11); default: the running one.")
    ] = "",
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Print the lines that slurm.conf (with --gres: gres.conf) needs for the configured pools."""
    from burstd.slurm.config.render import gres_conf_lines, slurm_conf_fragment  # noqa: PLC0415  # not for every command

    burstd = api_client(ctx, json, socket)
    settings, pools = _load_settings(burstd, file)
    options = replace(
        _render_options(settings), version=_parse_version(burstd, slurm) if slurm else _running_version(settings)
    )
    texts = {"slurm.conf": slurm_conf_fragment(pools, options), "gres.conf": gres_conf_lines(pools, options)}
    if burstd.json:
        print_json(texts)
    else:
        typer.echo(texts["gres.conf" if gres else "slurm.conf"], nl=False)


def check(
    ctx: typer.Context, file: ConfigOption = DEFAULT_CONFIG, json: JsonOption = False, socket: SocketOption = None
) -> None:
    """Compare the running Slurm with what the pools need, and say what each difference breaks."""
    from burstd.cli.check_stage import staging_findings  # noqa: PLC0415
    from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable  # noqa: PLC0415
    from burstd.slurm.commands.controller import slurmctld_version  # noqa: PLC0415
    from burstd.slurm.config.check import compare_slurm_conf, read_running_slurm  # noqa: PLC0415

    burstd = api_client(ctx, json, socket)
    settings, pools = _load_settings(burstd, file)
    try:
        running = read_running_slurm(_commands(settings))
    except (SchedulerUnavailable, SchedulerRefused) as error:
        burstd.fail(ExitCode.UNREACHABLE, f"Slurm cannot be asked: {error}.")
    version = "{}.{:02}.{}".format(*(slurmctld_version(running.config) or (0, 0, 0)))
    findings = [
        *compare_slurm_conf(pools, _render_options(settings), running),
        *staging_findings(settings, running.config),
    ]
    found = [_finding_json(finding) for finding in findings]
    broken = [f for f in found if not f["advice"]]
    if burstd.json:
        print_json({"ok": not broken, "slurm": version, "findings": found})
    else:
        _print_findings(ConsoleOutput(), version, broken, [f for f in found if f["advice"]])
    if broken:
        raise typer.Exit(ExitCode.NEGATIVE)


def _finding_json(finding: SlurmConfFinding) -> JsonObject:
    return {
        "subject": finding.subject,
        "wanted": finding.wanted,
        "found": finding.found,
        "breaks": finding.consequence,
        "remedy": finding.remedy,
        "advice": finding.recommended,
    }


def _print_findings(
    out: ConsoleOutput, version: str, broken: Sequence[JsonObject], advice: Sequence[JsonObject]
) -> None:
    if not broken:
        out.line(f"Slurm {version} has what the pools need.")
    for findings, head, style in (
        (broken, f"Slurm {version} lacks {plural(len(broken), 'thing')} that the pools need:", "bold red"),
        (advice, "Recommended:", "bold yellow"),
    ):
        if findings:
            out.line((head, "bold"))
        for finding in findings:
            out.blank()
            out.line((finding["subject"], style), f": wanted {finding['wanted']}, found {finding['found']}")
            out.note(f"As it is: {finding['breaks']}.")
            out.note(f"Remedy: {finding['remedy']}.")


def _load_settings(burstd: ApiClient, file: Path) -> tuple[Settings, list[Pool]]:
    from burstd.settings import SettingsError, build_pools, load_settings  # noqa: PLC0415  # pydantic takes its time
    from burstd.slurm.hostlist import expand  # noqa: PLC0415

    try:
        # Keys and their modes are of no concern here, and anyone may ask for the lines.
        settings = load_settings(file, check_files=False)
        return settings, list(build_pools(settings, expand).values())
    except SettingsError as error:
        burstd.fail(ExitCode.NEGATIVE, str(error))


def _render_options(settings: Settings) -> SlurmConfOptions:
    from burstd.slurm.config.render import SlurmConfOptions  # noqa: PLC0415

    slurm = settings.slurm
    return SlurmConfOptions(
        programs=str(slurm.programs),
        onprem_partitions=slurm.keep_partitions,
        resume_timeout_s=slurm.resume_timeout_s,
        suspend_timeout_s=slurm.suspend_timeout_s,
        devices=slurm.devices,
        configless=bool(slurm.conf_server),
        staging=settings.staging.enabled,
    )


def _commands(settings: Settings) -> SlurmCommands:
    """Slurm's commands, from the folder and with the slurm.conf that the settings name."""
    from burstd.slurm.commands.run import SlurmCommands, run_locally  # noqa: PLC0415

    slurm, more = settings.slurm, {}
    if slurm.bin_dir is not None:
        more["PATH"] = f"{slurm.bin_dir}:{os.environ.get('PATH', os.defpath)}"
    if slurm.conf is not None:
        more["SLURM_CONF"] = str(slurm.conf)

    def run(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return run_locally(argv, {**env, **more}, timeout_s)

    return SlurmCommands(run)


def _running_version(settings: Settings) -> SlurmVersion:
    from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable  # noqa: PLC0415

    try:
        return _commands(settings).version()
    except (SchedulerUnavailable, SchedulerRefused) as error:
        typer.echo(f"burstctl: these are the lines for Slurm 22.05 (choose with --slurm), since {error}", err=True)
        return (22, 5, 0)


def _parse_version(burstd: ApiClient, text: str) -> SlurmVersion:
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        burstd.fail(ExitCode.USAGE, f"--slurm: {text!r} is no version; write 22.05 or 24.11.5.")
    return int(match[1]), int(match[2]), int(match[3] or 0)
