"""Makes the daemon's parts from the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.plugins.provider import ConsoleLog, Provider, Shells
from burstd.domain.plugins.scheduler import Scheduler
from burstd.node.ssh.host_keys import Trust
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.node.user_data import UserData, render
from burstd.node.validator import NodeProver, Site
from burstd.settings import Settings
from burstd.slurm.commands.run import Commands
from burstd.slurm.pyslurm_scheduler import open_scheduler

log = structlog.get_logger(__name__)


def commands(settings: Settings) -> Commands:
    """Slurm's commands, found, and finding their configuration, where the settings say."""
    return Commands(bin_dir=settings.slurm.bin_dir, conf=settings.slurm.conf)


def scheduler(settings: Settings, clock: Clock) -> Scheduler:
    """Slurm, by the interface that the settings name. Its times become burstd's steady ones.

    Raises SchedulerUnavailable where the settings insist on a pyslurm that cannot be used.
    """
    chosen, why_not = open_scheduler(
        settings.slurm.interface,
        commands(settings),
        lambda wall: wall + clock.now() - clock.wall() if wall else 0.0,
        settings.slurm.gate,
    )
    if why_not:
        log.info("slurm is read through its commands", reason=why_not)
    return chosen


@dataclass(slots=True)
class InForce:
    """The settings that the daemon goes by; a reload puts others in their place."""

    settings: Settings


def prover(settings: Settings, slurm: Scheduler, clock: Clock, providers: Mapping[str, Provider]) -> NodeProver:
    """What makes machines into nodes; makes burstd's own ssh key at the first start."""
    ensure_ssh_key(settings.ssh_key)
    shells = {name: provider.shell for name, provider in providers.items() if isinstance(provider, Shells)}
    consoles = {name: provider.console for name, provider in providers.items() if isinstance(provider, ConsoleLog)}
    return NodeProver(site(settings), slurm_version=slurm.version, wall=clock.wall, shells=shells, consoles=consoles)


def site(settings: Settings) -> Site:
    """What the settings say of all machines."""
    node = settings.node
    return Site(
        key=settings.ssh_key,
        pins=settings.host_keys,
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


def user_data(in_force: InForce) -> Callable[[Pool, str], str]:
    """Renders the cloud-init user data of a pool's machines at a provider."""
    public = ensure_ssh_key(in_force.settings.ssh_key)

    def rendered(pool: Pool, provider: str) -> str:
        settings = in_force.settings
        munge_key = settings.node.munge_key
        values = UserData(
            settings.cluster, pool.name, provider, public,
            timezone=settings.node.timezone, packages=settings.node.packages, commands=settings.node.commands,
        )  # fmt: skip
        return render(values, settings.node.user_data, [munge_key.read_bytes()] if munge_key.exists() else [])

    return rendered
