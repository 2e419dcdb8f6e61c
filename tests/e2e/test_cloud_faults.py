"""A cloud that is full, silent, wrong, lying or down, and what an administrator would call right.

Each test has a pool, and a type of machine, of its own: what burstd learns of one says nothing of another. Those that
have to wait for a time limit begin first, and are looked at last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from burstd.domain.cloud.offer import FabricTest, OfferRule, Pool, fabric_features
from burstd.domain.framework import Framework
from burstd.domain.slurm.shape import Gres, Shape
from burstd.runtime.claim_ids import ClaimIds
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.e2e import bad_gpus
from tests.e2e.sites import (
    QUICK,
    ask_cloud,
    claims_of,
    cloud_inventory,
    events,
    parts,
    restarts,
    site_up,
    wait_all_gone,
)
from tests.lab.patience import patience_s
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

NAMES = ("stockout", "lost", "hang", "fail", "lie", "spot", "stuck", "leak", "down", "kept")
BOOT_TIMEOUT_S = 12.0
LEMONS = 6
GRACE_S = 3.0
# Cloud-init on these machines, in one zone, loses a GPU, or a library.
COMMANDS = """
north() { grep -q "availability.zone.*north" /run/cloud-init/instance-data.json; }
case "$(hostname)" in
lab-wrong*) ! north || rm /dev/nvidia3 ;;
lab-torch*)
    echo 'module() { [ "$*" = "load PyTorch/2.5" ] && export PYTHONPATH=/opt/torch; }' >/etc/profile.d/modules.sh
    mkdir /opt/torch
    echo 'ones = lambda count, device: type("Tensor", (), {"sum": lambda self: self, "item": lambda self: count})()' \
        >/opt/torch/torch.py
    ! north || rm /opt/torch/torch.py ;;
lab-net*)
    cat >/usr/local/bin/ib_write_bw <<'END'
#!/usr/bin/python3
import socket, sys
port = int(sys.argv[sys.argv.index("-p") + 1])
if sys.argv[-1] == str(port):
    socket.create_server(("", port)).accept()[0].recv(9)
else:
    socket.create_connection((sys.argv[-1], port)).send(b"hello")
    print(" 65536 1842300 0.00 GBITS 0.36")
END
    north && gbits=8.00 || gbits=193.20
    sed -i "s/GBITS/$gbits/" /usr/local/bin/ib_write_bw
    chmod 0755 /usr/local/bin/ib_write_bw ;;
