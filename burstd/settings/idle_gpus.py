"""``[idle_gpus.PARTITION]``: what follows where jobs do not use their GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from burstd.domain.idle_gpus import ANY_PARTITION, IdleAct, IdleGpuRule
from burstd.settings.faults import SettingsFault
from burstd.settings.fields import Seconds, Section, matching
from burstd.settings.sampler import SamplerSettings

if TYPE_CHECKING:
    from burstd.settings.sections import Settings

_DEFAULT = IdleGpuRule()
MAX_COLLECT_S = 300.0
"""Of [sampler] collect_s, with rules."""
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


def unmeasured_rules(settings: Settings) -> Iterator[SettingsFault]:
    """Of rules for which no job is measured."""
    if not settings.sampler.enabled:
        for name in settings.idle_gpus:
            text = "warns no job, as sampler.enabled is false: set that to true, or remove this table"
            yield SettingsFault(("idle_gpus", name), text)


def idle_gpu_faults(rules: Mapping[str, IdleGpuSettings], sampler: SamplerSettings) -> Iterator[SettingsFault]:
    """What is wrong with the rules, and with how often figures are fetched for them."""
    if rules and sampler.collect_s > MAX_COLLECT_S:
        named = f"[idle_gpus.{next(iter(rules))}]"
        text = f"must be {MAX_COLLECT_S:g} at most with {named}: jobs are ended on figures of now only"
        yield SettingsFault(("sampler", "collect_s"), text)
    for name, rule in rules.items():
        place = ("idle_gpus", name)
        if rule.act is not IdleAct.NOTHING and rule.act_after_s <= rule.warn_after_s:
            yield SettingsFault((*place, "act_after_s"), "must be more than warn_after_s: a job is warned before")
        if name == ANY_PARTITION and rule.act in (IdleAct.REQUEUE, IdleAct.CANCEL):
            text = f"must not be {rule.act.value!r} for all partitions: name each in a table of its own"
            yield SettingsFault((*place, "act"), text)
