"""Whether a key made a credential. tests/node/conftest.py compares with a real munged in each of its validations."""

from __future__ import annotations

import pytest

from burstd.node.munge import is_made_with

KEY = b"k" * 64
CREDENTIAL = (
    "MUNGE:AwAFAACKzrKieeX4Mk8yLj2FoT6hLPo57H8aY03oIegXAUaMyHWIS9nByuVvBAAAAABrCuJ5AAAAAQAAAAAAAAAA//////////8AAAAA:"
)
"""Of munge 0.5.15 with this key, good for a second."""


@pytest.mark.parametrize(("key", "made"), [(KEY, True), (b"k" * 63, False), (b"", False)])
def test_the_key_of_a_credential(key: bytes, *, made: bool) -> None:
    assert is_made_with(f"{CREDENTIAL}\n", key) is made
