"""``[idle_gpus.PARTITION]``: what follows where jobs do not use their GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from burstd.domain.idle_gpus import ANY_PARTITION, IdleAct, IdleGpuRule
from burstd.settings.faults import SettingsFault
from burstd.settings.fields import Seconds, Section, matching

_DEFAULT = IdleGpuRule()
RulePartition = Annotated[
    str,
    matching(r"\*|[^\s,*=]{1,64}", "must be the name of one partition, or '*' for those without a table"),
]
NonNegativeSeconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class IdleGpuSettings(Section):
    """``[idle_gpus.PARTITION]``; lengths of time in seconds."""

    warn_after_s: Seconds = _DEFAULT.warn_after_s
    act: IdleAct = _DEFAULT.act
    act_after_s: Seconds = _DEFAULT.act_after_s
    start_s: NonNegativeSeconds = _DEFAULT.start_s
    """The beginning of a job, which does not count."""
    time_left_s: Annotated[float, Field(strict=True, ge=60, allow_inf_nan=False)] = _DEFAULT.time_left_s
    """What ``act = "shorten"`` leaves a job."""

    def rule(self) -> IdleGpuRule:
        """As the rest of burstd has it."""
        return IdleGpuRule(**dict(self))


def idle_gpu_faults(rules: Mapping[str, IdleGpuSettings]) -> Iterator[SettingsFault]:
    """What is wrong with the rules."""
    for name, rule in rules.items():
        place = ("idle_gpus", name)
        if rule.act is not IdleAct.NOTHING and rule.act_after_s <= rule.warn_after_s:
            yield SettingsFault((*place, "act_after_s"), "must be more than warn_after_s: a job is warned before")
        if name == ANY_PARTITION and rule.act in (IdleAct.REQUEUE, IdleAct.CANCEL):
            text = f"must not be {rule.act.value!r} for all partitions: name each in a table of its own"
            yield SettingsFault((*place, "act"), text)
