"""Job requirements beyond Slurm's: GPU model and memory, architecture, containers, the site's tags.

Use it where machines of one pool differ in what matters to jobs, or where some jobs may run in some places only (data
protection, licences). A job states its requirements in its comment, as jobs of GPU grids do:

    sbatch --comment='burst: gpu=3 cpu=1.5 mem=300 model=a100|h100 tag=eu,gdpr' job.sh

``nvidia-gpu``, ``amd-gpu``, ``gpu`` (numbers), ``cpu`` (a part counts as a whole one), ``mem``, ``gpu-mem`` (of each
GPU; both in MiB, or with a unit: ``40G``), ``model`` or ``gpu-model``, ``arch``, ``container``, ``tag`` and
``not-tag``. ``a|b`` is one of both, ``a,b`` is both (``not-tag``: none of them); a model may be a pattern. A machine is
started for the job by offers that have it all, and by none else; it is kept for the job, and ends with it
(``dedicated_nodes``). Slurm is told to start the job on no other node, before anything is started for it
(job_places.py). What the provider does not tell of its offers, and Slurm of the site's nodes, is said here, by patterns
of their names (``provider/region/zone/type/market``, ``site/NODE``); entries that match add up.

    [policies.broker.offers."aws/eu-*"]
    tags = ["eu", "gdpr"]
    containers = ["apptainer", "enroot"]
    [policies.broker.offers."*/p4d.*/*"]
    gpu_models = ["a100"]
    gpu_memory = "40G"
    arch = "x86_64"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from burstd.domain.cloud.offer import Hardware, Offer
from burstd.domain.plugins.policy import PolicyPlugin, Remark, Target, Want, gang_units, without_jobs, without_offers
from burstd.domain.slurm.comment import is_for_burstd, requirements_text
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from policies.job_places import JUST_STARTED_S, PlaceFinder, is_held_back
from policies.job_requirements import (
    ARCHITECTURES,
    JobRequirement,
    OfferHardware,
    lowercase_set,
    parse_mebibytes,
    parse_requirement,
)

NAME = "broker"
SITE = "site"
"""Stands for the provider in the name of a node of the site: ``site/gpu7``."""
_MAKERS = (("mi[0-9]*", "amd"), ("instinct*", "amd"), ("gaudi*", "intel"), ("max*", "intel"), ("pvc*", "intel"))
"""What models are called that are not NVIDIA's."""


def _mebibytes(given: object) -> object:
    """``40G`` or MiB."""
    return parse_mebibytes(given) if isinstance(given, str) else given


def _lower(given: object) -> object:
    return given.lower() if isinstance(given, str) else given


_AnyCase = BeforeValidator(_lower)
_Architecture = Literal["x86_64", "aarch64", "ppc64le", "riscv64", "amd64", "x64", "arm64", "arm"]
_Runtime = Literal["apptainer", "singularity", "enroot", "podman", "docker", "charliecloud", "sarus", "shifter"]


class BrokerOfferSettings(BaseModel):
    """``[policies.broker.offers.PATTERN]``: what offers have, beyond what their provider says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tags: tuple[str, ...] = ()
    """Words of the site's own, such as where the machine stands."""
    containers: tuple[Annotated[_Runtime, _AnyCase], ...] = ()
    """Container runtimes in its image: ``apptainer``."""
    gpu_models: tuple[str, ...] = ()
    """Besides the GRES type that Slurm knows."""
    gpu_maker: Annotated[Literal["nvidia", "amd", "intel"] | None, _AnyCase] = None
    """None: by the model's name."""
    gpu_memory: Annotated[int, BeforeValidator(_mebibytes)] = Field(default=0, ge=0)
    """Of each GPU, in MiB or with a unit."""
    arch: Annotated[_Architecture | None, _AnyCase] = None
    """As ``uname -m`` has it, or another name of that; None: as the provider says."""


