"""Host lists and array tasks, by table and by round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.slurm.hostlist import HostlistError, compress, expand, task_count, task_ids, task_limit


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("(null)", []),
        ("head", ["head"]),
        ("a,b", ["a", "b"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[01-3]", ["n01", "n02", "n03"]),
        ("a[1-2]b[1-2]", ["a1b1", "a1b2", "a2b1", "a2b2"]),
        ("r[1-2]n[01,3]-ib,x", ["r1n01-ib", "r1n3-ib", "r2n01-ib", "r2n3-ib", "x"]),
        ("n[0001-0002],n[3]", ["n0001", "n0002", "n3"]),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[1-2", "n1-2]", "n[a]", "n[3-1]", "n[1-3:2]", "n[[1]]", "n[]", "n[1-9999999]"])
def test_expand_refuses(text: str) -> None:
    with pytest.raises(HostlistError):
        expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n2", "n1", "n2"], "n[1-2]"),
        (["n9", "n10", "n11", "n08"], "n[08,9-11]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n1", "n2", "n01", "n02"], "n[1-2,01-02]"),
        (["r1n1", "r1n2", "r2n1", "head"], "head,r1n[1-2],r2n1"),
        (["n1-ib", "n2-ib"], "n1-ib,n2-ib"),
        (["n99", "n100", "n101"], "n[99-101]"),
        (["n099", "n100", "n101"], "n[099-101]"),
        (["n0", "n00", "n1"], "n[0-1,00]"),
        (["7", "8"], "[7-8]"),
        (["n" + "9" * 5000, "a1"], "a1,n" + "9" * 5000),
    ],
)
def test_compress(names: list[str], text: str) -> None:
    assert compress(names) == text


_names = st.from_regex(r"[a-z]{0,2}([a-z][0-9]{1,3}){0,2}(-ib)?", fullmatch=True).filter(bool)


@given(st.sets(_names | st.integers(0, 120).map(lambda i: f"gpu{i:02}") | st.integers(0, 20).map(lambda i: f"gpu{i}")))
def test_round_trip(names: set[str]) -> None:
    found = expand(compress(names))
    assert set(found) == names
    assert len(found) == len(names)


def test_five_thousand_names_are_one_range() -> None:
    assert compress([f"cl{i}" for i in range(1, 5001)]) == "cl[1-5000]"


@pytest.mark.parametrize(
    ("text", "ids", "limit"),
    [
        ("1-10:3,15%2", [1, 4, 7, 10, 15], 2),
        ("[1-3%1]", [1, 2, 3], 1),
        ("7", [7], 0),
        ("0-2,5-6", [0, 1, 2, 5, 6], 0),
        ("", [], 0),
    ],
)
def test_array_tasks(text: str, ids: list[int], limit: int) -> None:
    assert list(task_ids(text)) == ids
    assert task_count(text) == len(ids)
    assert task_limit(text) == limit


@pytest.mark.parametrize("text", ["1-", "a", "3-1", "1-5:0", "1...", "0-4000001"])
def test_array_tasks_refused(text: str) -> None:
    with pytest.raises(HostlistError):
        task_count(text)


def test_a_huge_array_is_counted_not_listed() -> None:
    assert task_count("0-4000000") == 4000001
