"""Servers of S3 that list in no order, with empty pages between: read to the end, or refused with what helps."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from burstd.domain.plugins.stager import StoreBusy
from burstd.transfer.privsep import descriptor_channel
from staging.objects import user_s3, user_store, user_worker
from staging.objects.listing import object_rows
from staging.objects.s3 import S3Settings, S3Stager
from staging.objects.user_worker import ObjectWorkerServer
from tests.doubles.lying_http import HttpLie, LyingServer, lying_server

_WHEN = "2020-01-01T00:00:00Z"
_ITEM = f"<Contents><Key>burstd/here/a</Key><Size>1</Size><LastModified>{_WHEN}</LastModified></Contents>"


class Shuffled:
    """A bucket that lists its keys as they come, a page with nothing after every other, and knows no start-after."""

    def __init__(self, keys: Sequence[str], page: int = 10) -> None:
        self.keys = keys
        self._page = page

    def __call__(self, path: str) -> HttpLie:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        if "list-type" not in asked:
            there = urlsplit(path).path.removeprefix("/mine/") in self.keys
            return HttpLie(200 if there else 404, {"ETag": '"t"', "Last-Modified": "Wed, 01 Jan 2020 00:00:00 GMT",
                                               "Content-Length": "1"}, [b"x"] if there else [])  # fmt: skip
        turn = int(asked.get("continuation-token", "0"))
        below = [key for key in self.keys if key.startswith(asked.get("prefix", ""))]
        part = [] if turn % 2 else below[turn // 2 * self._page :][: self._page]
        more = (turn // 2 + 1) * self._page < len(below)
        items = "".join(
            f"<Contents><Key>{quote(key)}</Key><Size>1</Size><LastModified>{_WHEN}</LastModified>"
            "<ETag>&quot;t&quot;</ETag></Contents>"
            for key in part
        )
        end = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{turn + 1}</NextContinuationToken>"
        return HttpLie(body=[f"<ListBucketResult>{items}{end if more else ''}</ListBucketResult>".encode()])


def mixed(keys: Sequence[str]) -> list[str]:
    return random.Random(7).sample(keys, len(keys))  # noqa: S311 - the same each time


@contextmanager
def site(server: LyingServer, folder: Path, bucket: str = "mine") -> Iterator[S3Stager]:
    (folder / "keys").write_text("A\nB\n")
    settings = S3Settings(bucket=bucket, endpoint=server.url, access_key_file=folder / "keys", addressing="path")
    store = S3Stager("s3", "here", settings)
    yield store
    store.close()


@pytest.mark.slow
def test_the_sites_store(tmp_path: Path) -> None:
    keys = [f"in/{n:02x}/{n:064x}" for n in range(100)]
    with (
        lying_server(Shuffled([f"burstd/here/{key}" for key in mixed(keys)])) as server,
        site(server, tmp_path) as store,
    ):
        assert sorted(stored.key for stored in store.objects("in/")) == keys
        wanted = [*keys[10:60], *(f"in/no/{n:064x}" for n in range(30))]
        assert store.present(wanted) == dict.fromkeys(keys[10:60], 1)


def test_a_directory_bucket_is_asked_for_each_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a list that is to start after a key."""
    with lying_server(Shuffled([])) as server, site(server, tmp_path, "mine--x-s3") as store:
        monkeypatch.setattr(store, "_size", {f"in/{n}": 1 for n in range(25)}.get)
        assert store.present([f"in/{n}" for n in range(50)]) == {f"in/{n}": 1 for n in range(25)}
        assert server.asked == []


@pytest.mark.slow
@pytest.mark.parametrize("token", ["", "<NextContinuationToken>t</NextContinuationToken>"])
@pytest.mark.parametrize("items", ["", _ITEM])
def test_a_list_without_an_end(tmp_path: Path, token: str, items: str) -> None:
    page = f"<ListBucketResult>{items}<IsTruncated>true</IsTruncated>{token}</ListBucketResult>".encode()
    with (
        lying_server(lambda _: HttpLie(body=[page])) as server,
        site(server, tmp_path) as store,
        pytest.raises(StoreBusy, match="without an end"),
    ):
        list(store.objects(""))


