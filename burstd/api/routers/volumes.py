"""Volumes. Users see, and remove, their own."""

from __future__ import annotations

from fastapi import APIRouter

from burstd.api.answers.base import CommandResultView, money_view
from burstd.api.answers.volumes import UnknownDiskView, VolumeDetailView, VolumeListView, VolumeView
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError, BackendDep, CallerDep, command_answer
from burstd.api.routers.nodes import event_view
from burstd.db import volume_subject
from burstd.domain.cloud.volume import TAG_VOLUME_NAME, TAG_VOLUME_USER
from burstd.domain.command import RemoveVolume
from burstd.domain.volume import Volume

_HISTORY = 200

router = APIRouter(prefix="/v1/volumes")


@router.get("")
def get_volumes(caller: CallerDep, backend: BackendDep, *, user: str = "") -> VolumeListView:
    """All that are not gone, oldest first; of the caller, or, for administrators, of everybody."""
    if user and not caller.can_see_user(user):
        raise ApiError(403, f"You are {caller.user} and see your own volumes only.")
    only = user if caller.admin else caller.user
    live = backend.stage.volumes if backend.stage is not None else None
    errors = live.errors() if live is not None else {}
    unknown = live.unknown_disks() if live is not None and caller.admin and not user else ()
    return VolumeListView(
        now=backend.now(),
        on=live is not None and live.is_on,
        volumes=[
            _view(volume, backend, errors.get(volume.id, ""))
            for volume in backend.reader.volumes()
            if only in ("", volume.user)
        ],
        unknown=[
            UnknownDiskView.from_fields(
                disk, name=disk.tags.get(TAG_VOLUME_NAME, ""), user=disk.tags.get(TAG_VOLUME_USER, "")
            )
            for disk in unknown
        ],
    )


@router.get("/{name}")
def get_volume(name: str, caller: CallerDep, backend: BackendDep, *, user: str = "") -> VolumeDetailView:
    """One volume, with its history."""
    volume = _require_volume(name, user, caller, backend)
    live = backend.stage.volumes if backend.stage is not None else None
    past = backend.reader.events(subject=volume_subject(volume.id), newest=True, limit=_HISTORY)
    return VolumeDetailView(
        now=backend.now(),
        volume=_view(volume, backend, live.errors().get(volume.id, "") if live is not None else ""),
        history=[event_view(event) for event in reversed(past)],
    )


@router.post("/{name}/remove")
def post_remove(name: str, caller: CallerDep, backend: BackendDep, *, user: str = "") -> CommandResultView:
    """Ends it, with all that is on it."""
    volume = _require_volume(name, user, caller, backend)
    return command_answer(backend, RemoveVolume(volume.id, caller.actor))


def _require_volume(name: str, user: str, caller: Caller, backend: Backend) -> Volume:
    owner = user or caller.user
    if not caller.can_see_user(owner):
        raise ApiError(403, f"You are {caller.user}, and volumes of {owner} are not yours.")
    own = [volume for volume in backend.reader.volumes() if volume.user == owner]
    found = next((volume for volume in own if volume.name == name), None)
    if found is None:
        raise ApiError(404, f"{owner} has no volume {name}.", [volume.name for volume in own])
    return found


def _view(volume: Volume, backend: Backend, step_error: str) -> VolumeView:
    return VolumeView.from_fields(
        volume,
        price=money_view(volume.price, volume.currency),
        cost=money_view(volume.cost(backend.now()), volume.currency),
        step_error=step_error,
    )
