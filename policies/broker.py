"""Wishes of jobs beyond what Slurm knows: which GPU, how much memory it has, architecture, containers, the site's tags.

Use it where machines of one pool differ in what matters to jobs, or where some jobs may run in some places only (data
protection, licences). A job says what it wishes in its comment, as jobs of GPU grids do:

    sbatch --comment='burst: nvidia-gpu=3 cpu=1.5 mem=300 gpu-model=a100|h100 tag=eu,gdpr' job.sh

``nvidia-gpu``, ``amd-gpu``, ``gpu`` (numbers), ``cpu`` (a part counts as a whole one), ``mem``, ``gpu-mem`` (of each
GPU; both in MiB, or with a unit: ``40G``), ``gpu-model``, ``arch``, ``container``, ``tag`` and ``not-tag``. ``a|b`` is
one of both, ``a,b`` is both (``not-tag``: none of them); a model may be a pattern. A machine is started for the job by
offers that have it all, and by none else; it is kept for the job, and ends with it (``own_machines``). This is about
machines that are started: what Slurm gives the job on it, and whether it starts on another node that is there already,
is Slurm's business and a matter of ``--gres`` and ``--constraint``.
What the provider does not tell of its offers is said here, by patterns of their names
(``provider/region/zone/type/market``); entries that match add up.

    [policies.broker.offers."aws/eu-*"]
    tags = ["eu", "gdpr"]
    containers = ["apptainer", "enroot"]
    [policies.broker.offers."*/p4d.*/*"]
    gpu_models = ["a100"]
    gpu_memory = "40G"
    arch = "x86_64"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from math import ceil
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from burstd.model.comment import WISHES, speaks, split
from burstd.model.job import Job
from burstd.model.offer import Offer
from burstd.model.policy import PolicyPlugin, Remark, Target, Want, units, without_jobs, without_offers
from burstd.model.snapshot import SlurmView, Snapshot

_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_MIB = {"K": Decimal(1) / 1024, "": Decimal(1), "M": Decimal(1), "G": Decimal(1024), "T": Decimal(1024) ** 2}
_MOST = 500
"""Characters of the wishes of a job."""
_ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "arm": "aarch64"}
_MAKERS = (("mi[0-9]*", "amd"), ("instinct*", "amd"), ("gaudi*", "intel"), ("max*", "intel"), ("pvc*", "intel"))
"""What models are called that are not NVIDIA's."""


def _mebibytes(given: object) -> object:
    """``40G`` or MiB."""
    return _size(given) if isinstance(given, str) else given


class OfferSettings(BaseModel):
    """``[policies.broker.offers.PATTERN]``: what offers have, beyond what their provider says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tags: tuple[str, ...] = ()
    """Words of the site's own, such as where the machine stands."""
    containers: tuple[str, ...] = ()
    """Container runtimes in its image: ``apptainer``."""
    gpu_models: tuple[str, ...] = ()
    """Besides the GRES type that Slurm knows."""
    gpu_maker: str = ""
    """``nvidia``, ``amd`` or ``intel``; empty: by the model's name."""
    gpu_memory: Annotated[int, BeforeValidator(_mebibytes)] = Field(default=0, ge=0)
    """Of each GPU, in MiB or with a unit."""
    arch: str = ""
    """As ``uname -m`` has it."""


class Settings(BaseModel):
    """``[policies.broker]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    own_machines: bool = True
    """A machine that is started for wishes is for its jobs only; else Slurm gives it to whoever is first."""
    offers: dict[str, OfferSettings] = {}


@dataclass(frozen=True, slots=True)
class _Machine:
    """What an offer's machine has, as far as is known; words in lower case."""

    cpus: int
    memory_mib: int
    gpus: int
    maker: str
    models: frozenset[str]
    gpu_memory_mib: int
    arch: str
    containers: frozenset[str]
    tags: frozenset[str]


