"""burstctl slurm-config, burstctl check: what slurm.conf must have for the pools. The daemon need not run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.cli.config import DEFAULT, File
from burstd.cli.output import Answer, Paper, plural, print_json
from burstd.cli.session import Code, Json, Session, Socket, session

if TYPE_CHECKING:
    from pathlib import Path

    from burstd.domain.cloud.offer import Pool
    from burstd.settings import Settings
    from burstd.slurm.commands.run import Commands
    from burstd.slurm.config.render import Wishes

Version = tuple[int, int, int]


def slurm_config(
    ctx: typer.Context,
    file: File = DEFAULT,
    gres: Annotated[bool, typer.Option("--gres", help="The lines for gres.conf instead.")] = False,
    slurm: Annotated[
        str, typer.Option(metavar="VERSION", help="For this Slurm (24.11); default: the running one.")
    ] = "",
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Print the lines that slurm.conf (with --gres: gres.conf) needs for the configured pools."""
    from burstd.slurm.config.render import fragment, gres_conf  # noqa: PLC0415  # not for every command

    burstd = session(ctx, json, socket)
    settings, pools = _read(burstd, file)
    wishes = replace(_wishes(settings), version=_parse(burstd, slurm) if slurm else _running_version(settings))
    texts = {"slurm.conf": fragment(pools, wishes), "gres.conf": gres_conf(pools, wishes)}
    if burstd.json:
        print_json(texts)
    else:
        typer.echo(texts["gres.conf" if gres else "slurm.conf"], nl=False)


def check(ctx: typer.Context, file: File = DEFAULT, json: Json = False, socket: Socket = None) -> None:
    """Compare the running Slurm with what the pools need, and say what each difference breaks."""
    from burstd.cli.check_stage import staging_findings  # noqa: PLC0415
    from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable  # noqa: PLC0415
    from burstd.slurm.commands.controller import version_of  # noqa: PLC0415
    from burstd.slurm.config.check import ask, compare  # noqa: PLC0415

    burstd = session(ctx, json, socket)
    settings, pools = _read(burstd, file)
    try:
        running = ask(_commands(settings))
    except (SchedulerUnavailable, SchedulerRefused) as error:
        burstd.fail(Code.UNREACHABLE, f"Slurm cannot be asked: {error}.")
    version = "{}.{:02}.{}".format(*(version_of(running.config) or (0, 0, 0)))
    findings = [*compare(pools, _wishes(settings), running), *staging_findings(settings, running.config)]
    found = [asdict(finding) for finding in findings]
    broken = [f for f in found if not f["advice"]]
    if burstd.json:
        print_json({"ok": not broken, "slurm": version, "findings": found})
    else:
        _print(Paper(), version, broken, [f for f in found if f["advice"]])
    if broken:
        raise typer.Exit(Code.NO)


def _print(paper: Paper, version: str, broken: Sequence[Answer], advice: Sequence[Answer]) -> None:
    if not broken:
        paper.line(f"Slurm {version} has what the pools need.")
    for findings, head, style in (
        (broken, f"Slurm {version} lacks {plural(len(broken), 'thing')} that the pools need:", "bold red"),
        (advice, "Recommended:", "bold yellow"),
    ):
        if findings:
            paper.line((head, "bold"))
        for finding in findings:
            paper.blank()
            paper.line((finding["subject"], style), f": wanted {finding['wanted']}, found {finding['found']}")
            paper.note(f"As it is: {finding['breaks']}.")
            paper.note(f"Remedy: {finding['remedy']}.")


def _read(burstd: Session, file: Path) -> tuple[Settings, list[Pool]]:
    from burstd.settings import SettingsError, load, pools  # noqa: PLC0415  # pydantic takes its time
    from burstd.slurm.hostlist import expand  # noqa: PLC0415

    try:
        # Keys and their modes are of no concern here, and anyone may ask for the lines.
        settings = load(file, check_files=False)
        return settings, list(pools(settings, expand).values())
    except SettingsError as error:
        burstd.fail(Code.NO, str(error))


def _wishes(settings: Settings) -> Wishes:
    from burstd.slurm.config.render import Wishes  # noqa: PLC0415

    slurm = settings.slurm
    return Wishes(
        programs=str(slurm.programs),
        keep_partitions=slurm.keep_partitions,
        resume_timeout_s=slurm.resume_timeout_s,
        suspend_timeout_s=slurm.suspend_timeout_s,
        devices=slurm.devices,
        configless=bool(slurm.conf_server),
        staging=settings.staging.on,
    )


def _commands(settings: Settings) -> Commands:
    """Slurm's commands, from the folder and with the slurm.conf that the settings name."""
    from burstd.slurm.commands.run import Commands, run_here  # noqa: PLC0415

    slurm, more = settings.slurm, {}
    if slurm.bin_dir is not None:
        more["PATH"] = f"{slurm.bin_dir}:{os.environ.get('PATH', os.defpath)}"
    if slurm.conf is not None:
        more["SLURM_CONF"] = str(slurm.conf)

    def run(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return run_here(argv, {**env, **more}, timeout_s)

    return Commands(run)


def _running_version(settings: Settings) -> Version:
    from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable  # noqa: PLC0415

    try:
        return _commands(settings).version()
    except (SchedulerUnavailable, SchedulerRefused) as error:
        typer.echo(f"burstctl: these are the lines for Slurm 22.05 (choose with --slurm), since {error}", err=True)
        return (22, 5, 0)


def _parse(burstd: Session, text: str) -> Version:
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        burstd.fail(Code.USAGE, f"--slurm: {text!r} is no version; write 22.05 or 24.11.5.")
    return int(match[1]), int(match[2]), int(match[3] or 0)
