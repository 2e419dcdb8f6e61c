"""``[projects.NAME]`` and ``[fair_share]``: quotas of GPUs, and how what they leave is shared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from burstd.domain.project import BurstOverQuota, FairShare, Project
from burstd.domain.project_tree import group_of, tree_faults
from burstd.settings.faults import SettingsFault
from burstd.settings.fields import Seconds, Section, matching

_PROJECT = r"[a-z0-9][a-z0-9_-]{0,27}"
ProjectName = Annotated[
    str,
    matching(_PROJECT, "a project's name is 1 to 28 of a-z, 0-9, '-' and '_': Slurm writes names of QOS in lower case"),
]
# Both are written into slurm.conf and job_submit.lua.
_ACCOUNT = r"[^\sA-Z,=:*'\"\\#]{1,60}"
Account = Annotated[str, matching(_ACCOUNT, "must be a Slurm account, which is written in lower case")]
PartitionName = Annotated[str, matching(r"[^\s,='\"\\#]{1,60}", "must be the name of a partition")]
FeatureName = Annotated[str, matching(r"[^\s,=&|*:()\[\]'\"\\#]{1,60}", "must be the name of a feature")]
Whole = Annotated[int, Field(strict=True, ge=-1_000_000, le=1_000_000)]
WaitingTime = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


def _gpus(value: object) -> object:
    """``4``, ``0.5``, ``"1/3"``: a float as it is written, not as the machine rounds it."""
    text = str(value)
    if not re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9}|/[0-9]{0,8}[1-9][0-9]{0,8})?", text):
        raise ValueError("must be a number of GPUs, such as 4, 0.5 or '1/3'")
    return Fraction(text)


def _not_negative(value: Fraction) -> Fraction:
    if value < 0:
        raise ValueError("must not be negative")
    if value > 1_000_000 or value.denominator > 10_000:
        raise ValueError("must be at most 1000000, in parts of at least 1/10000")
    return value


Gpus = Annotated[Fraction, BeforeValidator(_gpus), AfterValidator(_not_negative)]


class FairShareSettings(Section):
    """``[fair_share]``: how the division is made."""

    overcommit: bool = Field(default=False, strict=True)
    usage_half_life_s: Seconds = 604_800.0
    usage_factor: Annotated[float, Field(strict=True, ge=0, le=1000, allow_inf_nan=False)] = 0.0

    def as_domain(self) -> FairShare:
        """As the rest of burstd has it."""
        return FairShare(self.overcommit, self.usage_half_life_s, self.usage_factor)


class ProjectSettings(Section):
    """``[projects.NAME]``: one project."""

    account: Account | None = None
    quota: Gpus = Fraction(0)
    weight: Gpus | None = None
    limit: Gpus | None = None
    priority: Whole = 0
    parent: str = ""
    partitions: tuple[PartitionName, ...] = ()
    features: tuple[FeatureName, ...] = ()
    interactive_max_s: Seconds | None = None
    min_runtime_s: WaitingTime = 0.0
    reclaim_after_s: WaitingTime = 0.0
    burst_over_quota: BurstOverQuota = BurstOverQuota.NEVER

    @model_validator(mode="after")
    def _within_limit(self) -> Self:
        if self.limit is not None and self.limit < self.quota:
            raise ValueError(f"the limit of {self.limit} GPUs is below the quota of {self.quota}: raise it")
        return self

    def as_domain(self, name: str) -> Project:
        """As the rest of burstd has it, with what it has itself."""
        return Project(**{**dict(self), "name": name, "account": self.account or ""})


def projects_of(settings: Mapping[str, ProjectSettings]) -> dict[str, Project]:
    """The projects by name; those without partitions have their parent's node group. For settings without
    ``project_faults``.
    """
    written = _as_written(settings)
    groups = {name: group_of(name, written) for name in written}
    return {n: replace(p, partitions=groups[n][0], features=groups[n][1]) for n, p in written.items()}


def project_faults(settings: Mapping[str, ProjectSettings]) -> Iterator[SettingsFault]:
    """What one project alone cannot know."""
    for name, key, text in tree_faults(_as_written(settings)):
        yield SettingsFault(("projects", name, key), text)


def _as_written(settings: Mapping[str, ProjectSettings]) -> dict[str, Project]:
    return {name: project.as_domain(name) for name, project in settings.items()}