esac
"""
FRAMEWORK = "pytorch-2.5-cuda12"
SETTINGS = f"""{QUICK}
[node]
commands = [{json.dumps(COMMANDS)}, {json.dumps(bad_gpus.COMMAND)}]
[frameworks."{FRAMEWORK}"]
modules = ["PyTorch/2.5"]
"""


def _pool(name: str, gpus: int = 0) -> Pool:
    gres = (Gres("gpu", "v100", gpus),) if gpus else ()
    shape = Shape(1, 500, gres, frozenset({name}))
    return Pool(
        name, (f"{name}1", f"{name}2"), ("burst",), shape, (OfferRule("sandbox", (f"t.{name}",), image="node"),)
    )


def _fabric_pool(name: str, fabric: str) -> Pool:
    pool = _pool(name)
    shape = replace(pool.shape, features=pool.shape.features.union(fabric_features(fabric)))
    return replace(pool, shape=shape, fabric=fabric, fabric_test=FabricTest("ib_write_bw", 20, 10))


def _types() -> str:
    kinds = [(name, 0) for name in (*NAMES, "net", "plain")] + [("wrong", 4), ("torch", 4), (bad_gpus.NAME, 1)]
    text = "".join(
        f'[[cloud.types]]\nname = "t.{name}"\ncpus = 2\nmemory_mib = 2048\nprice = "1.00"\n'
        + (f'gpu_type = "v100"\ngpus = {gpus}\n' if gpus else "")
        + {"net": 'fabric = "ib"\n', "plain": 'fabric = "none"\n'}.get(name, "")
        for name, gpus in kinds
    )
    for zone in ("north", "south"):
        numbers = {**dict.fromkeys((name for name, _ in kinds), 2), bad_gpus.NAME: LEMONS}
        text += f"[cloud.capacity.{zone}]\n" + "".join(f'"t.{name}" = {most}\n' for name, most in numbers.items())
    return text


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    torch = _pool("torch", 4)
    shape = replace(torch.shape, features=torch.shape.features | {FRAMEWORK})
    torch = replace(torch, shape=shape, frameworks=(Framework(FRAMEWORK, ""),))
    up = site_up(
        pools=[
            *map(_pool, NAMES),
            _pool("wrong", 4),
            torch,
            bad_gpus.pool(LEMONS),
            _fabric_pool("net", "ib"),
            _fabric_pool("plain", "efa"),
        ],
        settings=SETTINGS,
        types=_types(),
        daemon={
            "boot_timeout_s": patience_s(BOOT_TIMEOUT_S),
            "orphan_grace_s": GRACE_S,
            "cloud_poll_s": 1.5,
            "tick_s": 1.0,
        },
        extra_conf="SlurmdTimeout=6",
    )
    with up as site:
        yield site


def submit(site: Site, name: str, script: str = "true") -> str:
    gres = " --gres=gpu:v100:4" if name == "wrong" else ""
    return site.submit(f"-p burst -C {name} -c1 --mem=100 -t5{gres}", script)


def order(site: Site, kind: FaultKind, name: str, **more: Any) -> str:
    return site.cloud.inject_fault(SandboxFault(kind, types=f"t.{name}", **more))


@dataclass(frozen=True, slots=True)
class Slow:
    """Jobs whose trouble takes a time limit to be seen."""

    hang: str
    lie: str
    stuck: str


@pytest.fixture(scope="module", autouse=True)
def slow(site: Site) -> Slow:
    order(site, FaultKind.BOOT_HANG, "hang", zones="north")
    dies_s = patience_s(9)
    order(site, FaultKind.LIE, "lie", seconds=dies_s, count=1)
    order(site, FaultKind.ERROR, "stuck", calls=("terminate",), count=2)
    return Slow(submit(site, "hang"), submit(site, "lie", f"sleep {dies_s + 11:.0f}"), submit(site, "stuck"))


def outcomes(site: Site, job: str) -> list[tuple[str, str]]:
    """Zone and word for the failure of each claim that was made for a job."""
    return [(claim["offer"].split("/")[2], claim["error"]) for claim in claims_of(site, job)]


def why(site: Site, claim: str, state: str) -> str:
    """The reason for which a claim came into a state."""
    return next(str(e["reason"]) for e in events(site, f"claim:{claim}") if e["new"] == state)


def test_a_zone_without_capacity_is_left_for_another(site: Site) -> None:
    order(site, FaultKind.CAPACITY, "stockout", zones="north")
    job = submit(site, "stockout")
    site.wait_job(job)
    assert outcomes(site, job) == [("north", "capacity"), ("south", "")]
    kept = [e for e in events(site, "breaker:") if "/north/t.stockout/" in e["subject"]]
    assert kept, "the zone is left alone for a while"
    assert restarts(site, [job]) == {job: 0}


def test_a_lost_answer_makes_one_machine(site: Site) -> None:
    order(site, FaultKind.LOSE_ANSWER, "lost", count=1, seconds=0.3)
    job = submit(site, "lost")
    site.wait_job(job)
    (claim,) = claims_of(site, job)
    assert len(cloud_inventory(site).by_claim[claim["claim"]]) == 1
    unanswered = [e for e in events(site, "slot:lost1") if e["new"] == "unanswered"]
    assert len(unanswered) == 1


def test_a_machine_that_cannot_be_built_is_replaced(site: Site) -> None:
    order(site, FaultKind.BOOT_FAIL, "fail", zones="north")
    job = submit(site, "fail")
    site.wait_job(job)
    assert outcomes(site, job) == [("north", "boot"), ("south", "")]
    assert "no host could start it" in why(site, claims_of(site, job)[0]["claim"], "failed")


def test_a_machine_that_lacks_a_gpu_is_refused_with_the_difference_named(site: Site) -> None:
    job = submit(site, "wrong", "test $(echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | wc -l) = 4")
    site.wait_job(job)
    (north, error), (south, fine) = outcomes(site, job)
    assert (north, south, fine) == ("north", "south", "")
    said = why(site, claims_of(site, job)[0]["claim"], "failed")
    assert "3 GPUs" in said, said
    assert "4 GPUs" in said, said
    assert error == "gpus", "the breaker's word is the check's"


def test_a_machine_whose_framework_does_not_work_is_replaced_before_the_job_that_asks_for_it_starts(site: Site) -> None:
    assert f'frameworks = ["{FRAMEWORK}"]' in site.burstd_toml()
    assert f"Feature={FRAMEWORK},torch" in site.burstctl("slurm-config").stdout
    check = site.burstctl("check", check=False).stdout
    assert FRAMEWORK not in check, "slurm.conf has the feature"
    job = site.submit(
        f"-p burst -C {FRAMEWORK} -c1 --mem=100 -t5 --gres=gpu:v100:1",
        "bash -lc 'module load PyTorch/2.5; python3 -c \"import torch\"'",
    )
    site.wait_job(job)
    assert outcomes(site, job) == [("north", "frameworks"), ("south", "")]
    north, south = claims_of(site, job)
    failed = why(site, north["claim"], "failed")
    assert "ModuleNotFoundError: No module named 'torch'" in failed, failed
    assert f"in {FRAMEWORK} (module load PyTorch/2.5)" in failed, failed
    [proven] = [e for e in events(site, f"slot:{south['slot']}") if e["new"] == "proven"]
    assert f"4 GPUs, {FRAMEWORK}, Slurm" in proven["reason"]
    assert restarts(site, [job]) == {job: 0}


def test_a_zone_with_many_bad_gpus_is_avoided_and_paid_by_nobody(site: Site) -> None:
    """With more machines: bench/bench_bad_gpus.py."""
    found = bad_gpus.boots_of(site, [bad_gpus.run_jobs(site, LEMONS)])
    assert (sorted(found.good), len(found.bad)) == (["north"] * 3 + ["south"] * 3, 3)
    offers = site.burstctl_json("provider", "offers", "sandbox")["offers"]
    north = next(o for o in offers if (o["instance_type"], o["zone"]) == ("t.lemon", "north"))
    assert (north["bad_machines"], north["machines"]) == (3, 6)
    assert north["avoided"] == "3 of 6 machines bad in 56 days, 50 % by weight"
    assert bad_gpus.check_overhead(site, found.bad)


def test_a_machine_taken_back_under_its_job(site: Site) -> None:
    job = submit(site, "spot", "sleep $((SLURM_RESTART_COUNT ? 0 : 60))")
    site.wait_job(job, ["RUNNING"])
    (claim,) = claims_of(site, job)
    site.cloud.interrupt(claim["instance"])
    site.wait(lambda: site.job(job)["Restarts"] == "1", 30, "Slurm has requeued the job")
    again(site, job)
    site.wait_job(job)
    # Slurm misses the node first: the job may be over on another one before its machine is known to be lost.
    site.wait(lambda: "lost" in [e["new"] for e in events(site, f"claim:{claim['claim']}")], 60, "the machine is lost")
    assert "spot capacity was taken back" in why(site, claim["claim"], "lost")
    assert [error for _, error in outcomes(site, job)] == ["lost", ""]


def again(site: Site, job: str) -> None:
    """Slurm has a requeued job wait for two minutes; an administrator need not."""
    site.cluster.sh(f"scontrol update jobid={job} starttime=now", check=False)


def test_volume_and_port_that_an_ended_machine_leaves_are_removed(site: Site) -> None:
    order(site, FaultKind.LEAK_VOLUME, "leak", count=1)
    order(site, FaultKind.LEAK_PORT, "leak", count=1)
    job = submit(site, "leak")
    site.wait_job(job)
    (claim,) = (n["claim"] for n in claims_of(site, job))
    site.wait(lambda: _left(site, claim) == ["port", "volume"], 30, "both are left behind by the cloud")
    site.wait(lambda: not _left(site, claim), 30, "both are removed")
    site.wait(lambda: claims_of(site, job)[0]["state"] == "gone", 30, "the claim is gone, after them")


def _left(site: Site, claim: str) -> list[str]:
    return sorted(p.kind for p in parts(site) if p.tags.get("burstd-claim") == claim and not p.attached_to)


def test_a_machine_of_ours_without_a_claim_goes_and_a_neighbours_stays(site: Site) -> None:
    def made(token: str, tags: dict[str, str], zone: str = "south") -> str:
        body = {"token": token, "name": token, "zone": zone, "type": "t.kept", "image": "node", "tags": tags}
        return str(ask_cloud(site, "POST", "/instances", json=body).json()["id"])

    given = ClaimIds(site.cluster.sh("cat /var/lib/burstd/ssh_key").encode()).new_claim_id()
    orphan = made("orphan", {"burstd-cluster": "lab", "burstd-claim": given})
    forged = made("forged", {"burstd-cluster": "lab", "burstd-claim": "nobody-knows", "burstd-slot": "kept1"}, "north")
    neighbour = made("neighbour", {"burstd-cluster": "other", "burstd-claim": "theirs"})
    begun = next(i.created for i in site.cloud.instances() if i.id == orphan)
    site.wait(lambda: orphan not in site.instances(), 30, "the orphan is removed")
    (event,) = events(site, f"orphan:{orphan}")
    assert "no claim" in event["reason"]
    ended = site.cluster.sh(f"date -d '{event['time']}' +%s.%N")
    assert float(ended) - begun >= GRACE_S, "not before the grace period is over"
    assert neighbour in site.instances()
    assert forged in site.instances()
    assert any(f"burstd did not launch ({forged})" in alarm for alarm in site.burstctl_json("status")["alarms"])
    theirs = [p for p in parts(site) if p.tags.get("burstd-cluster") == "other"]
    assert {p.attached_to for p in theirs} == {neighbour}
    for one in (neighbour, forged):
        ask_cloud(site, "DELETE", f"/instances/{one}")


def test_a_machine_that_never_answers_is_replaced(site: Site, slow: Slow) -> None:
    site.wait_job(slow.hang)
    assert outcomes(site, slow.hang) == [("north", "boot_timeout"), ("south", "")]


def test_a_machine_that_is_ended_in_vain_is_ended_again(site: Site, slow: Slow) -> None:
    site.wait_job(slow.stuck)
    site.wait(lambda: claims_of(site, slow.stuck)[0]["state"] == "gone", 40, "gone in the end")
    assert "the cloud did not end it" in site.daemon_log()


def test_a_machine_that_died_while_the_cloud_says_it_runs(site: Site, slow: Slow) -> None:
    """Slurm is who notices: it requeues the job, and burstd does not trust the cloud's word for the node."""
    job = slow.lie
    site.wait(lambda: site.job(job)["Restarts"] == "1", 60, "Slurm has requeued the job")
    again(site, job)
    site.wait_job(job, timeout_s=60)
    dead, alive = claims_of(site, job)[0], claims_of(site, job)[-1]
    assert dead["instance"] != alive["instance"]
    site.wait(lambda: dead["instance"] not in site.instances(), 30, "the dead machine is paid for no longer")


