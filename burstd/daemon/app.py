"""The one place where everything is put together."""

from __future__ import annotations

import gc
import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import structlog

from burstd.api.app import create_api_app
from burstd.api.auth import Authorizer
from burstd.api.backend import Backend, DaemonInfo
from burstd.api.job_connections.ends import WaitService
from burstd.api.job_connections.logs import LogService
from burstd.api.job_connections.ports import PortService
from burstd.api.job_connections.server import JobConnectionServer
from burstd.api.job_connections.shells import ShellService
from burstd.api.routers.status import current_alarms
from burstd.api.server import ApiServer
from burstd.daemon import components as make
from burstd.daemon.commands import CommandHandler
from burstd.daemon.components import DaemonComponents
from burstd.daemon.heads import HeadWatch, describe_head
from burstd.daemon.leading import guard_commands, guard_provider, lead
from burstd.daemon.loop import DaemonLoop
from burstd.daemon.relay import relayed_calls
from burstd.daemon.settings_in_force import LoadedSettings, PolicyReloader, refuse_without_staging, runtime_config
from burstd.daemon.standby import Standby
from burstd.db import Store
from burstd.db.leadership import Leadership
from burstd.db.record_mark import RecordMark
from burstd.domain.cloud.offer import Pool
from burstd.domain.plugins.provider import Provider
from burstd.domain.plugins.validator import NodeValidator
from burstd.metrics.counters import Counters
from burstd.metrics.provider_calls import count_calls
from burstd.metrics.service import MetricsService
from burstd.mounts.service import MountContext, MountService
from burstd.mounts.streams import MountStreams
from burstd.mounts.unstarted import BatchScripts, UnstartedJobs
from burstd.node.ssh.process import SshProcess
from burstd.node.storage_node import StorageNodeValidator
from burstd.node.validator import SlurmNodeValidator
from burstd.notify.service import NotificationService
from burstd.reconciler.context import LoopContext
from burstd.reconciler.executor import MACHINES
from burstd.reconciler.pollers.job_comments import JobCommentWriter
from burstd.reconciler.pollers.job_use import JobUsePoller
from burstd.reconciler.pollers.projects import ProjectSync
from burstd.reconciler.pollers.provider_checks import ProviderChecks
from burstd.reconciler.pollers.wake_sources import WakeSources
from burstd.reconciler.quarantine import Quarantine
from burstd.reconciler.reconciler import Reconciler
from burstd.runtime import logs, sockets
from burstd.runtime.claim_ids import ClaimIds
from burstd.runtime.clock import CLOCK_KEY, CLOCK_TRUSTED_KEY, ClockCheckpoint, SteadyClock, resumed_time
from burstd.runtime.systemd import Notifier
from burstd.runtime.wake import Wake
from burstd.runtime.workers import ThreadWorkers
from burstd.settings import Settings
from burstd.settings.mounts import MountSettings
from burstd.slurm.commands.accounting import read_accounted_jobs
from burstd.slurm.commands.controller import read_slurmctld_start
from burstd.slurm.commands.job_facts import read_job_facts, read_job_parts
from burstd.slurm.commands.job_summaries import JobSummaries
from burstd.slurm.commands.run import SlurmCommands, run_locally
from burstd.slurm.config.check import mount_faults, read_running_slurm
from burstd.slurm.config.render import SlurmConfOptions
from burstd.slurm.projects import SlurmProjects
from burstd.web.app import install_pages
from burstd.web.proxy import proxy_server

if TYPE_CHECKING:
    from burstd.staging.controller.service import StagingService

log = structlog.get_logger(__name__)

VERSION = version("burstd")
_GC_THRESHOLD = 100_000
"""So many objects more than at the last search for garbage are no sign of any."""


def run_daemon(loaded: LoadedSettings) -> None:
    """Runs the daemon until a signal ends it. Raises BurstdError where it cannot start."""
    daemon = loaded.settings.daemon
    logs.set_up(daemon.log_format, daemon.log_level)
    with ExitStack() as stack:
        lock = sockets.single_instance(daemon.state_dir)
        stack.callback(lock.release)
        notifier = Notifier()
        stack.callback(notifier.close)
        leadership = control = None
        if daemon.standby:
            leadership = Leadership.open(loaded.settings.database, loaded.settings.cluster, socket.gethostname())
            stack.callback(leadership.close)
            control = sockets.listen(daemon.runtime_dir / "control.sock")
            to_lead = Standby(loaded, VERSION, leadership, notifier).wait(control)
            if to_lead is None:
                return
            loaded = to_lead
        with notifier.patience():
            components = assemble(loaded, stack, leadership)
        _run(loaded, stack, components, notifier, leadership, control)


