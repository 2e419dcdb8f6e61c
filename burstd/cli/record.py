"""burstctl backup, restore, confirm"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from burstd.cli.config import DEFAULT, File
from burstd.cli.output import Paper, print_json
from burstd.cli.scale import say
from burstd.cli.session import Code, Json, Session, Socket, session

Copy = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]


class Doubtful(StrEnum):
    """What burstd may be in doubt about."""

    RECORD = "record"
    CLOCK = "clock"


def backup(ctx: typer.Context, file: Copy, config: File = DEFAULT, json: Json = False) -> None:
    """Copy the record to FILE (mode 0600), also while burstd runs. Run it as root or as burstd's user."""
    from burstd.store import StoreError, backup  # noqa: PLC0415  # sqlalchemy takes its time

    burstd = session(ctx, json, None)
    try:
        backup(_database(burstd, config), file)
    except StoreError as error:
        burstd.fail(Code.NO, str(error))
    _done(burstd, f"the record is copied to {file}", str(file))


def restore(ctx: typer.Context, file: Copy, config: File = DEFAULT, json: Json = False) -> None:
    """Put a backup in the place of the record, which is kept beside it. burstd must not run."""
    from burstd.store import StoreError, restore  # noqa: PLC0415

    burstd = session(ctx, json, None)
    try:
        aside = restore(_database(burstd, config), file)
    except StoreError as error:
        burstd.fail(Code.NO, str(error))
    kept = f"; the one that was there is kept as {aside}" if aside else ""
    start = "Start burstd: it adopts the machines that the backup does not know before it does anything else."
    _done(burstd, f"{file} is the record now{kept}. {start}", str(aside or ""))


def confirm(
    ctx: typer.Context,
    what: Annotated[Doubtful, typer.Argument(help="What is right although burstd doubts it.")],
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Say that the record, or the head's clock, is right, where an alarm of burstctl status doubts it."""
    burstd = session(ctx, json, socket)
    say(burstd, burstd.ask("POST", f"/confirm/{what.value}"))


def _database(burstd: Session, config: Path) -> str:
    from burstd.settings import SettingsError, load  # noqa: PLC0415

    try:
        return load(config, check_files=False).database
    except SettingsError as error:
        burstd.fail(Code.NO, str(error))


def _done(burstd: Session, text: str, file: str) -> None:
    if burstd.json:
        print_json({"text": text, "file": file})
    else:
        Paper().line(text)