class BrokerSettings(BaseModel):
    """``[policies.broker]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dedicated_nodes: bool = True
    """A machine that is started for requirements is for its jobs only; else Slurm gives it to whoever is first."""
    offers: dict[str, BrokerOfferSettings] = {}


@dataclass(frozen=True, slots=True)
class BrokerPolicy:
    """The policy."""

    settings: BrokerSettings
    name: str = NAME

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Leaves each want the offers that satisfy all of its jobs, and has Slurm told where these may run."""
        slurm = snapshot.slurm
        if not isinstance(slurm, SlurmView):
            return target
        known = snapshot.runtime_state.excluded_nodes
        waiting = {
            job.id: job
            for job in slurm.jobs
            if job.state is JobState.PENDING
            and (is_for_burstd(job.comment) or known.get(job.id) or known.get(job.array_job_id) or is_held_back(job))
        }
        started = [job for job in slurm.jobs if _has_just_started(job, snapshot.now)]
        if not waiting and not started:
            return target
        requirements = _requirements(waiting.values())
        machines = _HardwareCatalog(self.settings)
        finder = PlaceFinder(snapshot, slurm, target, machines.hardware_of, machines.hardware_of_node)
        target = _with_misplaced(target, started, finder)
        target, out = _with_updates(finder, target, waiting, requirements)
        conflicts = self._conflicting_jobs(target, requirements, machines)

        def dropped(want: Want, job: Job) -> str:
            return out.get(job.id) or conflicts.get((id(want), job.id), "")

        def refusal(want: Want, offer: Offer) -> str:
            reasons = (
                requirements[job].unmet_reason(machines.hardware_of(offer)) for job in want.jobs if job in requirements
            )
            return next(filter(None, reasons), "")

        def alike(want: Want) -> tuple[str, ...]:
            return tuple(requirements[job].text for job in want.jobs if job in requirements)

        verdicts = target.remarks
        if out or conflicts:
            target = without_jobs(target, self.name, snapshot, dropped)
        target = without_offers(target, self.name, refusal, alike)
        # The last remark on a job is the last word on it.
        last = tuple(r for r in verdicts if r.by == self.name and r.verdict == "impossible")
        target = replace(target, remarks=(*target.remarks, *last)) if last and target.remarks != verdicts else target
        return self._dedicate_machines(target, requirements) if self.settings.dedicated_nodes else target

    def _dedicate_machines(self, target: Target, requirements: Mapping[str, JobRequirement]) -> Target:
        """Machines with something special for the jobs that require it, and not for those before them in the queue."""
        wants: list[Want] = []
        own: dict[tuple[str, str], int] = {}
        for want in target.wants:
            required = next((requirements[job].text for job in want.jobs if job in requirements), "")
            if required and not want.dedicated:
                wants.append(replace(want, dedicated=True))
                own[want.pool, required] = own.get((want.pool, required), 0) + want.nodes
            else:
                wants.append(want)
        remarks = [
            Remark(self.name, f"pool:{pool}", "order", f"{nodes} node(s) dedicated to jobs that require {wished}")
            for (pool, wished), nodes in own.items()
        ]
        return replace(target, wants=tuple(wants), remarks=(*target.remarks, *remarks)) if remarks else target

    @staticmethod
    def _conflicting_jobs(
        target: Target, requirements: Mapping[str, JobRequirement], machines: _HardwareCatalog
    ) -> dict[tuple[int, str], str]:
        """Jobs that cannot share the machine of a want with those before them, and why."""
        found: dict[tuple[int, str], str] = {}
        for unit in gang_units(target.wants):
            want = unit[0]
            if len(unit) > 1 or want.gang or len(want.jobs) < 2:
                continue
            left, first = want.offers, ""
            for job in want.jobs:
                requirement = requirements.get(job)
                if requirement is None or requirement.syntax_error:
                    continue
                fit = machines.offers_that_meet(left, requirement)
                if fit:
                    left, first = fit, first or job
                elif machines.offers_that_meet(want.offers, requirement):
                    found[id(want), job] = (
                        f"conflicts with job {first} on the same node: {requirement.text} against"
                        f" {requirements[first].text}"
                    )
                else:
                    why = "; ".join(
                        dict.fromkeys(requirement.unmet_reason(machines.hardware_of(offer)) for offer in want.offers)
                    )
                    found[id(want), job] = f"no offer in pool {want.pool} has {requirement.text}: {why}"
        return found


def _requirements(jobs: Iterable[Job]) -> dict[str, JobRequirement]:
    """By job, what it requires."""
    texts = {job.id: requirements_text(job.comment) for job in jobs if is_for_burstd(job.comment)}
    known = {text: parse_requirement(text) for text in dict.fromkeys(texts.values())}
    return {job: known[text] for job, text in texts.items()}


def _has_just_started(job: Job, now: float) -> bool:
    """Whether a job that names requirements may still begin anew for them."""
    return (
        job.state is JobState.RUNNING
        and is_for_burstd(job.comment)
        and job.requeue
        and not job.het_job_id
        and not job.restarts
        and now - job.start < JUST_STARTED_S
    )


