"""The engine of the providers' self-checks, ``burstctl provider check``: a table of questions, asked in its order.

Errors of all questions become findings here, an answer of a strange form included, and the next question is asked. The
caller bounds the time: it may stop after any finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from burstd.domain.errors import AuthFailed, CloudUnavailable, NotAllowed, ProviderError, RateLimited
from burstd.domain.plugins.provider import Finding
from providers.parsing import translate_malformed

_MAX_NAMES = 4
Context = TypeVar("Context")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's answer. ``ok`` None: it could not be told."""

    ok: bool | None
    text: str
    remedy: str = ""
    subject: str = ""
    """Where it is not the row's."""
    fatal: bool = False
    """Without it nothing else can be looked at."""


def good(text: str, subject: str = "") -> Verdict:
    """All is well."""
    return Verdict(True, text, "", subject)


def bad(text: str, remedy: str, subject: str = "", *, fatal: bool = False) -> Verdict:
    """Launching does not work, or not all of it."""
    return Verdict(False, text, remedy, subject, fatal)


def unclear(text: str, remedy: str = "", subject: str = "") -> Verdict:
    """It may work or not."""
    return Verdict(None, text, remedy, subject)


@dataclass(frozen=True, slots=True)
class Check(Generic[Context]):
    """A row: one question, or one for ``each`` name of several; ``{}`` in ``subject`` and ``remedy`` is the name.

    ``judge`` gets the context, and the name where there is ``each``. ``remedy``: for errors that the cloud's own
    remedies do not cover. ``required``: what all later rows take, so that an error here is fatal.
    """

    subject: str
    judge: Callable[..., Verdict | Iterable[Verdict] | None]
    remedy: str = ""
    each: Callable[[Context], Iterable[str]] | None = None
    required: str = ""


def run_checks(
    table: Sequence[Check[Context]], context: Context, for_error: Callable[[ProviderError, str], Verdict]
) -> Iterator[Finding]:
    """Yields the findings of all rows, up to a fatal one."""
    for row in table:
        for name in [None] if row.each is None else list(row.each(context)):
            for verdict in _judge(row, context, name, for_error):
                subject = verdict.subject or row.subject.replace("{}", name or "")
                yield Finding(subject, verdict.ok, verdict.text, verdict.remedy)
                if verdict.fatal:
                    yield Finding("all else", None, f"not looked at: it takes {row.required}")
                    return


def _judge(
    row: Check[Context], context: Context, name: str | None, for_error: Callable[[ProviderError, str], Verdict]
) -> Iterator[Verdict]:
    try:
        with translate_malformed():
            found = row.judge(context) if name is None else row.judge(context, name)
            yield from [found] if isinstance(found, Verdict) else found or ()
    except ProviderError as error:
        yield replace(for_error(error, row.remedy.replace("{}", name or "")), fatal=bool(row.required))


@dataclass(frozen=True, slots=True)
class ErrorRemedies:
    """What to do about errors that any call to a cloud can meet."""

    not_allowed: str
    auth_failed: str
    unavailable: str
    denied_is_fault: bool = True
    """False: another finding reports a missing right."""

    def verdict(self, error: ProviderError, otherwise: str) -> Verdict:
        """A missing right, rejected credentials, a cloud that does not answer; ``otherwise`` remedies the rest."""
        text = str(error)
        if isinstance(error, NotAllowed):
            return Verdict(False if self.denied_is_fault else None, text, self.not_allowed)
        if isinstance(error, AuthFailed):
            return bad(text, self.auth_failed)
        if isinstance(error, CloudUnavailable | RateLimited):
            return unclear(text, self.unavailable)
        return bad(text, otherwise)


def images_in_use(default: str, named: Iterable[str]) -> list[str]:
    """The provider's image and those that pools name, each once."""
    return list(dict.fromkeys(word for word in (default, *named) if word))


def image_key(default: str, word: str) -> str:
    """Where the settings name this image."""
    return "image of the provider's table" if word == default else "image in the pools' offers"


NO_IMAGE = bad("neither the provider nor a pool names one", "set image in the provider's table")


def judge_room(in_use: str, free: Any, limit: Any, needs: Mapping[str, Any], increase: str, taken: str = "") -> Verdict:
    """For how many of the machines that take least and most of a quota it has room. ``needs``: by kind of machine.

    ``increase``: remedy where the limit is too low for any machine, ``{}`` is what the largest needs; ``taken``: where
    all is in use.
    """
    if not needs:
        return good(in_use)
    smallest, largest = min(needs, key=lambda name: needs[name]), max(needs, key=lambda name: needs[name])
    least, most, free = needs[smallest], needs[largest], max(free, free * 0)
    if least == most:
        text = f"{in_use}, room for {int(free // least)} machines"
    else:
        text = f"{in_use}, room for {int(free // most)} {largest} or {int(free // least)} {smallest}"
    if limit < least:
        return bad(text, increase.replace("{}", str(most)))
    return unclear(f"{text}: all is taken now", taken) if free < least else good(text)


def first_few(names: Sequence[str]) -> str:
    """``a, b, c, d and 3 more``."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
