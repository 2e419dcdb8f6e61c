"""The contract of a stager, as tests. Subclass StagerContract, give it a world to play in, run pytest.

    from burstd.testing.stager_contract import ConnectionContract, StagerContract
    from burstd.testing.store_world import ProxiedStoreWorld

    class TestMine(StagerContract, ConnectionContract):
        @pytest.fixture
        def world(self) -> Iterator[ProxiedStoreWorld]:
            ...

A world is a store that the tests have to themselves, on a real server. Where it is reached over TCP, subclass
ConnectionContract too. Needs pytest.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from burstd.domain.plugins.stager import (
    KEY_LENGTH,
    OBJECT_BYTES,
    InPlace,
    NoSuchObject,
    Stager,
    StoreBusy,
    StoredObject,
    StoreRefused,
)
from burstd.testing.store_world import (
    CLUSTER,
    OTHER_CLUSTER,
    FaultyProxy,
    ProxiedStoreWorld,
    StoreWorld,
    node_transport,
)
from burstd.transfer.content_store.manifest import object_key

_MANY = 1010
_MIB = 1 << 20
_REPEAT_S = 60.0


def empty_store(stager: Stager) -> None:
    """Leaves the store empty of a cluster's things."""
    stager.delete([o.key for o in stager.objects("")])
    stager.abort(list(stager.unfinished()))
    assert list(stager.objects("")) == []
    assert list(stager.unfinished()) == []


def _repeat_put(stager: Stager, key: str, body: bytes) -> None:
    """As burstd does where the store is busy: on a busy machine it answers late."""
    deadline = time.monotonic() + _REPEAT_S
    while True:
        try:
            return stager.put(key, body)
        except StoreBusy:
            if time.monotonic() > deadline:
                raise


def _keys(listed: Sequence[StoredObject]) -> list[str]:
    return sorted(o.key for o in listed)


