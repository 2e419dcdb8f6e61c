"""burstctl backup, restore, confirm"""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.cli.config import DEFAULT, File
from burstd.cli.output import Paper, print_json
from burstd.cli.scale import say
from burstd.cli.session import Code, Json, Session, Socket, session

if TYPE_CHECKING:
    from burstd.settings import Settings

Copy = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]


class Doubtful(StrEnum):
    """What burstd may be in doubt about."""

    RECORD = "record"
    CLOCK = "clock"


def backup(ctx: typer.Context, file: Copy, config: File = DEFAULT, json: Json = False) -> None:
    """Copy the record to FILE (mode 0600), also while burstd runs. Run it as root or as burstd's user."""
    from burstd.db import StoreError, backup  # noqa: PLC0415  # sqlalchemy takes its time

    burstd = session(ctx, json, None)
    settings = _settings(burstd, config)
    try:
        backup(settings.database, file)
    except StoreError as error:
        burstd.fail(Code.NO, str(error))
    there = [str(path) for path in settings.beside_database if path.exists()]
    copy = shlex.join(["cp", "-rp", *there, str(file.absolute().parent)]) if there else ""
    more = f"; keys are not in it, and a restore elsewhere needs them: {copy}" if copy else ""
    _done(burstd, f"the record is copied to {file}{more}", str(file), copy=copy)


def restore(ctx: typer.Context, file: Copy, config: File = DEFAULT, json: Json = False) -> None:
    """Put a backup in the place of the record, which is kept beside it. burstd must not run."""
    from burstd.db import StoreError, restore  # noqa: PLC0415

    burstd = session(ctx, json, None)
    settings = _settings(burstd, config)
    try:
        aside = restore(settings.database, file)
    except StoreError as error:
        burstd.fail(Code.NO, str(error))
    kept = f"; the one that was there is kept as {aside}" if aside else ""
    missing = [str(path) for path in settings.beside_database if not path.exists()]
    keys = f"Put back first what was copied of {', '.join(missing)}: burstd makes new keys otherwise. "
    start = "Start burstd: it adopts the machines that the backup does not know before it does anything else."
    text = f"{file} is the record now{kept}. {keys if missing else ''}{start}"
    _done(burstd, text, str(aside or ""), missing=missing)


def confirm(
    ctx: typer.Context,
    what: Annotated[Doubtful, typer.Argument(help="What is right although burstd doubts it.")],
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Say that the record, or the head's clock, is right, where an alarm of burstctl status doubts it."""
    burstd = session(ctx, json, socket)
    say(burstd, burstd.ask("POST", f"/confirm/{what.value}"))


def _settings(burstd: Session, config: Path) -> Settings:
    from burstd.settings import SettingsError, load  # noqa: PLC0415

    try:
        return load(config, check_files=False)
    except SettingsError as error:
        burstd.fail(Code.NO, str(error))


def _done(burstd: Session, text: str, file: str, **more: object) -> None:
    if burstd.json:
        print_json({"text": text, "file": file, **more})
    else:
        Paper().line(text)
