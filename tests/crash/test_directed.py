"""Each fault alone, in virtual time: the outcome is what a person would call right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from burstd.db import Store, StoreLocked
from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.use import Kind
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.offer import FabricTest
from burstd.domain.plugins.provider import Idempotency
from burstd.domain.plugins.shell import CommandTimedOut
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.node import LIFE_SIGN
from tests.crash.faults import Crash
from tests.crash.workers import Delay
from tests.crash.world import (
    ADMIN_REASON,
    KEEP_ALIVE_S,
    PACE,
    SLOTS,
    SLURM,
    SLURM_PATIENT,
    THREE_LISTINGS_S,
    TUNING,
    World,
)
from tests.virtual.job import JobSpec
from tests.virtual.machines import Machine
from tests.virtual.validator import SimValidator

pytestmark = pytest.mark.crash

JOB = JobSpec(run_s=300, time_limit_s=20 * 3600)
RUNNING, COMPLETED, PENDING = JobState.RUNNING, JobState.COMPLETED, JobState.PENDING


@pytest.fixture(params=["sandbox", "sim"])
def world(request: pytest.FixtureRequest, tmp_path: Path, template: Path) -> World:
    """A site where all is well, once with each cloud as the cheaper one."""
    return World(tmp_path, template=template, alpha=request.param)


def running(w: World, job: str, within_s: float = 90.0) -> Claim:
    """Waits for the job to run; returns the claim under it."""
    w.run_until(lambda: w.states(job) == [RUNNING], within_s)
    return w.claim_on(w.slurm.job(job).nodes[0])


def ends_well(w: World, *jobs: str) -> None:
    """All jobs have completed, and nothing is left or unpaid."""
    w.heal()
    w.calm(2.0)
    for job in jobs:
        assert set(w.states(job)) == {COMPLETED}, w.states(job)
    w.check_replay()
    w.check_bill()


def test_all_is_well(world: World) -> None:
    small = world.slurm.submit(JobSpec())
    gang = world.slurm.submit(JobSpec(nodes=2, exclusive=True))
    array = world.slurm.submit(JobSpec(array=6, cpus_per_node=2))
    world.run(600)
    ends_well(world, small, gang, array)
    assert all(len({job.started for job in world.slurm.all_of(gang)}) == 1 for _ in [0])


def gang_machines(w: World) -> list[tuple[Claim, Machine]]:
    """The claims of a gang, with their machines as far as these run."""
    found = [(claim, w.machines.running_at(claim.address)) for claim in w.claims() if claim.gang and claim.address]
    return [(claim, machine) for claim, machine in found if machine is not None]


def test_a_gang_whose_fabric_is_slow_gets_other_machines(world: World) -> None:
    """Both machines are suspect: one test does not tell which of the two it is."""
    gang = world.slurm.submit(JobSpec(run_s=60, nodes=2, exclusive=True))
    world.run_until(lambda: len(gang_machines(world)) == 2, 90)
    (one, machine), (other, _) = gang_machines(world)
    machine.slow_fabric = True
    world.run_until(lambda: world.states(gang) == [RUNNING], 900)
    failed = [claim for claim in world.all_claims() if claim.error == "fabric_test"]
    assert {claim.id for claim in failed} == {one.id, other.id}
    assert all(claim.in_service_from is None for claim in failed)
    ends_well(world, gang)


@pytest.mark.parametrize("slow", [False, True])
def test_a_burstd_killed_while_it_tests_a_fabric_tests_it_again(
    world: World, monkeypatch: pytest.MonkeyPatch, *, slow: bool
) -> None:
    test_fabric, pairs = SimValidator.test_fabric, []

    def killed(self: SimValidator, first: Claim, second: Claim, test: FabricTest) -> str:
        pairs.append({first.id, second.id})
        if len(pairs) < 4:
            raise Crash("test_fabric")
        return test_fabric(self, first, second, test)

    monkeypatch.setattr(SimValidator, "test_fabric", killed)
    gang = world.slurm.submit(JobSpec(run_s=60, nodes=2, exclusive=True))
    world.run_until(lambda: len(gang_machines(world)) == 2, 90)
    machines = gang_machines(world)
    for _, machine in machines:
        machine.slow_fabric = slow
    for _ in range(3):
        world.run_until(lambda: world.reconciler is None, 300)
        world.start()
    world.run_until(lambda: world.states(gang) == [RUNNING], 900)
    ids = {claim.id for claim, _ in machines}
    assert pairs[:4] == [ids] * 4
    assert {claim.id for claim in world.all_claims() if claim.in_service_from is not None}.isdisjoint(ids) is slow
    ends_well(world, gang)


def test_a_cloud_that_is_down_is_left_out_and_the_next_one_used(world: World) -> None:
    world.run(5)
    world.kits["alpha"].fail("down", 3)
    job = world.slurm.submit(JOB)
    assert running(world, job).offer.provider == "beta"
    ends_well(world, job)


def test_while_every_cloud_is_down_jobs_wait_and_machines_stay(world: World) -> None:
    job = world.slurm.submit(JobSpec(run_s=800))
    claim = running(world, job)
    for kit in world.kits.values():
        kit.fail("down", 3)
    waiting = world.slurm.submit(JobSpec(nodes=3, exclusive=True))
    world.run(400)
    assert world.states(job) == [RUNNING]
    assert world.states(waiting) == [PENDING]
    assert world.claim_on(claim.slot).state is ClaimState.IN_SERVICE
    assert [i.claim_id for i in world.running_instances()] == [claim.id]
    for kit in world.kits.values():
        kit.heal()
    world.run_until(lambda: RUNNING in world.states(waiting), 900)
    ends_well(world, job, waiting)


def test_a_slow_cloud_holds_up_itself_only(world: World) -> None:
    for lane in ("alpha", "alpha:list"):
        world.delays[lane] = Delay(before_s=50.0, after_s=40.0)
    slow = world.slurm.submit(JobSpec(run_s=60, nodes=2, exclusive=True))
    world.run(5)
    world.kits["alpha"].fail("launch refused", 1)
    quick = world.slurm.submit(JOB)
    world.run(600)
    assert set(world.states(slow)) == {COMPLETED}
    ends_well(world, slow, quick)
    assert len({i.claim_id for i in world.launched_instances()}) == len(world.launched_instances())


def test_a_full_cloud_costs_the_job_nothing_but_the_call(world: World) -> None:
    jobs = [world.slurm.submit(JobSpec(run_s=300, cpus_per_node=4)) for _ in range(4)]
    world.run_until(lambda: all(world.states(job) == [RUNNING] for job in jobs), 90)
    assert {world.claim_on(world.slurm.job(j).nodes[0]).offer.provider for j in jobs} == {"alpha", "beta"}
    ends_well(world, *jobs)


def test_one_listing_without_a_machine_that_lives_means_nothing(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="sim")
    job = w.slurm.submit(JOB)
    claim = running(w, job)
    alpha = w.kits["alpha"]
    listed = len(w.listings)
    alpha.misreport(claim.instance_id, "omitted")
    w.run_until(lambda: len(w.listings) > listed, 60)
    alpha.heal()
    w.run_until(lambda: len(w.listings) > listed + 3, 120)
    assert w.claim_on(claim.slot).id == claim.id
    ends_well(w, job)
    assert w.slurm.job(job).restarts == 0


def test_a_machine_that_a_cloud_denies_and_that_works_is_kept_and_told_of(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="sim")
    job = w.slurm.submit(JobSpec(run_s=900))
    claim = running(w, job)
    w.kits["alpha"].misreport(claim.instance_id, "omitted")
    w.run(400)
    assert (w.states(job), w.claim_on(claim.slot).id) == ([RUNNING], claim.id)
    assert w.reconciler is not None
    assert f"the list of alpha has lacked the machine of {claim.slot}" in w.reconciler.alarm
    ends_well(w, job)
    assert w.slurm.job(job).restarts == 0


def test_a_machine_that_a_cloud_denies_and_a_person_sets_down_is_ended_for_good(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="sim")
    job = w.slurm.submit(JOB)
    claim = running(w, job)
    w.kits["alpha"].misreport(claim.instance_id, "omitted")
    w.run(60)
    w.slurm.down([claim.slot], "burstd: gone")
    w.run_until(lambda: not any(i.id == claim.instance_id and i.alive for i in w.launched_instances()), 120)
    assert running(w, job, 300).id != claim.id
    ends_well(w, job)


def test_a_machine_that_a_cloud_says_runs_but_is_dead_is_replaced(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="sandbox")
    w.kits["alpha"].fail("bad boot", 3)  # It dies a minute after it came up, and is listed as running for ever.
    job = w.slurm.submit(JobSpec(run_s=200))
    claim = running(w, job)
    w.run_until(lambda: w.slurm.job(job).restarts == 1, 200)
    assert running(w, job, 300).id != claim.id
    ends_well(w, job)


def test_a_machine_in_error_works_on_as_long_as_it_is_a_node(tmp_path: Path, template: Path) -> None:
    """Nova says so of some that run, a pod of one that its kubelet does not admit again."""
    w = World(tmp_path, template=template, alpha="sim")
    job = w.slurm.submit(JobSpec(run_s=600))
    claim = running(w, job)
    w.kits["alpha"].misreport(claim.instance_id, "error")
    w.run(120)
    assert (w.states(job), w.claim_on(claim.slot).state) == ([RUNNING], ClaimState.IN_SERVICE)
    w.machines.end(claim.address)
    w.run_until(lambda: w.slurm.node(claim.slot).down or "NOT_RESPONDING" in w.slurm.node(claim.slot).flags, 400)
    w.run_until(lambda: w.store.claim(claim.id).error == "lost", 20)
    assert "in error" in w.store.claim(claim.id).reason
    w.run_until(lambda: not any(i.id == claim.instance_id and i.alive for i in w.launched_instances()), 60)
    assert running(w, job, 300).id != claim.id
    ends_well(w, job)


def test_an_end_that_is_promised_and_does_not_come_is_asked_for_again(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="sim")
    job = w.slurm.submit(JobSpec(run_s=30))
    running(w, job)
    w.kits["alpha"].fail("ending ignored", 3)
    w.run_until(lambda: not w.running_instances(), 400)
    w.calm(1.0)
    ends_well(w, job)


@pytest.mark.parametrize("after_s", [1.0, 15.0, 27.0, 60.0])
def test_slurmctld_that_is_down_stops_nothing_that_runs_and_starts_nothing(world: World, after_s: float) -> None:
    job = world.slurm.submit(JOB)
    world.run(after_s)
    made = len(world.launched_instances())
    world.slurm.stop()
    world.run(500)
    world.slurm.start()
    assert len(world.launched_instances()) == made
    assert len(world.running_instances()) == made or after_s < 60, "no machine is ended blindly"
    world.run_until(lambda: world.states(job)[0] in (RUNNING, COMPLETED), 200)
    ends_well(world, job)
    assert world.slurm.job(job).restarts == 0


def test_a_full_disk_means_no_launch_and_harms_no_job(world: World) -> None:
    job = world.slurm.submit(JobSpec(run_s=400))
    running(world, job)
    made = len(world.launched_instances())
    world.disk.writes_left = 0
    waiting = world.slurm.submit(JobSpec(nodes=2, exclusive=True))
    world.run(300)
    assert world.reconciler is not None
    assert "No space" in world.reconciler.alarm
    assert len(world.launched_instances()) == made
    assert world.states(job) == [RUNNING]
    world.disk.writes_left = None
    world.run_until(lambda: set(world.states(waiting)) == {RUNNING}, 120)
    assert world.reconciler.alarm == ""
    ends_well(world, job, waiting)


@pytest.mark.parametrize("writes", range(1, 13, 2))
def test_a_disk_that_fills_up_on_the_way_leaves_one_machine_a_claim(world: World, writes: int) -> None:
    world.run(5)
    world.disk.writes_left = writes
    jobs = [world.slurm.submit(JobSpec(run_s=30, cpus_per_node=4)) for _ in range(2)]
    world.run(120)
    world.disk.writes_left = None
    world.run_until(lambda: all(world.states(job) == [COMPLETED] for job in jobs), 400)
    ends_well(world, *jobs)


@pytest.mark.parametrize("hours", [-5.0, 3.0])
@pytest.mark.parametrize("after_s", [10.0, 100.0])
def test_a_clock_that_jumps_ends_nothing_early_and_keeps_nothing_longer(
    tmp_path: Path, template: Path, hours: float, after_s: float
) -> None:
    w = World(tmp_path, template=template, conf=SLURM_PATIENT)
    job = w.slurm.submit(JobSpec(run_s=300, time_limit_s=20 * 3600))
    w.run(after_s)
    w.clock.jump(hours * 3600)
    w.run_until(lambda: w.states(job) == [COMPLETED], 400)
    assert len(w.launched_instances()) == 1
    assert w.slurm.job(job).restarts == 0
    w.run_until(lambda: not w.running_instances(), KEEP_ALIVE_S + 60)


@pytest.mark.parametrize("hours", [-5.0, 5.0])
def test_a_jump_leaves_an_idle_node_its_keep_alive_and_no_more(tmp_path: Path, template: Path, hours: float) -> None:
    w = World(tmp_path, template=template, conf=SLURM_PATIENT)
    job = w.slurm.submit(JobSpec(run_s=60))
    w.run_until(lambda: w.states(job) == [COMPLETED], 200)
    w.run(KEEP_ALIVE_S / 3)
    w.clock.jump(hours * 3600)
    w.run(KEEP_ALIVE_S / 3)
    assert len(w.running_instances()) == 1, "the jump did not make it old"
    w.run_until(lambda: not w.running_instances(), KEEP_ALIVE_S + 60)


def test_a_machine_that_dies_under_its_job_is_replaced_and_the_job_runs_again(world: World) -> None:
    job = world.slurm.submit(JOB)
    claim = running(world, job)
    one = world.instance_of(claim)
    world.kits[one.provider].end_instance(one.id)
    world.run_until(lambda: world.states(job) == [PENDING], 60)
    assert world.store.claim(claim.id).error == "lost"
    assert running(world, job, 120).id != claim.id
    ends_well(world, job)
    assert world.store.claim(claim.id).cost(world.clock.now()) > 0


def test_machines_hear_of_burstd_while_it_lives_and_one_that_ends_in_its_absence_is_settled(
    tmp_path: Path, template: Path
) -> None:
    w = World(tmp_path, template=template, pace=replace(PACE, life_sign_s=120))
    job = w.slurm.submit(JOB)
    slot = running(w, job).slot
    heard: list[str] = []
    for _ in range(250):
        w.run(1.0)
        if (extra := w.slurm.node(slot).extra) not in ("", *heard[-1:]):
            heard.append(extra)
    assert 2 <= len(heard) <= 3, heard
    assert all(sign.startswith(LIFE_SIGN) for sign in heard)
    assert not [name for name in SLOTS - {slot} if w.slurm.node(name).extra], "where there is no machine nobody listens"
    w.kill()
    w.run(12 * 3600)
    assert (w.states(job), w.slurm.node(slot).extra) == ([COMPLETED], heard[-1])
    # It powers itself off, as watch.sh does.
    (one,) = [one for kit in w.kits.values() for one in kit.launched_instances() if one.alive]
    w.kits[one.provider].end_instance(one.id)
    w.start()
    w.run(300)
    ends_well(w, job)


@pytest.mark.parametrize("n", [1, 2])
def test_a_boot_that_hangs_or_fails_is_given_up_and_the_next_offer_taken(world: World, n: int) -> None:
    world.kits["alpha"].fail("bad boot", n)
    job = world.slurm.submit(JOB)
    claim = running(world, job, TUNING.boot_timeout_s + 90)
    assert claim.offer.provider == "beta"
    assert [c.state for c in world.all_claims() if c.id != claim.id and c.instance_id] != [ClaimState.IN_SERVICE]
    world.run_until(lambda: len(world.running_instances()) == 1, 60)
    ends_well(world, job)


def test_a_machine_that_is_not_as_promised_is_never_given_to_slurm(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="sim")
    w.kits["alpha"].fail("bad boot", 3)
    job = w.slurm.submit(JOB)
    assert running(w, job, 120).offer.provider == "beta"
    failed = next(c for c in w.all_claims() if c.offer.provider == "alpha")
    assert "1 GPU" in " ".join(e.reason for e in w.store.claim_events(failed.id))
    ends_well(w, job)


@pytest.mark.parametrize("way", list(Idempotency))
@pytest.mark.parametrize("kind", ["answers lost", "requests lost", "requests late"])
@pytest.mark.parametrize(
    ("delay", "crash"), [(Delay(), False), (Delay(before_s=40.0), False), (Delay(before_s=40.0), True)]
)
def test_a_launch_without_an_answer_makes_one_machine(
    tmp_path: Path, template: Path, way: Idempotency, kind: str, delay: Delay, crash: bool
) -> None:
    w = World(tmp_path, template=template, alpha="none", beta=way, lag_s=4.0)
    w.run(5)
    w.kits["beta"].fail(kind, 2)
    w.delays["beta"] = delay
    job = w.slurm.submit(JOB)
    if crash:
        w.run_until(lambda: w.launch_sent("beta"), 60)
        w.kill()
        w.start()
    running(w, job, 300)
    assert len([i for i in w.launched_instances() if i.alive]) == 1
    ends_well(w, job)
    assert len(w.launched_instances()) == 1


def unanswered_launch(w: World) -> str:
    """A job whose launch is carried out in a cloud without tokens, the answer lost; returns the job."""
    w.run(5)
    w.kits["beta"].fail("answers lost", 1)
    job = w.slurm.submit(JOB)
    w.run_until(lambda: bool(w.running_instances()), 60)
    return job


def test_a_machine_in_error_whose_launch_was_never_answered_is_on_the_bill(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="none", beta=Idempotency.SETTLE, lag_s=4.0)
    job = unanswered_launch(w)
    (lost,), (made,) = w.claims(), w.running_instances()
    w.kits["beta"].misreport(made.id, "error")
    w.run_until(lambda: w.store.claim(lost.id).state is ClaimState.TERMINATING, 60)
    w.kits["beta"].heal()
    w.run_until(lambda: w.store.claim(lost.id).state is ClaimState.GONE, 60)
    gone = w.store.claim(lost.id)
    assert (gone.instance_id, gone.billed_from) == (made.id, lost.launch_called)
    (line,) = [line for line in w.store.bill("claim", 0) if line.key == lost.id]
    assert [(part.kind, part.cost) for part in line.parts] == [(Kind.FAILED, line.cost)]
    assert abs(line.cost - gone.cost(w.clock.now())) < MICRO
    assert [spent.amount for spent in w.store.spending() if not spent.name] == [line.cost]
    running(w, job, 300)
    ends_well(w, job)


@pytest.mark.parametrize(
    ("lie", "lag_s"),
    [("stale", 0.0), ("empty", 0.0), ("terminated", 0.0), ("someone else's", 0.0), ("untagged", 0.0), ("", 30.0)],
)
def test_a_launch_that_lists_deny_for_longer_than_promised_is_repeated_and_the_spare_machine_ended(
    tmp_path: Path, template: Path, lie: str, lag_s: float
) -> None:
    """Nova takes no token: after ``settle_s`` its list alone tells a lost answer from a lost request."""
    w = World(tmp_path, template=template, alpha="none", beta=Idempotency.SETTLE, lag_s=lag_s)
    w.lying_clouds["beta"].lie = lie
    job = unanswered_launch(w)
    asked = w.clock.now()
    w.run_until(lambda: len(w.running_instances()) == 2, 60)
    assert w.clock.now() - asked > w.kits["beta"].provider.settle_s
    w.heal()
    w.run_until(lambda: len(w.running_instances()) == 1, TUNING.orphan_grace_s + THREE_LISTINGS_S)
    claim = running(w, job)
    assert [(i.id, i.claim_id) for i in w.running_instances()] == [(claim.instance_id, claim.id)]
    ends_well(w, job)
    assert (w.slurm.job(job).restarts, len(w.launched_instances())) == (0, 2)


@pytest.mark.parametrize("lie", ["", "stale"])
@pytest.mark.parametrize("lists_for_s", [0.0, 8.0, 20.0])
def test_only_a_list_that_breaks_its_promise_excuses_a_second_machine(
    tmp_path: Path, template: Path, lie: str, lists_for_s: float
) -> None:
    """Of the tests' own rule: a burstd that repeats too early, or what is listed, is found out."""
    w = World(tmp_path, template=template, alpha="none", beta=Idempotency.SETTLE)
    beta = w.lying_clouds["beta"]
    beta.lie = lie
    unanswered_launch(w)
    (request,) = [w.store.launch_request(claim.id) for claim in w.claims()]
    assert request is not None
    w.kill()
    w.clock.advance(lists_for_s)
    list(beta.instances())
    beta.launch([request])
    if lie and lists_for_s > beta.settle_s:
        w.check()
        beta.launch([request])
    with pytest.raises(AssertionError, match="two machines"):
        w.check()


