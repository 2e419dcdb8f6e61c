"""What every answer of the control interface shares.

The answers are stable under /v1: fields are added, never renamed or taken away. Times are UTC in ISO 8601; lengths of
time are in seconds (``..._s``); amounts of money are decimals written as text. Each answer has ``now``, burstd's own
time, against which ages are to be counted.
"""

from __future__ import annotations

import os
import pwd
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict

_MICRO = Decimal("0.000001")


def utc_time(seconds: float) -> datetime:
    """burstd's seconds since 1970 as a time, to a millisecond."""
    return datetime.fromtimestamp(round(seconds, 3), UTC)


def _time_of_number(value: object) -> object:
    # The daemon gives numbers, burstctl reads texts.
    return utc_time(value) if isinstance(value, float | int) else value


Time = Annotated[datetime, BeforeValidator(_time_of_number)]
"""Made of burstd's seconds since 1970."""
OptionalTime = Annotated[datetime | None, BeforeValidator(lambda value: _time_of_number(value) if value else None)]
"""The same; None where there is none (or 0)."""


class AnswerView(BaseModel):
    """Base of all answers. Who reads one ignores fields of a later version."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    @classmethod
    def from_fields(cls, source: object, /, **others: Any) -> Self:
        """The answer with the values that ``source`` has under the same names, and with ``others``."""
        names = (name for name in cls.model_fields if name not in others and hasattr(source, name))
        return cls(**{name: getattr(source, name) for name in names}, **others)


class Money(AnswerView):
    """An amount."""

    amount: Decimal
    currency: str


class ReachabilityView(AnswerView):
    """Whether something outside answers; if not, why, and when it was last known."""

    ok: bool
    error: str = ""
    last_known: OptionalTime = None


class CommandResultView(AnswerView):
    """What came of a command."""

    text: str
    changed: bool


class ErrorView(AnswerView):
    """What goes with a status of 400 and above: a sentence, and for what was not found the names that there are."""

    error: str
    known: list[str] = []


def money_view(amount: Decimal, currency: str) -> Money:
    """To a millionth."""
    return Money(amount=amount.quantize(_MICRO, ROUND_HALF_EVEN), currency=currency)


def sum_by_currency(amounts: Iterable[tuple[Decimal, str]]) -> list[Money]:
    """A sum a currency."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for amount, currency in amounts:
        sums[currency] += amount
    return [money_view(amount, currency) for currency, amount in sorted(sums.items())]


def current_user() -> str:
    """The name of the user that this process runs as; ``uid 1234`` where the system knows none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
