"""burstctl slurm-config, burstctl check: what slurm.conf must have for the pools. The daemon need not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from burstd.cli.config import DEFAULT, File
from burstd.cli.output import print_json
from burstd.cli.session import Code, Json, Session, Socket, session

if TYPE_CHECKING:
    from pathlib import Path

    from burstd.model.offer import Pool
    from burstd.settings import Settings
    from burstd.slurm.conf import Wishes


def slurm_config(
    ctx: typer.Context,
    file: File = DEFAULT,
    gres: Annotated[bool, typer.Option("--gres", help="The lines for gres.conf instead.")] = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Print the lines that slurm.conf (with --gres: gres.conf) needs for the configured pools."""
    from burstd.slurm.conf import fragment, gres_conf  # noqa: PLC0415  # loads quickly, but not for every command

    burstd = session(ctx, json, socket)
    settings, pools = _read(burstd, file)
    wishes = _wishes(settings)
    texts = {"slurm.conf": fragment(pools, wishes), "gres.conf": gres_conf(pools, wishes)}
    if burstd.json:
        print_json(texts)
    else:
        typer.echo(texts["gres.conf" if gres else "slurm.conf"], nl=False)


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
    from burstd.slurm.conf import Wishes  # noqa: PLC0415

    slurm = settings.slurm
    return Wishes(
        programs=str(slurm.programs),
        keep_partitions=slurm.keep_partitions,
        resume_timeout_s=slurm.resume_timeout_s,
        suspend_timeout_s=slurm.suspend_timeout_s,
        devices=slurm.devices,
    )
