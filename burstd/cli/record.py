"""burstctl backup, restore, confirm"""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.cli.config import DEFAULT_CONFIG, ConfigOption
from burstd.cli.output import ConsoleOutput, print_json
from burstd.cli.scale import print_result
from burstd.cli.session import ApiClient, ExitCode, JsonOption, SocketOption, api_client

if TYPE_CHECKING:
    from burstd.settings import Settings

BackupArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]


class ConfirmSubject(StrEnum):
    """What burstd may be in doubt about."""

    RECORD = "record"
    CLOCK = "clock"


def backup(
    ctx: typer.Context, file: BackupArgument, config: ConfigOption = DEFAULT_CONFIG, json: JsonOption = False
) -> None:
    """Copy the record to FILE (mode 0600), also while burstd runs. Run it as root or as burstd's user."""
    from burstd.db import StoreError, back_up_database  # noqa: PLC0415  # sqlalchemy takes its time

    burstd = api_client(ctx, json, None)
    settings = _load_settings(burstd, config)
    try:
        back_up_database(settings.database, file)
    except StoreError as error:
        burstd.fail(ExitCode.NEGATIVE, str(error))
    there = [str(path) for path in settings.files_beside_database if path.exists()]
    copy = shlex.join(["cp", "-rp", *there, str(file.absolute().parent)]) if there else ""
    more = f"; keys are not in it, and a restore elsewhere needs them: {copy}" if copy else ""
    _print_done(burstd, f"the record is copied to {file}{more}", str(file), copy=copy)


def restore(
    ctx: typer.Context, file: BackupArgument, config: ConfigOption = DEFAULT_CONFIG, json: JsonOption = False
) -> None:
    """Put a backup in the place of the record, which is kept beside it. burstd must not run."""
    from burstd.db import StoreError, restore_database  # noqa: PLC0415

    burstd = api_client(ctx, json, None)
    settings = _load_settings(burstd, config)
    try:
        aside = restore_database(settings.database, file)
    except StoreError as error:
        burstd.fail(ExitCode.NEGATIVE, str(error))
    kept_text = f"; the one that was there is kept as {aside}" if aside else ""
    missing = [str(path) for path in settings.files_beside_database if not path.exists()]
    keys = f"Put back first what was copied of {', '.join(missing)}: burstd makes new keys otherwise. "
    start = "Start burstd: it adopts the machines that the backup does not know before it does anything else."
    text = f"{file} is the record now{kept_text}. {keys if missing else ''}{start}"
    _print_done(burstd, text, str(aside or ""), missing=missing)


def confirm(
    ctx: typer.Context,
    what: Annotated[ConfirmSubject, typer.Argument(help="What is right although burstd doubts it.")],
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Say that the record, or the head's clock, is right, where an alarm of burstctl status doubts it."""
    burstd = api_client(ctx, json, socket)
    print_result(burstd, burstd.request("POST", f"/confirm/{what.value}"))


def _load_settings(burstd: ApiClient, config: Path) -> Settings:
    from burstd.settings import SettingsError, load_settings  # noqa: PLC0415

    try:
        return load_settings(config, check_files=False)
    except SettingsError as error:
        burstd.fail(ExitCode.NEGATIVE, str(error))


def _print_done(burstd: ApiClient, text: str, file: str, **more: object) -> None:
    if burstd.json:
        print_json({"text": text, "file": file, **more})
    else:
        ConsoleOutput().line(text)
