"""What is offered, for how much, and what is not and why; on a cloud in memory."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.errors import BadRequest, CloudUnavailable, NotAllowed
from providers.openstack.catalog.catalog import OpenStackCatalog
from providers.openstack.settings import OpenStackSettings
from tests.providers.openstack.cloud import FakeCloud, flavor, zones


class Site:
    """A cloud with these flavors, and burstd's catalogue of it."""

    def __init__(self, *flavors: dict[str, Any], **settings: Any) -> None:
        words = {"networks": ["inside"], "flavors": ["*"], "prices": {"*": "1"}, "gpus": {"h100": "h100"}, **settings}
        self.settings = OpenStackSettings(**words)
        self.cloud = FakeCloud(self.settings)
        if flavors:
            self.cloud.answers["compute /flavors/detail"] = {"flavors": list(flavors)}
        self.now = 0.0
        self.catalog = OpenStackCatalog("os", self.settings, self.cloud, lambda: self.now)

    def ids(self) -> list[str]:
        return [offer.id for offer in self.catalog.offers()]


def test_an_offer_says_what_a_job_finds() -> None:
    site = Site(usable_memory=0.5, currency="CHF", prices={"gpu": "2.5"})
    (offer,) = site.catalog.offers()
    assert offer.id == "os/north/z1/gpu/on-demand"
    assert (offer.shape.cpus, offer.shape.memory_mib, [str(one) for one in offer.shape.gres]) == (
        8,
        32768,
        ["gpu:h100:1"],
    )
    assert (offer.price, offer.currency, offer.price_source) == (Decimal("2.5"), "CHF", "settings")


def test_a_floating_ip_is_in_the_price() -> None:
    (offer,) = Site(floating_network="out", address_hour="0.004", prices={"gpu": "2.5"}).catalog.offers()
    assert (offer.price, offer.address_price) == (Decimal("2.504"), Decimal("0.004"))
    with pytest.raises(ValueError, match="address_hour needs floating_network"):
        Site(address_hour="0.004")


@pytest.mark.parametrize(
    ("policy", "binding"),
    [("affinity", "server-group"), ("soft-affinity", "server-group"), ("soft-anti-affinity", ""), ("", "")],
)
def test_only_affinity_keeps_machines_near_each_other(policy: str, binding: str) -> None:
    assert {offer.hardware.binding for offer in Site(gang_policy=policy).catalog.offers()} == {binding}


def test_only_flavors_and_zones_that_the_settings_allow_and_that_are_there() -> None:
    site = Site(flavor("cpu", {}), flavor("old", {}, **{"OS-FLV-DISABLED:disabled": True}), flavor("x1", {}),
                flavors=["cpu", "old"], zones=["a*", "c"], region="south")  # fmt: skip
    site.cloud.answers["compute /os-availability-zone"] = zones(a1=True, a2=False, b=True, c=True)
    assert site.ids() == ["os/south/a1/cpu/on-demand", "os/south/c/cpu/on-demand"]
    assert site.catalog.knows_zone("a2")
    assert not site.catalog.knows_zone("a3")
    assert site.catalog.flavor("x1") is None


def test_the_longest_pattern_has_the_price() -> None:
    site = Site(prices={"*": "1", "g*": "2", "gpu": "3"})
    assert {offer.instance_type: offer.price for offer in site.catalog.offers()} == {"cpu": 1, "gpu": 3}


def test_what_lacks_a_price_or_has_an_unknown_device_is_not_offered() -> None:
    site = Site(flavor("a", {}), flavor("b", {}), flavor("b2", {"resources:VGPU": "1"}), prices={"b*": "0"})
    assert site.ids() == ["os/north/z1/b/on-demand"]
    assert site.catalog.unpriced() == ["a"]
    assert site.catalog.unmapped_devices() == {"b2": ("VGPU",)}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"flavors": ["x*"]}, "no flavor like x*"),
        ({"prices": {}}, 'set prices = { "cpu" = "..." }'),
        ({"gpus": {}, "flavors": ["gpu"]}, "gpus does not name: h100"),
        ({"zones": ["z9"]}, "the cloud has z1: look at zones"),
    ],
)
def test_nothing_to_offer_is_an_error_that_says_why(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequest) as told:
        Site(**settings).catalog.offers()
    assert text in str(told.value)


def test_an_old_nova_is_asked_for_each_flavor_that_the_settings_allow() -> None:
    site = Site(flavor("cpu"), flavor("gpu"), flavors=["gpu"])
    site.cloud.answers["compute /flavors/f-gpu/os-extra_specs"] = {"extra_specs": {"pci_passthrough:alias": "h100:2"}}
    (offer,) = site.catalog.offers()
    assert [str(one) for one in offer.shape.gres] == ["gpu:h100:2"]
    assert not site.catalog.hides_devices()
    assert "compute /flavors/f-cpu/os-extra_specs" not in site.cloud.said


def test_a_cloud_that_hides_extra_specs_is_asked_for_them_once() -> None:
    site = Site(flavor("a"), flavor("b"))
    site.cloud.answers["compute /flavors/f-a/os-extra_specs"] = NotAllowed("policy")
    assert len(site.ids()) == 2
    assert site.catalog.hides_devices()
    assert [said for said in site.cloud.said if "extra_specs" in said] == ["compute /flavors/f-a/os-extra_specs"]


def test_flavors_and_zones_are_kept_for_minutes() -> None:
    """A flavor that is edited gets another id in some clouds."""
    site = Site()
    site.ids()
    asked = len(site.cloud.said)
    site.now = 299.0
    site.ids()
    assert len(site.cloud.said) == asked
    site.now = 300.0
    site.cloud.answers["compute /os-availability-zone"] = zones(z2=True)
    site.cloud.answers["compute /flavors/detail"] = CloudUnavailable("gone")
    assert site.ids() == ["os/north/z2/cpu/on-demand", "os/north/z2/gpu/on-demand"]
    site.now = 360.0
    site.cloud.answers["compute /flavors/detail"] = {"flavors": [flavor("new", {})]}
    assert site.ids() == ["os/north/z2/new/on-demand"]
