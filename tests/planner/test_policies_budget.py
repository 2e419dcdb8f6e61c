"""The policy budget: what fits, what does not, in whose words; what is reserved, and what live machines hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from burstd.domain.billing.costs import Reserve, Spent, worst_case
from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import MakeClaim
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import Pin, Snapshot
from burstd.planner.decide import Decider, decide
from burstd.planner.policy_chain import make_target
from burstd.planner.timeouts import Tuning
from policies.budget import plugin
from tests.planner.worlds import NOW, claim, job, last_verdict, make_snapshot, node, offer, pool, wants

HOUR = 3600.0
MONTH = datetime.fromtimestamp(NOW, UTC).strftime("%Y-%m")
WHOLE = pool(slots=4)


def budget(**settings: Any) -> Policy:
    made: Policy = plugin.make(plugin.settings(**{"overhead_s": 1800, **settings}))
    return made


def project(limit: str, name: str = "atlas", **more: Any) -> Policy:
    """With an overhead of half an hour, a job of half an hour costs the price of an hour at most."""
    return budget(projects={name: {"limit": limit, **more}})


def atlas(job_id: str = "1", **fields: Any) -> Job:
    return job(job_id, **{"account": "atlas", "time_limit_s": 1800.0, "exclusive": True, **fields})


def asked(policy: Policy, *jobs: Job, **fields: Any) -> Target:
    return make_target(make_snapshot(*jobs, **fields), (policy,))


def spent(amount: str, kind: str = "project", name: str = "atlas", **fields: Any) -> Spent:
    return replace(Spent(kind, name, MONTH, "EUR", Decimal(amount)), **fields)


def test_what_fits_is_reserved_and_what_does_not_waits_with_the_figures() -> None:
    found = asked(project("1.60"), atlas("1"), atlas("2"), job("3", exclusive=True))
    assert wants(found) == [("cpu", 1, ("1",)), ("cpu", 1, ("3",))]
    assert [w.reserved for w in found.wants] == [(Reserve(offer().id, Decimal("1.000000")),), ()]
    assert last_verdict(found, "2") == (
        "wait", "project atlas has 0.60 of 1.60 EUR left this month; this may cost up to 1.00",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "jobs", "fields", "verdict", "reason"),
    [
        ({"projects": {"atlas": {"limit": 0.5}}}, [atlas()], {}, "impossible",
         ("the job may cost up to 1.00, and the whole budget of project atlas is "
         "0.50 EUR a month; a shorter time limit lowers the cost")),
        ({"users": {"ada": {"limit": 3, "period": "year"}}}, [atlas()],
         {"spent": (spent("2.5", "user", "ada", month=f"{MONTH[:5]}01"), spent("9", "user", "ada", month="1969-12"))},
         "wait", "user ada has 0.50 of 3.00 EUR left this year; this may cost up to 1.00"),
        ({"limit": 5, "period": "total"}, [atlas()], {"spent": (spent("4.5", "", "", month="1969-12"),)},
         "wait", "the site has 0.50 of 5.00 EUR left; this may cost up to 1.00"),
        ({"limit": 5}, [atlas()], {"spent": (spent("4.99", "", "", month="1969-12"),)}, "boot", ""),
        ({"projects": {"*": {"limit": 1.5}}}, [atlas()], {"spent": (spent("1"),)},
         "wait", "project atlas has 0.50 of 1.50 EUR left this month; this may cost up to 1.00"),
        ({"projects": {"*": {"limit": 1}, "atlas": {"limit": 2}}}, [atlas()], {"spent": (spent("1"),)}, "boot", ""),
        ({"projects": {"*": {"limit": 1}}}, [atlas(account="")], {}, "wait",
         "job 1 has no account, and every project has a budget: name one (sbatch --account)"),
        ({"projects": {"atlas": {"limit": 1}}}, [atlas(account="")], {}, "boot", ""),
        ({"limit": 9}, [atlas(time_limit_s=0.0)], {}, "wait",
         ("job 1 has no time limit, and its cost is unbounded: set one (sbatch --time), or set unlimited_s "
         "of [policies.budget]")),
        ({"limit": 9, "unlimited_s": 3600}, [atlas(time_limit_s=0.0)], {}, "boot", ""),
        ({"limit": 9}, [atlas()], {"offers": (offer(currency="USD"),)}, "wait",
         "its offers are paid in USD, and [policies.budget.rates] has no rate for it"),
        ({"limit": 1.5, "rates": {"USD": 2}}, [atlas()], {"offers": (offer(currency="USD"),)}, "impossible",
         ("the job may cost up to 2.00, and the whole budget of the site is "
         "1.50 EUR a month; a shorter time limit lowers the cost")),
        ({"limit": 9}, [atlas()], {"spent": (spent("1", "", "", currency="USD"),)}, "wait",
         ("the budget of the site cannot be computed: USD was spent, and [policies.budget.rates] has no rate "
         "for it")),
        ({"limit": 9, "egress_gib": 100}, [atlas()], {"offers": (offer(egress_price=Decimal("0.1")),)}, "impossible",
         ("the job may cost up to 11.74, and the whole budget of the site is 9.00 EUR a "
         "month; a shorter time limit lowers the cost")),
    ],
)  # fmt: skip
def test_verdicts(
    settings: Mapping[str, Any], jobs: list[Job], fields: Mapping[str, Any], verdict: str, reason: str
) -> None:
    found = asked(budget(**settings), *jobs, **fields)
    assert not found.failed_policies
    assert last_verdict(found)[0] == verdict
    assert verdict == "boot" or last_verdict(found)[1] == reason
    assert [line.stops for line in found.budgets if line.stops] == ([("1",)] if "; this may cost" in reason else [])


def test_a_dearer_offer_that_does_not_fit_is_left_out() -> None:
    cheap, dear = offer("small", "1"), offer("fast", "3")
    found = asked(project("2"), atlas(), offers=(dear, cheap))
    [want] = found.wants
    assert want.offers == (cheap,)
    [out] = want.excluded_offers
    assert (out.offer, out.by) == (dear.id, "budget")
    assert out.reason == "project atlas has 2.00 of 2.00 EUR left this month; this may cost up to 3.00"


def test_the_dearest_offer_that_a_launch_may_take_is_reserved() -> None:
    cheap, dear, other = offer("small", "1"), offer("fast", "3"), offer("x", "5", provider="sea")
    snapshot = make_snapshot(atlas(), offers=(cheap, dear, other))
    [made] = [a.claim for a in decide(snapshot, (project("10"),), Tuning()).actions if isinstance(a, MakeClaim)]
    assert (made.offer, made.accounts, made.reserved) == (cheap, ("atlas",), Decimal(3))


def test_a_gang_is_paid_whole_or_not_at_all() -> None:
    big = atlas(nodes=3)
    assert [w.nodes for w in asked(project("3"), big).wants] == [3]
    found = asked(project("2.99"), big)
    assert found.wants == ()
    assert last_verdict(found)[0] == "impossible"
    assert not any(line.stops for line in found.budgets)
    found = asked(project("3"), big, spent=(spent("1"),))
    assert (found.wants, [line.stops for line in found.budgets]) == ((), [("1",)])


def test_a_shared_machine_is_started_for_those_who_can_pay() -> None:
    mine, theirs = atlas("1", exclusive=False), atlas("2", account="belle", user="bob", exclusive=False)
    policy = budget(projects={"atlas": {"limit": 0.1}, "belle": {"limit": 1}})
    found = asked(policy, mine, theirs)
    [want] = found.wants
    assert (want.jobs, want.accounts, want.users) == (("2",), ("belle",), ("bob",))
    assert last_verdict(found, "1")[0] == "impossible"


@pytest.mark.parametrize(
    ("settings", "together"),
    [
        ({"users": {"*": {"limit": 9}}}, False),
        ({"projects": {"*": {"limit": 9}}}, False),
        ({"users": {"bob": {"limit": 9}}}, False),
        ({"limit": 9}, True),
        ({"limit": 9, "users": {"eve": {"limit": 9}}}, True),
    ],
    ids=["users", "projects", "one of them", "the site pays", "another user"],
)
def test_jobs_that_different_budgets_pay_share_no_machine(settings: Mapping[str, Any], *, together: bool) -> None:
    mine, theirs = atlas("1", exclusive=False), atlas("2", account="belle", user="bob", exclusive=False)
    found = asked(budget(**settings), mine, theirs, replace(mine, id="3"))
    assert [w.jobs for w in found.wants] == ([("1", "2", "3")] if together else [("1", "3"), ("2",)])


def test_nobody_pays_for_a_longer_job_of_somebody_else() -> None:
    long = atlas("1", user="bob", exclusive=False, time_limit_s=100 * HOUR)
    short = atlas("2", exclusive=False, time_limit_s=60.0)
    policy = budget(users={"*": {"limit": 60}})
    for queue in ((long,), (long, short), (short, long)):
        found = asked(policy, *queue)
        assert [w.jobs for w in found.wants] == [("2",)][: len(queue) - 1]
        assert last_verdict(found, "1")[0] == "impossible"
    actions = decide(make_snapshot(long, short), (policy,), Tuning()).actions
    made = [a.claim for a in actions if isinstance(a, MakeClaim)]
    assert [(m.users, m.reserved) for m in made] == [(("ada",), Decimal("0.516667"))]


def test_a_policy_that_is_reloaded_with_other_payers_is_heeded_at_once() -> None:
    decider, snapshot = Decider(), make_snapshot(atlas("1", exclusive=False), atlas("2", user="bob", exclusive=False))
    for settings, count in (({"limit": 9}, 1), ({"users": {"*": {"limit": 9}}}, 2), ({"limit": 9}, 1)):
        assert len(decider.decide(snapshot, (budget(**settings),), Tuning()).target.wants) == count


def test_what_slurm_powers_up_for_several_is_paid_only_where_each_could() -> None:
    jobs = [
        atlas(number, user=user, state=JobState.CONFIGURING, nodes=1, node_list=("cpu1",), time_limit_s=HOUR)
        for number, user in (("1", "ada"), ("2", "bob"))
    ]
    nodes = (node("cpu1", flags=frozenset({"POWERING_UP", "CLOUD"})),)
    snapshot = make_snapshot(*jobs, nodes=nodes)
    policy = budget(users={"*": {"limit": 1}})
    assert not asked(policy, *jobs, nodes=nodes).wants
    assert make_target(snapshot, (budget(users={"*": {"limit": 2}}),)).wants


def test_of_jobs_that_share_a_machine_the_longest_waits_first() -> None:
    short, long = atlas("1", exclusive=False), atlas("2", exclusive=False, time_limit_s=9 * HOUR)
    found = asked(project("1"), short, long)
    assert [w.jobs for w in found.wants] == [("1",)]
    assert last_verdict(found, "2")[0] == "impossible"


def test_a_job_is_not_told_never_because_of_a_longer_one_beside_it() -> None:
    mine, other = atlas("1", exclusive=False), job("2", user="bob", account="belle", time_limit_s=9 * HOUR)
    found = asked(project("1"), mine, other)
    assert [(w.jobs, sum(r.amount for r in w.reserved)) for w in found.wants] == [(("1",), 1), (("2",), 0)]


@pytest.mark.parametrize(
    "settings",
    [{"rates": {"USD": -1}}, {"rates": {"USD": 0}}, {"egress_gib": -1}],
    ids=["negative rate", "rate of nothing", "negative egress"],
)
def test_amounts_below_nothing_are_refused(settings: Mapping[str, Any]) -> None:
    with pytest.raises(ValidationError, match="greater than"):
        budget(limit=1, **settings)


@pytest.mark.parametrize("egress_gib", [0, 1])
def test_many_users_without_money_cost_few_looks_at_prices(monkeypatch: pytest.MonkeyPatch, egress_gib: int) -> None:
    reckoned = []

    def counted(price: Decimal, seconds: float, egress: Decimal = Decimal(0)) -> Decimal:
        reckoned.append(price)
        return worst_case(price, seconds, egress)

    monkeypatch.setattr("policies.budget.worst_case", counted)
    big = Shape(64, 1 << 20)
    jobs = [atlas(f"{n}", user=f"u{n % 32}", exclusive=False, time_limit_s=600.0 + n) for n in range(1, 65)]
    policy = budget(users={"*": {"limit": "0.001"}, "u7": {"limit": 9}}, egress_gib=egress_gib)
    found = asked(policy, *jobs, pools=(pool(slots=32, shape=big),), offers=(offer(shape=big),))
    assert [want.jobs for want in found.wants] == [("7", "39")]
    assert found.wants[0].reason == "jobs 7, 39"
    # One round for each would reckon 32 times 64.
    assert len(reckoned) < 3 * 64


def held(state: S = S.IN_SERVICE, **fields: Any) -> Claim:
    """Of atlas, ten minutes old."""
    base = claim("cpu1", state, jobs=("9",), accounts=("atlas",), users=("ada",), billed_from=NOW - 600)
    return replace(base, **fields)


def running(**fields: Any) -> Job:
    started = {"state": JobState.RUNNING, "start": NOW - 300, "time_limit_s": HOUR, "node_list": ("cpu1",)}
    return job("9", **{**started, **fields})


@pytest.mark.parametrize(
    ("one", "other", "left"),
    [
        (held(reserved=Decimal(2)), running(), "8.00"),
        # Its cost of 10 minutes, 55 more by the job's time limit, and two for the end.
        (held(), running(), "8.88"),
        (held(reserved=Decimal(1)), running(), "8.88"),
        # Either may come to pay for all of it.
        (held(accounts=("atlas", "belle"), reserved=Decimal(2)), running(), "8.00"),
        (held(accounts=("belle",), reserved=Decimal(2)), running(), "10.00"),
        (held(S.TERMINATING, billed_until=NOW), running(state=JobState.COMPLETED), "9.83"),
        # Nothing was reserved: its job's hour, and the overhead of half an hour, for it still boots.
        (held(S.BOOTING), job("9", time_limit_s=HOUR), "8.30"),
        # It began before the month did: so much is in the bill of the month before.
        (held(billed_from=NOW - 40 * 86400, reserved=Decimal(2)), running(), None),
    ],
)
def test_what_live_machines_hold(one: Claim, other: Job, left: str | None) -> None:
    [line] = asked(project("10"), other, claims=(one,)).budgets
    if left is None:
        began = datetime.strptime(MONTH, "%Y-%m").replace(tzinfo=UTC).timestamp()
        assert line.committed == pytest.approx(Decimal((NOW - began + 3300 + 120) / 3600))
    else:
        assert f"{line.left:.2f}" == left


def test_pins_and_spares_count_in_the_total_and_have_no_worst_case_of_their_own() -> None:
    pins = (Pin("cpu", 3, "floor", None, "root", NOW),)

    def started(**settings: Any) -> int:
        return len(asked(budget(**settings), pins=pins).wants)

    assert started(projects={"*": {"limit": 0}}) == 3
    assert started(limit=100) == 0
    assert started(limit=100, unlimited_s=1800) == 3
    assert started(limit=2, unlimited_s=1800) == 2


def test_idle_nodes_of_nobody_go_when_the_site_has_spent_all() -> None:
    spare = claim("cpu1", S.IN_SERVICE, cause=Cause.PIN, billed_from=NOW - HOUR)
    pins = (Pin("cpu", 1, "floor", None, "root", NOW),)
    for limit, gone in ((2, []), (1, ["c-cpu1"])):
        policy = budget(limit=limit, unlimited_s=1800)
        found = asked(policy, claims=(spare,), pins=pins)
        assert [r.claim_id for r in found.releases if r.claim_id] == gone


def test_payers_follow_from_the_jobs_whatever_others_wrote() -> None:
    class Forger:
        name = "forger"

        def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
            del snapshot
            forged = (Reserve(offer().id, Decimal(0)),)
            return replace(
                target, wants=tuple(replace(w, accounts=(), users=(), reserved=forged) for w in target.wants)
            )

    for chain in ((Forger(), project("0.5")), (project("0.5"), Forger())):
        assert make_target(make_snapshot(atlas()), chain).wants == ()
    [want] = make_target(make_snapshot(atlas()), (project("5"), Forger())).wants
    assert (want.accounts, want.reserved[0].amount) == (("atlas",), Decimal(1))


def test_what_the_cloud_can_never_do_is_not_the_last_word_where_premises_start_it() -> None:
    there = node("op1", state="ALLOCATED", cpus_allocated=4)
    runs = job("9", state=JobState.RUNNING, node_list=("op1",), partitions=("onprem",), start=NOW - 60, cpus=4,
               time_limit_s=300.0)  # fmt: skip
    for partitions, verdict in ((("onprem", "burst"), "wait"), (("burst",), "impossible")):
        one = atlas(time_limit_s=600.0, partitions=partitions)
        found = make_target(make_snapshot(one, runs, nodes=(there,)), (project("0.01"),))
        assert [r.verdict for r in found.remarks if r.by == "budget" and r.subject == "job:1"] == [verdict]


def test_budgets_are_listed_where_they_are_named_or_used() -> None:
    old = spent("3", "project", "belle", month="1969-12")
    policy = budget(limit=9, projects={"atlas": {"limit": 2}, "*": {"limit": 1}}, users={"*": {"limit": 5}})
    found = asked(policy, spent=(old, spent("0.25", "project", "carol"), spent("0.25", "", "")), claims=(held(),))
    assert [(b.kind, b.name, b.limit, b.spent, f"{b.committed:.2f}") for b in found.budgets] == [
        ("", "", Decimal(9), Decimal("0.25"), "0.20"),
        ("project", "atlas", Decimal(2), Decimal(0), "0.20"),
        ("project", "carol", Decimal(1), Decimal("0.25"), "0.00"),
        ("user", "ada", Decimal(5), Decimal(0), "0.20"),
    ]
