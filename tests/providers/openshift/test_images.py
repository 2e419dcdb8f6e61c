"""Which versions a word for an image stands for."""

from __future__ import annotations

from typing import Any

import pytest

from burstd.domain.errors import BadRequest, CloudUnavailable
from providers.openshift.errors import NoSuchApi
from providers.openshift.pods.images import ImageVersions
from tests.providers.openshift.cluster import STREAMS, FakeCluster, settings, stream

A, B = "registry:5000/burst/node@sha256:aa", "registry:5000/burst/node@sha256:bb"
NODE = f"{STREAMS}/node"


def images(answer: Any = None, **words: Any) -> tuple[ImageVersions, FakeCluster]:
    cluster = FakeCluster(settings(**words), {} if answer is None else {NODE: answer})
    return ImageVersions(settings(**words), cluster), cluster


@pytest.mark.parametrize(
    ("word", "versions", "calls"),
    [
        ("", ("node:1",), 0),
        ("node@sha256:aa", ("node@sha256:aa",), 0),
        ("imagestream:node:latest", (B, A), 1),
        ("imagestream:node:old", (A,), 1),
    ],
)
def test_the_versions_of_a_word_newest_first(word: str, versions: tuple[str, ...], calls: int) -> None:
    # A tag that was put back to A before B came has A twice.
    found, cluster = images(stream("node", latest=[B, A, A], old=[A]))
    assert tuple(found.versions(word)) == versions
    assert len(cluster.said) == calls


@pytest.mark.parametrize(
    ("word", "answer", "text"),
    [
        ("imagestream:node", None, "is not written imagestream:NAME:TAG"),
        ("imagestream:other/node:1", None, "is not written imagestream:NAME:TAG"),
        ("imagestream:node:latest", None, "namespace burst has no ImageStream node"),
        ("imagestream:node:latest", NoSuchApi("404"), "no ImageStreams (they are OpenShift's): set image"),
        ("imagestream:node:latest", stream("node", old=[A]), "no image under the tag latest (tags with one: old)"),
        ("imagestream:node:latest", {"metadata": {"name": "node"}}, "under the tag latest (tags with one: none)"),
        ("imagestream:node:latest", stream("node", latest={
            "items": None, "conditions": [{"type": "ImportSuccess", "status": "False", "message": "manifest unknown"}],
        }), "could not import its tag latest: manifest unknown"),
    ],
)  # fmt: skip
def test_no_such_image_is_an_error_with_the_remedy(word: str, answer: Any, text: str) -> None:
    found, _ = images(answer)
    with pytest.raises(BadRequest) as told:
        found.versions(word)
    assert text in str(told.value)


def test_no_word_at_all() -> None:
    found, _ = images(image="")
    with pytest.raises(BadRequest, match="no image is named: set image"):
        found.newest_version("")


def test_a_cluster_that_does_not_answer_is_no_missing_image() -> None:
    found, _ = images(CloudUnavailable("down"))
    with pytest.raises(CloudUnavailable):
        found.newest_version("imagestream:node:latest")
