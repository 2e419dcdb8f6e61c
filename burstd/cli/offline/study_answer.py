"""What commands that replay a trace share: the answer or its faults, and files that it is written to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from burstd.cli.session import ApiClient, ExitCode

if TYPE_CHECKING:
    from burstd.simulate.study import PreparedStudy, Study

T = TypeVar("T")


def answer_study(burstctl: ApiClient, study: Study, replay: Callable[[PreparedStudy], T]) -> T:
    """What a replay comes to; ends the command where it is not possible."""
    from burstd.settings import SettingsError
    from burstd.simulate.buy_or_rent.prices import BuyOrRentError
    from burstd.simulate.policy_chains import PolicyChainError
    from burstd.simulate.run import ReplayError
    from burstd.simulate.study import prepare_study
    from burstd.simulate.traces.read import TraceError
    from burstd.simulate.traces.window import WindowError

    try:
        return replay(prepare_study(study))
    except (TraceError, SettingsError, PolicyChainError, WindowError, ReplayError, BuyOrRentError) as error:
        burstctl.fail(ExitCode.NEGATIVE, str(error))


def write_page(burstctl: ApiClient, path: Path, text: str) -> None:
    """Writes a page; ends the command where that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        burstctl.fail(ExitCode.NEGATIVE, f"{path} cannot be written: {error.strerror or error}")
