"""What a cloud says is read as its documents have it; what has another form is no answer, whoever reads it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import wraps
from traceback import extract_tb
from typing import Any, ParamSpec, TypeVar, cast

from burstd.domain.errors import CloudUnavailable

P = ParamSpec("P")
Result = TypeVar("Result")
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def malformed_as_unavailable(read: Callable[P, Result]) -> Callable[P, Result]:
    """For a provider's calls that read: CloudUnavailable where an answer has another form, at any depth.

    What is read page by page stays so. The message names the place in the code that could not read it.
    """

    @wraps(read)
    def checked(*args: P.args, **words: P.kwargs) -> Result:
        with translate_malformed():
            result = read(*args, **words)
        return cast("Result", _checked_items(result)) if isinstance(result, Iterator) else result

    return checked


def read_date(text: str) -> float:
    """A Date header in seconds since 1970. Raises ValueError or TypeError for anything else."""
    return parsedate_to_datetime(text).timestamp()


def _checked_items(items: Iterator[Any]) -> Generator[Any]:
    with translate_malformed():
        yield from items


@contextmanager
def translate_malformed() -> Iterator[None]:
    """Raises CloudUnavailable where what is read within has another form."""
    try:
        yield
    except _MALFORMED as error:
        place = extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {place.name}, line {place.lineno} of {place.filename.rpartition('/')[2]}"
        raise CloudUnavailable(f"the cloud's answer has another form than its documents say ({where})") from error
