"""Slurm's reasons by their short names: squeue shows a sentence instead where slurmctld has one."""

from __future__ import annotations

from functools import lru_cache

# Beginnings of slurmctld's sentences (state_desc), 22.05 to 26.05, and the reasons that stand behind them.
_SENTENCES = (
    ("nodes required for job are down", "Resources"),
    ("job is at or exceeds qos", "QOSGrpLimit"),
    ("job is at or exceeds association", "AssocGrpLimit"),
    ("job requeued in held state", "JobHeldUser"),
    ("launch failed requeued held", "JobLaunchFailure"),
    ("burst buffer pre_run error", "BurstBufferOperation"),
    ("burst buffer create_persistent error", "BurstBufferOperation"),
    ("burst_buffer/lua: stage-out in progress", "BurstBufferStageOut"),
    ("burst_buffer/", "BurstBufferOperation"),
    ("reservation ", "ReservationDeleted"),
)


@lru_cache(maxsize=1024)
def short_reason(text: str) -> str:
    """``ReqNodeNotAvail, UnavailableNodes:cl[1-8]`` is ReqNodeNotAvail.

    Word of a maintenance reservation is kept after the comma, since more nodes would not help then. A sentence that is
    not known stays as it is.
    """
    plain = text.replace("_", " ").lower()
    for beginning, reason in _SENTENCES:
        if plain.startswith(beginning.replace("_", " ")):
            return reason
    name, comma, detail = text.partition(",")
    if comma and "maintenance" in detail.lower():
        return f"{name}, Reserved for maintenance"
    return name if comma and " " not in name else text
