"""Machines of which some have a bad GPU, as their nvidia-smi says, and jobs that would see it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from tests.e2e.sites import claims_of, wait_done
from tests.lab.base_site import BaseSite

NAME = "lemon"
# A line of cloud-init's commands: in the zone north every second machine has a row of memory that cannot be replaced.
COMMAND = r"""
case "$(hostname)" in lab-lemon*)
failure=No
! grep -q "availability.zone.*north" /run/cloud-init/instance-data.json ||
    case "$(hostname)" in lab-lemon*[02468]-*) failure=Yes ;; esac
cat >/usr/local/bin/nvidia-smi <<END
#!/bin/sh
case "\$*" in
-L) echo "GPU 0: Tesla V100 (UUID: GPU-0)" ;;
"-q -x") cat <<XML
<nvidia_smi_log>
	<driver_version>550.54.15</driver_version>
	<cuda_version>12.4</cuda_version>
	<gpu id="00000000:19:00.0">
		<remapped_rows>
			<remapped_row_pending>No</remapped_row_pending>
			<remapped_row_failure>$failure</remapped_row_failure>
		</remapped_rows>
	</gpu>
</nvidia_smi_log>
XML
;;
esac
END
chmod 755 /usr/local/bin/nvidia-smi ;;
esac
"""
# Fails on a machine with a bad GPU; else it lasts until it is told to end.
SCRIPT = "nvidia-smi -q -x | grep 'failure>No' || exit 1\ntrap 'exit 0' USR1\nsleep 900 & wait"


def pool(slots: int) -> Pool:
    """Machines with a GPU each; those of the zone north come first."""
    shape = Shape(1, 500, (Gres("gpu", "v100", 1),), frozenset({NAME}))
    names = tuple(f"{NAME}{n}" for n in range(1, slots + 1))
    return Pool(NAME, names, ("burst",), shape, (OfferRule("sandbox", (f"t.{NAME}",), image="node"),))


@dataclass(frozen=True, slots=True)
class Boots:
    """What came of the machines of some jobs."""

    good: tuple[str, ...]
    """The zone of each."""
    bad: tuple[str, ...]
    """Ids of the claims of those that failed at their GPU."""


def run_jobs(site: BaseSite, number: int) -> str:
    """So many jobs that run at the same time, each on a machine of its own, and all end well; the id of their array."""
    job = site.submit(f"-p burst -C {NAME} --array=1-{number} --exclusive --gres=gpu:v100:1 --mem=100 -t20", SCRIPT)
    running = f"squeue -h -r -t running -j {job} | wc -l"
    site.wait(lambda: site.cluster.sh(running).strip() == str(number), 500, "all jobs run")
    site.cluster.sh(f"scancel --batch --signal=USR1 {job}")
    wait_done(site, [job], timeout_s=90)
    return job


def boots_of(site: BaseSite, jobs: Sequence[str]) -> Boots:
    """The machines that were made for these jobs."""
    claims = {one["claim"]: one for job in jobs for one in claims_of(site, job)}.values()
    others = {one["error"] for one in claims} - {"", "gpu_health"}
    assert not others, f"machines that failed for another reason: {others}"
    return Boots(
        tuple(one["offer"].split("/")[2] for one in claims if not one["error"]),
        tuple(one["claim"] for one in claims if one["error"]),
    )


def check_overhead(site: BaseSite, bad: Sequence[str]) -> Decimal:
    """The bill has the cost of these machines as nobody's, and adds up in each grouping; that cost."""
    now = time.time()

    def lines(group: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = site.api("/v1/bill", group=group, until=now)["lines"]
        return found

    def cost(some: Sequence[dict[str, Any]]) -> Decimal:
        return sum((Decimal(line["cost"]["amount"]) for line in some), Decimal(0))

    wasted = cost([line for line in lines("claim") if line["key"] in bad])
    assert {part["kind"] for line in lines("claim") if line["key"] in bad for part in line["parts"]} == {"failed"}
    for group in ("pool", "user", "account", "job"):
        # Other machines may have failed as well, in other pools.
        some = [line for line in lines(group) if group != "pool" or line["key"] == NAME]
        failed = {line["key"]: cost([p for p in line["parts"] if p["kind"] == "failed"]) for line in some}
        mine = {key: amount for key, amount in failed.items() if amount}
        assert mine == {NAME: wasted} if group == "pool" else [*mine] == [""] and mine[""] >= wasted
        # Machines that are up cost more with each look.
        before, whole, after = cost(lines("claim")), cost(lines(group)), cost(lines("claim"))
        assert before <= whole <= after
    assert wasted > 0
    return wasted
