"""Settings as tests want them."""

from __future__ import annotations

from typing import Any

from providers.google.settings import GoogleSettings


def settings(**words: Any) -> GoogleSettings:
    said = {
        "project": "physics", "region": "europe-west4", "subnetwork": "burst", "machine_types": ["n2-*"], **words
    }  # fmt: skip
    return GoogleSettings.model_validate(said)
