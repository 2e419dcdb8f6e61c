"""Slurm's programs run on the head of slurmctld, which need not lead: the standby passes on what they ask."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import structlog

from burstd.daemon import components as make
from burstd.db import StoreError
from burstd.db.relay import RelayedCalls, RelayToLeader
from burstd.reconciler.pollers.wake_sources import WakeSources
from burstd.runtime.clock import SteadyClock
from burstd.settings import Settings
from burstd.slurm.hooks.stage_client import DaemonUnavailable, exchange_call
from burstd.slurm.hooks.stage_server import (
    WAIT_S,
    StageCall,
    StageReply,
    StageServer,
    encode_stage_call,
    parse_stage_reply,
)

log = structlog.get_logger(__name__)

_SET_UP_EVERY_S = 1.0
_MARGIN_S = 5.0


def sockets_of_programs(settings: Settings) -> dict[str, Path]:
    """Where the programs speak to burstd that want an answer."""
    staging = {"stage": settings.stage_socket} if settings.staging.enabled else {}
    return {"prolog": settings.prolog_socket, **staging}


def relayed_calls(settings: Settings, wake: Callable[[], None]) -> RelayedCalls:
    """For a leader: what the standby passes on is asked at the leader's own sockets."""
    answers = {program: partial(_answer_of, str(path)) for program, path in sockets_of_programs(settings).items()}
    return RelayedCalls(settings.database, settings.cluster, wake, answers)


def _answer_of(path: str, line: bytes) -> bytes:
    try:
        return json.dumps(exchange_call(path, line, WAIT_S + _MARGIN_S)).encode()
    except DaemonUnavailable as error:
        raise OSError(str(error)) from error


class StandbyHooks:
    """The sockets of Slurm's programs at a standby, between ``start`` and ``close``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._ending = threading.Event()
        self._relay = RelayToLeader(settings.database, settings.cluster)
        self._sources = WakeSources(settings, make.commands(settings), SteadyClock(), self._relay.wake)
        self._servers = [
            StageServer(path, self._is_allowed, partial(self._pass_on, program))
            for program, path in sockets_of_programs(settings).items()
        ]

    def start(self) -> None:
        """Listens. Raises BurstdError."""
        self._stack.callback(self._relay.close)
        self._sources.start()
        self._stack.callback(self._sources.stop)
        for server in self._servers:
            server.start()
            self._stack.callback(server.close)
        threading.Thread(target=self._set_up, name="hooks", daemon=True).start()

    def close(self) -> None:
        """Leaves the sockets to who leads."""
        self._ending.set()
        self._stack.close()

    def _set_up(self) -> None:
        """Lets SlurmUser in, and watches Slurm's folder, as soon as slurmctld says who and where."""
        while not self._ending.wait(_SET_UP_EVERY_S):
            self._sources.set_up_missing()
            if (uid := self._sources.slurm_uid) is not None:
                for server in self._servers:
                    server.allow_connect(uid)

    def _is_allowed(self, uid: int) -> bool | None:
        slurm_uid = self._sources.slurm_uid
        if uid in (0, os.geteuid(), slurm_uid):
            return True
        return None if slurm_uid is None else False

    def _pass_on(self, program: str, call: StageCall) -> StageReply:
        """The leader's answer; where none leads, or it takes longer, the client asks again."""
        try:
            answer = self._relay.call(program, encode_stage_call(call), WAIT_S + 2 * _MARGIN_S)
            return StageReply("busy") if answer is None else parse_stage_reply(answer)
        except (StoreError, ValueError, KeyError, TypeError) as error:
            log.warning("a hook is not passed on to the leader; it comes again", hook=call.hook, error=str(error))
            return StageReply("busy")
