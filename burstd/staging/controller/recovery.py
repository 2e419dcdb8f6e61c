"""A job that has run while the record does not know it: the record was lost, or is older than the world."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from burstd.db import Store
from burstd.db.record_mark import DOUBT_KEY
from burstd.domain.claim import ClaimState
from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging
from burstd.slurm.commands.job_facts import JobFacts

log = structlog.get_logger(__name__)

_NEXT = {S.HELD: S.WAITING, S.WAITING: S.STAGED, S.UPLOADING: S.STAGED, S.STAGED: S.FETCHING, S.FETCHING: S.FETCHED}
_MAY_EXIST = frozenset(ClaimState) - {
    ClaimState.FAILED, ClaimState.LOST, ClaimState.TERMINATING, ClaimState.GONE,
}  # fmt: skip


def record_unseen_run(store: Store, row: Staging, facts: JobFacts) -> Staging:
    """Brings the data of a job that has run into PLACED, on the nodes that Slurm names. Raises StoreError."""
    log.error("the record did not know that a job has run; its output is looked for", job=row.job_id, nodes=facts.nodes)
    reason = "Slurm asks for its output, and the record did not know that it has run"
    with store.batch():
        while after := _NEXT.get(row.state):
            row = store.transition_staging(
                row.job_id, row.state, after, reason, nodes=facts.nodes or row.nodes, error=""
            )
    return row


def missing_output_reason(store: Store, row: Staging, nodes: Collection[str], allocated_at: float) -> str:
    """Why output may lie where burstd cannot fetch it; empty: it is known what became of all of it.

    ``nodes``: those in the cloud of which nothing is fetched and whose machine cannot be asked; ``placed``: when the
    job got them. Raises StoreError.
    """
    give_up = f"'burstctl stage discard {row.name}' gives its output up"
    retry_hint = "slurmctld asks for it again when it is restarted"
    if not row.directives:
        problem = "its output is due, and its script cannot be read in Slurm's StateSaveLocation"
        return f"{problem}: put the script back, {retry_hint}. If it is gone for good, {give_up}"
    if not row.nodes:
        problem = "its output is due, and Slurm does not say on which nodes it ran"
        return f"{problem}: {retry_hint}. If Slurm has forgotten the job, {give_up}"
    unknown = []
    for node in sorted(nodes):
        claims_then = [
            claim
            for claim in store.find_claims(slot=node, since=allocated_at, limit=100)
            if claim.created <= allocated_at
        ]
        if not claims_then or any(claim.state in _MAY_EXIST for claim in claims_then):
            unknown.append(node)
    if not unknown:
        return ""
    where = f"its output is on {', '.join(unknown)}, whose machine burstd does not know or cannot reach"
    if store.metadata(DOUBT_KEY):
        return (
            f"{where} while the record is in doubt: the doubt ends once every machine is adopted, and the output is "
            "fetched then. An administrator ends the doubt at once with 'burstctl confirm record'. Only if the machine "
            f"is gone, {give_up}"
        )
    return f"{where}: it is fetched as soon as a cloud lists it and it answers. If it is gone for good, {give_up}"
