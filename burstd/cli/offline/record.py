"""burstctl backup, restore"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from burstd.cli.offline.config import DEFAULT_CONFIG, ConfigOption, read_settings
from burstd.cli.output import ConsoleOutput
from burstd.cli.plain_text import print_json
from burstd.cli.session import ApiClient, ExitCode, without_daemon

BackupArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]


@without_daemon
def backup(burstd: ApiClient, file: BackupArgument, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Copy the record to FILE (mode 0600), also while burstd runs. Run it as root or as burstd's user."""
    from burstd.db import StoreError, back_up_database

    settings = read_settings(burstd, config)
    try:
        back_up_database(settings.database, file)
    except StoreError as error:
        burstd.fail(ExitCode.NEGATIVE, str(error))
    there = [str(path) for path in settings.files_beside_database if path.exists()]
    copy = shlex.join(["cp", "-rp", *there, str(file.absolute().parent)]) if there else ""
    more = f"; keys are not in it, and a restore elsewhere needs them: {copy}" if copy else ""
    _print_done(burstd, f"the record is copied to {file}{more}", str(file), copy=copy)


@without_daemon
def restore(burstd: ApiClient, file: BackupArgument, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Put a backup in the place of the record, which is kept beside it. burstd must not run."""
    from burstd.db import StoreError, restore_database

    settings = read_settings(burstd, config)
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


def _print_done(burstd: ApiClient, text: str, file: str, **more: object) -> None:
    if burstd.json:
        print_json({"text": text, "file": file, **more})
    else:
        ConsoleOutput().line(text)
