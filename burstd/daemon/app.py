"""The one place where everything is put together."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import structlog

from burstd.api.auth import Rights
from burstd.api.backend import Facts
from burstd.api.port_forward import ForwardServer
from burstd.api.server import ControlServer
from burstd.daemon import components as make
from burstd.daemon.command_queue import DaemonOffice
from burstd.daemon.loop import Loop
from burstd.daemon.policy_reloader import PolicyDesk
from burstd.daemon.settings_in_force import Ready, refuse_without_staging, rules
from burstd.db import Store
from burstd.db.record_mark import RecordMark
from burstd.domain.cloud.offer import Pool
from burstd.domain.plugins.provider import Provider
from burstd.domain.plugins.scheduler import Scheduler
from burstd.domain.plugins.validator import Prover
from burstd.domain.snapshot import SlurmView
from burstd.node.storage_node import StorageProver
from burstd.node.validator import NodeProver
from burstd.reconciler.commands import Commands
from burstd.reconciler.machines.claim_ids import ClaimIds
from burstd.reconciler.observer import Pace
from burstd.reconciler.pollers.ingress import RouteDesk
from burstd.reconciler.pollers.job_comments import Comments
from burstd.reconciler.pollers.provider_checks import ProviderChecks
from burstd.reconciler.pollers.wake_sources import Hints
from burstd.reconciler.quarantine import Holds
from burstd.reconciler.reconciler import Reconciler
from burstd.runtime import logs, sockets
from burstd.runtime.clock import CLOCK, CLOCK_TRUSTED, ClockMark, SteadyClock, resumed
from burstd.runtime.systemd import Notifier
from burstd.runtime.wake import Wake
from burstd.runtime.workers import ThreadWorkers
from burstd.settings import Settings

if TYPE_CHECKING:
    from burstd.staging.controller.service import StageRoom

log = structlog.get_logger(__name__)

VERSION = version("burstd")
DAY_S = 86400.0


def pace(settings: Settings) -> Pace:
    """How often things are looked at."""
    daemon = settings.daemon
    return Pace(tick_s=daemon.tick_s, poll_s=daemon.poll_s, cloud_poll_s=daemon.cloud_poll_s)


def run(ready: Ready) -> None:
    """Runs the daemon until a signal ends it. Raises BurstdError where it cannot start."""
    settings = ready.settings
    logs.set_up(settings.daemon.log_format, settings.daemon.log_level)
    with ExitStack() as stack:
        _run(ready, stack, assemble(ready, stack))


def assemble(ready: Ready, stack: ExitStack) -> Parts:
    """All parts of the daemon but its control interface and its loop; nothing is asked of Slurm or a cloud yet.

    Raises BurstdError where it cannot start.
    """
    settings = ready.settings
    lock = sockets.single_instance(settings.daemon.state_dir)
    stack.callback(lock.release)
    clock = SteadyClock()
    store = Store.open(settings.database, clock)
    stack.callback(store.close)
    refuse_without_staging(settings, store)
    mark = RecordMark(settings.daemon.state_dir / "record.mark", store)
    set_clock(clock, store)
    if doubt := mark.compare():
        log.error("the record is in doubt", why=doubt)
    wake = Wake()
    scheduler = make.scheduler(settings, clock)
    providers: dict[str, Provider] = {}
    for name, chosen in ready.resolved.providers.items():
        providers[name] = chosen.plugin.make(name, settings.cluster, chosen.settings)
        stack.callback(providers[name].close)
    workers = ThreadWorkers(wake, settings.daemon.workers)
    stack.callback(workers.close)
    hints = Hints(settings, make.commands(settings), clock, wake)
    prover = make.prover(settings, scheduler, clock, providers)
    room = _staging(ready, stack, store, workers, clock, hints, prover, lambda: reconciler.rules.pools)
    in_force, looks = make.InForce(settings), pace(settings)
    holds = Holds(clock)
    claim_ids = ClaimIds(settings.ssh_key.read_bytes())
    reconciler = Reconciler(
        cluster=settings.cluster, rules=rules(ready), pace=looks, store=store, scheduler=scheduler,
        providers=providers, prover=_prover(prover, room, settings), workers=workers, clock=clock,
        user_data=make.user_data(in_force), new_id=claim_ids.new, made_here=claim_ids.made_here, stage=room,
        comments=Comments(scheduler, workers, holds) if settings.slurm.comments else None,
        holds=holds,
    )  # fmt: skip
    return Parts(
        clock, store, wake, scheduler, providers, workers, reconciler, hints, room, prover, in_force, looks, mark
    )  # fmt: skip


def set_clock(clock: SteadyClock, store: Store) -> None:
    """Goes on from the time on record; where an administrator trusts the system's more, puts the record right by it."""
    mark, last, wall = ClockMark.parse(store.meta(CLOCK)), store.last_time(), clock.wall()
    counted = resumed(wall, clock.mark(), mark, last, owed=bool(store.claims()))
    if store.meta(CLOCK_TRUSTED):
        with store.batch():
            if counted > wall:
                store.set_back(wall, counted - wall)
            store.set_meta(CLOCK_TRUSTED, "")
    else:
        clock.go_on(counted)
    store.set_meta(CLOCK, str(clock.mark()))


