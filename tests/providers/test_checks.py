"""The engine of the self-checks: every question is asked, whatever comes of the others, up to a fatal verdict."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from burstd.domain.errors import AuthFailed, BadRequest, CloudUnavailable, NotAllowed, ProviderError
from burstd.domain.plugins.provider import Finding
from providers.checks import Check, ErrorRemedies, Verdict, bad, good, judge_room, run_checks, unclear

REMEDIES = ErrorRemedies("get the right", "log in", "wait")
NAMES = ("a", "b")


def findings(*table: Check[tuple[str, ...]]) -> list[Finding]:
    return list(run_checks(table, NAMES, REMEDIES.verdict))


def failing(error: Exception) -> Check[tuple[str, ...]]:
    def judge(_: tuple[str, ...]) -> Verdict:
        raise error

    return Check("thing", judge, "mend it")


@pytest.mark.parametrize(
    ("error", "ok", "text", "remedy"),
    [
        (NotAllowed("no"), False, "no", "get the right"),
        (AuthFailed("who?"), False, "who?", "log in"),
        (CloudUnavailable("slow"), None, "slow", "wait"),
        (BadRequest("strange"), False, "strange", "mend it"),
        (KeyError("x"), None, "another form", "wait"),
    ],
)
def test_an_error_is_a_finding_and_the_next_question_is_asked(
    error: Exception, ok: bool | None, text: str, remedy: str
) -> None:
    first, second = findings(failing(error), Check("other", lambda _: good("fine")))
    assert (first.subject, first.ok, text in first.text, first.remedy) == ("thing", ok, True, remedy)
    assert second == Finding("other", True, "fine")


def test_a_question_for_each_name_and_verdicts_on_other_subjects() -> None:
    def several(_: tuple[str, ...], name: str) -> Iterator[Verdict]:
        yield unclear(name)
        yield good(name, "other")
        raise ProviderError("broke")

    found = findings(Check("thing {}", several, "mend {}", lambda names: names), Check("none", lambda _: None))
    assert [(f.subject, f.ok, f.remedy) for f in found] == [
        ("thing a", None, ""), ("other", True, ""), ("thing a", False, "mend a"),
        ("thing b", None, ""), ("other", True, ""), ("thing b", False, "mend b"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "first",
    [
        Check("first", lambda _: bad("wrong", "mend", fatal=True), required="a token"),
        Check("first", failing(BadRequest("wrong")).judge, "mend", required="a token"),
    ],
)
def test_after_a_fatal_verdict_nothing_is_asked(first: Check[tuple[str, ...]]) -> None:
    found = findings(first, failing(AssertionError()))
    assert found == [
        Finding("first", False, "wrong", "mend"),
        Finding("all else", None, "not looked at: it takes a token"),
    ]


@pytest.mark.parametrize(
    ("limit", "used", "ok", "text"),
    [
        (10, 2, True, "room for 1 large or 4 small"), (10, 9, None, "all is taken now"), (1, 0, False, "0 small"),
        (8, 12, None, "room for 0 large or 0 small"),
    ],
)  # fmt: skip
def test_room(limit: int, used: int, ok: bool | None, text: str) -> None:
    verdict = judge_room("in use", limit - used, limit, {"large": 8, "small": 2}, "ask for {}", "wait")
    assert (verdict.ok, text in verdict.text) == (ok, True)
    assert verdict.remedy == {True: "", None: "wait", False: "ask for 8"}[ok]
