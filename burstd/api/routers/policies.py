"""The routes of policies, for administrators: what there is, and what those on disk would decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fastapi import APIRouter

from burstd.api.answers.policies import PoliciesView, PolicyChangeKind, PolicyChangeView, PolicyTestView
from burstd.api.dependencies import AdminDep, ApiError, BackendDep
from burstd.domain.command import TryPolicies
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import NodeRelease, Remark, Want
from burstd.domain.snapshot import Snapshot

router = APIRouter(prefix="/v1/policies")


@router.get("")
def get_policies(caller: AdminDep, backend: BackendDep) -> PoliciesView:
    """All policies, those of the chain first."""
    del caller
    return backend.policies_view(backend.now())


@router.post("/test")
def post_policies_test(caller: AdminDep, backend: BackendDep) -> PolicyTestView:
    """Asks the policies as they are on disk, beside those in force; does nothing of what they say."""
    result = backend.command(TryPolicies(caller.actor))
    if result.policy_comparison is None:
        raise ApiError(409, result.text)
    return policy_test_view(*result.policy_comparison, backend.now())


def policy_test_view(snapshot: Snapshot, in_force: Plan, on_disk: Plan, now: float) -> PolicyTestView:
    """How the second plan differs from the first one."""
    slots = {claim.id: claim.slot for claim in snapshot.claims}
    return PolicyTestView(
        now=now,
        seen=snapshot.now,
        paused=snapshot.paused,
        failed=[f"policy {f.name}: {f.error}" for f in on_disk.target.failed_policies],
        failing=[f"policy {f.name}: {f.error}" for f in in_force.target.failed_policies],
        wants=len(on_disk.target.wants),
        releases=len(on_disk.target.releases),
        changes=[*_merge_alike(_want_changes(in_force, on_disk)), *_release_changes(in_force, on_disk, slots)],
    )


def _merge_alike(changes: Iterable[PolicyChangeView]) -> Iterator[PolicyChangeView]:
    """What is alike but for its nodes is one, as the tasks of an array are."""
    alike: dict[object, list[PolicyChangeView]] = {}
    for one in changes:
        key = one.change, one.pool, tuple(one.jobs), one.offer, one.offer_before, one.by, one.reason
        alike.setdefault(key, []).append(one)
    for some in alike.values():
        yield some[0].model_copy(update={
            "nodes": sum(one.nodes for one in some),
            "nodes_before": sum(one.nodes_before for one in some),
            "slots": [slot for one in some for slot in one.slots],
        })  # fmt: skip


def _want_changes(in_force: Plan, on_disk: Plan) -> Iterator[PolicyChangeView]:
    last_remarks = _last_remark_by_subject(on_disk.remarks)
    for want, other in _matching_wants(in_force.target.wants, on_disk.target.wants):
        if want is None or other is None:
            yield _want_change("comes" if want is None else "goes", want, other, last_remarks)
        elif (want.nodes, want.jobs, _first_offer(want)) != (other.nodes, other.jobs, _first_offer(other)):
            yield _want_change("changes", want, other, last_remarks)


def _matching_wants(before: Sequence[Want], after: Sequence[Want]) -> Iterator[tuple[Want | None, Want | None]]:
    """Each want with the one that takes its place: for the same jobs, or for some of them."""
    same: dict[object, list[int]] = {}
    of_job: dict[tuple[str, str], int] = {}
    for index, want in enumerate(after):
        same.setdefault(_want_key(want), []).append(index)
        of_job |= {(want.pool, job): index for job in want.jobs}
    left = dict.fromkeys(range(len(after)))
    gone: list[Want] = []
    for want in before:
        if indexes := same.get(_want_key(want)):
            index = indexes.pop(0)
            del left[index]
            yield want, after[index]
        else:
            gone.append(want)
    for want in gone:
        found = next((i for job in want.jobs if (i := of_job.get((want.pool, job), -1)) in left), None)
        if found is not None:
            del left[found]
        yield want, None if found is None else after[found]
    for index in left:
        yield None, after[index]


def _want_key(want: Want) -> object:
    return want.pool, want.cause, want.jobs, want.gang


def _first_offer(want: Want | None) -> str:
    return want.offers[0].id if want is not None and want.offers else ""


def _want_change(
    change: PolicyChangeKind, before: Want | None, after: Want | None, last_remarks: dict[str, Remark]
) -> PolicyChangeView:
    [either, *_] = [want for want in (after, before) if want is not None]
    lost = [job for want in (before, after) if want for job in want.jobs if after is None or job not in after.jobs]
    remark = next(
        (last_remarks[s] for s in (*(f"job:{job}" for job in lost), f"pool:{either.pool}") if s in last_remarks), None
    )
    deciding = remark if remark is not None and (after is None or lost) else None
    return PolicyChangeView(
        kind="want", change=change, pool=either.pool,
        nodes=after.nodes if after else 0, nodes_before=before.nodes if before else 0,
        offer=_first_offer(after), offer_before=_first_offer(before), jobs=list(either.jobs), slots=list(either.slots),
        by=deciding.by if deciding else "", reason=deciding.reason if deciding else either.reason,
    )  # fmt: skip


def _release_changes(in_force: Plan, on_disk: Plan, slots: dict[str, str]) -> Iterator[PolicyChangeView]:
    last_remarks = _last_remark_by_subject(on_disk.remarks)
    before = {release.claim_id: release for release in in_force.target.releases}
    after = {release.claim_id: release for release in on_disk.target.releases}
    for claim, release in before.items():
        if claim not in after:
            yield _release_change("goes", release, slots, last_remarks.get(f"claim:{claim}"))
    for claim, release in after.items():
        if claim not in before:
            yield _release_change("comes", release, slots, None)


def _release_change(
    change: PolicyChangeKind, release: NodeRelease, slots: dict[str, str], remark: Remark | None
) -> PolicyChangeView:
    return PolicyChangeView(
        kind="release", change=change, pool=release.pool, nodes=0, nodes_before=0, offer="", offer_before="", jobs=[],
        slots=[slots.get(release.claim_id, release.claim_id)],
        by=remark.by if remark else "", reason=remark.reason if remark else release.reason,
    )  # fmt: skip


def _last_remark_by_subject(remarks: Sequence[Remark]) -> dict[str, Remark]:
    """The last remark about each subject."""
    return {remark.subject: remark for remark in remarks}
