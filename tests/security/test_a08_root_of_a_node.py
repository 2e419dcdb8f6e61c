"""A node has the cluster's key: what AllocNodes keeps its users from, and what nothing keeps its root from.

The second half says what docs/security.md says, so that nobody takes AllocNodes for more than it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config import check
from burstd.slurm.config.render import SlurmConfOptions
from tests.lab import slurm_files
from tests.lab.cluster import Cluster
from tests.lab.releases import releases
from tests.slurm.rig import Rig, rig

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]
SUBMIT = "cd /tmp; sbatch --parsable -o /tmp/out -p onprem --wrap id"
MUNGED = "pkill -x munged; while pgrep -x munged >/dev/null; do sleep 0.1; done; "
MUNGED += "setpriv --reuid=munge --regid=munge --clear-groups munged"


@pytest.fixture(scope="module", params=releases("forky", "bookworm", "trixie"))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A cluster with a burst node on which root and users may do what they like."""
    with rig(request.param, tmp_path_factory.mktemp("cluster")) as found:
        cluster = found.cluster
        cluster.sh("chmod 1777 /tmp; scontrol update nodename=cl1 state=power_up")
        cluster.boot_slots(["cl1"])
        address = cluster.address_of("cl1")
        for name in ("head", "cl1"):
            cluster.lab.box(name).run(["sh", "-c", f"echo '{address} cl1' >>/etc/hosts"])
        # As on a machine that knows its own address from the first: a credential says where it was made.
        on_node(cluster, MUNGED)
        cluster.sh(f"scontrol update nodename=cl1 nodeaddr={address}")
        cluster.start_slurmd("cl1")
        cluster.wait(lambda: cluster.sh("sinfo -hn cl1 -o %t").split() == ["idle"], 60, "cl1 idle")
        yield found


def on_node(cluster: Cluster, command: str, user: str = "root") -> str:
    done = cluster.lab.box("cl1").run(["bash", "-c", command], user=user, check=False, timeout=60)
    return done.stdout + done.stderr


def advice(site: Rig) -> list[str]:
    version = slurm_files.VERSIONS[site.cluster.release]
    options = SlurmConfOptions(version, onprem_partitions=("onprem",), resume_timeout_s=7, suspend_timeout_s=2)
    running = check.read_running_slurm(SlurmCommands(site.run))
    return [
        f.found for f in check.compare_slurm_conf(site.cluster.pools, options, running) if f.subject == "AllocNodes"
    ]


def test_alloc_nodes_keeps_the_users_of_a_node_from_submitting_and_check_says_so(site: Rig) -> None:
    cluster = site.cluster
    assert on_node(cluster, SUBMIT, "bob").strip().isdigit()
    assert advice(site) == ["ALL in burst, onprem"]
    for name in ("burst", "onprem"):
        cluster.sh(f"scontrol update partitionname={name} AllocNodes=head")
    assert advice(site) == []
    for words in (SUBMIT, "cd /tmp; timeout 20 srun -p onprem id", "cd /tmp; timeout 20 salloc -p onprem id"):
        assert "Access/permission denied" in on_node(cluster, words, "bob")
    assert "Access/permission denied" in on_node(cluster, SUBMIT.replace("sbatch", "sbatch --uid=bob"))
    assert cluster.sh(SUBMIT, "bob").strip().isdigit()
    # Steps of a job on the node are none of it.
    job = cluster.sh("cd /tmp; sbatch --parsable -o /tmp/steps -p burst -w cl1 --wrap 'srun hostname'", "bob").strip()
    cluster.wait(lambda: "COMPLETED" in cluster.sh(f"scontrol show job {job}"), 60, "the job done")
    assert on_node(cluster, "cat /tmp/steps").strip() == "cl1"


def test_nothing_keeps_the_root_of_a_node_from_being_root_of_the_cluster(site: Rig) -> None:
    cluster = site.cluster
    for name in ("burst", "onprem"):
        cluster.sh(f"scontrol update partitionname={name} AllocNodes=head")
    on_node(cluster, "scontrol update nodename=op1 state=drain reason=taken")
    assert cluster.sh("sinfo -hn op1 -o %E").strip() == "taken"
    cluster.sh("scontrol update nodename=op1 state=resume")
    # The address in a credential is what its munged says.
    assert on_node(cluster, f"{MUNGED} --origin=10.77.0.2; {SUBMIT}", "root").strip().isdigit()
    on_node(cluster, MUNGED)
    assert "denied" in on_node(cluster, SUBMIT, "bob")
    on_node(cluster, "scontrol update partitionname=onprem AllocNodes=ALL")
    assert on_node(cluster, SUBMIT, "bob").strip().isdigit()