def test_a_pool_that_is_taken_away_lets_its_jobs_end_and_its_machines_go(world: World) -> None:
    job = world.slurm.submit(JobSpec(run_s=100))
    running(world, job)
    booting = world.slurm.submit(JobSpec(cpus_per_node=4, run_s=10))
    world.run_until(lambda: len(world.claims()) == 2, 20)
    assert world.reconciler is not None
    rules = world.reconciler.config
    world.reconciler.reload(replace(rules, pools={}))
    world.run_until(lambda: len(world.running_instances()) <= 1, 60)
    assert world.states(job) == [RUNNING]
    world.run_until(lambda: not world.claims(), 300)
    assert world.states(job) == [COMPLETED]
    assert world.store.breakers() == ()
    world.reconciler.reload(rules)
    ends_well(world, job, booting)


def test_user_data_that_cannot_be_made_keeps_nothing_else_from_being_done(world: World) -> None:
    job = world.slurm.submit(JobSpec(run_s=30))
    running(world, job)
    world.template_fault = PermissionError(13, "Permission denied", "/etc/burstd/node.yaml")
    waiting = world.slurm.submit(JobSpec(nodes=2, exclusive=True))
    world.run_until(lambda: not world.running_instances(), KEEP_ALIVE_S + 100)
    assert world.states(waiting) == [PENDING]
    assert len(world.launched_instances()) == 1
    [*_, last] = sorted(world.all_claims(), key=lambda c: c.created)
    assert (last.state, last.error) == (ClaimState.GONE, "user_data")
    world.template_fault = None
    ends_well(world, job, waiting)


