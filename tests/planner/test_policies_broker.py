"""The policy broker: requirements of jobs, offers that meet them, and what is said of those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

import policies.broker
import policies.job_places
from burstd.domain.claim import ClaimState
from burstd.domain.cloud.offer import Hardware, OfferRule, Pool
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import CircuitBreaker, CloudView, RuntimeState, SlurmView, Snapshot, Unavailable
from burstd.planner.job_updates import requeue_misplaced, update_jobs
from burstd.planner.policy_chain import make_target
from burstd.planner.snapshot_view import build_view
from policies.job_requirements import JobRequirement, parse_requirement

from .worlds import NOW, claim, job, last_verdict, make_snapshot, node, offer, pool, wants

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


def updated(job: Job, update: JobUpdate) -> Job:
    """The job once Slurm was told."""
    return replace(
        job,
        excluded_nodes=tuple(sorted(update.excluded_nodes)),
        gres_per_node=update.gres_per_node or job.gres_per_node,
        memory_mib=update.memory_mib or job.memory_mib,
        cpus=update.cpus or job.cpus,
        cpus_per_node=update.cpus_per_node or job.cpus_per_node,
        eligible=NOW if update.start_now else job.eligible,
    )


def first_decided(*jobs: Job, policy: Policy | None = None, **fields: Any) -> Target:
    """What is decided of a queue that was not seen before."""
    fields = {"pools": (pool(shape=BOX),), "offers": ALL, **fields}
    found = make_target(make_snapshot(*jobs, **fields), (policy or broker(),))
    assert not found.failed_policies
    return found


def decided(*jobs: Job, **given: Any) -> Target:
    """What is decided once Slurm has been told all, which takes one time."""
    first = first_decided(*jobs, policy=broker(**given))
    told = [updated(job, first.job_updates[job.id]) if job.id in first.job_updates else job for job in jobs]
    found = first_decided(*told, policy=broker(**given))
    assert not found.job_updates
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
        ("model=a100", "p4"),
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
        ("idle=allow", "arm p4 mi p5"),
        ("gpu-mem=40G idle=ALLOW", "p4 p5"),
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
    assert verdict == "impossible"
    assert reason == (
        "no machine meets 'burst: gpu-model=v100'; nearest is sky/r1/a/arm/on-demand (pool cpu): no GPU, v100 required"
    )
    assert last_verdict(decided(job(comment="burst: gpu=3 model=v100")))[1].endswith(
        "nearest is sky/r1/a/p4/on-demand (pool cpu): GPUs are a100, not v100"
    )
    unseen = first_decided(job(comment="burst: model=v100"), offers=())
    assert last_verdict(unseen) == ("impossible", "no machine meets 'burst: model=v100'")


@pytest.mark.parametrize(
    ("comment", "fault"),
    [
        ("burst: xyz=3", "burst: unknown word xyz; known words: nvidia-gpu, amd-gpu, gpu, cpu, mem, model, gpu-model"),
        ("burst: gpu=3 modle=a100", "burst: unknown word modle, did you mean model?"),
        ("burst: gpu", "burst: gpu needs a value: gpu=..."),
        ("burst: gpu=1 gpu=2", "burst: gpu is given twice"),
        ("burst: model=a100 gpu-model=v100", "burst: gpu-model is given twice"),
        ("burst: gpu=1,model=v100", "burst: gpu=1,model=v100: words are separated by blanks: gpu=1 model=v100"),
        ("burst: gpu = 1", "burst: gpu = 1: no blanks may stand around '='"),
        ("burst: gpu= 1 cpu=2", "burst: gpu= 1 cpu=2: no blanks may stand around '='"),
        ("burst: gpu= cpu=2", "burst: gpu needs a value: gpu=..."),
        ("burst: gpu=many", "burst: gpu=many: must be a number, such as 3 or 1.5"),
        ("burst: mem=3X", "burst: mem=3X: must be MiB, or a number and a unit: K, M, G or T"),
        (f"burst: {'gpu=1 ' * 100}", "burst: requirements are limited to 500 characters"),
        ("burst: \x1b[2Jx=1", "burst: unknown word [2Jx"),
        ("burst: tag=eu,,us", "burst: tag=eu,,us: must be words separated by '|' or ','"),
    ],
)
def test_what_cannot_be_read_is_reported_and_not_burst(comment: str, fault: str) -> None:
    found = decided(job(comment=comment), job("2"))
    assert wants(found) == [("cpu", 1, ("2",))]
    verdict, reason = last_verdict(found)
    assert verdict == "impossible"
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
    assert last_verdict(found)[1].startswith("no machine meets 'burst: gpu=99'; nearest is sky/r1/a/p5/")


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
    # Once in each decision.
    found = decided(*rows)
    assert (len(found.wants), len(read)) == (4, 2)
    assert [r.reason for r in found.remarks if r.by == "broker" and r.verdict == "order"] == [
        "4 node(s) dedicated to jobs that require gpu=1"
    ]


def test_a_wrong_size_in_the_settings_is_named() -> None:
    with pytest.raises(ValidationError, match="a number and a unit"):
        broker(offers={"*": {"gpu_memory": "much"}})


V100 = offer("g4", "2", Shape(4, 8000, (Gres("gpu", "v100", 4),)))
PLAIN = offer("c2", "1", Shape(4, 8000))
FOUR = (Gres("gpu", "v100", 4),)
ON_PREMISES = (
    node("op1", partitions=("onprem",)),
    node("op2", partitions=("onprem",), gres=(Gres("gpu", "a100", 4),)),
)


def pools() -> tuple[Pool, ...]:
    """Slots with and without GPUs, and each kind of offer for one of them."""
    rules = {"gpu": (OfferRule("sky", ("g4",)),), "cpu": (OfferRule("sky", ("c2",)),)}
    return tuple(
        replace(pool(name, 2, shape=Shape(4, 8000, FOUR if name == "gpu" else ())), rules=rule)
        for name, rule in rules.items()
    )


def both(*jobs: Job, **fields: Any) -> Target:
    return first_decided(*jobs, **{"pools": pools(), "offers": (PLAIN, V100), "nodes": ON_PREMISES, **fields})


def both_snapshot(*jobs: Job) -> Snapshot:
    return make_snapshot(*jobs, pools=pools(), offers=(PLAIN, V100), nodes=ON_PREMISES)


def test_slurm_is_told_before_a_machine_is_started() -> None:
    """GPUs, memory and CPUs become the job's own request; nodes that do not match are excluded."""
    asks = job(partitions=("onprem", "burst"), comment="burst: gpu=3 model=v100 mem=300 cpu=1.5")
    found = both(asks)
    update = JobUpdate(
        frozenset({"op1", "op2", "cpu1", "cpu2"}), frozenset({"op1", "op2", "cpu1", "cpu2"}),
        (Gres("gpu", "v100", 3),), 300, 2,
    )  # fmt: skip
    assert (found.wants, found.job_updates) == ((), {"1": update})
    assert last_verdict(found) == ("wait", "Slurm is being told what its comment requires")
    again = both(updated(asks, update))
    assert (wants(again), again.job_updates) == ([("gpu", 1, ("1",))], {})


