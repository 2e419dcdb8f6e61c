"""The policy broker: requirements of jobs, offers that meet them, and what is said of those that do not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

import policies.broker
from burstd.domain.cloud.offer import Hardware
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.shape import Gres, Shape
from burstd.planner.policy_chain import make_target
from policies.job_requirements import JobRequirement, parse_requirement

from .worlds import job, last_verdict, make_snapshot, offer, pool, wants

BOX = Shape(4, 8000)
A100 = offer("p4", "3", Shape(16, 64_000, (Gres("gpu", "a100", 4),)), hardware=Hardware("x86_64", 40 * 1024))
H100 = offer("p5", "9", Shape(32, 128_000, (Gres("gpu", "h100", 8),)), hardware=Hardware("x86_64", 80 * 1024))
MI300 = offer("mi", "5", Shape(16, 64_000, (Gres("gpu", "mi300x", 1),)), region="us")
ARM = offer("arm", "2", Shape(8, 16_000), hardware=Hardware("aarch64"))
ALL = (ARM, A100, MI300, H100)
SITE: dict[str, Any] = {
    "offers": {
        "*": {"containers": ["apptainer"]},
        "sky/r1/*": {"tags": ["eu", "GDPR"]},
        "sky/us/*": {"tags": ["us"], "arch": "x86_64"},
        "*/p5/*": {"containers": ["enroot"]},
    }
}


def broker(**given: Any) -> Policy:
    return policies.broker.plugin.make(policies.broker.BrokerSettings.model_validate(given or SITE))


def decided(*jobs: Job, **given: Any) -> Target:
    found = make_target(make_snapshot(*jobs, pools=(pool(shape=BOX),), offers=ALL), (broker(**given),))
    assert not found.failed_policies
    return found


def kinds(*jobs: Job, **given: Any) -> list[list[str]]:
    return [[o.instance_type for o in want.offers] for want in decided(*jobs, **given).wants]


@pytest.mark.parametrize(
    ("requirement", "found"),
    [
        ("", "arm p4 mi p5"),
        ("nvidia-gpu=3", "p4 p5"),
        ("nvidia-gpu=5", "p5"),
        ("gpu=1", "p4 mi p5"),
        ("amd-gpu=1", "mi"),
        ("nvidia-gpu=0", "arm p4 mi p5"),
        ("cpu=16", "p4 mi p5"),
        ("cpu=16.5", "p5"),
        ("mem=300", "arm p4 mi p5"),
        ("mem=64000", "p4 mi p5"),
        ("mem=63G", "p5"),
        ("gpu-mem=40G", "p4 p5"),
        ("gpu-mem=81920", "p5"),
        ("gpu-model=a100|h100", "p4 p5"),
        ("gpu-model=mi300*", "mi"),
        ("gpu-model=A100", "p4"),
        ("arch=x86_64", "p4 mi p5"),
        ("arch=arm64", "arm"),
        ("container=apptainer", "arm p4 mi p5"),
        ("container=enroot,apptainer", "p5"),
        ("container=enroot|singularity", "p5"),
        ("tag=eu,gdpr", "arm p4 p5"),
        ("tag=eu|us", "arm p4 mi p5"),
        ("not-tag=us", "arm p4 p5"),
        ("not-tag=us,eu", ""),
        ("nvidia-gpu=3 cpu=1.5 mem=300", "p4 p5"),
        ("NVIDIA-GPU=3   tag=eu   gpu-mem=50GiB", "p5"),
        ("gpu=9", ""),
    ],
)
def test_requirements(requirement: str, found: str) -> None:
    rows = kinds(job(comment=f"burst: {requirement}"))
    assert rows == ([found.split()] if found else [])


@pytest.mark.parametrize(
    ("comment", "free"),
    [
        ("nvidia-gpu=99", True),
        ("see burst: gpu=99", True),
        ("burstd: waits: gpu=99", True),
        ("burst:gpu=9", False),
        ("Burst: gpu=9 -- burstd: waits for gpu=1", False),
        ("burst: gpu=1 -- burstd: word xyz=1", True),
    ],
)
def test_who_speaks_to_the_broker(comment: str, free: bool) -> None:
    assert (kinds(job(comment=comment)) != []) == free


def test_a_requirement_that_nobody_meets_is_reported() -> None:
    verdict, reason = last_verdict(decided(job(comment="burst: gpu-model=v100")))
    assert verdict == "wait"
    assert reason == (
        "no offer left in pool cpu: no GPU, v100 required; GPUs are a100, not v100;"
        " GPUs are mi300x, not v100 and 1 more"
    )


@pytest.mark.parametrize(
    ("comment", "fault"),
    [
        ("burst: xyz=3", "burst: unknown word 'xyz'; known words: nvidia-gpu, amd-gpu, gpu, cpu, mem, gpu-model"),
        ("burst: gpu", "burst: gpu needs a value: gpu=..."),
        ("burst: gpu=many", "burst: gpu=many: must be a number, such as 3 or 1.5"),
        ("burst: mem=3X", "burst: mem=3X: must be MiB, or a number and a unit: K, M, G or T"),
        (f"burst: {'gpu=1 ' * 100}", "burst: requirements are limited to 500 characters"),
        ("burst: \x1b[2Jx=1", "burst: unknown word '[2Jx'"),
        ("burst: tag=eu,,us", "burst: tag=eu,,us: must be words separated by '|' or ','"),
    ],
)
def test_what_cannot_be_read_is_reported_and_not_burst(comment: str, fault: str) -> None:
    found = decided(job(comment=comment), job("2"))
    assert wants(found) == [("cpu", 1, ("2",))]
    verdict, reason = last_verdict(found)
    assert verdict == "wait"
    assert reason.startswith(fault)


def test_jobs_share_a_machine_that_meets_the_requirements_of_all() -> None:
    rows = (job("1", comment="burst: gpu=1"), job("2", comment="burst: tag=eu"), job("3"))
    assert kinds(*rows) == [["p4", "p5"]]


def test_of_jobs_whose_requirements_clash_the_first_has_its_way() -> None:
    found = decided(job("1", comment="burst: arch=arm64"), job("2", comment="burst: gpu=1"), job("3"))
    assert wants(found) == [("cpu", 1, ("1", "3"))]
    assert [o.instance_type for o in found.wants[0].offers] == ["arm"]
    assert last_verdict(found, "2") == (
        "wait",
        "conflicts with job 1 on the same node: gpu=1 against arch=arm64",
    )


def test_one_that_nobody_meets_does_not_keep_others_from_their_machine() -> None:
    found = decided(job("1", comment="burst: gpu=99"), job("2"))
    assert wants(found) == [("cpu", 1, ("2",))]
    assert last_verdict(found)[1].startswith("no offer in pool cpu has gpu=99: 0 GPUs, 99 required")


def test_machines_with_something_special_are_for_those_who_require_it() -> None:
    rows = (job("1", comment="burst: gpu=1", exclusive=True), job("2", exclusive=True))
    assert [(w.jobs, w.dedicated) for w in decided(*rows).wants] == [(("1",), True), (("2",), False)]
    shared = decided(job("1", comment="burst: gpu=1"), job("2"))
    assert [(w.jobs, w.dedicated) for w in shared.wants] == [(("1", "2"), True)]
    assert [(w.jobs, w.dedicated) for w in decided(*rows, **SITE, dedicated_nodes=False).wants] == [
        (("1",), False), (("2",), False),
    ]  # fmt: skip


def test_a_gang_stands_or_falls_together() -> None:
    assert kinds(job(nodes=2, cpus=2, comment="burst: gpu-model=h100")) == [["p5"]]
    assert kinds(job(nodes=2, cpus=2, comment="burst: gpu-model=v100")) == []


def test_what_is_not_known_is_not_taken() -> None:
    assert kinds(job(comment="burst: arch=x86_64"), offers={}) == [["p4", "p5"]]
    assert kinds(job(comment="burst: gpu-mem=1G"), offers={"*/mi/*": {"gpu_memory": "192G"}}) == [["p4", "mi", "p5"]]
    assert kinds(job(comment="burst: gpu-model=x1"), offers={"*/p4/*": {"gpu_models": ["X1"]}}) == [["p4"]]
    assert kinds(job(comment="burst: amd-gpu=1"), offers={"*/p4/*": {"gpu_maker": "amd"}}) == [["p4", "mi"]]


def test_like_requirements_are_read_and_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(text: str) -> JobRequirement:
        read.append(text)
        return parse_requirement(text)

    monkeypatch.setattr("policies.broker.parse_requirement", reading)
    rows = [job(str(n), exclusive=True, comment="burst: gpu=1") for n in range(4)]
    found = decided(*rows)
    assert (len(found.wants), len(read)) == (4, 1)
    assert [r.reason for r in found.remarks if r.by == "broker" and r.verdict == "order"] == [
        "4 node(s) dedicated to jobs that require gpu=1"
    ]


def test_a_wrong_size_in_the_settings_is_named() -> None:
    with pytest.raises(ValidationError, match="a number and a unit"):
        broker(offers={"*": {"gpu_memory": "much"}})
