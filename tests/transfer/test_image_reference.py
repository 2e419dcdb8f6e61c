"""What references, manifests and credentials of registries mean: tables, and whatever else somebody writes."""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.transfer.images.reference import (
    SCHEME,
    check_architecture,
    checked_manifest,
    layers_size,
    parse_reference,
    platform_digest,
    registry_credentials,
)
from tests.security.fuzz import fuzzed

DIGEST = f"sha256:{'0' * 64}"
OTHER = f"sha256:{'1' * 64}"


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("python", "docker://docker.io/library/python:latest"),
        ("pytorch/pytorch:2.1", "docker://docker.io/pytorch/pytorch:2.1"),
        ("index.docker.io/ada/x", "docker://docker.io/ada/x:latest"),
        ("ghcr.io/lab/tools", "docker://ghcr.io/lab/tools:latest"),
        ("GHCR.io/lab/tools", "docker://ghcr.io/lab/tools:latest"),
        ("localhost/x:1", "docker://localhost/x:1"),
        ("10.0.0.1:5000/a/b/c__d:V-1_x", "docker://10.0.0.1:5000/a/b/c__d:V-1_x"),
        (f"ghcr.io/x@{DIGEST}", f"docker://ghcr.io/x@{DIGEST}"),
    ],
)
def test_a_reference_is_made_whole(text: str, means: str) -> None:
    assert str(parse_reference(SCHEME + text)) == means
    assert str(parse_reference(means)) == means


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'' is no name of an image"),
        ("Python", "'Python' is no name of an image"),
        ("a//b", "is no name of an image"),
        ("a/../b", "is no name of an image"),
        ("a b", "is no name of an image"),
        ("x:", "is no name of an image"),
        (f"x:{'t' * 129}", "is no name of an image"),
        ("x@sha256:12", "is no name of an image"),
        ("x@sha512:" + "0" * 128, "is no name of an image"),
        ("user@ghcr.io/x", "is no registry"),
        ("ghcr.io:port/x", "is no registry"),
        ("/".join(["ghcr.io", *["a" * 100] * 3]), "is no name of an image"),
        ("a" * 513, "is longer than 512 characters"),
        (f"x:1@{DIGEST}", "has a tag and a digest"),
    ],
)
def test_what_is_no_reference(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_reference(SCHEME + text)


def row(architecture: str, digest: Any, system: str = "linux") -> dict[str, Any]:
    return {"digest": digest, "platform": {"architecture": architecture, "os": system}}


@pytest.mark.parametrize(
    ("manifest", "digest"),
    [
        ({"manifests": [row("arm64", OTHER), row("amd64", DIGEST)]}, DIGEST),
        ({"manifests": [row("amd64", OTHER, "windows"), row("amd64", DIGEST)]}, DIGEST),
        ({"manifests": [{"digest": OTHER}, row("amd64", DIGEST), row("amd64", OTHER)]}, DIGEST),
        ({"layers": []}, None),
    ],
)
def test_the_platform_of_the_site_is_taken(manifest: dict[str, Any], digest: str | None) -> None:
    assert platform_digest(json.dumps(manifest).encode(), "amd64") == digest


@pytest.mark.parametrize(
    ("manifest", "fault"),
    [
        ({"manifests": [row("arm64", DIGEST)]}, "has no image for Linux on amd64, only for arm64"),
        ({"manifests": []}, "only for nothing"),
        ({"manifests": {}}, "has no list"),
        ({"manifests": [row("amd64", "sha256:x")]}, "no SHA-256"),
        ({"manifests": [row("amd64", 7)]}, "no SHA-256"),
        ([], "no JSON object"),
    ],
)
def test_a_list_of_platforms_without_ours(manifest: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        platform_digest(json.dumps(manifest).encode(), "amd64")


@pytest.mark.parametrize("size", [-1, True, 1.5, "7", None, 1 << 60])
def test_a_size_that_no_layer_has(size: Any) -> None:
    with pytest.raises(ValueError, match="a size that none has"):
        layers_size(json.dumps({"schemaVersion": 2, "layers": [{"size": 1}, {"size": size}]}).encode())


def test_the_layers_of_a_manifest_are_added_up() -> None:
    assert layers_size(json.dumps({"schemaVersion": 2, "layers": [{"size": 1}, {"size": 2}]}).encode()) == 3
    with pytest.raises(ValueError, match="no manifest of version 2"):
        layers_size(json.dumps({"schemaVersion": 1, "fsLayers": []}).encode())


def test_a_manifest_and_a_configuration_are_those_that_were_asked_for() -> None:
    digest = f"sha256:{hashlib.sha256(b'{}').hexdigest()}"
    assert checked_manifest(b"{}", "") == checked_manifest(b"{}", digest) == digest
    with pytest.raises(ValueError, match="another digest"):
        checked_manifest(b"{}", DIGEST)
    check_architecture(b"{}", "amd64")
    with pytest.raises(ValueError, match="is for arm64"):
        check_architecture(b'{"architecture": "arm64"}', "amd64")


def credentials(*files: dict[str, Any], registry: str = "ghcr.io") -> tuple[dict[str, Any], bool]:
    found = registry_credentials([json.dumps(file).encode() for file in files], registry)
    return dict(found.auths), found.needs_helper


def test_only_what_is_for_the_registry_is_taken_from_the_first_file_that_has_it() -> None:
    ours, other = {"auth": base64.b64encode(b"ada:x").decode()}, {"auth": "b3RoZXI6eA=="}
    assert credentials({"auths": {"quay.io": other}}, {"auths": {"https://ghcr.io/v2/": {**ours, "email": "a@b"}}}) == (
        {"https://ghcr.io/v2/": ours},
        False,
    )
    assert credentials({"auths": {"ghcr.io": ours}}, {"auths": {"ghcr.io": other}}) == ({"ghcr.io": ours}, False)
    hub = {"auths": {"https://index.docker.io/v1/": ours}}
    assert credentials(hub, registry="docker.io") == ({"https://index.docker.io/v1/": ours}, False)
    assert credentials({"auths": {"ghcr.io": {}}, "credsStore": "desktop"}) == ({}, True)
    assert credentials({"credHelpers": {"ghcr.io": "x"}}) == ({}, True)
    assert credentials({"auths": {"ghcr.io": {"auth": 7}, "x": []}}) == ({}, False)
    assert credentials() == ({}, False)
    with pytest.raises(ValueError, match="file 1 of credentials is no JSON"):
        registry_credentials([b"[" * 100_000], "ghcr.io")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(DIGEST),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "manifests",
                    "platform",
                    "os",
                    "architecture",
                    "digest",
                    "layers",
                    "size",
                    "schemaVersion",
                    "auths",
                    "auth",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@fuzzed
@given(content=JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=64), text=st.text(max_size=40))
def test_fuzz_whatever_a_registry_or_a_user_writes_is_read_or_refused(content: bytes, text: str) -> None:
    with suppress(ValueError):
        assert platform_digest(content, "amd64") in (None, DIGEST)
    with suppress(ValueError):
        assert layers_size(content) >= 0
    with suppress(ValueError):
        registry_credentials([content], "ghcr.io")
    with suppress(ValueError):
        whole = str(parse_reference(SCHEME + text))
        assert str(parse_reference(whole)) == whole
        assert whole.isascii()
        assert " " not in whole