class StagerContract:
    """What every stager must do on a store that does what it should."""

    @pytest.fixture
    def world(self) -> StoreWorld:
        """To be overridden."""
        raise NotImplementedError

    @pytest.fixture
    def stager(self, world: StoreWorld) -> Stager:
        """Ours."""
        return world.stager(CLUSTER)

    def test_what_is_put_is_got(self, stager: Stager) -> None:
        """From bytes and views of them, empty ones and the largest too; a second put replaces the first."""
        large = os.urandom(OBJECT_BYTES)
        bodies = {"in/ab/empty": b"", "in/ab/one": b"\0", "in/cd/large": large}
        for key, body in bodies.items():
            stager.put(key, memoryview(bytearray(body)))
            got = stager.get(key)
            assert hashlib.sha256(got).digest() == hashlib.sha256(body).digest()
            assert isinstance(got, bytes)
        assert stager.present([*bodies, "in/ab/none"]) == {key: len(body) for key, body in bodies.items()}
        stager.put("in/cd/large", b"another")
        assert stager.get("in/cd/large") == b"another"
        assert stager.present(["in/cd/large"]) == {"in/cd/large": 7}
        empty_store(stager)

    def test_one_that_is_larger_than_any_of_ours_is_not_read(self, stager: Stager) -> None:
        """A node's root may have put it where the store took it."""
        with suppress(StoreRefused):
            stager.put("in/ab/huge", bytes(OBJECT_BYTES + 1))
        with pytest.raises(StoreRefused if stager.present(["in/ab/huge"]) else NoSuchObject):
            stager.get("in/ab/huge")
        empty_store(stager)

    def test_what_is_not_there_is_told(self, stager: Stager) -> None:
        """As NoSuchObject, by a sentence; absent ones are no error where the question is which are there."""
        for call in (lambda: stager.get("in/no/ne"), lambda: stager.copy("in/no/ne", "in/so/me")):
            with pytest.raises(NoSuchObject, match="in/no/ne"):
                call()
        assert stager.present([]) == {}
        assert stager.present(["in/no/ne", "out/none"]) == {}
        assert list(stager.objects("in/no")) == []
        stager.delete([])
        stager.delete(["in/no/ne"])
        stager.delete(["in/no/ne", "out/none"])

    def test_keys_of_every_kind(self, stager: Stager) -> None:
        """All letters that may be, and the longest; no other, and nothing that leads out of the store."""
        good = ["ABCXYZabcxyz0189._-", "in/a.b_c-D/_e", "-", "k" * KEY_LENGTH, "out/1/" + "p/" * 90 + "q"]
        for key in good:
            stager.put(key, key.encode())
        assert _keys(list(stager.objects(""))) == sorted(good)
        assert {key: stager.get(key).decode() for key in good} == {key: key for key in good}
        bad = ["", "/a", "a/", "a//b", "../a", "in/../../a", "./a", ".tmp/a", "a b", "a\n", "é", "a?b", "k" * 201]
        for key in bad:
            for call in (lambda k: stager.put(k, b"x"), stager.get, lambda k: stager.present([k])):
                with pytest.raises(StoreRefused):
                    call(key)
            with pytest.raises(StoreRefused):
                stager.copy(good[0], key)
            with pytest.raises(StoreRefused):
                stager.delete([key])
        empty_store(stager)

    def test_many(self, stager: Stager) -> None:
        """More than a page of any server: listed by prefix, each once; looked up, removed together."""
        keys = [f"in/{n % 7:02}/{n:04}" for n in range(_MANY)]
        began = time.time()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: stager.put(key, key.encode()), keys))
        stager.put("in-not/00/0000", b"x")
        listed = list(stager.objects("in/"))
        assert _keys(listed) == sorted(keys)
        assert {o.size for o in listed} == {len(keys[0])}
        # Clocks of other machines may be a little off.
        assert all(began - 60 < o.modified < time.time() + 60 for o in listed)
        assert _keys(list(stager.objects("in/03/"))) == sorted(k for k in keys if k.startswith("in/03/"))
        assert _keys(list(stager.objects("in/03/00"))) == sorted(k for k in keys if k.startswith("in/03/00"))
        asked = [*keys[:1000], *(f"in/{n % 7:02}/none{n:04}" for n in range(500))]
        assert stager.present(asked) == dict.fromkeys(keys[:1000], len(keys[0]))
        # Few among many, far from each other.
        apart = [*keys[::40], *(f"in/{n % 7:02}/x{n}" for n in range(10))]
        assert stager.present(apart) == dict.fromkeys(keys[::40], len(keys[0]))
        stager.delete(keys)
        stager.delete(keys)
        assert _keys(list(stager.objects("in"))) == ["in-not/00/0000"]
        empty_store(stager)

    def test_a_copy_outlives_what_it_was_made_of(self, stager: Stager) -> None:
        """And may replace another, or be made twice."""
        stager.put("out/1/n/ab/x", b"body")
        stager.put("in/ab/x", b"old")
        for _ in range(2):
            stager.copy("out/1/n/ab/x", "in/ab/x")
        stager.put("out/1/n/ab/x", b"changed")
        assert stager.get("in/ab/x") == b"body"
        stager.delete(["out/1/n/ab/x"])
        assert _keys(list(stager.objects(""))) == ["in/ab/x"]
        assert stager.get("in/ab/x") == b"body"
        empty_store(stager)

    def test_several_at_once(self, stager: Stager) -> None:
        """Eight threads put, read and remove; of puts of the same key one wins, whole."""
        bodies = [bytes([n]) * (_MIB + n) for n in range(8)]

        def one(n: int) -> None:
            stager.put("in/sa/me", bodies[n])
            assert stager.get("in/sa/me") in bodies
            for turn in range(4):
                key = f"in/t{n}/{turn}"
                stager.put(key, bodies[n])
                assert stager.get(key) == bodies[n]
                assert stager.present([key, "in/sa/me"])[key] == len(bodies[n])
                stager.delete([key])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(8)))
        assert stager.get("in/sa/me") in bodies
        assert _keys(list(stager.objects(""))) == ["in/sa/me"]
        empty_store(stager)

    def test_what_never_ended_is_found_and_removed(self, world: StoreWorld, stager: Stager) -> None:
        """It is no object, and says of which key it would have been and since when."""
        began = time.time()
        if world.begin_put("in/ab/half"):
            (left,) = stager.unfinished()
            assert left.key == "in/ab/half"
            assert began - 60 < left.started < time.time() + 60
            assert stager.present(["in/ab/half"]) == {}
            assert list(world.stager(OTHER_CLUSTER).unfinished()) == []
            stager.abort([left])
            stager.abort([left])
        assert list(stager.unfinished()) == []
        assert list(stager.objects("")) == []

    def test_neighbours_are_not_touched(self, world: StoreWorld, stager: Stager) -> None:
        """Another cluster's objects in the same store."""
        theirs = world.stager(OTHER_CLUSTER)
        stager.put("in/ab/x", b"ours")
        theirs.put("in/ab/x", b"theirs")
        assert _keys(list(stager.objects(""))) == ["in/ab/x"]
        assert (stager.get("in/ab/x"), theirs.get("in/ab/x")) == (b"ours", b"theirs")
        empty_store(stager)
        assert theirs.get("in/ab/x") == b"theirs"
        empty_store(theirs)

    def test_a_node_gets_and_puts(self, stager: Stager) -> None:
        """With what ``reach`` and ``sign`` give, as burstd's agent does it."""
        body = os.urandom(3 * _MIB)
        made = memoryview(body)[: 2 * _MIB]
        key = object_key("out/7/n1", hashlib.sha256(made).hexdigest())
        stager.put("in/ab/x", body)
        stager.put("in/ab/empty", b"")
        with node_transport(stager) as agent:
            assert agent.get("in/ab/x") == body
            assert agent.get("in/ab/empty") == b""
            agent.put(key, made)
            assert dict(agent.present([key, "out/none"])) == {key: 2 * _MIB}
            with pytest.raises(NoSuchObject):
                agent.get("in/no/ne")
        assert stager.get(key) == made
        assert "key" not in repr(stager.node_access())
        empty_store(stager)

    def test_wrong_settings_are_refused(self, world: StoreWorld) -> None:
        """By a sentence without the secret; what was there is as it was."""
        for how, (stager, secret) in world.stagers_refused().items():
            calls = (
                lambda s: s.put("in/ab/x", b"x"),
                lambda s: s.get("in/ab/x"),
                lambda s: list(s.objects("in/")),
                lambda s: s.delete(["in/ab/x"]),
            )
            for call in calls:
                with pytest.raises(StoreRefused) as refusal:
                    call(stager)
                assert len(str(refusal.value)) > 20, how
                assert not secret or secret not in str(refusal.value), how
            stager.close()

    def test_room_and_what_lies_in_place(self, stager: Stager) -> None:
        """Bytes, or nothing where the store does not know; a path that no root covers is not in place."""
        free = stager.free_bytes()
        assert free is None or free > 0
        if isinstance(stager, InPlace):
            assert stager.in_place("/no/such/root/x") is None
            assert stager.in_place("relative") is None


