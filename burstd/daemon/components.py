"""The daemon's parts, and how they are made from the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from burstd.db import Store
from burstd.db.record_mark import RecordMark
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.plugins.provider import ConsoleLog, Provider, ShellProvider
from burstd.domain.plugins.scheduler import Scheduler
from burstd.metrics.counters import Counters
from burstd.mounts.service import MountService
from burstd.node.reference import REFERENCE_KEY, Reference
from burstd.node.ssh.host_keys import HostKeyPolicy
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.node.ssh.process import SshProcess
from burstd.node.user_data import UserDataValues, render_user_data
from burstd.node.validation import Unattended
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from burstd.reconciler.context import PollIntervals
from burstd.reconciler.pollers.job_use import JobUsePoller
from burstd.reconciler.pollers.projects import ProjectSync
from burstd.reconciler.pollers.wake_sources import WakeSources
from burstd.reconciler.reconciler import Reconciler
from burstd.runtime.clock import SteadyClock
from burstd.runtime.wake import Wake
from burstd.runtime.workers import ThreadWorkers
from burstd.settings import Settings
from burstd.settings.check_programs import read_check_programs
from burstd.slurm.commands.controller import SlurmdConfReader
from burstd.slurm.commands.run import CommandRunner, SlurmCommands, run_locally
from burstd.slurm.config.check import gpu_memory_faults
from burstd.slurm.pyslurm_scheduler import open_scheduler

if TYPE_CHECKING:
    from burstd.staging.controller.service import StagingService

log = structlog.get_logger(__name__)

DAY_S = 86400.0
MOST_LIFE_SIGN_S = 120.0
"""Machines hear of burstd at least this often: slurmctld feels nothing of it."""


def commands(settings: Settings, run: CommandRunner = run_locally) -> SlurmCommands:
    """Slurm's commands, found, and finding their configuration, where the settings say."""
    return SlurmCommands(run, bin_dir=settings.slurm.bin_dir, conf=settings.slurm.conf)


def scheduler(settings: Settings, clock: Clock, slurm_commands: SlurmCommands) -> Scheduler:
    """Slurm, by the interface that the settings name. Its times become burstd's steady ones.

    Raises SchedulerUnavailable where the settings insist on a pyslurm that cannot be used.
    """
    chosen, why_not = open_scheduler(
        settings.slurm.interface,
        slurm_commands,
        lambda wall: wall + clock.now() - clock.wall() if wall else 0.0,
        settings.slurm.gate,
    )
    if why_not:
        log.info("slurm is read through its commands", reason=why_not)
    return chosen


@dataclass(slots=True)
class CurrentSettings:
    """The settings that the daemon goes by; a reload puts others in their place."""

    settings: Settings


def node_validator(
    settings: Settings, slurm: Scheduler, clock: Clock, providers: Mapping[str, Provider], store: Store,
    ssh_process: SshProcess,
) -> SlurmNodeValidator:  # fmt: skip
    """What makes machines into nodes; makes burstd's own ssh key at the first start."""
    ensure_ssh_key(settings.ssh_key)
    shells = {name: provider.shell for name, provider in providers.items() if isinstance(provider, ShellProvider)}
    consoles = {name: provider.console for name, provider in providers.items() if isinstance(provider, ConsoleLog)}
    validator = SlurmNodeValidator(
        site(settings), slurm_version=slurm.version, wall=clock.wall, shells=shells, consoles=consoles,
        slurm_faults=lambda pool: gpu_memory_faults(pool, commands(settings)),
        slurmd_conf=SlurmdConfReader(commands(settings), clock.now), ssh_process=ssh_process,
    )  # fmt: skip
    validator.reference = Reference.from_record(store.metadata(REFERENCE_KEY))
    return validator