def _staging(
    ready: Ready,
    stack: ExitStack,
    store: Store,
    workers: ThreadWorkers,
    clock: SteadyClock,
    hints: Hints,
    prover: NodeProver,
    pools: Callable[[], Mapping[str, Pool]],
) -> StageRoom | None:
    """Staging, where the settings have it. Imported late: without it nothing of it is needed."""
    if not ready.settings.staging.on:
        return None
    from burstd.node.agent import NodeAgent  # noqa: PLC0415
    from burstd.staging.controller.service import Around, StageRoom  # noqa: PLC0415

    settings = ready.settings
    around = Around(
        store, workers, clock, make.commands(settings), NodeAgent(prover.connect), pools, lambda: hints.slurm_uid
    )
    return StageRoom(settings, ready.resolved.stores[settings.staging.store], around, stack)


def _prover(nodes: NodeProver, room: StageRoom | None, settings: Settings) -> Prover:
    """One that knows storage nodes too, where there may be any."""
    if room is None:
        return nodes

    return StorageProver(nodes, settings.storage_folder, room.wishes)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the daemon consists of."""

    clock: SteadyClock
    store: Store
    wake: Wake
    scheduler: Scheduler
    providers: Mapping[str, Provider]
    workers: ThreadWorkers
    reconciler: Reconciler
    hints: Hints
    room: StageRoom | None
    nodes: NodeProver
    in_force: make.InForce
    pace: Pace
    mark: RecordMark

    def keep_s(self) -> float:
        """How long what is over stays on record."""
        return self.in_force.settings.daemon.retention_days * DAY_S

    def reload(self, settings: Settings) -> None:
        """Has all parts go by other settings, but for what waits for a restart and what the reconciler decides by."""
        self.in_force.settings = settings
        self.nodes.site = make.site(settings)
        fresh = pace(settings)
        self.pace.tick_s, self.pace.poll_s, self.pace.cloud_poll_s = fresh.tick_s, fresh.poll_s, fresh.cloud_poll_s
        if self.room is not None:
            self.room.reload(settings.staging)


def _run(ready: Ready, stack: ExitStack, parts: Parts) -> None:
    settings, reconciler = ready.settings, parts.reconciler
    started = parts.clock.now()
    parts.store.append("daemon", new="started", reason=f"burstd {VERSION} with {ready.path}")

    def slurm_version() -> str:
        slurm = reconciler.latest[0].slurm if reconciler.latest else None
        return slurm.version if isinstance(slurm, SlurmView) else ""

    def facts() -> Facts:
        alarms = (*((reconciler.alarm,) if reconciler.alarm else ()), *desk.alarms)
        return Facts(
            VERSION, settings.cluster, started, slurm_version(), alarms, parts.workers.under_way(), str(ready.path),
            {guard.name: guard.asked.took_s for guard in desk.guards if guard.asked.at},
        )  # fmt: skip

    reader = parts.store.reader()
    stack.callback(reader.close)
    checks = ProviderChecks(parts.providers, parts.workers)
    routes = RouteDesk(parts.providers, lambda: reconciler.latest)
    desk = PolicyDesk(ready, reconciler, parts.store, parts.reload)
    office = DaemonOffice(
        reader=reader, clock=parts.clock, facts=facts, latest=lambda: reconciler.latest, wake=parts.wake,
        checks=checks, routes=routes, policies=desk, stage=parts.room,
    )  # fmt: skip
    stage = parts.room.do if parts.room is not None else None
    commands = Commands(parts.store, reconciler, parts.clock, desk, stage)
    place = settings.daemon.runtime_dir
    control = ControlServer(
        office, settings.daemon.admin_group,
        sockets.listen(place / "control.sock"),
        sockets.listen_for_admins(place / "admin.sock", settings.daemon.admin_group),
    )  # fmt: skip
    control.start()
    stack.callback(control.stop)
    stack.callback(checks.close)
    _ways_to_jobs(settings, stack, office, parts.nodes, routes)
    hints = parts.hints
    hints.start()
    stack.callback(hints.stop)
    notifier = Notifier()
    stack.callback(notifier.close)
    loop = Loop(
        reconciler=reconciler, office=office, commands=commands, store=parts.store, clock=parts.clock,
        wake=parts.wake, hints=hints, notifier=notifier,
        keep_s=parts.keep_s, mark=parts.mark,
    )  # fmt: skip
    loop.on_signals()
    # What is there by now stays. Each loop makes tens of thousands of objects, and each time the collector went through
    # the modules as well, for a third of the loop's time.
    gc.collect()
    gc.freeze()
    log.info("burstd runs", version=VERSION, cluster=settings.cluster, pools=sorted(ready.pools))
    loop.run(desk.reload)
    parts.store.append("daemon", new="stopped", reason="asked to end; open nodes go on")


def _ways_to_jobs(
    settings: Settings, stack: ExitStack, office: DaemonOffice, nodes: NodeProver, routes: RouteDesk
) -> None:
    """What leads users to the ports of their jobs."""
    rights = Rights(settings.daemon.admin_group)
    forward = ForwardServer(settings.daemon.runtime_dir / "forward.sock", office, rights, nodes.connect)
    forward.start()
    stack.callback(forward.close)
    routes.start()
    stack.callback(routes.stop)
