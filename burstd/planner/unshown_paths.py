"""Pending jobs whose working directory or output lies in no tree that their nodes show: they would fail without a word.

slurmd starts a job in /tmp where its working directory is not there, and fails one whose output it cannot open.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable

from burstd.domain.cloud.offer import Pool
from burstd.domain.mounts import contains, public_trees, user_trees
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.planner.snapshot_view import SnapshotView
from burstd.planner.staging.input_deadlines import data_of_job

WARNING = "warn"
"""Verdict of a remark that stands beside the last word on a job."""
_SHOWN_CHARACTERS = 100


def path_warnings(view: SnapshotView, decided: Iterable[Remark]) -> tuple[Remark, ...]:
    """Warnings of jobs of which something was ``decided``. Jobs with data of their own are left out: it comes home."""
    rules, slurm = view.snapshot.mounts.rules, view.slurm
    if not rules or slurm is None:
        return ()
    showing = [pool for pool in view.snapshot.pools.values() if any(rule.is_shown_in(pool.name) for rule in rules)]
    subjects = {remark.subject for remark in decided}
    texts: dict[tuple[str, str, str, tuple[str, ...]], str] = {}
    found = []
    for job in slurm.jobs:
        subject = f"job:{job.id}"
        if job.state is not JobState.PENDING or not job.work_dir or subject not in subjects:
            continue
        key = (job.user, job.work_dir, job.output_dir, job.partitions)
        if key not in texts:
            texts[key] = _warning(job, [p for p in showing if not {*p.partitions}.isdisjoint(job.partitions)], view)
        if texts[key] and data_of_job(view.snapshot.data, job) is None:
            found.append(Remark("mounts", subject, WARNING, texts[key]))
    return tuple(found)


def _warning(job: Job, pools: Iterable[Pool], view: SnapshotView) -> str:
    for what, path in (("working directory", job.work_dir), ("directory of its output", job.output_dir)):
        without = [pool.name for pool in pools if path and not _is_shown(path, job.user, pool.name, view)]
        if without:
            names = f"pool{'s' if len(without) > 1 else ''} {', '.join(without)}"
            return f"{what} {_printable(path)} is not shown on nodes of {names}"
    return ""


def _is_shown(path: str, user: str, pool: str, view: SnapshotView) -> bool:
    rules, home = view.snapshot.mounts.rules, view.snapshot.mounts.homes.get(user, "")
    # Where the home is not known so far, the path may lie in it.
    if not home and any("{home}" in rule.path and rule.is_shown_in(pool) for rule in rules):
        return True
    trees = (*user_trees(rules, pool, user, home), *public_trees(rules, pool))
    return any(contains(tree.path, os.path.normpath(path)) for tree in trees)


def _printable(path: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in path)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