def test_a_node_of_the_site_that_matches_serves_the_job_as_well() -> None:
    asks = job(partitions=("onprem", "burst"), comment="burst: gpu=3 model=a100")
    update = both(asks).job_updates["1"]
    assert update.excluded_nodes == {"op1", "cpu1", "cpu2", "gpu1", "gpu2"}
    assert update.gres_per_node == (Gres("gpu", "a100", 3),)
    assert wants(both(updated(asks, update))) == []


def test_what_a_job_asks_slurm_for_is_raised_only() -> None:
    gres = (Gres("fpga", "", 1), Gres("gpu", "", 4))
    asks = job(comment="burst: gpu=3 mem=300", gres_per_node=gres, memory_mib=500, excluded_nodes=("cpu1", "cpu2"))
    assert both(asks).job_updates == {}
    typed = both(replace(asks, comment="burst: gpu=3 model=v100")).job_updates["1"]
    assert typed.gres_per_node == (Gres("fpga", "", 1), Gres("gpu", "v100", 4))


@pytest.mark.parametrize("comment", ["burst: modle=v100", "burst: gpu=3 model=h100"])
def test_a_job_that_no_machine_meets_is_kept_off_every_node(comment: str) -> None:
    found = both(job(partitions=("onprem", "burst"), comment=comment))
    assert found.job_updates["1"].excluded_nodes == {"op1", "op2", "cpu1", "cpu2", "gpu1", "gpu2"}
    assert last_verdict(found)[0] == "impossible"