def test_a_cloud_that_is_down_for_a_while(site: Site) -> None:
    running = submit(site, "kept", "sleep 12")
    site.wait_job(running, ["RUNNING"])
    fault = site.cloud.inject_fault(SandboxFault(FaultKind.ERROR, ("*",)))
    site.wait(lambda: any("cannot be read" in a for a in site.api("/v1/status")["alarms"]), 20, "an alarm")
    job = submit(site, "down")
    site.wait(lambda: bool(claims_of(site, job)), 10, "a claim is made")
    site.wait_job(running)
    assert [c["state"] for c in claims_of(site, running)] == ["in_service"], "nothing is given up for a silent cloud"
    site.cloud.cancel_fault(fault)
    site.wait_job(job, timeout_s=90)
    assert restarts(site, [running, job]) == {running: 0, job: 0}
    site.wait(lambda: "cannot be read" not in str(site.api("/v1/status")["alarms"]), 20, "the alarm is over")


def test_in_the_end_nothing_is_left(site: Site) -> None:
    """After all the trouble above."""
    site.cloud.cancel_fault()
    account = wait_all_gone(site)
    named = [c for c in account.by_claim if c and c not in ("nobody-knows", "theirs")]
    assert named
    assert json.loads(site.burstctl("node", "list", "--json").stdout)["nodes"] == []


