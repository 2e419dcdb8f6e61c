"""Machines that somebody else has given our tags: burstd neither takes them in nor ends them, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, TAG_POOL, TAG_SLOT
from burstd.domain.plugins.provider import LaunchRequest
from burstd.runtime.claim_ids import ClaimIds
from tests.crash.world import World
from tests.faults.test_b12_clouds import sim
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash


def test_an_id_bears_a_mark_that_takes_the_key() -> None:
    ours, others = ClaimIds(b"a key"), ClaimIds(b"another key")
    made = ours.new_claim_id()
    assert ours.is_authentic(made)
    assert made.isascii()
    assert len(made) <= 40, "it is a part of host names, labels and tokens"
    for said in (
        others.new_claim_id(),
        made[:-1],
        made + "0",
        made.upper(),
        "0" + made,
        "",
        "nobody-knows",
        "\u0661" * 29,
    ):
        assert not ours.is_authentic(said)


@pytest.mark.parametrize("claim", ["foreign-1", ""])
def test_a_machine_with_our_tags_that_burstd_never_launched(claim: str, tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="sim")
    job = w.slurm.submit(JobSpec(run_s=20))
    w.run_until(lambda: bool(w.running_instances()), 60)
    cloud = sim(w).cloud
    own = cloud.instances[w.running_instances()[0].id]
    tags = {TAG_CLUSTER: own.cluster, TAG_CLAIM: claim, TAG_SLOT: "c3", TAG_POOL: "cpu"}
    forged = cloud.launch(LaunchRequest(claim, "n", cloud.stocks[0].offer, "", "", tags))
    things = {one.id for one in cloud.leftovers.values() if one.attached_to == forged.id}
    w.run(400)
    assert not w.claims(), "it was not taken in, and what was for the job is gone"
    assert [one.id for one in w.running_instances()] == [forged.id]
    assert f"burstd did not launch ({forged.id})" in w.alarm
    assert things <= cloud.leftovers.keys()
    assert w.states(job)[-1].value == "COMPLETED"