_Check = Callable[[_Machine], str]
"""Why a machine does not have what is wished; empty: it has."""


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What one job wishes, or what is wrong with how it says so."""

    text: str
    checks: tuple[_Check, ...] = ()
    fault: str = ""

    def refusal(self, machine: _Machine) -> str:
        return next((why for check in self.checks if (why := check(machine))), "")


@dataclass(frozen=True, slots=True)
class Broker:
    """The policy."""

    settings: Settings
    name: str = "broker"

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Leaves each want the offers that satisfy all of its jobs."""
        wishes = self._wishes(snapshot, target)
        if not wishes:
            return target
        machines = _Machines(self.settings)
        alone = self._alone(target, wishes, machines)

        def out(want: Want, job: Job) -> str:
            return wishes[job.id].fault or alone.get((id(want), job.id), "") if job.id in wishes else ""

        def refusal(want: Want, offer: Offer) -> str:
            reasons = (wishes[job].refusal(machines.of(offer)) for job in want.jobs if job in wishes)
            return next(filter(None, reasons), "")

        def alike(want: Want) -> tuple[str, ...]:
            return tuple(wishes[job].text for job in want.jobs if job in wishes)

        target = without_offers(without_jobs(target, self.name, snapshot, out), self.name, refusal, alike)
        return self._own(target, wishes) if self.settings.own_machines else target

    def _own(self, target: Target, wishes: Mapping[str, _Wishes]) -> Target:
        """Machines with something special for the jobs that wish it, and not for those before them in the queue."""
        wants: list[Want] = []
        remarks: list[Remark] = []
        for want in target.wants:
            wished = next((wishes[job].text for job in want.jobs if job in wishes), "")
            if wished and not want.alone:
                wants.append(replace(want, alone=True))
                why = f"the machine for {want.reason} is for its jobs only, as one wishes {wished}"
                remarks.append(Remark(self.name, f"pool:{want.pool}", "order", why))
            else:
                wants.append(want)
        return replace(target, wants=tuple(wants), remarks=(*target.remarks, *remarks)) if remarks else target

    def _wishes(self, snapshot: Snapshot, target: Target) -> dict[str, _Wishes]:
        """Of the jobs of the target that wish anything."""
        asked = {job for want in target.wants for job in want.jobs}
        if not asked or not isinstance(snapshot.slurm, SlurmView):
            return {}
        jobs = (job for job in snapshot.slurm.jobs if job.id in asked and speaks(job.comment))
        return {job.id: parse(split(job.comment)[0][len(WISHES) :]) for job in jobs}

    @staticmethod
    def _alone(target: Target, wishes: Mapping[str, _Wishes], machines: _Machines) -> dict[tuple[int, str], str]:
        """Jobs that cannot share the machine of a want with those before them, and why."""
        found: dict[tuple[int, str], str] = {}
        for unit in units(target.wants):
            want = unit[0]
            if len(unit) > 1 or want.gang or len(want.jobs) < 2:
                continue
            left, first = want.offers, ""
            for job in want.jobs:
                wished = wishes.get(job)
                if wished is None or wished.fault:
                    continue
                fit = tuple(offer for offer in left if not wished.refusal(machines.of(offer)))
                if fit:
                    left, first = fit, first or job
                elif any(not wished.refusal(machines.of(offer)) for offer in want.offers):
                    found[id(want), job] = (
                        f"it wishes {wished.text}, which the machine for job {first} will not have, for that job wishes"
                        f" {wishes[first].text}"
                    )
                else:
                    why = "; ".join(dict.fromkeys(wished.refusal(machines.of(offer)) for offer in want.offers))
                    found[id(want), job] = f"no offer of pool {want.pool} has what it wishes ({wished.text}): {why}"
        return found