def site(settings: Settings) -> ValidatorConfig:
    """What the settings say of all machines."""
    node = settings.node
    return ValidatorConfig(
        ssh_key=settings.ssh_key,
        host_keys_dir=settings.host_keys_dir,
        munge_key=node.munge_key,
        conf_server=settings.slurm.conf_server,
        ssh_user=node.ssh_user,
        ssh_port=node.ssh_port,
        munge_socket=str(node.munge_socket or ""),
        host_key_policies={
            name: HostKeyPolicy(node.host_keys_of.get(name, node.host_keys)) for name in settings.providers
        },
        users=node.users,
        compare_job_users=node.compare_job_users,
        os=node.os,
        gpu_names=node.gpu_names,
        gpu_devices=node.gpu_devices,
        clock_tolerance_s=node.clock_tolerance_s,
        free_mib=node.free_mib,
        tmp_mib=node.tmp_mib,
        check_commands=node.check_commands,
        check_programs=read_check_programs(node.check_folder),
        start_command=node.start_command,
        sentinels=node.sentinels,
        modules=node.modules,
        skip_checks=frozenset(node.skip_checks),
        pool_sentinels={pool: paths for pool in settings.pools if (paths := settings.mounts.sentinels(pool))},
        cvmfs_max_behind=node.cvmfs_max_behind,
        mount_trees={
            pool: tuple(rule.path for rule in settings.mounts.rules() if rule.is_shown_in(pool))
            for pool in settings.pools
        },
        may_differ=frozenset(node.may_differ),
        health=settings.health.rules(),
        unattended=Unattended(
            int(node.unattended_h * 3600),
            str(settings.staging.job_dir) if settings.staging.enabled else "",
            int(settings.staging.output_retention_h * 3600),
        )
        if node.unattended_h
        else None,
        slurmd_options=node.slurmd_options,
        connect_timeout_s=node.connect_timeout_s,
    )


def user_data(current: CurrentSettings) -> Callable[[Pool, str], str]:
    """Renders the cloud-init user data of a pool's machines at a provider."""
    public = ensure_ssh_key(current.settings.ssh_key)

    def rendered(pool: Pool, provider: str) -> str:
        settings = current.settings
        munge_key = settings.node.munge_key
        values = UserDataValues(
            settings.cluster, pool.name, provider, public,
            timezone=settings.node.timezone, packages=settings.node.packages, commands=settings.node.commands,
            # A storage node is none of Slurm's, and has jobs' data: nothing there would hear of burstd.
            power_off_after_s=int(settings.node.unattended_h * 3600) if pool.name in settings.pools else 0,
        )  # fmt: skip
        return render_user_data(values, settings.node.user_data, [munge_key.read_bytes()] if munge_key.exists() else [])

    return rendered


def poll_intervals(settings: Settings) -> PollIntervals:
    """The pollers' intervals."""
    daemon = settings.daemon
    return PollIntervals(
        tick_s=daemon.tick_s,
        poll_s=daemon.poll_s,
        cloud_poll_s=daemon.cloud_poll_s,
        # Also where it is 0 by now: machines that started before go on listening.
        life_sign_s=min(MOST_LIFE_SIGN_S, settings.node.unattended_h * 3600 / 4 or MOST_LIFE_SIGN_S),
    )


@dataclass(frozen=True, slots=True)
class DaemonComponents:
    """What the daemon consists of."""

    clock: SteadyClock
    store: Store
    wake: Wake
    scheduler: Scheduler
    providers: Mapping[str, Provider]
    workers: ThreadWorkers
    reconciler: Reconciler
    wake_sources: WakeSources
    staging: StagingService | None
    mounts: MountService
    job_use: JobUsePoller
    projects: ProjectSync
    node_validator: SlurmNodeValidator
    current_settings: CurrentSettings
    intervals: PollIntervals
    record_mark: RecordMark
    counters: Counters

    def retention_s(self) -> float:
        """How long what is over stays on record."""
        return self.current_settings.settings.daemon.retention_days * DAY_S

    def charges_retention_s(self) -> float:
        """How long charges stay on record."""
        return self.current_settings.settings.bill.keep_years * 366 * DAY_S

    def close_after_s(self) -> float:
        """So long after its end a month is closed."""
        return self.current_settings.settings.bill.close_after_days * DAY_S

    def reload(self, settings: Settings) -> None:
        """Has all parts go by other settings, but for what waits for a restart and what the reconciler decides by."""
        self.current_settings.settings = settings
        self.node_validator.config = site(settings)
        self.node_validator.forget_homes()
        fresh = poll_intervals(settings)
        self.intervals.tick_s, self.intervals.poll_s, self.intervals.cloud_poll_s = (
            fresh.tick_s,
            fresh.poll_s,
            fresh.cloud_poll_s,
        )
        # Machines that started before may want it as often as they did.
        self.intervals.life_sign_s = min(self.intervals.life_sign_s, fresh.life_sign_s)
        if self.staging is not None:
            self.staging.reload(settings)
        self.mounts.reload(settings.mounts)
        self.job_use.settings = settings.sampler
