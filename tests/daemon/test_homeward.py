"""Output at its destination, with a real hand: from a store, and of a job on premises."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from burstd.daemon.stage.user_hands import UserHands
from burstd.data.bringer import Bringer, Brought
from burstd.data.hands import Account, Hand, hand_of
from burstd.data.index import Index
from burstd.data.object_hands import object_hand
from burstd.data.sender import Owner, Sender
from burstd.model.data import Tree
from burstd.model.stager import StoreBusy
from tests.data.ground import USER, ground, own, root_only
from tests.data.memory import MemoryStager

pytestmark = root_only
NEW_YEAR = 1_700_000_000_123_456_789
LARGE = os.urandom(1 << 20) * 40


@contextmanager
def user(place: Path) -> Iterator[UserHands]:
    who = Account("someone", USER, USER, (USER,), str(place))
    with UserHands(who, hand_of(who), object_hand) as hands:
        yield hands


def bring(stager: MemoryStager, hand: Hand, tree: Tree, root: Path) -> dict[str, Brought]:
    told: list[Brought] = []
    Bringer(stager.get, "memory").bring(
        hand, tree, str(root), job="7", brought=told.append, cancelled=threading.Event()
    )
    return {b.path: b for b in told}


def unfinished(place: Path) -> list[Path]:
    return [*place.rglob(".burst-7-*")]


def test_a_file_is_left_only_where_it_is_the_same(tmp_path: Path) -> None:
    stager = MemoryStager()
    with ground() as place, user(place) as hands:
        (place / "from").mkdir()
        files = {"same": b"s" * 5000, "other": b"x" * 5000, "mode": b"m", "large": LARGE}
        for name, body in files.items():
            (place / "from" / name).write_bytes(body)
            os.utime(place / "from" / name, ns=(NEW_YEAR, NEW_YEAR))
        own(place)
        tree = Sender(Index(None), stager).send(hands.files, str(place / "from"), owner=Owner(USER))
        first = bring(stager, hands.files, tree, place / "to")
        assert not any(b.skipped for b in first.values())
        (place / "to/other").write_bytes(b"y" * 5000)
        os.utime(place / "to/other", ns=(NEW_YEAR, NEW_YEAR))
        (place / "to/mode").chmod(0o751)
        again = bring(stager, hands.files, tree, place / "to")
        assert not again["other"].skipped
        assert not again["mode"].skipped
        assert stat.S_IMODE((place / "to/mode").stat().st_mode) == stat.S_IMODE((place / "from/mode").stat().st_mode)
        for name, body in files.items():
            assert (place / "to" / name).read_bytes() == body
            assert again[name].digest in ("", hashlib.sha256(body).hexdigest())
            assert again[name].skipped == (name in ("same", "large") and bool(first[name].digest))


def test_nothing_unfinished_stays(tmp_path: Path) -> None:
    stager = MemoryStager()
    with ground() as place, user(place) as hands:
        (place / "from/sub").mkdir(parents=True)
        (place / "from/sub/a").write_bytes(b"a")
        (place / "from/b").write_bytes(LARGE)
        own(place)
        tree = Sender(Index(None), stager).send(hands.files, str(place / "from"), owner=Owner(USER))
        held = dict(stager.held)

        def away(key: str) -> bytes:
            if len(held[key]) > 1 << 20:
                raise StoreBusy("away")
            return held[key]

        for _ in range(2):
            with pytest.raises(StoreBusy):
                Bringer(away, "memory").bring(
                    hands.files, tree, str(place / "to"), job="7", cancelled=threading.Event()
                )
        assert not unfinished(place)
        # A try that was killed: in a directory of the tree, and in the root.
        hands.files.make(str(place / "to"), ["sub"])
        for _, fd in hands.files.create(str(place / "to"), ["sub/a", "b"], job="7"):
            os.close(fd)
        assert len(unfinished(place)) == 2
        bring(stager, hands.files, tree, place / "to")
        assert not unfinished(place)
