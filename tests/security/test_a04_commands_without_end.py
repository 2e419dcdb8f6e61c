"""Users who ask burstd again as soon as they are answered: the deciding thread goes on with its work all the same."""

from __future__ import annotations

from typing import Any, cast

from burstd.api.backend import Backend
from burstd.domain.command import Command, CommandResult, WhatIf

MOST = 100


def test_who_asks_while_another_is_answered_waits_for_the_next_loop() -> None:
    nothing = cast("Any", None)
    backend = Backend(
        reader=nothing, clock=nothing, daemon_info=nothing, latest_loop=lambda: None, wake=lambda: None,
        ask=lambda: None, checks=nothing, routes=nothing, policies_view=nothing, validator=nothing,
        projects_in_force=nothing, project_sync=nothing, test_notifications=nothing,
        collect_s=nothing,
    )  # fmt: skip
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
    assert backend.answer_questions(answer) == 2
    assert backend.answer_questions(answer) == 2
    assert backend.run_queued(answer) == 0
    assert done == 4
