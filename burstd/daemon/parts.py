"""Makes the daemon's parts from the settings."""

from __future__ import annotations

import os
from collections.abc import Callable

import structlog

from burstd.daemon.reconciler import Reconciler
from burstd.daemon.wake import Wake
from burstd.model.clock import Clock
from burstd.model.errors import SchedulerUnavailable
from burstd.model.offer import Pool
from burstd.model.prover import Prover
from burstd.model.scheduler import Scheduler
from burstd.node.hostkeys import Trust
from burstd.node.keys import ensure_ssh_key
from burstd.node.prover import Site, SshProver
from burstd.node.user_data import UserData, render
from burstd.settings import Settings
from burstd.slurm.commands import Commands
from burstd.slurm.controller import ask
from burstd.slurm.events import StateWatch
from burstd.slurm.power_server import PowerServer
from burstd.slurm.scheduler import CommandScheduler

log = structlog.get_logger(__name__)


def scheduler(settings: Settings, clock: Clock) -> Scheduler:
    """Slurm, by the interface that the settings name. Its times become burstd's steady ones."""
    return CommandScheduler(
        translate=lambda wall: wall + clock.now() - clock.wall() if wall else 0.0, gate_name=settings.slurm.gate
    )


def prover(settings: Settings, slurm: Scheduler, clock: Clock) -> Prover:
    """What makes machines into nodes; makes burstd's own ssh key at the first start."""
    ensure_ssh_key(settings.ssh_key)
    node = settings.node
    site = Site(
        key=settings.ssh_key,
        pins=settings.daemon.state_dir / "host_keys",
        munge_key=node.munge_key,
        conf_server=settings.slurm.conf_server,
        ssh_user=node.ssh_user,
        ssh_port=node.ssh_port,
        munge_socket=str(node.munge_socket or ""),
        trust={name: Trust(node.host_keys_of.get(name, node.host_keys)) for name in settings.providers},
        users=node.users,
        compare_job_users=node.compare_job_users,
        os=node.os,
        gpu_names=node.gpu_names,
        gpu_devices=node.gpu_devices,
        clock_tolerance_s=node.clock_tolerance_s,
        free_mib=node.free_mib,
        tmp_mib=node.tmp_mib,
        commands=node.check_commands,
        start_command=node.start_command,
        skip=frozenset(node.skip_checks),
        slurmd_options=node.slurmd_options,
        connect_timeout_s=node.connect_timeout_s,
    )
    return SshProver(site, slurm_version=slurm.version, wall=clock.wall)


def user_data(settings: Settings) -> Callable[[Pool, str], str]:
    """Renders the cloud-init user data of a pool's machines at a provider."""
    public = ensure_ssh_key(settings.ssh_key)
    munge_key = settings.node.munge_key

    def rendered(pool: Pool, provider: str) -> str:
        values = UserData(
            settings.cluster, pool.name, provider, public,
            timezone=settings.node.timezone, packages=settings.node.packages, commands=settings.node.commands,
        )  # fmt: skip
        return render(values, settings.node.user_data, [munge_key.read_bytes()] if munge_key.exists() else [])

    return rendered


def slurm_version(slurm: Scheduler) -> str:
    """``22.05.8``; empty while slurmctld does not answer."""
    try:
        return "{}.{:02}.{}".format(*slurm.version())
    except SchedulerUnavailable as error:
        log.warning("slurm does not answer yet", error=str(error))
        return ""


def watch(settings: Settings, wake: Wake, reconciler: Reconciler) -> Callable[[], None]:
    """Watches Slurm's state directory for hints; returns what ends it. Without the right to it the queue is polled."""
    try:
        location = settings.slurm.state_save_location or ask(Commands()).state_save_location
    except SchedulerUnavailable as error:
        log.warning("slurm does not say where its state is", error=str(error))
        return lambda: None
    watch = StateWatch(location, wake)
    problem = watch.start()
    reconciler.watching = not problem
    if problem:
        log.info("the queue is polled", every_s=settings.daemon.poll_s, reason=problem)
    return watch.stop


def power_server(settings: Settings, wake: Wake) -> Callable[[], None]:
    """Takes the calls of ResumeProgram and its companions as hints; returns what ends it."""
    spool = settings.daemon.spool_dir / "power"
    spool.mkdir(parents=True, exist_ok=True)
    allowed = frozenset[int]()
    try:
        user = ask(Commands()).slurm_uid
    except SchedulerUnavailable as error:
        log.warning("slurm does not say who SlurmUser is: its calls go to the spool", error=str(error))
    else:
        allowed = frozenset({user})
        if os.geteuid() == 0:
            os.chown(spool, user, -1)
    server = PowerServer(settings.daemon.runtime_dir / "power.sock", spool, lambda _call: wake(), allowed)
    server.start()
    return server.stop