@pytest.mark.parametrize("marker", ["", "<NextKeyMarker>k</NextKeyMarker>"])
def test_a_list_of_uploads_without_an_end(tmp_path: Path, marker: str) -> None:
    page = f"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>{marker}</ListMultipartUploadsResult>".encode()
    with (
        lying_server(lambda _: HttpLie(body=[page])) as server,
        site(server, tmp_path) as store,
        pytest.raises(StoreBusy, match="without an end"),
    ):
        list(store.unfinished())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's, without his credentials."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[burst]\naws_access_key_id = A\naws_secret_access_key = B\n")
    return tmp_path


@contextmanager
def bucket(keys: Sequence[str], home: Path) -> Iterator[user_s3.UserS3Bucket]:
    with lying_server(Shuffled(keys)) as server:
        (home / ".aws/config").write_text(
            f"[profile burst]\nendpoint_url = {server.url}\nregion = x\ns3 =\n    addressing_style = path\n"
        )
        yield user_s3.prepare()("mine")


KEYS = sorted(f"data/{n % 7}/{n % 5}.d/{n:03}" for n in range(100))


@pytest.mark.slow
def test_a_users_bucket(home: Path) -> None:
    with bucket(mixed(KEYS), home) as place:
        assert [found.key for found in place.list_sorted("data/")] == KEYS
        found = list(object_rows(place, "data/"))
    directories = [row[1] for row in found if row[0] == "d"]
    assert len(directories) == len(set(directories)) == 1 + 7 + 35, "each is once, before what is in it"
    with bucket(KEYS, home) as place:
        assert [row[:5] for row in object_rows(place, "data/")] == [row[:5] for row in found], (
            "a pass sees the same whatever the order"
        )


@pytest.mark.parametrize("ahead", [20, 5000], ids=["later", "at once"])
def test_too_many_to_be_sorted(home: Path, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    monkeypatch.setattr(user_store, "MAX_SORTED", 50, raising=False)
    monkeypatch.setattr(user_store, "_AHEAD", ahead, raising=False)
    keys = [*KEYS[:20], *mixed(KEYS[20:])] if ahead == 20 else mixed(KEYS)
    with bucket(keys, home) as place, pytest.raises(OSError, match="name a folder of at most 50 objects"):
        list(place.list_sorted("data/"))


def looked_at(place: user_s3.UserS3Bucket) -> dict[str, Any]:
    """What the look at sbatch is told."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        request = {"do": "look", "source": "s3://mine/data/", "seconds": 20, "entries": 1000}
        ObjectWorkerServer(ours, "s3", lambda _: place, pool)._handle_request(request)
        told: dict[str, Any] = descriptor_channel.receive(theirs)[0]
        return told


@pytest.mark.slow
def test_the_look_at_sbatch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket(mixed(KEYS), home) as place:
        about = looked_at(place)
        assert (about["size"], about["entries"], about["whole"]) == (100, 100, True)
        monkeypatch.setattr(user_worker, "MAX_SORTED", 50, raising=False)
        assert "name a folder of at most" in looked_at(place)["error"]
    with bucket(KEYS, home) as place:
        assert looked_at(place)["whole"] is False


@pytest.mark.slow
def test_an_object_that_comes_twice(home: Path) -> None:
    with bucket([*mixed(KEYS), KEYS[3]], home) as place, pytest.raises(OSError, match="twice"):
        list(place.list_sorted("data/"))


def test_what_is_in_order_is_not_held(home: Path) -> None:
    many = [f"{n:07}" for n in range(20_000)]
    drawn = 0

    def listed() -> Iterator[user_store.UserObject]:
        nonlocal drawn
        for drawn, key in enumerate(many, 1):  # noqa: B007 - it is looked at below
            yield user_store.UserObject(key, 1, 0, "t")

    found = user_store.sorted_by_key(listed())
    assert next(found).key == many[0]
    assert drawn < len(many) // 2
    assert all(before.key < after.key for before, after in pairwise(found))
