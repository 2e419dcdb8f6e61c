"""Where a job's sources and destinations are, as absolute paths and URLs."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping

from burstd.domain.plugins.stager import InPlace, Stager
from burstd.domain.staging import Access, StageIn, Staging
from burstd.staging.directives.lexer import resolve_pattern
from burstd.transfer.privsep.client import Account
from burstd.transfer.trees.walk import is_pattern

DatasetSource = Callable[[str], str | None]
"""Takes ``NAME`` or ``NAME@VERSION``; None: there is no such dataset."""


def directive_variables(
    who: Account, job_id: str = "", queue_id: str = "", name: str = "", work_dir: str = ""
) -> dict[str, str]:
    """What the variables of a directive stand for, as far as is known."""
    array, _, task = queue_id.partition("_")
    known = {"j": job_id, "A": array, "a": task, "x": name, "d": work_dir}
    return {"HOME": who.home, "USER": who.user, "u": who.user} | {key: value for key, value in known.items() if value}


def input_location(stage_in: StageIn, known: Mapping[str, str], work_dir: str, datasets: DatasetSource) -> str | None:
    """The absolute source of an input, or its URL; None: something that it hangs on is not known yet.

    Raises ValueError with a sentence where there is no such dataset.
    """
    if stage_in.dataset:
        dataset_source = datasets(stage_in.dataset)
        if dataset_source is None:
            raise ValueError(
                f"there is no dataset {stage_in.dataset}; the administrator names them in burstd's settings"
            )
        return dataset_source
    return resolve_location(stage_in.source, known, work_dir)


def resolve_location(pattern: str, known: Mapping[str, str], work_dir: str) -> str | None:
    """The absolute path, or the URL, of a source or destination; None: something that it hangs on is not known yet."""
    found = resolve_pattern(pattern, known, work_dir)
    if found is None or "://" in found:
        return found
    # ``.`` and ``..`` are as good as any; a slash at the end says that a directory is meant, as "/." does.
    slash = "/" if found.endswith(("/", "/.")) else ""
    return posixpath.normpath(found) + slash if found.startswith("/") else None


def in_place_path(stager: Stager, stage_in: StageIn, origin: str) -> str | None:
    """The path by which nodes see an input as it is, so that it is not sent. What is copied or matched always is."""
    if not isinstance(stager, InPlace) or stage_in.access is Access.COPY or not origin.startswith("/"):
        return None
    return None if is_pattern(origin) else stager.in_place(origin)


def job_succeeded(job: Staging) -> bool:
    """Whether the job did what it was to do."""
    return job.job_state in ("COMPLETED", "COMPLETING", "STAGE_OUT") and job.exit_code in ("", "0:0")