def test_a_second_burstd_does_not_start(world: World, tmp_path: Path) -> None:
    with pytest.raises(StoreLocked, match="Another burstd"):
        Store.open(tmp_path / "burstd.db", world.clock)


def test_without_the_gate_slurms_own_choice_is_served(world: World) -> None:
    world.run(20)
    world.kill()
    world.slurm.lose_reservations()
    job = world.slurm.submit(JOB)
    world.clock.advance(5)
    assert world.states(job) == [JobState.CONFIGURING]
    world.start()
    running(world, job, 120)
    ends_well(world, job)


@pytest.mark.parametrize("what", ["off", "down", "drain"])
def test_a_node_that_an_administrator_takes_away_does_not_stay_and_cost(world: World, what: str) -> None:
    job = world.slurm.submit(JobSpec(run_s=30))
    claim = running(world, job)
    world.run_until(lambda: world.states(job) == [COMPLETED], 60)
    match what:
        case "off":
            world.slurm.power_down([claim.slot], force=True)
        case "down":
            world.slurm.down([claim.slot], ADMIN_REASON)
        case _:
            world.slurm.drain([claim.slot], ADMIN_REASON)
    world.run_until(lambda: not world.running_instances(), 300)
    ends_well(world, job)


def test_at_the_start_every_slot_is_behind_the_gate(world: World) -> None:
    world.run(5)
    [gate] = world.slurm.reservations()
    assert (gate.name, gate.nodes) == (SLURM.gate, SLOTS)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_that_slurm_never_starts_is_not_given_machine_after_machine(
    tmp_path: Path, template: Path, nodes: int
) -> None:
    w = World(tmp_path, template=template)
    job = w.slurm.submit(JobSpec(nodes=nodes, limited_by="Resources"))
    w.run(3600)
    assert len(w.launched_instances()) == nodes
    assert not w.running_instances()
    w.run(3600)
    assert len(w.launched_instances()) == 2 * nodes, "tried again after an hour"
    ends_well(w, job)


