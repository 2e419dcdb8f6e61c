"""The program ``burstd``."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import traceback
from pathlib import Path

from burstd.domain.errors import BurstdError
from burstd.settings import DEFAULT_SETTINGS_PATH, SettingsError

EX_CONFIG = 78
EX_UNAVAILABLE = 69


def main(argv: list[str] | None = None) -> int:
    """Runs the daemon in the foreground; systemd, or whoever started it, does the rest.

    Ends with 0 after SIGTERM or SIGINT, 78 where the settings are wrong, 69 where it cannot start.
    """
    parser = argparse.ArgumentParser(prog="burstd", description="Makes a cloud look like one more Slurm partition.")
    parser.add_argument(
        "--config", type=Path, default=Path(DEFAULT_SETTINGS_PATH), help=f"settings (default {DEFAULT_SETTINGS_PATH})"
    )
    parser.add_argument("--check", action="store_true", help="check the settings and end")
    parser.add_argument("--version", action="store_true", help="print the version and end")
    args = parser.parse_args(argv)
    # The daemon's parts take half a second to import; --help needs none of them. None is garbage: to look for some
    # again and again meanwhile takes a sixth of the time.
    gc.disable()
    from burstd.daemon import app, settings_in_force  # noqa: PLC0415

    gc.freeze()
    gc.enable()

    if args.version:
        sys.stdout.write(f"burstd {app.VERSION}\n")
        return 0
    try:
        loaded = settings_in_force.load_and_check(args.config, settings_in_force.START_PATIENCE)
        if args.check:
            settings_in_force.runtime_config(loaded)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return EX_CONFIG
    if args.check:
        sys.stdout.write(f"{args.config}: {len(loaded.pools)} pools, no fault\n")
        return 0
    # Whatever starts it: what it makes is for its own user. Sockets, and folders for Slurm's programs, say otherwise.
    os.umask(0o077)
    code = 1
    try:
        app.run_daemon(loaded)
        code = 0
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        code = EX_CONFIG
    except BurstdError as error:
        sys.stderr.write(f"burstd: {error}\n")
        code = EX_UNAVAILABLE
    except Exception:  # noqa: BLE001  whatever it is, it is shown whole, and the service manager starts burstd again
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Calls to a dead cloud may hang in their threads for minutes; all that matters is in the store by now.
    os._exit(code)
