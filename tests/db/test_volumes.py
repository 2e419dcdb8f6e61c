"""Volumes on record: one of a name for each user, no move that is not in the table, and a bill that adds up."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from burstd.db import Cursor, IllegalTransition, StaleState, Store, UnknownVolume, VolumeExists, replay_volumes
from burstd.domain.billing.costs import MICRO
from burstd.domain.volume import VOLUME_TRANSITIONS, Volume, VolumeState

from .opening import open_store
from .samples import START, ManualClock

S = VolumeState
HOUR = 3600.0
PLANNED = Volume("v1", "corpus", "ann", 1001, 1001, "physics", 100 << 30, S.PLANNED, START, START, "for job 7")


def created(
    store: Store, clock: ManualClock, volume: Volume = PLANNED, price: str = "0.5", currency: str = "EUR"
) -> Volume:
    """One that its cloud has made now."""
    store.make_volume(volume)
    store.transition_volume(volume.id, S.PLANNED, S.CREATING, "its job has a machine", called=clock.time)
    return store.transition_volume(
        volume.id, S.CREATING, S.AVAILABLE, "listed", disk_id="d-1", provider="north", zone="a", price=Decimal(price),
        currency=currency, billed_from=clock.time,
    )  # fmt: skip


def test_each_user_has_one_of_a_name(place: str) -> None:
    with open_store(place, ManualClock()) as store:
        store.make_volume(PLANNED)
        with pytest.raises(VolumeExists):
            store.make_volume(replace(PLANNED, id="v2"))
        other = store.make_volume(replace(PLANNED, id="v3", user="bob", uid=1002))
        store.transition_volume("v1", S.PLANNED, S.GONE, "its job is gone")
        again = store.make_volume(replace(PLANNED, id="v4", created=START + 1))
        assert store.volumes() == (other, again)
        assert [volume.id for volume in store.volumes(gone=True)] == ["v1", "v3", "v4"]


def test_only_moves_of_the_table_are_taken_and_the_log_replays_to_the_rows(place: str) -> None:
    clock = ManualClock()
    with open_store(place, clock) as store:
        volume = created(store, clock)
        for new in S:
            if new not in VOLUME_TRANSITIONS[S.AVAILABLE]:
                with pytest.raises(IllegalTransition):
                    store.transition_volume("v1", S.AVAILABLE, new, "no")
        with pytest.raises(StaleState):
            store.transition_volume("v1", S.CREATING, S.AVAILABLE, "late")
        with pytest.raises(UnknownVolume):
            store.update_volume("v9", error="x")
        assert store.update_volume("v1", "burstd made a file system", formatted=True) == replace(volume, formatted=True)
        assert replay_volumes(store.events()) == {v.id: v for v in store.volumes(gone=True)}


def test_what_is_settled_hour_by_hour_is_what_the_bill_says_at_the_end(place: str) -> None:
    """An uneven price and uneven times: no millionth is lost or doubled, across the end of a month too."""
    clock = ManualClock()
    with open_store(place, clock) as store:
        created(store, clock, price="0.0001370137")
        for hours in range(40):
            clock.time = START + hours * 61234.567
            store.update_volume("v1", settled_until=clock.time)
        store.transition_volume("v1", S.AVAILABLE, S.REMOVING, "ann gave it up")
        clock.time += 17.25
        store.transition_volume("v1", S.REMOVING, S.GONE, "not listed any more")
        spent = [one for one in store.spending() if one.kind == "user"]
        assert len(spent) == 2, "two months"
        [line] = store.bill("user", 0.0, clock.time)
        assert (line.key, line.volumes, line.claims) == ("ann", True, 1)
        # A month's end rounds once more than a window does.
        assert abs(sum(one.amount for one in spent) - line.cost) <= Decimal("0.000001")
        assert {(one.kind, one.name) for one in store.spending()} == {
            ("", ""), ("project", "physics"), ("user", "ann"),
        }  # fmt: skip
        for group, key in (("account", "physics"), ("provider", "north"), ("job", ""), ("pool", ""), ("claim", "")):
            assert [(one.key, one.cost) for one in store.bill(group, 0.0, clock.time)] == [(key, line.cost)]  # type: ignore[arg-type]
        days, end = store.charge_page(0.0, clock.time, Cursor(clock.time), 10_000)
        assert end is None
        assert sum(one.charge.amount for one in days) * MICRO == line.cost
        assert len({one.charge.day for one in days}) == len(days) == 40 * 61234 // 86400 + 1


def test_a_purge_forgets_what_is_gone_only(place: str) -> None:
    clock = ManualClock()
    with open_store(place, clock) as store:
        created(store, clock)
        store.make_volume(replace(PLANNED, id="v2", name="other"))
        store.transition_volume("v2", S.PLANNED, S.GONE, "its job is gone")
        clock.time += 1e8
        store.purge(clock.time)
        assert [volume.id for volume in store.volumes(gone=True)] == ["v1"]
        assert set(replay_volumes(store.events())) == {"v1"}
