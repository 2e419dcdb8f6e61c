"""burstctl top"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from burstd.cli.session import ApiClient, ExitCode, with_client


@with_client
def top(
    burstd: ApiClient,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.5, max=3600, metavar="SECONDS", help="Between two refreshes.")
    ] = 3.0,
) -> None:
    """Jobs, nodes, GPUs, money and alarms on the whole screen, live; ? lists its keys."""
    # Textual writes to standard error.
    if burstd.json or not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        burstd.fail(ExitCode.USAGE, "burstctl top needs a terminal; burstctl status --json prints the state once.")
    burstd.get_json("/status")  # where there is no daemon it ends here, with the reason
    # Terminals of old have no colours, whatever is sent to them.
    if os.environ.get("TERM", "").startswith(("vt", "dumb")):
        os.environ["NO_COLOR"] = "1"
    from burstd.cli.top.app import TopApp  # Textual takes long to load

    utf8 = "utf" in (sys.stdout.encoding or "").lower()
    TopApp(burstd, interval, ascii_only=not utf8).run(mouse=False)
