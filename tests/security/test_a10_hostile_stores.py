"""What a store of S3 may answer: it is read up to a limit, and lists only what was asked for, to an end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from burstd.domain.plugins.stager import OBJECT_BYTES, StagerError
from staging.objects.s3 import S3Settings, S3Stager
from tests.doubles.lying_http import HttpLie, LyingServer, lying_server

_BEFORE = "burstd/here/"


@contextmanager
def _store(server: LyingServer, folder: Path) -> Iterator[S3Stager]:
    (folder / "keys").write_text("A\nB\n")
    settings = S3Settings(
        bucket="mine", endpoint=server.url, access_key_file=folder / "keys", addressing="path", timeout_s=10.0
    )
    made = S3Stager("s3", "here", settings)
    yield made
    made.close()


def _page(keys: list[str], more: str) -> HttpLie:
    rows = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2020-01-01T00:00:00Z</LastModified></Contents>"
        for key in keys
    )
    end = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return HttpLie(body=[f"<ListBucketResult>{rows}{end}</ListBucketResult>".encode()])


def test_an_object_without_an_end(tmp_path: Path) -> None:
    lie = HttpLie(headers={"Content-Length": str(1 << 40)}, body=itertools.repeat(b"x" * 65536))
    with lying_server(lambda _: lie) as server, _store(server, tmp_path) as store:
        with pytest.raises(StagerError, match="more than"):
            store.get("data/aa")
        assert server.sent < OBJECT_BYTES + (16 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "more"),
    [([f"{_BEFORE}a"], "t"), (["burstd/neighbour/a"], ""), (["a"], ""), ([], "t")],
    ids=["again", "neighbour", "outside", "empty"],
)  # fmt: skip
def test_a_list_that_is_none(tmp_path: Path, keys: list[str], more: str) -> None:
    with (
        lying_server(lambda _: _page(keys, more)) as server,
        _store(server, tmp_path) as store,
        pytest.raises(StagerError),
    ):
        list(store.objects(""))


@pytest.mark.slow
def test_a_redirect_is_given_no_signature(tmp_path: Path) -> None:
    with lying_server(lambda _: HttpLie()) as elsewhere:
        away = HttpLie(307, {"Location": f"{elsewhere.url}/mine/x", "Content-Length": "0"})
        with lying_server(lambda _: away) as server, _store(server, tmp_path) as store, pytest.raises(StagerError):
            store.get("data/aa")
        assert (elsewhere.asked, elsewhere.tokens) == ([], [])