def test_a_machine_behind_a_node_that_a_cold_start_took_for_powered_down_gets_the_next_job(world: World) -> None:
    before = world.slurm.submit(JobSpec(run_s=30))
    claim = running(world, before)
    world.run_until(lambda: world.states(before) == [COMPLETED], 60)
    world.slurm.start_cold()
    job = world.slurm.submit(JOB)
    assert running(world, job, 30).id == claim.id, world.report()
    assert len(world.launched_instances()) == 1
    ends_well(world, before, job)


def test_a_slurmd_that_slurmctld_does_not_take_says_why(world: World) -> None:
    job = world.slurm.submit(JOB)
    world.run_until(lambda: any(claim.address for claim in world.claims()), 60)
    (claim,) = world.claims()
    machine = world.machines.running_at(claim.address)
    assert machine is not None
    machine.registration_fault = "slurmd runs, and slurmctld does not answer it"
    world.run_until(lambda: any(c.id == claim.id and c.state is ClaimState.GONE for c in world.all_claims()), 200)
    reasons = {event.reason for event in world.store.events(limit=1000) if event.new == ClaimState.FAILED.value}
    assert reasons == {"Slurm did not see the node within 60 s; last: slurmd runs, and slurmctld does not answer it"}
    running(world, job)
    ends_well(world, job)