class _Machines:
    """What offers have, by what their provider and the settings say; each is looked at once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[int, tuple[Offer, _Machine]] = {}

    def of(self, offer: Offer) -> _Machine:
        """What a machine of the offer has."""
        # With the offer, so that no other one can come by its identity.
        if id(offer) not in self._known:
            self._known[id(offer)] = (offer, self._machine(offer))
        return self._known[id(offer)][1]

    def _machine(self, offer: Offer) -> _Machine:
        entries = [entry for pattern, entry in self._settings.offers.items() if fnmatchcase(offer.id, pattern)]
        types = {gres.type for gres in offer.shape.gres if gres.name == "gpu" and gres.type}
        models = _lower((*types, *(model for entry in entries for model in entry.gpu_models)))
        arch = next((e.arch for e in entries if e.arch), offer.hardware.architecture).lower()
        return _Machine(
            cpus=offer.shape.cpus,
            memory_mib=offer.shape.memory_mib,
            gpus=offer.shape.gpus(),
            maker=next((e.gpu_maker for e in entries if e.gpu_maker), _maker(models)).lower(),
            models=models,
            gpu_memory_mib=next((e.gpu_memory for e in entries if e.gpu_memory), offer.hardware.gpu_memory_mib),
            arch=_ARCHITECTURES.get(arch, arch),
            containers=_lower(word for entry in entries for word in entry.containers),
            tags=_lower(word for entry in entries for word in entry.tags),
        )


def parse(text: str) -> _Wishes:
    """Reads ``nvidia-gpu=3 mem=300 ...``."""
    # It stands in messages that others read.
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(shown) > _MOST:
        return _Wishes(shown[:_MOST], fault=f"burst: wishes are to have no more than {_MOST} characters")
    checks: list[_Check] = []
    for part in shown.split():
        word, equals, value = part.partition("=")
        make = _WORDS.get(word.lower())
        if make is None:
            return _Wishes(shown, fault=f"burst: word {word!r} is not known; known are {', '.join(_WORDS)}")
        if not equals or not value:
            return _Wishes(shown, fault=f"burst: {word} lacks a value: {word}=...")
        try:
            checks.append(make(value.lower()))
        except ValueError as error:
            return _Wishes(shown, fault=f"burst: {part}: {error}")
    return _Wishes(shown, tuple(checks))


def _gpus(maker: str) -> Callable[[str], _Check]:
    def make(value: str) -> _Check:
        least = _number(value)
        what = f"{maker} GPUs".strip()
        return lambda m: (
            f"it has {m.gpus} GPUs, and {least} are wished"
            if m.gpus < least
            else f"its GPUs are not known to be {what}"
            if least and maker and m.maker != maker
            else ""
        )

    return make


def _cpus(value: str) -> _Check:
    least = _number(value)
    return lambda m: f"it has {m.cpus} CPUs, and {least} are wished" if m.cpus < least else ""


def _memory(value: str) -> _Check:
    least = _size(value)
    return lambda m: f"it has {m.memory_mib} MiB of memory, and {least} are wished" if m.memory_mib < least else ""


def _gpu_memory(value: str) -> _Check:
    least = _size(value)

    def check(machine: _Machine) -> str:
        there = machine.gpu_memory_mib
        if there >= least:
            return ""
        return f"its GPUs have {there} MiB, and {least} are wished" if there else "its GPUs' memory is not known"

    return check


def _models(value: str) -> _Check:
    wished = _either(value)

    def check(machine: _Machine) -> str:
        if any(fnmatchcase(model, pattern) for model in machine.models for pattern in wished):
            return ""
        return (
            f"its GPUs are {_listed(machine.models)}, not {value}"
            if machine.gpus
            else f"it has no GPU, let alone {value}"
        )

    return check


def _architecture(value: str) -> _Check:
    wished = {_ARCHITECTURES.get(word, word) for word in _either(value)}
    return lambda m: "" if m.arch in wished else f"its architecture is {m.arch or 'not known'}, not {value}"


def _containers(value: str) -> _Check:
    return _all_of(value, "containers", lambda machine: machine.containers)


def _tags(value: str) -> _Check:
    return _all_of(value, "tags", lambda machine: machine.tags)


def _not_tags(value: str) -> _Check:
    shunned = frozenset(word for part in _both(value) for word in _either(part))
    return lambda m: f"it has the tag {_listed(shunned & m.tags)}" if shunned & m.tags else ""


def _all_of(value: str, what: str, there: Callable[[_Machine], frozenset[str]]) -> _Check:
    wished = [frozenset(_either(part)) for part in _both(value)]
    return lambda m: (
        ""
        if all(some & there(m) for some in wished)
        else f"its {what} are {_listed(there(m))}, and {value} is wished"
    )  # fmt: skip


_WORDS: Mapping[str, Callable[[str], _Check]] = {
    "nvidia-gpu": _gpus("nvidia"),
    "amd-gpu": _gpus("amd"),
    "gpu": _gpus(""),
    "cpu": _cpus,
    "mem": _memory,
    "gpu-model": _models,
    "gpu-mem": _gpu_memory,
    "arch": _architecture,
    "container": _containers,
    "tag": _tags,
    "not-tag": _not_tags,
}


def _number(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", value):
        raise ValueError("must be a number, such as 3 or 1.5")
    return ceil(Decimal(value))


def _size(value: str) -> int:
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise ValueError("must be MiB, or a number and a unit: K, M, G or T")
    return ceil(Decimal(found[1]) * _MIB[found[2].upper()])


def _either(value: str) -> tuple[str, ...]:
    return _words(value, "|")


def _both(value: str) -> tuple[str, ...]:
    return _words(value, ",")


def _words(value: str, between: str) -> tuple[str, ...]:
    words = tuple(value.split(between))
    if not all(words):
        raise ValueError("must be words, with '|' or ',' between them")
    return words


def _maker(models: Iterable[str]) -> str:
    """Who makes the models; GPUs of no other maker are taken for NVIDIA's."""
    named = (maker for model in sorted(models) for pattern, maker in _MAKERS if fnmatchcase(model, pattern))
    return next(named, "nvidia")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "not known"


def _lower(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word.lower() for word in words)


plugin = PolicyPlugin("broker", Settings, Broker)
