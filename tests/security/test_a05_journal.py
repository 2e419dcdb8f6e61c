"""The journal in a job's folder, which its owner may have written, costs what its bounds say."""

from __future__ import annotations

import io
import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.staging.movement import output_journal
from burstd.staging.movement.output_journal import read, write
from tests.security.fuzz import fuzzed

_NAMES = st.text(st.characters(codec="utf-8", categories=None, exclude_characters="\0"), min_size=1, max_size=50)


@pytest.mark.parametrize("text", ["[]," * (8 << 20), "[" * (24 << 20), "9" * (24 << 20), "[[]]\n" * (4 << 20)])
def test_a_hostile_journal_takes_no_memory(text: str) -> None:
    file = io.StringIO(text)
    tracemalloc.start()
    try:
        assert read(file) == {}
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(output_journal, "MAX_NAMES", 10)
    write(out, {0: (False, (str(n) for n in itertools.count()))})
    assert out.getvalue().count("\n") == 10
    out.write(out.getvalue())
    assert len(read(io.StringIO(out.getvalue()))[0][1]) == 10
    monkeypatch.setattr(output_journal, "MAX_BYTES", 50)
    assert len(read(io.StringIO(out.getvalue()))[0][1]) == 3


@given(st.dictionaries(st.integers(0, 300), st.tuples(st.booleans(), st.lists(_NAMES, min_size=1, unique=True))))
def test_what_was_noted_is_read(lines: dict[int, tuple[bool, list[str]]]) -> None:
    out = io.StringIO()
    write(out, lines)
    assert {n: (single, list(names)) for n, (single, names) in read(io.StringIO(out.getvalue())).items()} == lines


@fuzzed
@given(st.lists(st.text(max_size=60) | st.sampled_from(['[1,true,"a"]', '[1,1,"a"]', '[true,true,"a"]', "{}"])))
def test_fuzz_journal(lines: list[str]) -> None:
    for number, (single, names) in read(io.StringIO("\n".join(lines))).items():
        assert type(number) is int
        assert type(single) is bool
        assert all(isinstance(name, str) for name in names)
