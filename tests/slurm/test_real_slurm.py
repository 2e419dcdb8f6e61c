"""The scheduler contract on the real Slurm of each Debian release."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer, OfferRule, Pool
from burstd.domain.errors import SchedulerRefused
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import CloudView, SlurmView, Snapshot
from burstd.planner.demand.job_requirements import resource_requirements
from burstd.planner.policy_chain import make_target
from burstd.slurm.commands.controller import read_controller_config
from burstd.slurm.commands.nodes import NodeReader
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.commands.sbatch import parse_answer, read_defaults, requested_job
from burstd.slurm.config import check
from burstd.slurm.config.render import SlurmConfOptions
from burstd.slurm.state_watch import StateWatch
from burstd.testing.slurm.cluster import find_job, is_running, submit_job, wait_until
from burstd.testing.slurm.scheduler_contract import SchedulerContract
from tests.lab import slurm_files
from tests.lab.releases import releases
from tests.slurm.rig import Rig, rig

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]


@pytest.fixture(scope="module", params=["bookworm", "trixie", *releases("forky-pyslurm", "forky")])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    release, _, pyslurm = request.param.partition("-")
    with rig(release, tmp_path_factory.mktemp("cluster"), pyslurm=bool(pyslurm)) as found:
        yield found


SCRIPTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("", (), "-p burst"),
    ("", ("#SBATCH -n4", "#SBATCH -c 2 -p burst # four"), ""),
    ("", ("#SBATCH --ntasks=4 --mem-per-cpu=100M", "#SBATCH\t-p burst", "# words", "", "#SBATCH -t 1-0"), ""),
    ("", ("#SBATCH -n 4 -p burst -t 90", "true", "#SBATCH -n 9"), ""),
    ("", ("#SBATCH -J 'two words' -p burst --mem=1G", "##SBATCH -n 9"), ""),
    ("", ("#SBATCH -p onprem -n 1 -t 10",), "-p burst,onprem -n2 --time=4:00:00"),
    ("SBATCH_PARTITION=burst SBATCH_CONSTRAINT=cloud SBATCH_TIMELIMIT=5", ("#SBATCH -t 7",), ""),
    ("SBATCH_PARTITION=onprem", ("#SBATCH -p onprem",), "-p burst --gpus-per-node=v100:1"),
    ("", ("#PBS -l walltime=00:20:00", "#SBATCH -p burst"), ""),
    ("", ("#SBATCH -p burst --gres=gpu:v100:2 --array=1-40%8",), ""),
    ("", ("#SBATCH -p burst --array=0-9999", "#SBATCH --comment='burst: gpu=1'"), "--no-requeue"),
    ("", ("#SBATCH -p burst -N 2-4 --ntasks-per-node=2",), ""),
    ("", ("#SBATCH -p burst -N3 --exclusive",), "--mem=0"),
    ("", ("#SBATCH -p burst -n2 --gpus-per-task=1 --exclusive=user",), ""),
    ("", ("#SBATCH -p burst -n2 --gpus=2 --cpus-per-gpu=1 --mem-per-gpu=100M",), ""),
    ("", ("#SBATCH -p burst --gpus=2 --ntasks-per-gpu=1 --mem=300M",), ""),
    ("", ("#SBATCH -p burst -N2 --gpus=4 -c2",), ""),
    ("", ("#SBATCH -p burst --gpus-per-socket=2 --sockets-per-node=1 -n1",), ""),
    ("", ("#SBATCH -p burst -n2 --mem=100M", "#SBATCH hetjob", "#SBATCH -p onprem --mem=200M -t 5"), ""),
    ("", ("#SBATCH -p burst -w cl3 -x cl4,cl5",), ""),
    ("", ("#SBATCH -p burst -N1 --mincpus=2 --gpus=v100:3",), ""),
    ("", (*("#SBATCH -J n",) * 1000, "#SBATCH -p burst"), ""),
    ("", ("#SBATCH -p whole -n1 --mem=100M",), ""),
    ("", ("#SBATCH -p whole -n2 --exclusive=user",), ""),
    ("", ("#SBATCH -p whole,burst -n1",), ""),
)
"""Variables of sbatch, the first lines of a script, and words of the command line."""
TRES_PER_TASK: tuple[str, tuple[str, ...], str] = ("", ("#SBATCH -p burst -n2 --tres-per-task=cpu=1,gres/gpu:1",), "")
"""From 24.11 on."""


def _asked(job: Job) -> tuple[object, ...]:
    """All that placement looks at. Of a job without -N the queue shows the number that slurmctld would take as most."""
    wanted = resource_requirements(job)
    return (
        replace(wanted, nodes_max=0) if wanted.nodes == 1 else wanted, job.partitions, job.time_limit_s, job.tasks,
        job.name, job.comment, job.requeue, job.exclusive_user, job.node_list, job.excluded_nodes,
    )  # fmt: skip


class TestRealSlurm(SchedulerContract):
    def test_what_is_said_of_the_configuration_holds(self, cluster: Rig) -> None:
        commands = SlurmCommands(cluster.run)
        controller = read_controller_config(commands)
        assert str(controller.state_save_location) == slurm_files.STATE
        assert controller.slurm_uid == int(cluster.shell("id -u slurm"))
        version = slurm_files.VERSIONS[cluster.cluster.release]
        options = SlurmConfOptions(version, onprem_partitions=("onprem",), resume_timeout_s=7, suspend_timeout_s=2)
        running = check.read_running_slurm(commands)
        found = check.compare_slurm_conf(cluster.cluster.pools, options, running)
        assert [(f.subject, f.recommended) for f in found] == [("SchedulerParameters", True), ("AllocNodes", True)]

    def test_power_saving_that_is_off_is_named(self, cluster: Rig) -> None:
        """Before 26.05 slurmctld looks for the programs when it starts."""
        if cluster.scheduler.version() >= (26, 5):
            pytest.skip("this Slurm looks for them whenever it needs them")
        program = "/usr/local/bin/burstd-suspend"
        cluster.shell(f"chmod -x {program}")
        try:
            cluster.cluster.restart_slurmctld()
            for ask in (cluster.scheduler.power_up, cluster.scheduler.power_down):
                with pytest.raises(SchedulerRefused, match=r"has power saving off, .* systemctl restart slurmctld"):
                    ask([cluster.slots[0]])
        finally:
            cluster.shell(f"chmod +x {program}")
            cluster.cluster.restart_slurmctld()

    def test_what_a_script_asks_for_is_what_the_queue_shows_of_it(
        self, cluster: Rig, request: pytest.FixtureRequest
    ) -> None:
        """Each is put to ``sbatch --test-only -v``, then submitted: burstd reads the same of both."""
        cluster.shell("scontrol create partitionname=whole nodes=ALL state=up oversubscribe=exclusive defaulttime=30")
        request.addfinalizer(lambda: cluster.shell("scontrol delete partitionname=whole"))
        defaults = read_defaults(SlurmCommands(cluster.run), "ada")
        pairs: list[tuple[str, Job, Job]] = []
        for setting, header, words in (*SCRIPTS, *[TRES_PER_TASK] * (cluster.cluster.release != "bookworm")):
            lines = "".join(f"{line}\n" for line in ("#!/bin/bash", *header, "sleep 300"))
            cluster.cluster.head.path("/home/ada/job.sh").write_text(lines)
            shell = f"cd ~ && export {setting or 'A=1'} && sbatch {{}} {words} job.sh"
            said = cluster.shell(shell.format("--test-only -v") + " 2>&1 || true", "ada")
            asked = [requested_job(one, defaults, "job.sh") for one in parse_answer(said, 0).components]
            job_id = cluster.shell(shell.format("--parsable -H"), "ada").strip()
            rows = [row for row in cluster.scheduler.jobs() if job_id in (row.number, row.id, row.het_job_id)]
            cluster.shell(f"scancel {job_id}")
            rows.sort(key=lambda row: row.het_offset)
            pairs += [(f"{setting} {header} {words}", *pair) for pair in zip(asked, rows, strict=True)]
        assert [(what, _asked(job), _asked(row)) for what, job, row in pairs if _asked(job) != _asked(row)] == []

    def test_nodes_are_read_with_one_command_once_sinfo_has_told_their_names(self, cluster: Rig) -> None:
        asked: list[str] = []

        def run(
            argv: Sequence[str], environment: Mapping[str, str], timeout_s: float
        ) -> subprocess.CompletedProcess[str]:
            asked.append(argv[0])
            return cluster.run(argv, environment, timeout_s)

        reader = NodeReader(SlurmCommands(run), lambda wall: wall)
        found = reader.read_all()
        assert asked == ["scontrol", "sinfo"]
        assert [node.name for node in reader.read_all()] == [node.name for node in found]
        assert asked == ["scontrol", "sinfo", "scontrol"]
        named = [node.name for node in found]
        assert [node.name for node in reader.read_named([*named, "no-such-node"])] == named
        assert not any(node.unreliable_because for node in found)

    def test_slurm_and_burstd_keep_users_apart_in_a_partition_with_exclusive_user(self, cluster: Rig) -> None:
        """The second user's job starts on another node only, and burstd wants one, or says why it gets none."""
        (pool,), scheduler = cluster.cluster.pools, cluster.scheduler
        sky = Offer("sky", "r1", "a", "t", spot=False, shape=pool.shape, price=Decimal(1))
        known = replace(pool, rules=(OfferRule("sky"),), cpu_jobs=True)
        first, second = self.registered_slots(cluster, 2)
        claims = (Claim("c-1", "x", pool.name, first, sky, Cause.DEMAND, ClaimState.IN_SERVICE, 0.0, 0.0),)

        def lacking() -> list[str]:
            running = check.read_running_slurm(SlurmCommands(cluster.run))
            found = check.compare_slurm_conf([replace(pool, exclusive_user=True)], SlurmConfOptions(), running)
            return [finding.wanted for finding in found if finding.subject == "partition burst"]

        def seen(shown: Pool, **fields: Any) -> Target:
            slurm = SlurmView(tuple(scheduler.jobs()), {node.name: node for node in scheduler.nodes()}, ())
            clouds = {"sky": CloudView((sky,), ())}
            return make_target(Snapshot(time.time(), "x", {pool.name: shown}, slurm, clouds, claims, **fields), ())

        assert lacking() == ["ExclusiveUser=YES"]
        cluster.shell("scontrol update partitionname=burst exclusiveuser=yes")
        try:
            assert lacking() == []
            scheduler.set_gate([slot for slot in cluster.slots if slot != first])
            running = submit_job(cluster, "-c1 --mem=100")
            wait_until(lambda: is_running(cluster, running), "the first user's job running")
            waits = submit_job(cluster, "-c1 --mem=100", user="bob")
            wait_until(lambda: (row := find_job(cluster, waits)) and row.reason == "Resources", "the other's waiting")
            # Its row tells of the partition; the settings tell of it where the row names another partition first.
            for shown in (known, replace(known, exclusive_user=True)):
                found = seen(shown)
                assert [want.jobs for want in found.wants] == [(waits,)]
                assert found.placements == {}
            full = seen(replace(known, exclusive_user=True), drained_slots=frozenset(cluster.slots) - {first})
            assert full.remarks[-1].reason.endswith(
                f"node {first} runs jobs of user ada; partition burst shares no node between users"
            )
            assert not is_running(cluster, waits)
            scheduler.set_gate(cluster.slots[2:])
            also = submit_job(cluster, "-c1 --mem=100")
            wait_until(lambda: is_running(cluster, waits) and is_running(cluster, also), "all of them running")
            rows = {job.id: job.node_list for job in scheduler.jobs()}
            assert rows == {running: (first,), also: (first,), waits: (second,)}
        finally:
            cluster.shell("scontrol update partitionname=burst exclusiveuser=no")

    def test_a_job_is_heard_of_in_the_state_folder(self, cluster: Rig) -> None:
        heard = threading.Event()
        watch = StateWatch(cluster.cluster.head.path(slurm_files.STATE), heard.set)
        assert watch.start() == ""
        before = time.monotonic()
        submit_job(cluster, "")
        assert heard.wait(10)
        cluster.report(f"sbatch started to hint: {time.monotonic() - before:.2f} s")
        watch.stop()
