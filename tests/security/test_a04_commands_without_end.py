"""Users who ask burstd again as soon as they are answered: the deciding thread goes on with its work all the same."""

from __future__ import annotations

from typing import Any, cast

import pytest

from burstd.api import backend as backend_
from burstd.api.backend import ANSWERING_S, Backend
from burstd.domain.command import Command, CommandResult, WhatIf
from burstd.runtime.wake import Wake

MOST = 100


def make_backend(wake: Wake) -> Backend:
    nothing = cast("Any", None)
    return Backend(
        reader=nothing, clock=nothing, daemon_info=nothing, latest_loop=lambda: None, wake=wake,
        wake_to_answer=wake.wake_to_answer,
        checks=nothing, routes=nothing, policies_view=nothing, validator=nothing, projects_in_force=nothing,
        project_sync=nothing, test_notifications=nothing, collect_s=nothing,
    )  # fmt: skip


def test_who_asks_while_another_is_answered_waits_for_the_next_loop() -> None:
    backend = make_backend(Wake())
    done = 0

    def ask() -> None:
        backend.enqueue(WhatIf("7", "user:ada"))

    def answer(_command: Command) -> CommandResult:
        nonlocal done
        done += 1
        if done < MOST:
            ask()
        return CommandResult("")

    ask()
    ask()
    assert backend.answer_questions(answer, lambda: False) == 2
    assert backend.answer_questions(answer, lambda: False) == 2
    assert backend.run_queued(answer) == 0
    assert done == 4


def test_a_loop_that_is_due_waits_for_one_answer_and_none_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    wake = Wake()
    backend, now, due = make_backend(wake), 0.0, True
    monkeypatch.setattr(backend_, "monotonic", lambda: now)

    def answer(_command: Command) -> CommandResult:
        nonlocal now
        now += ANSWERING_S * 0.6
        if due:
            wake()
        return CommandResult("")

    answers = [backend.enqueue(WhatIf("7", "user:ada")) for _ in range(4)]
    assert backend.answer_questions(answer, wake.is_due) == 1
    due = False
    assert wake.wait(0.0)
    assert backend.answer_questions(answer, wake.is_due) == 2
    assert [one.done() for one in answers] == [True, True, True, False]
    assert wake._event.is_set(), "the rest follows at once"
    assert not wake.wait(0.0)
    assert backend.answer_questions(answer, wake.is_due) == 1
    assert not wake._event.is_set()