class ConnectionContract:
    """What every stager must do where the line to its store breaks."""

    @pytest.fixture
    def world(self) -> ProxiedStoreWorld:
        """To be overridden."""
        raise NotImplementedError

    def test_a_put_that_breaks_leaves_nothing_of_it(self, world: ProxiedStoreWorld) -> None:
        """Neither a new object nor half of one that is to be replaced; it can be repeated."""
        direct = world.stager(CLUSTER)
        direct.put("in/ab/old", b"old")
        body = os.urandom(8 * _MIB)
        with FaultyProxy(world.address) as line:
            stager = world.stager_through(line)
            line.cut_after(3 * _MIB)
            for key in ("in/ab/new", "in/ab/old"):
                with pytest.raises(StoreBusy):
                    stager.put(key, body)
            assert direct.present(["in/ab/new", "in/ab/old"]) == {"in/ab/old": 3}
            assert direct.get("in/ab/old") == b"old"
            line.stop_cutting()
            for key in ("in/ab/new", "in/ab/old"):
                _repeat_put(stager, key, body)
                assert direct.get(key) == body
            stager.close()
        empty_store(direct)

    def test_a_store_that_is_gone_and_back(self, world: ProxiedStoreWorld) -> None:
        """Gone, also in the middle of a session: StoreBusy, in time, for each that asks. Back: it works again."""
        with FaultyProxy(world.address) as line:
            stager = world.stager_through(line)
            stager.put("in/ab/x", b"x")
            line.cut()
            calls = [
                lambda: stager.get("in/ab/x"),
                lambda: stager.put("in/ab/y", b"y"),
                lambda: stager.present(["in/ab/x"]),
                lambda: list(stager.objects("in/")),
                lambda: stager.delete(["in/ab/x"]),
                lambda: stager.copy("in/ab/x", "in/ab/z"),
            ]
            began = time.monotonic()
            with ThreadPoolExecutor(len(calls)) as pool:
                errors = [future.exception() for future in [pool.submit(call) for call in calls]]
            assert [type(e) for e in errors] == [StoreBusy] * len(calls), errors
            assert time.monotonic() - began < 3 * world.timeout_s
            line.accept_again()
            assert stager.get("in/ab/x") == b"x"
            stager.close()
        empty_store(world.stager(CLUSTER))

    def test_a_store_that_says_nothing(self, world: ProxiedStoreWorld) -> None:
        """Given up in time: a server that takes the connection and does not answer."""
        direct = world.stager(CLUSTER)
        with FaultyProxy(world.address) as line:
            stager = world.stager_through(line)
            line.go_silent()
            began = time.monotonic()
            with pytest.raises(StoreBusy):
                stager.put("in/ab/x", b"x")
            assert time.monotonic() - began < 3 * world.timeout_s
            line.cut()
            line.accept_again()
            stager.put("in/ab/x", b"x")
            stager.close()
        assert direct.get("in/ab/x") == b"x"
        empty_store(direct)
