"""What a cloud says is read as its documents have it; what has another form is no answer, whoever reads it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from traceback import extract_tb
from typing import Any, ParamSpec, TypeVar, cast

from burstd.domain.errors import CloudUnavailable

P = ParamSpec("P")
Said = TypeVar("Said")
_OTHER_FORM = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def understood(read: Callable[P, Said]) -> Callable[P, Said]:
    """For a provider's calls that read: CloudUnavailable where an answer has another form, at any depth.

    What is read page by page stays so. The message names the place in the code that could not read it.
    """

    @wraps(read)
    def reads(*args: P.args, **words: P.kwargs) -> Said:
        with _in_form():
            said = read(*args, **words)
        return cast("Said", _each(said)) if isinstance(said, Iterator) else said

    return reads


def _each(said: Iterator[Any]) -> Generator[Any]:
    with _in_form():
        yield from said


@contextmanager
def _in_form() -> Iterator[None]:
    try:
        yield
    except _OTHER_FORM as error:
        place = extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {place.name}, line {place.lineno} of {place.filename.rpartition('/')[2]}"
        raise CloudUnavailable(f"the cloud's answer has another form than its documents say ({where})") from error
