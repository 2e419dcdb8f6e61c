"""burstd-quotas: has the quotas of all projects take GPUs back from others, whatever they waited for.

A quota that waits for a machine (``reclaim_after_s``) waits for a burstd that starts it. systemd runs this program when
burstd has ended, however that came (``ExecStopPost=`` of burstd.service). It asks slurmctld alone, reads nothing of
burstd's but where the settings say that Slurm is, and may be run at any time: burstd sets right in its next loop what
should not be so. Of two heads it asks the database as well: while another one runs nothing is changed.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burstd.domain.errors import BurstdError, SchedulerRefused, SchedulerUnavailable
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.projects import SlurmProjects

SETTINGS = Path("/etc/burstd/burstd.toml")
LIMIT_S = 10.0
"""For one command of Slurm; the first that fails is the last."""


def main(argv: list[str] | None = None) -> int:
    """Returns 0, or 1 where slurmctld did not take it: then slurm.conf's tiers come back with its next start."""
    parser = argparse.ArgumentParser(prog="burstd-quotas", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, default=SETTINGS, help=f"settings (default {SETTINGS})")
    settings = _read(parser.parse_args(argv).config)
    where = {key: Path(value) for key, value in _section(settings, "slurm").items() if isinstance(value, str)}
    commands = SlurmCommands(timeout_s=LIMIT_S, bin_dir=where.get("bin_dir"), conf=where.get("conf"))
    try:
        if other := _other_head(settings):
            sys.stdout.write(f"quotas stay as they are: {other} leads, or is about to\n")
            return 0
    except BurstdError as error:
        sys.stderr.write(f"burstd-quotas: quotas stay as they are, since another head may lead: {error}\n")
        return 1
    try:
        names = SlurmProjects(commands).restore_preemption()
    except (SchedulerUnavailable, SchedulerRefused) as error:
        sys.stderr.write(f"burstd-quotas: quotas that waited for machines may still wait: {error}\n")
        return 1
    if names:
        sys.stdout.write(f"quotas that waited for machines take GPUs back from others now: {', '.join(names)}\n")
    return 0


def _other_head(settings: Mapping[str, Any]) -> str:
    """The other head, where it runs; empty: there is none. Raises BurstdError where it cannot be known."""
    daemon = _section(settings, "daemon")
    location, cluster = str(daemon.get("database", "")), str(settings.get("cluster", ""))
    if daemon.get("standby") is not True or not location.startswith("postgres"):
        return ""
    # What is broken in them must not keep a lone burstd's quotas back.
    from burstd.daemon.heads import MISSED_AFTER_S  # noqa: PLC0415
    from burstd.db import Leadership  # noqa: PLC0415

    with Leadership.open(location, cluster, socket.gethostname()) as own:
        heads = own.heads()
    return next((head.host for head in heads if head.host != own.host and head.age_s < MISSED_AFTER_S), "")


def _read(settings: Path) -> Mapping[str, Any]:
    """However wrong they are."""
    try:
        return tomllib.loads(settings.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


if __name__ == "__main__":
    sys.exit(main())
