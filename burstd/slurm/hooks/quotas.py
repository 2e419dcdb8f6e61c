"""burstd-quotas: has the quotas of all projects take GPUs back from others, whatever they waited for.

A quota that waits for a machine (``reclaim_after_s``) waits for a burstd that starts it. systemd runs this program when
burstd has ended, however that came (``ExecStopPost=`` of burstd.service). It asks slurmctld alone, reads nothing of
burstd's but where the settings say that Slurm is, and may be run at any time: burstd sets right in its next loop what
should not be so.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.projects import SlurmProjects

SETTINGS = Path("/etc/burstd/burstd.toml")
LIMIT_S = 10.0
"""For one command of Slurm; the first that fails is the last."""


def main(argv: list[str] | None = None) -> int:
    """Returns 0, or 1 where slurmctld did not take it: then slurm.conf's tiers come back with its next start."""
    parser = argparse.ArgumentParser(prog="burstd-quotas", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, default=SETTINGS, help=f"settings (default {SETTINGS})")
    where = _slurm(parser.parse_args(argv).config)
    commands = SlurmCommands(timeout_s=LIMIT_S, bin_dir=where.get("bin_dir"), conf=where.get("conf"))
    try:
        names = SlurmProjects(commands).restore_preemption()
    except (SchedulerUnavailable, SchedulerRefused) as error:
        sys.stderr.write(f"burstd-quotas: quotas that waited for machines may still wait: {error}\n")
        return 1
    if names:
        sys.stdout.write(f"quotas that waited for machines take GPUs back from others now: {', '.join(names)}\n")
    return 0


def _slurm(settings: Path) -> dict[str, Path]:
    """Where Slurm is, as ``[slurm]`` of the settings says, however wrong they are."""
    try:
        section = tomllib.loads(settings.read_text(encoding="utf-8")).get("slurm", {})
        return {key: Path(section[key]) for key in ("bin_dir", "conf") if isinstance(section.get(key), str)}
    except (OSError, ValueError, AttributeError):
        return {}


if __name__ == "__main__":
    sys.exit(main())
