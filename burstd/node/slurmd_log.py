"""What a machine's slurmd has written into its log: why it does not register.

The words are those of Slurm 22.05 to 26.05 (slurmd.c, slurm_protocol_api.c, auth_munge.c).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from burstd.domain.cloud.quoting import one_line
from burstd.domain.plugins.shell import Shell

LOG_LINES = 400
"""The last ones that are read."""
_QUOTED = 200
"""Characters of a line that a message quotes."""
_STAMP = re.compile(r"^(?:\[[0-9T:.+-]+\] |slurmd(?:-[\w.-]+)?: )+")
_STARTED = "slurmd version "
_REFUSED = "Unable to register: "
_MUNGE = re.compile(r"Munge (?:en|de)code failed: (.*)")
_UNKNOWN_HOST = re.compile(r"Unable to resolve \"([^\"]{1,100})\"")


def read_slurmd_log(session: Shell, *, times: bool = False) -> list[str]:
    """The end of the log of the slurmd that runs; ``times``: with its times. Raises ConnectionLost, CommandTimedOut."""
    script = files("burstd.node").joinpath("scripts", "slurmd_log.sh").read_text(encoding="utf-8")
    done = session.script(script, str(LOG_LINES), timeout_s=20.0)
    lines = [one_line(line, 400) for line in done.out.splitlines()[-LOG_LINES:]]
    return lines if times else [_STAMP.sub("", line) for line in lines]


def registration_fault(lines: Sequence[str]) -> str:
    """Why slurmctld does not have this slurmd, and what to do about it; empty: the log does not say."""
    starts = [index for index, line in enumerate(lines) if line.startswith(_STARTED)]
    lines = lines[starts[-1] :] if starts else lines
    refused = [line.partition(_REFUSED)[2] for line in lines if _REFUSED in line]
    if munge := [found[1] for line in lines if (found := _MUNGE.search(line))]:
        return _munge_fault(munge[-1])
    if unknown := [found[1] for line in lines if (found := _UNKNOWN_HOST.search(line))]:
        return (
            f"slurmd does not know the address of {unknown[-1]}: write SlurmctldHost={unknown[-1]}(ADDRESS) into "
            "slurm.conf, or let the image know the name (DNS, /etc/hosts)"
        )
    if not refused:
        return ""
    said = refused[-1][:_QUOTED]
    if "Zero Bytes" in said:
        why, remedy = (
            "slurmctld ends its connections",
            ("the munge keys or the versions of Slurm differ, or a firewall cuts them: slurmctld's log has the reason"),
        )
    elif "contact slurm controller" in said:
        why, remedy = (
            "slurmctld does not answer it",
            ("open SlurmctldPort from the cloud's network to slurmctld: firewall, routes, security groups"),
        )
    elif "version" in said.lower():
        why, remedy = "slurmctld speaks another protocol", "build the image with slurmctld's version of Slurm"
    else:
        why, remedy = "slurmctld refuses it", "slurmctld's log has the reason"
    return f"slurmd runs, and {why} ('{said}'): {remedy}"


def _munge_fault(said: str) -> str:
    said = said[:_QUOTED]
    if "Expired" in said or "Rewound" in said:
        return f"slurmd runs, and munge finds the clocks apart ('{said}'): let the image set its clock (chrony)"
    if "Invalid credential" in said:
        return f"slurmd runs, and its munged has another key than slurmctld's ('{said}'): see munge_key in [node]"
    return f"slurmd runs, and munge does not work there ('{said}'): see munge.service in the image"
