"""``burstctl notify test``."""

from __future__ import annotations

from fastapi import APIRouter

from burstd.api.answers.notify import NotifyTestView
from burstd.api.dependencies import AdminDep, BackendDep

router = APIRouter(prefix="/v1/notify")


@router.post("/test")
def post_notify_test(caller: AdminDep, backend: BackendDep) -> NotifyTestView:
    """Sends a test message by each way, and tells what came of it."""
    return NotifyTestView(ways=list(backend.test_notifications(caller.user)), now=backend.now())
