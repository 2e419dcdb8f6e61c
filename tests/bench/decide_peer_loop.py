"""Runs in a box, beside a slurmctld: loops of aws-parallelcluster-node with an EC2 that answers at once.

``python3 decide_peer_loop.py NODES ROUNDS`` prints milliseconds: by the clock, of processor time, and in scontrol. Its
pause of five seconds in each loop is counted and left out.
"""

# ruff: noqa: S108
# mypy: ignore-errors
from __future__ import annotations

import datetime
import json
import logging
import sys
import time
import types
from pathlib import Path

import common.schedulers.slurm_commands as commands
import slurm_plugin.clustermgtd as daemon
from slurm_plugin.fleet_manager import EC2Instance

CONF = """[clustermgtd]
cluster_name = bench
region = us-east-1
dynamodb_table = none
hosted_zone = none
dns_domain = none
use_private_hostname = false
head_node_private_ip = 10.77.0.2
head_node_hostname = head
heartbeat_file_path = /tmp/peer/heartbeat
fleet_config_file = /tmp/peer/fleet.json
disable_all_health_checks = true
insufficient_capacity_timeout = 600
"""


def main() -> None:
    """Makes the daemon, and runs its loop."""
    nodes, rounds = int(sys.argv[1]), int(sys.argv[2])
    logging.disable(logging.CRITICAL)
    folder = Path("/tmp/peer")
    folder.mkdir(exist_ok=True)
    for name, text in (("conf", CONF), ("fleet.json", "{}")):
        (folder / name).write_text(text)
    commands.PartitionNodelistMapping.instance().partition_nodelist_mapping = {"burst": f"burst-dy-c5-[1-{nodes}]"}
    paused: list[float] = []
    spent: list[float] = []
    daemon.time = types.SimpleNamespace(sleep=paused.append, time=time.time)
    plain = commands._run_scontrol_command

    def timed(*given, **named):
        begun = time.perf_counter()
        try:
            return plain(*given, **named)
        finally:
            spent.append(time.perf_counter() - begun)

    commands._run_scontrol_command = timed
    manager = daemon.ClusterManager(daemon.ClustermgtdConfig("/tmp/peer/conf"))
    manager._compute_fleet_status_manager.get_status = lambda **_named: daemon.ComputeFleetStatus.RUNNING
    born = datetime.datetime.now(datetime.UTC)
    machines = [
        EC2Instance(f"i-{n}", f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", f"ip-{n}", set(), born) for n in range(nodes)
    ]
    manager._instance_manager.get_cluster_instances = lambda **_named: list(machines)
    manager._instance_manager.get_unhealthy_cluster_instance_status = lambda *_given: []
    found = []
    for _ in range(rounds):
        spent.clear()
        begun, used = time.perf_counter(), time.process_time()
        manager.manage_cluster()
        found.append([1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - used), 1000 * sum(spent)])
    print(json.dumps({"loops": found, "paused": sum(paused) / rounds}))  # noqa: T201


main()
