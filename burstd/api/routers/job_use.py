"""What jobs used of their nodes: the last run's figures, advice, and a plot."""

from __future__ import annotations

from fastapi import APIRouter

from burstd.api.answers.base import money_view
from burstd.api.answers.job_use import GpuUseView, JobPlotView, JobUseView, NodeUseView, UseSeriesView
from burstd.api.answers.text import abbreviated_list, plural
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError, BackendDep, CallerDep
from burstd.api.job_use_plot import MAX_NODES, job_use_svg
from burstd.api.routers.jobs import annotated_queue, require_visible_job
from burstd.domain.job_use import GpuUse, JobUse, NodeUse, Series
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.job_history import requested_gpus
from burstd.planner.explain.use_advice import use_advice

router = APIRouter(prefix="/v1")


@router.get("/jobs/{job_id}/use")
def get_job_use(job_id: str, caller: CallerDep, backend: BackendDep, series: bool = False) -> JobUseView:
    """What the last run of a job used so far, also after it has left the queue; ``series``: with figures over time."""
    use = visible_job_use(job_id, caller, backend, series_nodes=None if series else 0)
    return job_use_view(use, backend.now(), series=series, job=annotated_queue(backend).find_job(job_id))


@router.get("/jobs/{job_id}/use/plot")
def get_job_plot(job_id: str, caller: CallerDep, backend: BackendDep) -> JobPlotView:
    """The same over time, as a picture."""
    use = visible_job_use(job_id, caller, backend, series_nodes=MAX_NODES)
    return JobPlotView(now=backend.now(), job=use.job, svg=job_use_svg(use))


def visible_job_use(job_id: str, caller: Caller, backend: Backend, *, series_nodes: int | None = 0) -> JobUse:
    """The last run of a job of the caller's; with series of so many nodes, None: of all. Raises ApiError."""
    owner = backend.reader.job_use_owner(job_id)
    if owner is not None and caller.can_see_user(owner):
        use = backend.reader.last_job_use(job_id, series_nodes=series_nodes)
        job = annotated_queue(backend).find_job(job_id)
        if use is not None and caller.can_see_user(use.user) and (job is None or use.is_of(job)):
            return use
    # The same refusals as for all that is said of a job.
    require_visible_job(job_id, caller, backend)
    raise ApiError(
        404,
        f"No figures of job {job_id}: it runs on no node of burstd's, has begun a moment ago or ended within a moment, "
        "or nodes do not measure (table [sampler] of burstd.toml; python3 in their image).",
    )


def job_use_view(use: JobUse, now: float, *, series: bool, job: Job | None = None) -> JobUseView:
    """A run in an answer; ``job``: as it stands in the queue."""
    return JobUseView.from_fields(
        use,
        now=now,
        nodes=[_node(node, series=series) for node in use.nodes],
        gpu_seconds=round(sum(gpu.seen_s for gpu in use.gpus), 1),
        gpu_idle_seconds=round(use.gpu_idle_s, 1),
        gpu_idle_cost=[money_view(amount, currency) for currency, amount in sorted(use.gpu_idle_cost().items())],
        advice=list(use_advice(use)),
        missing=_missing(use, job),
    )


def _missing(use: JobUse, job: Job | None) -> str:
    silent, cut = use.nodes_allocated - len(use.nodes), sum(node.cut for node in use.nodes)
    found = []
    if silent > 0:
        found.append(
            f"{silent} of its {use.nodes_allocated} nodes sent no figures" + (" so far" if use.ended is None else "")
        )
    if cut:
        whose = "its last figures" if use.nodes_allocated == 1 else f"the last figures of {plural(cut, 'node')}"
        found.append(f"{whose} are missing")
    if job is not None and job.restarts == use.restarts and use.nodes and not use.gpus and requested_gpus(job):
        where = abbreviated_list([node.node for node in use.nodes])
        found.append(f"its GPUs have no figures (nvidia-smi on {where} is missing or does not list them)")
    return ", and ".join(found)


def _node(node: NodeUse, *, series: bool) -> NodeUseView:
    return NodeUseView.from_fields(
        node,
        measured_s=round(node.measured_s, 1),
        cpus_mean=round(node.cpus_mean, 3),
        gpus=[_gpu(gpu, series=series) for gpu in node.gpus],
        cpu_series=_series(node.cpu_series) if series else None,
        memory_series=_series(node.memory_series) if series else None,
    )


def _gpu(gpu: GpuUse, *, series: bool) -> GpuUseView:
    return GpuUseView.from_fields(gpu, series=_series(gpu.series) if series else None)


def _series(series: Series | None) -> UseSeriesView | None:
    return None if series is None else UseSeriesView.from_fields(series, mean=list(series.mean), peak=list(series.peak))
