"""Which jobs run on the site's own nodes, for their part of the bill, where the site has set what these cost.

Noticed at each look at the queue, written on changes only. The end of a run that slurmctld has forgotten (burstd was
down for longer than MinJobAge) is when burstd last saw it. A run keeps the prices that are on record. When the site
changes its prices, the record is read as at a start: a run without a price may get one, from its start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from decimal import Decimal

from burstd.domain.billing.site_cost import NodeGroup, SiteCosts
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import WHOLE, Payer
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.planner import isolation
from burstd.reconciler.context import LoopContext
from burstd.reconciler.pollers.claim_runs import NOTE_EVERY_S, ON_NODES, share_of_node
from burstd.slurm.hostlist import compress

_RunKey = tuple[str, int]
"""Job and its ``run_start``."""
_Runs = tuple[SiteRun, ...]
"""Of one job, by groups of nodes; none: it is on none of them."""
SEEN_KEY = "site runs seen"
"""Key under which the store keeps when they were last seen."""
_PRICE = Decimal("0.0000000001")


class SiteRunRecorder:
    """Used in the deciding thread only. Its methods raise StoreError."""

    def __init__(self, context: LoopContext, slots: Callable[[], AbstractSet[str]]) -> None:
        self._context, self._slots = context, slots
        self._costs = SiteCosts()
        self._groups: dict[str, NodeGroup | None] = {}
        """By node, of those that were looked up in this look; none is of nodes that burstd launches."""
        self._open: Mapping[_RunKey, _Runs] | None = None
        """None: what the last burstd wrote is not read yet."""
        self._over: dict[_RunKey, None] = {}
        """Runs that slurmctld has told the end of, and still knows."""
        self._last_read = self._noted = 0.0

    def record(self, slurm: SlurmView | Unavailable, costs: SiteCosts) -> None:
        """Writes down which runs have begun and ended since the last look."""
        if not isinstance(slurm, SlurmView) or slurm.read_at <= self._last_read:
            return
        if costs != self._costs:
            self._costs, self._open = costs, None
        if not costs.groups and self._open is not None and not self._open:
            return
        self._groups = {}
        before = self._restore(slurm) if self._open is None else self._open
        alive = (job for job in slurm.jobs if job.run_start and job.state in ON_NODES)
        running = {(job.id, job.run_start): self._known_or_new(job, before, slurm) for job in alive}
        if not costs.groups:
            running = {key: runs for key, runs in running.items() if runs}
        begun = [run for key in running.keys() - before.keys() for run in running[key]]
        over: dict[_RunKey, None] = {}
        ended: list[SiteRun] = []
        for job in slurm.ended_runs():
            if (key := (job.id, job.run_start)) not in self._over:
                runs = self._known_or_new(job, before, slurm)
                ended += (replace(run, ended=max(job.end, run.started)) for run in runs)
            over[key] = None
        for key in before.keys() - running.keys() - over.keys():
            ended += (replace(run, ended=max(run.started, self._last_read)) for run in before[key])
        if begun or ended:
            self._context.store.save_site_runs(begun, ended)
        # Kept in mind only once it is on record: a write that fails is tried again at the next look.
        self._open, self._over, self._last_read = running, over, slurm.read_at
        if any(running.values()) and slurm.read_at - self._noted >= NOTE_EVERY_S:
            self._context.store.set_metadata(SEEN_KEY, str(slurm.read_at), logged=False)
            self._noted = slurm.read_at

    def _restore(self, slurm: SlurmView) -> Mapping[_RunKey, _Runs]:
        store = self._context.store
        found: defaultdict[_RunKey, _Runs] = defaultdict(tuple)
        for run in store.open_site_runs():
            found[run.payer.job, run.run_start] += (run,)
        self._over = dict.fromkeys(store.charged_site_runs({job.id for job in slurm.ended_runs()}))
        seen = min(float(store.metadata(SEEN_KEY) or 0.0), slurm.read_at)
        self._last_read = max(self._last_read, seen)
        return found

    def _known_or_new(self, job: Job, before: Mapping[_RunKey, _Runs], slurm: SlurmView) -> _Runs:
        known = before.get((job.id, job.run_start))
        if known is None and self._costs.groups and job.run_start:
            with self._context.quarantine.contain_errors("runs on the site's nodes", isolation.job_subject(job.id)):
                return tuple(self._new(job, slurm))
        return known or ()

    def _new(self, job: Job, slurm: SlurmView) -> Iterable[SiteRun]:
        payer = Payer(job.id, job.user, job.account, ",".join(job.partitions))
        shares: dict[tuple[int, int, tuple[Gres, ...]] | None, int] = {}
        groups: dict[str, NodeGroup] = {}
        names: defaultdict[str, list[str]] = defaultdict(list)
        if unknown := [name for name in job.node_list if name not in self._groups]:
            # A machine may outlive its pool in the settings.
            launched = self._slots() | {claim.slot for claim in self._context.store.claims()}
            self._groups |= {name: None if name in launched else self._costs.group_of(name) for name in unknown}
        sums: defaultdict[str, list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
        for name in job.node_list:
            if (group := self._groups[name]) is None:
                continue
            node = slurm.nodes.get(name)
            shape = None if node is None else (node.cpus, node.memory_mib, node.gres)
            if shape not in shares:
                shares[shape] = share_of_node(job, node)
            gpus = 0 if node is None else sum(gres.count for gres in node.gres if gres.name == "gpu")
            groups[group.name] = group
            names[group.name].append(name)
            share, price = sums[group.name]
            hour = group.hour.of_node(gpus).full
            sums[group.name] = [share + shares[shape], price + shares[shape] * hour / WHOLE]
        for name, (share, price) in sums.items():
            currency = groups[name].hour.currency
            yield SiteRun(
                name, payer, job.run_start, job.start, int(share), price.quantize(_PRICE), currency,
                nodes=compress(names[name]),
            )  # fmt: skip