def test_a_changed_comment_is_followed_and_the_users_own_exclusions_stay() -> None:
    words = ("onprem", "burst")
    first = both(job(partitions=words, comment="burst: model=v100", excluded_nodes=("op2", "cpu9"))).job_updates["1"]
    runtime = RuntimeState(excluded_nodes={"1": first.added_nodes})
    after = job(partitions=words, comment="burst: model=a100", excluded_nodes=tuple(first.excluded_nodes))
    update = both(after, runtime_state=runtime).job_updates["1"]
    assert update.excluded_nodes - update.added_nodes == {"op2", "cpu9"}
    own = both(job(partitions=words, comment="burst: model=a100", excluded_nodes=("op2",))).job_updates["1"]
    assert own.excluded_nodes >= {"op2", "op1", "gpu1"}
    none = job(partitions=words, comment="", excluded_nodes=(*first.excluded_nodes, "op7"))
    left = frozenset({"op2", "cpu9", "op7"})
    assert both(none, runtime_state=runtime).job_updates["1"] == JobUpdate(left, frozenset())


@pytest.mark.parametrize(
    ("comment", "there", "excluded"),
    [
        ("burst: gpu=1 model=v100", (), {"op1", "op2", "cpu1"}),
        ("burst: modle=v100", (), {"op1", "op2", "cpu1", "gpu1"}),
        ("burst: gpu=1 model=h100", (), {"op1", "op2", "cpu1", "gpu1"}),
        # A node that is not seen at present stays where it is, whoever put it there.
        ("burst: gpu=1 model=v100", ("cpu2", "op3"), {"op1", "op2", "cpu1", "cpu2", "op3"}),
    ],
)
def test_only_nodes_that_slurm_knows_are_named(comment: str, there: tuple[str, ...], excluded: set[str]) -> None:
    asks = job(partitions=("onprem", "burst"), comment=comment, excluded_nodes=there)
    snapshot = both_snapshot(asks)
    assert isinstance(snapshot.slurm, SlurmView)
    known = {name: node for name, node in snapshot.slurm.nodes.items() if name not in ("cpu2", "gpu2")}
    runtime = RuntimeState(excluded_nodes={"1": frozenset({"cpu2"})})
    snapshot = replace(snapshot, slurm=replace(snapshot.slurm, nodes=known), runtime_state=runtime)
    found = make_target(snapshot, (broker(),))
    assert not found.failed_policies
    assert found.job_updates["1"].excluded_nodes == excluded


def test_a_machine_that_boots_for_another_job_is_excluded_before_it_opens() -> None:
    mixed = replace(pool("any", 3, shape=BOX), rules=(OfferRule("sky"),))
    booting = claim("any1", ClaimState.BOOTING, offer=PLAIN), claim("any2", ClaimState.BOOTING, offer=ARM)
    asks = job("1", comment="burst: arch=arm64")
    found = both(asks, pools=(mixed,), offers=(PLAIN, ARM), claims=booting)
    assert found.job_updates["1"] == JobUpdate(frozenset({"any1"}), frozenset({"any1"}))


def test_an_offer_that_is_not_to_be_had_now_makes_nothing_impossible() -> None:
    until = CircuitBreaker("sky/r1/a/g4/on-demand", "capacity", 1, NOW + 600)
    found = both(job(comment="burst: gpu=1"), breakers=(until,))
    assert found.job_updates["1"].excluded_nodes == {"cpu1", "cpu2"}
    unread = CloudView(Unavailable("it is down", NOW), ())
    snapshot = make_snapshot(job(comment="burst: gpu=1"), pools=pools(), offers=())
    found = make_target(replace(snapshot, clouds={"sky": unread}), (broker(),))
    assert last_verdict(found) == ("wait", "no machine meets 'burst: gpu=1'")