def assemble(loaded: LoadedSettings, stack: ExitStack, leadership: Leadership | None = None) -> DaemonComponents:
    """All parts of the daemon but its control interface and its loop; nothing is asked of Slurm or a cloud yet.

    ``leadership``: this head's, where it waited for it. Raises BurstdError where it cannot start.
    """
    settings = loaded.settings
    clock = SteadyClock()
    if leadership is None:
        leadership = lead(settings, hashlib.sha256(loaded.path.read_bytes()).hexdigest(), VERSION, stack)
    store = Store.open(settings.database, clock, leadership)
    stack.callback(store.close)
    store.idle_mode = settings.bill.idle
    refuse_without_staging(settings, store)
    record_mark = RecordMark(settings.kept_dir / "record.mark", store)
    set_clock(clock, store)
    if doubt := record_mark.doubt_record():
        log.error("the record is in doubt", why=doubt)
    wake = Wake()
    counters = Counters()
    run = run_locally if leadership is None else guard_commands(run_locally, leadership.sure)
    slurm_commands = partial(make.commands, settings, counters.timed(run))
    scheduler = make.scheduler(settings, clock, slurm_commands())
    providers: dict[str, Provider] = {}
    for name, chosen in loaded.resolved.providers.items():
        providers[name] = chosen.plugin.make(name, settings.cluster, chosen.settings)
        stack.callback(providers[name].close)
        if leadership is not None:
            guard_provider(name, providers[name], leadership.sure)
        count_calls(name, providers[name], counters.add_request)
    workers = ThreadWorkers(wake, settings.daemon.workers, widths={MACHINES: settings.daemon.machine_workers})
    stack.callback(workers.close)
    wake_sources = WakeSources(settings, slurm_commands(), clock, wake)
    ssh_process = SshProcess()
    stack.callback(ssh_process.close)
    validator = make.node_validator(settings, scheduler, clock, providers, store, ssh_process)
    mounts = _mount_service(
        loaded, stack, store, workers, clock, wake_sources, validator, lambda: reconciler.config.pools, slurm_commands()
    )
    staging = _staging_service(
        loaded,
        stack,
        store,
        workers,
        clock,
        wake_sources,
        validator,
        lambda: reconciler.config.pools,
        mounts,
        providers,
        slurm_commands(),
        counters,
        leadership,
    )
    current, intervals = make.CurrentSettings(settings), make.poll_intervals(settings)
    claim_ids = ClaimIds(settings.ssh_key.read_bytes())
    context = LoopContext(
        cluster=settings.cluster,
        store=store,
        scheduler=scheduler,
        providers=providers,
        validator=_validator(validator, staging, settings),
        workers=workers,
        clock=clock,
        intervals=intervals,
        quarantine=Quarantine(clock),
        user_data=make.user_data(current),
        new_id=claim_ids.new_claim_id,
        is_authentic=claim_ids.is_authentic,
    )
    comments = JobCommentWriter(context) if settings.slurm.comments else None
    projects = ProjectSync(context, SlurmProjects(slurm_commands(), settings.projects_table))
    job_use = JobUsePoller(
        store,
        workers,
        clock,
        validator.connect,
        settings.sampler,
        JobSummaries(slurm_commands()),
        validator.connect_own,
    )
    reconciler = Reconciler(context, runtime_config(loaded), staging, comments, mounts, projects, job_use)
    return DaemonComponents(
        clock,
        store,
        wake,
        scheduler,
        providers,
        workers,
        reconciler,
        wake_sources,
        staging,
        mounts,
        job_use,
        projects,
        validator,
        current,
        intervals,
        record_mark,
        counters,
    )


def set_clock(clock: SteadyClock, store: Store) -> None:
    """Goes on from the time on record; where an administrator trusts the system's more, puts the record right by it."""
    checkpoint, last, wall = ClockCheckpoint.parse(store.metadata(CLOCK_KEY)), store.last_event_time(), clock.wall()
    counted = resumed_time(wall, clock.checkpoint(), checkpoint, last, has_live_claims=bool(store.claims()))
    if store.metadata(CLOCK_TRUSTED_KEY):
        with store.batch():
            if counted > wall:
                store.shift_late_times(wall, counted - wall)
            store.set_metadata(CLOCK_TRUSTED_KEY, "")
    else:
        clock.set_time(counted)
    store.set_metadata(CLOCK_KEY, str(clock.checkpoint()), logged=False)


