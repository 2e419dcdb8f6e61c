"""What a #BURST line costs grows with its length and no faster; lines, letters and complaints are bounded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.staging.directives.lexer import (
    DirectiveSyntaxError,
    has_wildcards,
    literal_text,
    quote_pattern,
    resolve_pattern,
    substitute_variables,
    tokenize,
)
from burstd.staging.directives.parser import MAX_FAULTS, MAX_LINE_CHARS, MAX_LINES, format_directives, parse_directives
from tests.security.fuzz import fuzzed

_CHARS = st.sampled_from("ab/*?[]!^-$%{}~'\"\\# \t\n=:@.,\x00\udcff")
_LINE = st.text(_CHARS, max_size=40)
_TO = " to /x\n"


def steps(work: Callable[[], object]) -> int:
    """Lines of Python that are run."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize(
    "script",
    [
        lambda n: "#BURST stage_in " + "[" * n,
        lambda n: "#BURST stage_in " + "[!" * n,
        lambda n: "#BURST stage_in " + "[]" * n,
        lambda n: "#BURST stage_in " + "[]]" * n + " as x",
        lambda n: "#BURST stage_in " + "'" * n,
        lambda n: "#BURST stage_in " + "$'" * n,
        lambda n: "#BURST stage_in " + "%j" * n,
        lambda n: "#BURST stage_in " + '"[' * n,
        lambda n: "".join(f"#BURST stage_in /x as a{i}\n" for i in range(n)),
        lambda n: "".join(f"#BURST stage_out a{i} to /x\n" for i in range(n)),
        lambda n: "#BURST stage_in x\n" * n,
        lambda n: "#BURST \\\n" * n,
        lambda n: "#BURST stage_in a\\\n" + "#BURST b\\\n" * n,
    ],
)
@pytest.mark.parametrize("submitted", [False, True])
def test_twice_the_length_is_twice_the_work(script: Callable[[int], str], submitted: bool) -> None:
    # A text that is made before is no part of it.
    small, large = "#!/bin/sh\n" + script(400), "#!/bin/sh\n" + script(1600)
    parse_directives("#BURST stage_in x\n")
    first = steps(lambda: parse_directives(small, submitted=submitted))
    assert steps(lambda: parse_directives(large, submitted=submitted)) < 6 * first


def test_a_script_has_so_many_lines() -> None:
    lines = "".join(f"#BURST stage_out a{i}{_TO}" for i in range(MAX_LINES))
    assert parse_directives(lines)[1] == ()
    [fault] = parse_directives(lines + "#BURST stage_out b" + _TO * 2)[1]
    assert fault.line == MAX_LINES + 1
    assert "at most 256 #BURST lines" in fault.problem
    directives, faults = parse_directives(lines + "#BURST stage_out b" + _TO, submitted=True)
    assert (len(directives.stage_out), faults) == (MAX_LINES + 1, ())


def test_a_line_has_so_many_letters_and_what_is_said_of_it_is_short() -> None:
    [fault] = parse_directives("#BURST stage_in " + "x" * MAX_LINE_CHARS)[1]
    assert fault.problem == "the line is too long"
    assert len(str(fault)) < 1000
    [fault] = parse_directives("#BURST stage_in a " + "x" * 10_000)[1]
    assert len(str(fault)) < 2000
    faults = parse_directives("#BURST nonsense\n" * 10_000)[1]
    assert len(faults) == MAX_FAULTS + 1
    assert faults[-1].problem == "not read: too many faults before it"


@fuzzed
@given(st.lists(_LINE | _LINE.map(lambda text: f"#BURST stage_in {text}") | _LINE.map(lambda t: f"#BURST {t}\\")))
def test_fuzz_directives(lines: list[str]) -> None:
    script = "\n".join(lines)
    directives, _ = parse_directives(script)
    again, faults = parse_directives(format_directives(directives))
    assert faults == ()
    assert [(i.source, i.name, i.access) for i in again.stage_in] == [
        (i.source, i.name, i.access) for i in directives.stage_in
    ]
    assert [(o.pattern, o.destination) for o in again.stage_out] == [
        (o.pattern, o.destination) for o in directives.stage_out
    ]


@fuzzed
@given(_LINE)
def test_fuzz_words(line: str) -> None:
    known = {"HOME": "/home/[a]", "USER": "a$b", **dict.fromkeys("Aadjux", "*")}
    try:
        patterns = [word.pattern for word in tokenize(line)]
    except DirectiveSyntaxError:
        return
    for pattern in patterns:
        [word] = tokenize(quote_pattern(pattern)) if pattern else [None]
        assert word is None or word.pattern == pattern
        literal_text(pattern)
        has_wildcards(pattern)
        filled = substitute_variables(pattern, {**known, "BURST_OUT": "/out"})
        assert filled is not None
        assert has_wildcards(filled) == has_wildcards(pattern), "a value adds no wildcard"
        resolve_pattern(pattern, known, "/scratch [dir]")
