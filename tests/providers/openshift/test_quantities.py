"""Kubernetes' quantities are read exactly, and told in burstd's words."""

from __future__ import annotations

from decimal import Decimal

import pytest

from burstd.domain.errors import CloudUnavailable
from providers.openshift.client.quantities import format_quantity, in_unit, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"), ("4", "4"), (4, "4"), ("3500m", "3.5"), ("100u", "0.0001"), ("1n", "1E-9"), ("1k", "1000"),
        ("1Ki", "1024"), ("1.5Gi", "1610612736"), ("65753456Ki", "67331538944"), ("2E", "2000000000000000000"),
        ("2Ei", "2305843009213693952"), ("2e3", "2000"), ("2E-3", "0.002"), ("+.5", "0.5"), ("5.", "5"), ("-1", "-1"),
    ],
)  # fmt: skip
def test_every_form_of_the_grammar(text: object, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "Gi", "1ki", "1Kib", "1 Gi", "1e", "0x1", "one", None, "٣"])
def test_what_is_no_quantity_is_an_answer_of_nobodys(text: object) -> None:
    with pytest.raises(CloudUnavailable, match="is no quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("resource", "amount", "text", "counted"),
    [
        ("cpu", "3500m", "3.5", ("3.5", "cores")), ("limits.cpu", "40", "40", ("40", "cores")),
        ("memory", "64Gi", "64 GiB", ("65536", "MiB")), ("requests.storage", "512Mi", "0.5 GiB", ("512", "MiB")),
        ("gold.storageclass.storage.k8s.io/requests.storage", "1Gi", "1 GiB", ("1024", "MiB")),
        ("gold.storageclass.storage.k8s.io/persistentvolumeclaims", "3", "3", ("3", "persistentvolumeclaims")),
        ("limits.ephemeral-storage", "1536Mi", "1.5 GiB", ("1536", "MiB")),
        ("requests.nvidia.com/gpu", "8", "8", ("8", "GPUs")),
        ("nvidia.com/mig-1g.10gb", "7", "7", ("7", "mig-1g.10gb")),
        ("pods", "100", "100", ("100", "pods")), ("count/pods", "10", "10", ("10", "pods")),
    ],
)  # fmt: skip
def test_what_people_read(resource: str, amount: str, text: str, counted: tuple[str, str]) -> None:
    assert format_quantity(resource, parse_quantity(amount)) == text
    value, word = in_unit(resource, parse_quantity(amount))
    assert (value, word) == (Decimal(counted[0]), counted[1])