def test_a_log_that_cannot_be_read_keeps_no_slurmd_from_its_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def hang(_: SimValidator, claim: Claim) -> str:
        asked.append(claim.id)
        raise CommandTimedOut("journalctl has not ended within 20 s")

    monkeypatch.setattr(SimValidator, "registration_fault", hang)
    job = world.slurm.submit(JOB)
    world.run_until(lambda: any(claim.address for claim in world.claims()), 60)
    (claim,) = world.claims()
    machine = world.machines.running_at(claim.address)
    assert machine is not None
    machine.registration_fault = "it is lost"
    world.run_until(lambda: bool(asked), 60)
    machine.registration_fault = ""
    assert running(world, job).id == claim.id, world.report()
    ends_well(world, job)


def test_a_machine_that_was_open_is_not_given_back_where_it_is_refused_once_more(world: World) -> None:
    before = world.slurm.submit(JobSpec(run_s=30))
    claim = running(world, before)
    world.run_until(lambda: world.states(before) == [COMPLETED], 60)
    machine = world.machines.running_at(claim.address)
    assert machine is not None
    machine.validation_error = "its disk is full"
    world.slurm.start_cold()
    job = world.slurm.submit(JOB)
    world.run_until(lambda: world.claim_on(claim.slot).state is ClaimState.VALIDATING, 30)
    world.run(20)
    machine.validation_error = ""
    assert running(world, job, 30).id == claim.id, world.report()
    ends_well(world, before, job)


def test_an_idle_machine_behind_a_node_that_a_cold_start_took_for_powered_down_is_ended(world: World) -> None:
    before = world.slurm.submit(JobSpec(run_s=30))
    running(world, before)
    world.run_until(lambda: world.states(before) == [COMPLETED], 60)
    world.slurm.start_cold()
    world.run_until(lambda: not world.running_instances(), 60)
    ends_well(world, before)