def _staging_service(
    loaded: LoadedSettings,
    stack: ExitStack,
    store: Store,
    workers: ThreadWorkers,
    clock: SteadyClock,
    wake_sources: WakeSources,
    validator: SlurmNodeValidator,
    pools: Callable[[], Mapping[str, Pool]],
    mounts: MountService,
    providers: Mapping[str, Provider],
    slurm_commands: SlurmCommands,
    counters: Counters,
    leadership: Leadership | None,
) -> StagingService | None:
    """Staging, where the settings have it. Imported late: without it nothing of it is needed."""
    if not loaded.settings.staging.enabled:
        return None
    from burstd.node.agent import NodeAgent  # noqa: PLC0415
    from burstd.staging.controller.service import StagingContext, StagingService  # noqa: PLC0415

    settings = loaded.settings
    context = StagingContext(
        store,
        workers,
        clock,
        slurm_commands,
        NodeAgent(validator.connect),
        pools,
        lambda: wake_sources.slurm_uid,
        mounts.shows_path,
        providers,
        validator.connect,
        counters.add_mistake,
        leadership.sure if leadership is not None else None,
    )
    return StagingService(settings, loaded.resolved.stores[settings.staging.store], context, stack)


def _mount_service(
    loaded: LoadedSettings,
    stack: ExitStack,
    store: Store,
    workers: ThreadWorkers,
    clock: SteadyClock,
    wake_sources: WakeSources,
    validator: SlurmNodeValidator,
    pools: Callable[[], Mapping[str, Pool]],
    slurm_commands: SlurmCommands,
) -> MountService:
    """Mounts. Where the settings name no tree, those that stand are unmounted when their jobs are over."""
    settings = loaded.settings
    streams = MountStreams(
        folder=settings.mount_streams_dir,
        config=lambda: validator.config,
        connect=validator.connect,
        line_timeout_s=lambda: reloaded().line_timeout_s,
        sftp_server=lambda: reloaded().sftp_server,
        # Root starts workers itself; otherwise systemd does.
        socket_path=None if os.geteuid() == 0 else settings.mount_worker_socket,
    )
    scripts = BatchScripts(validator.connect, partial(read_job_facts, slurm_commands))

    def slurmctld_start() -> float:
        return read_slurmctld_start(slurm_commands) + clock.now() - clock.wall()

    def slurm_faults() -> list[str]:
        options = SlurmConfOptions(programs=str(settings.slurm.programs))
        return mount_faults(list(pools().values()), options, read_running_slurm(slurm_commands))

    unstarted = UnstartedJobs(workers, clock, slurmctld_start, scripts.have_begun)
    context = MountContext(streams, workers, clock, pools, lambda: wake_sources.slurm_uid, unstarted,
                           lambda: validator.config.ssh_port, slurm_faults, store.held_jobs("mounts"))  # fmt: skip
    service = MountService(settings, context, stack)

    def reloaded() -> MountSettings:
        return service.settings

    return service


def _validator(node_validator: SlurmNodeValidator, staging: StagingService | None, settings: Settings) -> NodeValidator:
    """One that knows storage nodes too, where there may be any."""
    if staging is None:
        return node_validator

    return StorageNodeValidator(node_validator, settings.storage_keys_dir, staging.storage_node_specs)


def _lead_a_standby(
    leadership: Leadership, settings: Settings, reloader: PolicyReloader, wake: Wake, stack: ExitStack
) -> HeadWatch:
    """Looks for the standby, and answers what Slurm asks there."""
    watch = HeadWatch(leadership, lambda: describe_head(leadership.host, VERSION, reloader.written))
    watch.start()
    stack.callback(watch.stop)
    calls = relayed_calls(settings, wake)
    calls.start()
    stack.callback(calls.stop)
    return watch


