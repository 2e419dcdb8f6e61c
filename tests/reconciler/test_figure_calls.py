"""Which machine is asked first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from burstd.reconciler.pollers.figure_calls import FigureCalls, Rank

ALL = tuple(Rank)
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([*Rank, None]), st.integers(0, 9)), max_size=20)


@given(steps=STEPS, now=st.integers(0, 9))
def test_calls_come_by_rank_and_then_by_when_they_were_due(steps: list[tuple[str, Rank | None, int]], now: int) -> None:
    """What was put last for a machine counts."""
    calls, kept = FigureCalls(), dict[str, tuple[Rank, float]]()
    for machine, rank, due in steps:
        if rank is None:
            calls.drop(machine)
            kept.pop(machine, None)
        else:
            calls.put(machine, rank, due)
            kept[machine] = rank, due
    for rank in Rank:
        assert calls.next_due([rank]) == min((due for one, due in kept.values() if one is rank), default=float("inf"))
    found = []
    while (call := calls.pop(ALL, now)) is not None:
        found.append((call[1], kept[call[0]][1], call[0]))
    assert [one[:2] for one in found] == sorted(one for one in kept.values() if one[1] <= now)
    assert {name for _, _, name in found} == {name for name, one in kept.items() if one[1] <= now}
    assert calls.pop(ALL, now) is None
