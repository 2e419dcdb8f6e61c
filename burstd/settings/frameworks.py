"""``[frameworks.NAME]``: sets of software that pools offer to jobs as features of their nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from burstd.domain.framework import Framework
from burstd.settings.faults import SettingsFault, did_you_mean
from burstd.settings.fields import NODE_PATH, NODE_PATH_FAULT, ModuleName, Seconds, Section, matching

if TYPE_CHECKING:
    from burstd.settings.sections import PoolSettings, Settings

_PYTHON_CHECKS = {
    "pytorch": ("import torch", 'assert torch.ones(8, device="cuda").sum().item() == 8'),
    "tensorflow": (
        "import tensorflow",
        'assert tensorflow.config.list_physical_devices("GPU"); assert tensorflow.reduce_sum(tensorflow.ones(8)) == 8',
    ),
    "jax": ("import jax", 'assert float(jax.device_put(4.0, jax.devices("gpu")[0]) * 2) == 8'),
}
"""What a framework's name begins with -> its import, and its call of a GPU."""

FrameworkName = Annotated[
    str,
    matching(
        r"[A-Za-z][A-Za-z0-9_.-]{0,63}",
        "the name must be one feature of Slurm: a letter, then up to 63 letters, digits, '_', '.' and '-'",
    ),
]


class FrameworkSettings(Section):
    """``[frameworks.NAME]``."""

    modules: Annotated[tuple[ModuleName, ...], Field(max_length=16)] = ()
    image: Annotated[str, matching(f"|{NODE_PATH}", NODE_PATH_FAULT)] = ""
    check: Annotated[str, Field(max_length=4096)] = ""
    limit_s: Seconds = 120.0

    @model_validator(mode="before")
    @classmethod
    def _whole_name(cls, data: Any) -> Any:
        keys = data.items() if isinstance(data, Mapping) else ()
        inner = next((key for key, value in keys if isinstance(value, Mapping)), None)
        if inner is not None and inner not in cls.model_fields:
            raise ValueError(
                f'has a table {inner!r} in it: a name with a dot must be in quotes: [frameworks."pytorch-2.5-cuda12"]'
            )
        return data

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.modules) == bool(self.image):
            raise ValueError(f"must have either modules or an image{', not both' if self.image else ''}")
        return self


def framework_faults(
    frameworks: Mapping[str, FrameworkSettings], pools: Mapping[str, PoolSettings]
) -> Iterator[SettingsFault]:
    """Of frameworks that pools name and are not there, and of those that have no check."""
    for name, framework in frameworks.items():
        if not framework.check and not _python_check(name):
            known = ", ".join(_PYTHON_CHECKS)
            text = f"must be set: there is a check only for names that begin with {known}"
            yield SettingsFault(("frameworks", name, "check"), text)
    for name, pool in pools.items():
        for i, wanted in enumerate(pool.frameworks):
            if wanted not in frameworks:
                there = (
                    f"known: {', '.join(sorted(frameworks))}" if frameworks else "there is no table [frameworks.NAME]"
                )
                text = f"no framework is called {wanted!r}{did_you_mean(wanted, frameworks) or ';'} {there}"
                yield SettingsFault(("pools", name, "frameworks", i), text)
            elif wanted in pool.frameworks[:i]:
                yield SettingsFault(("pools", name, "frameworks", i), f"{wanted!r} stands there twice")
        for i, feature in enumerate(pool.features):
            if feature in frameworks:
                text = f"{feature!r} is a framework: name it in 'frameworks', so that nodes are tested for it"
                yield SettingsFault(("pools", name, "features", i), text)


def unused_frameworks(settings: Settings) -> Iterator[SettingsFault]:
    """Of frameworks that no pool offers."""
    for name in settings.frameworks:
        if not any(name in pool.frameworks for pool in settings.pools.values()):
            yield SettingsFault(("frameworks", name), "no pool offers it: name it in 'frameworks' of one")


def frameworks_of(
    pool: PoolSettings, frameworks: Mapping[str, FrameworkSettings], *, gpus: bool
) -> tuple[Framework, ...]:
    """Those of a pool; ``gpus``: whether its nodes have some, which a check that is not set then uses."""
    return tuple(
        Framework(name, found.check or _python_check(name, gpus=gpus), found.modules, found.image, found.limit_s)
        for name in pool.frameworks
        for found in [frameworks[name]]
    )


def _python_check(name: str, *, gpus: bool = False) -> str:
    """Empty where there is none for this name."""
    found = next((code for start, code in _PYTHON_CHECKS.items() if name.lower().startswith(start)), None)
    return f"python3 -c '{'; '.join(found if gpus else found[:1])}'" if found else ""