def _run(
    loaded: LoadedSettings,
    stack: ExitStack,
    components: DaemonComponents,
    notifier: Notifier,
    leadership: Leadership | None,
    control_socket: socket.socket | None,
) -> None:
    settings, reconciler = loaded.settings, components.reconciler
    started = components.clock.now()
    components.store.log_event("daemon", new="started", reason=f"burstd {VERSION} with {loaded.path}")

    def facts() -> DaemonInfo:
        return daemon_info((reconciler.alarm,) if reconciler.alarm else ())

    def daemon_info(of_loop: tuple[str, ...]) -> DaemonInfo:
        of_page = (page.alarm,) if page is not None and page.alarm else ()
        of_heads = heads.alarms if heads is not None else ()
        alarms = (*of_loop, *reloader.alarms, *metrics.alarms(), *of_page, *notifications.alarms(), *of_heads)
        return DaemonInfo(
            VERSION,
            settings.cluster,
            started,
            alarms,
            components.workers.calls_under_way(),
            str(loaded.path),
            {
                policy.name: policy.last_evaluation.took_s
                for policy in reloader.policies
                if policy.last_evaluation.evaluated_at
            },
            heads.standbys() if heads is not None else "",
        )

    reader = components.store.reader()
    stack.callback(reader.close)
    metrics = MetricsService(
        lambda: components.current_settings.settings.metrics,
        components.counters,
        reader,
        components.clock,
        lambda: reconciler.latest,
        reconciler.between_decisions,
        VERSION,
    )
    notifications = NotificationService(
        lambda: components.current_settings.settings.notify,
        settings.cluster,
        components.store,
        components.workers,
        components.clock,
        lambda: current_alarms(daemon_info(reconciler.alarms), reconciler.latest, components.clock.now(), admin=True),
        lambda: reconciler.latest,
    )
    checks = ProviderChecks(components.providers, components.workers)
    reloader = PolicyReloader(loaded, reconciler, components.store, components.reload)
    heads = _lead_a_standby(leadership, settings, reloader, components.wake, stack) if leadership is not None else None
    backend = Backend(
        reader=reader,
        clock=components.clock,
        daemon_info=facts,
        latest_loop=lambda: reconciler.latest,
        between_decisions=reconciler.between_decisions,
        wake=components.wake,
        wake_to_answer=components.wake.wake_to_answer,
        checks=checks,
        routes=reconciler.ingress,
        policies_view=reloader.policies_view,
        stage=components.staging,
        validator=components.node_validator,
        projects_in_force=lambda: reconciler.config.projects,
        project_sync=components.projects,
        test_notifications=notifications.test,
        collect_s=lambda: sampler.collect_s if (sampler := components.job_use.settings).enabled else None,
        site_costs=lambda: reconciler.config.tuning.site_costs,
    )
    run_stage_command = components.staging.execute_command if components.staging is not None else None
    command_handler = CommandHandler(
        components.store, reconciler, components.clock, reloader, components.node_validator, run_stage_command
    )
    runtime_dir = settings.daemon.runtime_dir
    control = ApiServer(
        create_api_app(backend, Authorizer(settings.daemon.admin_group), install_pages),
        control_socket or sockets.listen(runtime_dir / "control.sock"),
        sockets.listen_for_admins(runtime_dir / "admin.sock", settings.daemon.admin_group),
    )  # fmt: skip
    # What is answered tells of the page too.
    page = proxy_server(settings.web, backend)
    control.start()
    stack.callback(control.stop)
    if page is not None:
        page.start()
        stack.callback(page.stop)
    stack.callback(checks.close)
    commands = make.commands(settings)
    open_shell, read_facts = components.node_validator.connect, partial(read_job_facts, commands)
    job_connections = JobConnectionServer(
        runtime_dir / "jobs.sock",
        backend,
        Authorizer(settings.daemon.admin_group),
        {
            "port": PortService(backend, open_shell),
            "log": LogService(backend, open_shell, read_facts, components.mounts.shows_path),
            "shell": ShellService(backend, open_shell, read_facts),
            "wait": WaitService(backend, partial(read_job_parts, commands), partial(read_accounted_jobs, commands)),
        },
    )
    job_connections.start()
    stack.callback(job_connections.close)
    wake_sources = components.wake_sources
    wake_sources.start()
    stack.callback(wake_sources.stop)
    metrics.start()
    stack.callback(metrics.stop)

    def loop_ended(seconds: float) -> None:
        metrics.loop_ended(seconds)
        notifications.step()

    loop = DaemonLoop(components, backend, command_handler, notifier, loop_ended)
    loop.install_signal_handlers()
    # What is there by now stays. Each loop makes tens of thousands of objects, and each time the collector went through
    # the modules as well, for a third of the loop's time. What a decision leaves goes without it: it has no cycles.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    log.info("burstd runs", version=VERSION, cluster=settings.cluster, pools=sorted(loaded.pools))
    loop.run(reloader.reload)
    components.store.log_event("daemon", new="stopped", reason="asked to end; open nodes go on")