def _with_misplaced(target: Target, started: Sequence[Job], finder: PlaceFinder) -> Target:
    requirements = _requirements(started)
    found = {job.id: why for job in started if (why := finder.misplaced(job, requirements[job.id]))}
    if not found:
        return target
    remarks = (Remark(NAME, f"job:{job}", "wait", why) for job, why in found.items())
    jobs = {**target.misplaced_jobs, **found}
    return replace(target, misplaced_jobs=jobs, remarks=(*target.remarks, *remarks))


def _with_updates(
    finder: PlaceFinder, target: Target, waiting: Mapping[str, Job], requirements: Mapping[str, JobRequirement]
) -> tuple[Target, dict[str, str]]:
    """The target with what Slurm is to be told, and by job why no machine is to be started for it now."""
    updates: dict[str, JobUpdate] = dict(target.job_updates)
    remarks: list[Remark] = []
    out: dict[str, str] = {}
    for job in waiting.values():
        requirement = requirements.get(job.id)
        update = finder.update_for(job, requirement)
        if update is not None:
            updates[job.id] = update
            out[job.id] = "Slurm is being told what its comment requires"
        if requirement is not None:
            places = finder.places_for(requirement, job.partitions)
            if places.refusal:
                out[job.id] = places.refusal
                verdict = "impossible" if places.is_final else "wait"
                remarks.append(Remark(NAME, f"job:{job.id}", verdict, places.refusal))
            elif update is not None:
                remarks.append(Remark(NAME, f"job:{job.id}", "wait", out[job.id]))
    return replace(target, job_updates=updates, remarks=(*target.remarks, *remarks)), out


class _HardwareCatalog:
    """What offers have, by what their provider and the settings say; each is looked at once."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._known: dict[int, tuple[Offer, OfferHardware]] = {}
        self._nodes: dict[str, OfferHardware] = {}
        self._fit: dict[tuple[int, str], tuple[tuple[Offer, ...], tuple[Offer, ...]]] = {}

    def hardware_of(self, offer: Offer) -> OfferHardware:
        """What a machine of the offer has."""
        # With the offer, so that no other one can come by its identity.
        if id(offer) not in self._known:
            self._known[id(offer)] = (offer, self._hardware(offer.id, offer.shape, offer.hardware))
        return self._known[id(offer)][1]

    def hardware_of_node(self, node: Node) -> OfferHardware:
        """What a node of the site has, by what Slurm and the settings say."""
        if node.name not in self._nodes:
            shape = Shape(node.cpus, node.memory_mib, node.gres)
            self._nodes[node.name] = self._hardware(f"{SITE}/{node.name}", shape, Hardware())
        return self._nodes[node.name]

    def offers_that_meet(self, offers: tuple[Offer, ...], requirement: JobRequirement) -> tuple[Offer, ...]:
        """Those that have it all; thousands of wants have the same offers and requirements."""
        key = (id(offers), requirement.text)
        if key not in self._fit:
            found = tuple(offer for offer in offers if not requirement.unmet_reason(self.hardware_of(offer)))
            self._fit[key] = (offers, found)
        return self._fit[key][1]

    def _hardware(self, name: str, shape: Shape, hardware: Hardware) -> OfferHardware:
        entries = [entry for pattern, entry in self._settings.offers.items() if fnmatchcase(name, pattern)]
        types = {gres.type for gres in shape.gres if gres.name == "gpu" and gres.type}
        models = lowercase_set((*types, *(model for entry in entries for model in entry.gpu_models)))
        arch = next((e.arch for e in entries if e.arch), hardware.architecture).lower()
        return OfferHardware(
            cpus=shape.cpus,
            memory_mib=shape.memory_mib,
            gpus=shape.gpus(),
            maker=next((e.gpu_maker for e in entries if e.gpu_maker), _maker(models)),
            models=models,
            gpu_memory_mib=next((e.gpu_memory for e in entries if e.gpu_memory), hardware.gpu_memory_mib),
            arch=ARCHITECTURES.get(arch, arch),
            containers=lowercase_set(word for entry in entries for word in entry.containers),
            tags=lowercase_set(word for entry in entries for word in entry.tags),
        )


def _maker(models: Iterable[str]) -> str:
    """Who makes the models; GPUs of no other maker are taken for NVIDIA's."""
    named = (maker for model in sorted(models) for pattern, maker in _MAKERS if fnmatchcase(model, pattern))
    return next(named, "nvidia")


plugin = PolicyPlugin(NAME, BrokerSettings, BrokerPolicy)