def test_a_job_that_job_submit_lua_holds_back_begins_once_slurm_was_told() -> None:
    held = job(comment="burst: gpu=1 model=v100", eligible=NOW - 60 + 365 * 86400, reason="BeginTime")
    update = both(held).job_updates["1"]
    assert update.start_now
    assert wants(both(updated(held, update))) == [("gpu", 1, ("1",))]
    # Its user has taken the requirement back before burstd saw it: nobody else would have it begin.
    assert both(replace(held, comment="")).job_updates["1"] == JobUpdate(frozenset(), frozenset(), start_now=True)
    # A begin time of the user's own stays.
    for begin in (NOW + 3600, NOW + 400 * 86400):
        assert both(replace(held, comment="", eligible=begin)).job_updates == {}
        assert not both(replace(held, eligible=begin)).job_updates["1"].start_now


def test_of_a_job_that_is_held_back_all_own_exclusions_stay() -> None:
    held = job(
        partitions=("onprem", "burst"), comment="burst: model=v100", eligible=NOW - 60 + 365 * 86400,
        excluded_nodes=("gpu1", "op2"),
    )  # fmt: skip
    update = both(held).job_updates["1"]
    assert update.excluded_nodes == {"op1", "op2", "cpu1", "cpu2", "gpu1"}
    assert update.added_nodes == {"op1", "cpu1", "cpu2"}
    after = replace(updated(held, update), comment="burst: model=a100")
    changed = both(after, runtime_state=RuntimeState(excluded_nodes={"1": update.added_nodes})).job_updates["1"]
    assert changed.excluded_nodes == {"op1", "op2", "cpu1", "cpu2", "gpu1", "gpu2"}
    assert changed.added_nodes == {"op1", "cpu1", "cpu2", "gpu2"}


def test_lists_of_nodes_are_compared_once_for_jobs_that_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    real = policies.job_places._Exclusion

    def compare(*fields: Any) -> Any:
        compared.append(fields)
        return real(*fields)

    monkeypatch.setattr(policies.job_places, "_Exclusion", compare)
    there = ("op1", "op2", "cpu1", "cpu2")
    both(*(job(str(n), comment="burst: model=v100", excluded_nodes=there) for n in range(50)))
    assert len(compared) == 1


def test_what_slurm_is_told_is_found_once_for_jobs_that_ask_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Job] = []
    real = policies.job_places._size_update

    def size_update(job: Job, *others: Any) -> Any:
        found.append(job)
        return real(job, *others)

    monkeypatch.setattr(policies.job_places, "_size_update", size_update)
    rows = [job(str(n), comment="burst: gpu=1 mem=300") for n in range(50)]
    differs = job("50", comment="burst: gpu=1 mem=300", memory_mib=200)
    told = both(*rows, differs, job("51", comment="burst: gpu=1 mem=400"))
    assert [one.id for one in found] == ["0", "50", "51"]
    steps = update_jobs(build_view(both_snapshot(*rows, differs, job("51")), "burstd"), told)
    assert [(len(step.jobs), step.update.memory_mib) for step in steps] == [(51, 300), (1, 400)]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"node_list": ("op1",)},
         "Slurm started it on op1 before it was told what the comment requires: no GPU, a100 required"),
        ({"node_list": ("op2",)}, ""),
        ({"node_list": ("op1",), "start": NOW - 61}, ""),
        ({"node_list": ("op1",), "requeue": False}, ""),
        ({"node_list": ("op1",), "comment": "burst: modle=a100"}, "burst: unknown word modle, did you mean model?"),
        ({"node_list": ("op1",), "partitions": ("onprem",), "comment": "burst: gpu=1"},
         "Slurm started it on op1 before it was told what the comment requires: 0 GPUs, 1 required"),
        ({"node_list": ("op1",), "restarts": 1}, ""),
        ({"node_list": ("op1",), "comment": "for the paper"}, ""),
    ],
)  # fmt: skip
def test_a_job_that_slurm_started_elsewhere_before_begins_anew(fields: dict[str, Any], why: str) -> None:
    runs = job(**{"partitions": ("onprem", "burst"), "comment": "burst: model=a100", "start": NOW - 2,
                  "state": JobState.RUNNING, **fields})  # fmt: skip
    found = both(runs)
    assert found.misplaced_jobs == ({"1": why} if why else {})
    view = build_view(both_snapshot(runs), "burstd")
    assert [run.reason for step in requeue_misplaced(view, found) for run in step.runs] == ([why] if why else [])
