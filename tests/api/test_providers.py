"""The routes of clouds: what they have, for everybody; having one look at itself, for administrators."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.billing.rates import Rates
from burstd.domain.cloud.instance import Leftover
from burstd.domain.cloud.offer import Hardware, Offer, OfferRule
from burstd.domain.command import ForgetMachines
from burstd.domain.machine_outcomes import PlaceRecord
from burstd.domain.snapshot import CloudView

from .client import ME, ApiTestClient
from .fake_backend import PLAN, FakeBackend
from .world import CLOUDS, G4, G8, GPU, NOW, SMALL, SNAPSHOT, V100

NOBODY = 65534
RICH = Offer(
    "sandbox", "local", "a", "g16", spot=True, shape=V100, price=Decimal("2.5"), currency="USD",
    hardware=Hardware("x86_64", 32768, 900, "efa"), price_source="spot history", price_at=NOW - 90,
    address_price=Decimal("0.005"),
)  # fmt: skip


def test_the_state_of_each_cloud(root: ApiTestClient) -> None:
    sandbox, sky = root.get("/v1/providers")["providers"]
    assert (sandbox["name"], sandbox["ok"], sandbox["instances"], sandbox["calls"]) == (
        "sandbox", True, {"running": 6}, 2,
    )  # fmt: skip
    assert (sandbox["offers"], sandbox["instance_types"], sandbox["zones"]) == (3, 3, ["a", "b"])
    assert (sandbox["markets"], sandbox["pools"], sandbox["checks_itself"]) == (["on-demand"], ["gpu", "cpu"], False)
    assert [b["key"] for b in sandbox["breakers"]] == ["sandbox/local/b/g8/on-demand"]
    assert (sky["ok"], sky["listed"], sky["pools"], sky["checks_itself"]) == (False, None, ["gpu"], True)
    assert sky["alarms"] == [
        "instances cannot be read: no answer", "offers cannot be read: no answer from keystone within 10 s"
    ]  # fmt: skip


def test_a_cloud_that_was_not_read_yet_is_named(backend: FakeBackend, root: ApiTestClient) -> None:
    backend.loop = (replace(SNAPSHOT, clouds={}), PLAN)
    assert [(p["name"], p["ok"]) for p in root.get("/v1/providers")["providers"]] == [
        ("sandbox", False),
        ("sky", False),
    ]
    assert root.get("/v1/providers/sandbox/offers")["error"] == "not read yet"


def test_disks_of_machines_of_ours_are_no_leftovers(backend: FakeBackend, root: ApiTestClient) -> None:
    known, gone = SNAPSHOT.claims[0], "c-gone"
    leftovers = (
        Leftover("volume", "v1", "sandbox", known.id, attached_to=known.instance_id),
        Leftover("port", "p1", "sandbox", known.id),
        Leftover("volume", "v2", "sandbox", gone, attached_to="i-gone"),
        Leftover("volume", "v3", "sandbox", gone),
    )
    backend.loop = (
        replace(SNAPSHOT, clouds={**CLOUDS, "sandbox": replace(CLOUDS["sandbox"], leftovers=leftovers)}),
        PLAN,
    )
    assert root.get("/v1/providers")["providers"][0]["leftovers"] == 1


def offers(root: ApiTestClient, query: str = "") -> tuple[dict[str, dict[str, Any]], int]:
    answer = root.get(f"/v1/providers/sandbox/offers{query}")
    return {o["instance_type"]: o for o in answer["offers"]}, answer["hidden"]


def test_offers_with_what_is_known_of_each(backend: FakeBackend, root: ApiTestClient) -> None:
    clouds = {**CLOUDS, "sandbox": CloudView((G4, G8, RICH, replace(RICH, instance_type="tiny", shape=SMALL)), ())}
    gpu = replace(GPU, rules=(OfferRule("sandbox", markets=("on-demand", "spot")),))
    rates = Rates("EUR", date(2026, 9, 1), {"USD": Decimal("0.8")})
    backend.loop = (replace(SNAPSHOT, clouds=clouds, pools={"gpu": gpu}, rates=rates), PLAN)
    found, hidden = offers(root)
    assert (list(found), hidden) == (["g16", "g4", "g8"], 1)
    rich = found["g16"]
    assert (rich["gpus"], rich["architecture"], rich["fabric"], rich["local_disk_gib"]) == (
        [{"type": "v100", "count": 4, "memory_mib": 32768}], "x86_64", "efa", 900,
    )  # fmt: skip
    assert (rich["market"], rich["price_per_hour"], rich["price_source"], rich["price_at"]) == (
        "spot", {"amount": "2.500000", "currency": "USD"}, "spot history", "2026-09-21T14:11:50Z",
    )  # fmt: skip
    assert (found["g4"]["pools"], found["g4"]["refused"], found["g4"]["breakers"]) == (["gpu"], {}, [])
    # One that failed is shown, with what keeps it from being tried.
    assert (found["g8"]["pools"], [b["cause"] for b in found["g8"]["breakers"]]) == (["gpu"], ["capacity"])
    assert "zone b has no g8" in found["g8"]["refused"]["gpu"]
    every, hidden = offers(root, "?all=true")
    assert (every["tiny"]["pools"], every["tiny"]["refused"], hidden) == (
        [], {"gpu": "smaller than the pool's slots: 4 CPUs of 8, 16000 MiB of 65536, 0 gpu:v100 of 4"}, 0,
    )  # fmt: skip


def test_a_place_with_bad_machines_is_shown_and_can_be_forgotten(backend: FakeBackend, root: ApiTestClient) -> None:
    records = {G4.place: PlaceRecord(9, 4, 56, 44, too_bad=True), G8.place: PlaceRecord(90, 1, 56, 1, too_bad=False)}
    backend.loop = (replace(SNAPSHOT, places=records), PLAN)
    found, _ = offers(root)
    text = "4 of 9 machines bad in 56 days, 44 % by weight"
    assert [found["g4"][key] for key in ("machines", "bad_machines", "avoided")] == [9, 4, text]
    assert [found["g8"][key] for key in ("machines", "bad_machines", "avoided")] == [90, 1, ""]
    assert (found["g4"]["pools"], found["g4"]["refused"]) == (["gpu", "cpu"], {})
    sandbox, _ = root.get("/v1/providers")["providers"]
    assert sandbox["bad_places"] == {G4.place: text}
    stockout = (("sandbox/local/b/g8/on-demand", "capacity"),)
    for body, places, breakers in (
        ({}, (G4.place, G8.place), stockout),
        ({"instance_type": "g8"}, (G8.place,), stockout),
        ({"instance_type": "g4"}, (G4.place,), ()),
        ({"zone": "b"}, (G8.place,), stockout),
    ):
        status, _ = root.request("POST", "/v1/providers/sandbox/forget", body)
        assert (status, backend.commands[-1]) == (200, ForgetMachines(places, f"user:{ME}", breakers))
    for body, text in (
        ({"zone": "nort"}, "sandbox has no zone nort; there are: a, b."),
        ({"zone": "a*"}, "A pattern names no zone here. sandbox has no zone a*; there are: a, b."),
        ({"instance_type": "g"}, "sandbox has no instance type g; there are: c4, g4, g8."),
        ({"instance_type": "c4"}, "No bad machine and no circuit breaker is known of such a place of sandbox"),
    ):
        status, answer = root.request("POST", "/v1/providers/sandbox/forget", body)
        assert (status, answer["error"].startswith(text)) == (404, True), answer


def test_a_check_asks_with_the_images_of_the_pools(backend: FakeBackend, root: ApiTestClient) -> None:
    named = replace(
        GPU, rules=(OfferRule("sky", image="ubuntu"), OfferRule("sandbox", image="debian"), OfferRule("sky"))
    )
    backend.loop = (replace(SNAPSHOT, pools={"gpu": named}), PLAN)
    status, answer = root.request("POST", "/v1/providers/sky/check")
    assert (status, answer["ok"], answer["user"]) == (200, False, ME)
    assert [f["ok"] for f in answer["findings"]] == [True, False, None, True]
    assert answer["findings"][-1]["subject"] == "image ubuntu"
    assert answer["findings"][1]["remedy"] == "ask for more"


def test_a_no_is_said_in_a_sentence(backend: FakeBackend, root: ApiTestClient) -> None:
    backend.checks.busy = True
    assert root.request("POST", "/v1/providers/sky/check") == (
        409, {"error": "a check of provider sky is under way.", "known": []}
    )  # fmt: skip
    status, answer = root.request("POST", "/v1/providers/sandbox/check")
    assert (status, answer["error"]) == (409, "Provider sandbox has no self-check: its kind does not offer one.")
    for method, path in (("POST", "check"), ("GET", "offers")):
        status, answer = root.request(method, f"/v1/providers/moon/{path}")
        assert (status, answer["known"]) == (404, ["sandbox", "sky"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_others_see_clouds_and_have_none_checked(control: Path, backend: FakeBackend) -> None:
    with ApiTestClient(control, NOBODY) as nobody:
        assert nobody.get("/v1/providers/sandbox/offers")["offers"]
        assert nobody.request("POST", "/v1/providers/sky/check")[0] == 403
        assert nobody.request("POST", "/v1/providers/sandbox/forget", {})[0] == 403