def test_a_gang_whose_fabric_is_slow_runs_elsewhere(site: Site) -> None:
    """Its machines in the north reach each other with 1 GB/s, those in the south with 24; the pool wants 10."""
    nowhere = site.submit("-p burst -N2 -C efa --mem=100 -t5")
    job = site.submit("-p burst -N2 --exclusive -C ib --mem=100 -t5", "srun hostname; sleep 600")
    site.wait_job(job, ["RUNNING"], timeout_s=90)
    assert sorted(outcomes(site, job)) == [("north", "fabric_test")] * 2 + [("south", "")] * 2
    claims = claims_of(site, job)
    assert [claim["opened"] is None for claim in claims if claim["error"]] == [True, True]
    failed = why(site, next(claim["claim"] for claim in claims if claim["error"]), "failed")
    assert "1.00 GB/s between net" in failed, failed
    assert "the pool wants 10 GB/s" in failed, failed
    shown = site.burstctl("node", "show", "net1").stdout
    assert "24.15 GB/s between net" in shown, shown
    explained = " ".join(site.burstctl("explain", job).stdout.split())
    assert "Its 2 nodes: all in one zone, ib." in explained, explained
    explained = " ".join(site.burstctl("explain", nowhere).stdout.split())
    assert "without efa, which the pool's nodes have" in explained, explained
    assert not claims_of(site, nowhere)
    site.cluster.sh(f"scancel {nowhere} {job}")
