"""What burstd knows of a size's GPUs by its name, and the settings' words for them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from providers.azure.catalog.sizes import gpu_of, gres_type, parse_size
from providers.azure.resources import machine_of, zone_name, zone_number
from tests.lab.azure.specs import LOCATION, SIZES
from tests.providers.azure.samples import GUID, settings


@pytest.mark.parametrize(
    ("size", "gpu"),
    [
        ("Standard_NC4as_T4_v3", ("t4", 16)),
        ("Standard_NC24ads_A100_v4", ("a100", 80)),
        ("Standard_ND96asr_v4", ("a100", 40)),
        ("Standard_ND96amsr_A100_v4", ("a100", 80)),
        ("Standard_NC40ads_H100_v5", ("h100", 94)),
        ("Standard_ND96isr_H100_v5", ("h100", 80)),
        ("Standard_ND96isr_H200_v5", ("h200", 141)),
        ("Standard_ND96isr_MI300X_v5", ("mi300x", 192)),
        ("Standard_NC6s_v3", ("v100", 16)),
        ("Standard_ND40rs_v2", ("v100", 32)),
        ("Standard_NV36ads_A10_v5", ("a10", 0)),
        ("Standard_NC128lds_xl_RTXPRO6000BSE_v6", ("rtxpro6000bse", 0)),
        ("Standard_NX8s_L40S_v6", ("l40s", 0)),
        ("Standard_Strange", ("", 0)),
    ],
)
def test_gpus_by_the_name_of_a_size(size: str, gpu: tuple[str, int]) -> None:
    assert gpu_of(size) == gpu


def test_the_settings_say_it_first() -> None:
    size = parse_size(SIZES["Standard_NC4as_T4_v3"].sku(), LOCATION)
    assert gres_type(size, {}) == "t4"
    assert gres_type(size, {"Standard_NC*": "tesla"}) == "tesla"
    assert gres_type(size, {"Standard_NC*": ""}) is None


def test_zones_and_ids() -> None:
    for zone in ("", "1", "3"):
        assert zone_number(LOCATION, zone_name(LOCATION, zone)) == zone
    assert machine_of("/subscriptions/X/resourcegroups/y/providers/microsoft.compute/virtualmachines/Ab-1") == "Ab-1"
    assert machine_of("/subscriptions/x") == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"tenant": GUID}, "a service principal needs"),
        ({"tenant": GUID, "client_id": GUID, "secret_file": "a", "certificate_file": "b"}, "either"),
        ({"secret_file": "a"}, "set its tenant"),
        ({"public_address": True, "currency": "EUR"}, "address_hour"),
        ({"subnet": "nodes"}, "subnet"),
        ({"secure_boot": False}, "TrustedLaunch"),
        ({"admin_key": "ecdsa-sha2-nistp256 AAAA"}, "admin_key"),
        ({"tags": {f"t{n}": "" for n in range(47)}}, "46 tags"),
        ({"tags": {"Owner": "a", "owner": "b"}}, "case"),
        ({"tags": {"a/b": ""}}, "a/b"),
        ({"tags": {"a" * 513: ""}}, "512"),
        ({"tags": {"a": "b" * 257}}, "256"),
        ({"tags": {"Burstd-cluster": "other"}}, "burstd's own"),
        ({"region": "westeurope"}, "region"),
    ],
)
def test_settings_that_do_not_fit_are_named(words: dict[str, Any], says: str) -> None:
    assert settings().address_price == 0
    with pytest.raises(ValidationError, match=says):
        settings(**words)
