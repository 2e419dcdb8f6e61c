"""What burstd believes of shards beside what slurmctld does, after each of many steps on a node with fake GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node, with_shards_in_use
from burstd.domain.slurm.shape import Gres, Shape, SharedGpu, split_shards
from burstd.planner.demand.gres import GresCounts, has_gres, subtract_gres
from burstd.slurm.commands.nodes import parse_nodes
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.lab.cluster import Cluster

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

GRES = (Gres("gpu", "", 3), Gres("shard", "", 13))
"""GPUs of 4, 4 and 5 shards."""
POOL = Pool("gpu", ("g1",), ("burst",), Shape(32, 4000, GRES))
STEPS = 200
WALK = r"""
live=()
while read -r step; do
  if [ "${step%% *}" = end ]; then
    [ ${#live[@]} -gt 0 ] || continue
    at=$(( ${step#end } % ${#live[@]} )) job=${live[at]} said=ended
    live=("${live[@]:0:at}" "${live[@]:at+1}")
    scancel "$job"
  else
    # slurmctld decides at once on what does not want to wait; it looks at batch jobs once a second.
    told=$(salloc --no-shell --immediate -p burst -c1 --mem=10 --gres="$step" 2>&1 </dev/null)
    case $told in
      *"Granted job allocation "*)
        job=${told##*Granted job allocation } said=RUNNING
        job=${job%%[!0-9]*}
        live+=("$job") ;;
      *"Requested nodes are busy"*) job=none said=PENDING ;;
      *) echo "$step: $told" >&2; exit 1 ;;
    esac
  fi
  [ "$said" != ended ] || while squeue -h -j "$job" 2>/dev/null | grep -q .; do :; done
  echo "$step|$job|$said|$(scontrol -o -d show node g1)"
done
"""
Free = tuple[int, ...]


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """With a node whose GPUs are files."""
    try:
        ensure_rootfs(request.param)
    except SandboxError as error:
        pytest.skip(f"{request.param}: {error}")
    settings = "SchedulerParameters=batch_sched_delay=0\nSuspendTime=31536000\nResumeTimeout=120\n"
    with Cluster(request.param, state=tmp_path / "cluster", pools=[POOL], onprem=1, extra_conf=settings) as found:
        found.sh(f"scontrol update nodename=g1 nodeaddr={found.address_of('g1')} state=power_up")
        found.wait(lambda: "#" in found.sh("sinfo -hn g1 -o %t"), 30, "g1 powering up")
        found.boot_slots(["g1"])
        found.start_slurmd("g1")
        found.wait(lambda: found.sh("sinfo -hn g1 -o %t").strip() == "idle", 60, "g1 idle")
        yield found


def walked(cluster: Cluster, words: tuple[str, ...]) -> Iterator[tuple[str, str, str, Node]]:
    """Random steps: what was asked, the job, how it went, and the node after it."""
    lot = Random(11)  # noqa: S311
    steps = [lot.choice([*words, f"end {lot.randrange(99)}"]) for _ in range(STEPS)]
    head = cluster.head
    done = head.run(["bash", "-c", WALK], user="ada", cwd="/home/ada", input="\n".join(steps) + "\n", timeout=300)
    rows = [line.split("|", 3) for line in done.stdout.splitlines()]
    assert [row[0] for row in rows if row[2] != "ended"] == [step for step in steps if not step.startswith("end")]
    for step, job, said, text in rows:
        (node,) = parse_nodes(text + "\n", lambda wall: wall)
        yield step, job, said, node


def shards_free(node: Node) -> Free:
    return tuple(gpu.free for gpu in node.shared_gpus)


@pytest.mark.parametrize("cluster", ["trixie", "forky"], indirect=True)
def test_burstds_free_shards_are_slurmctlds(cluster: Cluster) -> None:
    """Which jobs start, and of which GPU each has its shards, is foretold; what GresUsed leaves is the same."""
    left = GresCounts(GRES)
    taken: dict[str, list[int]] = {}
    waited = 0
    for step, job, said, node in walked(
        cluster, ("shard:1", "shard:2", "shard:3", "shard:4", "shard:5", "gpu:1", "gpu:2")
    ):
        if said == "ended":
            back = zip(left.gpus, taken.pop(job), strict=True)
            left.set_gpus(tuple(SharedGpu(gpu.type, gpu.shards, gpu.free + some) for gpu, some in back))
        else:
            name, count = step.split(":")
            wanted = (Gres(name, "", int(count)),)
            assert has_gres(left, wanted) == (said == "RUNNING"), f"{step} on {left.gpus}"
            waited += said != "RUNNING"
            if said == "RUNNING":
                before, left = left, subtract_gres(left, wanted)
                taken[job] = [a.free - b.free for a, b in zip(before.gpus, left.gpus, strict=True)]
        assert shards_free(node) == tuple(gpu.free for gpu in left.gpus)
    assert waited > STEPS // 10
    assert len(taken) > 0


@pytest.mark.parametrize("cluster", ["bookworm"], indirect=True)
def test_where_slurmctld_names_only_the_gpus_in_use_burstd_believes_in_no_room_that_is_not_there(
    cluster: Cluster,
) -> None:
    """22.05, in a partition of shards only. A job that burstd has room for starts."""
    known: dict[str, Job] = {}
    free: Free = tuple(gpu.free for gpu in split_shards(GRES))
    total, foretold, started = sum(free), 0, 0
    for step, job, said, node in walked(cluster, ("shard:1", "shard:2", "shard:3", "shard:4")):
        if said == "ended":
            del known[job]
        else:
            gres = (Gres("shard", "", int(step.removeprefix("shard:"))),)
            fits = max(free) >= gres[0].count
            assert said == "RUNNING" or not fits, f"{step} on {free}"
            foretold, started = foretold + fits, started + (said == "RUNNING")
            if said == "RUNNING":
                known[job] = Job(
                    job, "ada", JobState.RUNNING, ("burst",), 0.0, gres_per_node=gres, node_list=("g1",)
                )  # fmt: skip
        free = shards_free(with_shards_in_use({"g1": node}, known.values())["g1"])
        assert sum(free) <= total - sum(job.gres_per_node[0].count for job in known.values())
    assert started // 2 < foretold
