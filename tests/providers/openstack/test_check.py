"""What the check tells of a project that is set up, and of one where something is missing; on a cloud in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from burstd.domain.errors import AuthFailed, CloudUnavailable, NotAllowed
from burstd.domain.plugins.provider import Finding
from providers.openstack.catalog.catalog import OpenStackCatalog
from providers.openstack.catalog.quotas import OpenStackQuotas
from providers.openstack.checks.check import check
from providers.openstack.launch.images import OpenStackImages
from providers.openstack.launch.networks import ProjectNetworks
from providers.openstack.settings import OpenStackSettings
from tests.providers.openstack.cloud import (
    GROUP,
    INSIDE,
    PROJECT,
    FakeCloud,
    flavor,
    limits,
    network,
    rule,
    subnet,
    zones,
)

WORDS: Mapping[str, Any] = {
    "networks": ["inside"], "security_groups": ["nodes"], "flavors": ["*"], "prices": {"*": "1"},
    "gpus": {"h100": "h100"}, "image": "debian", "key_name": "ops", "server_group": "spread",
    "floating_network": "outside",
}  # fmt: skip
Change = Callable[[FakeCloud], None]


def findings(change: Change = lambda _cloud: None, images: Sequence[str] = (), **more: Any) -> dict[str, Finding]:
    """Findings by their subjects, in order."""
    settings = OpenStackSettings(**{**WORDS, **more})
    cloud = FakeCloud(settings)
    change(cloud)
    catalog, quotas = OpenStackCatalog("os", settings, cloud), OpenStackQuotas(settings, cloud)
    found = list(
        check(
            settings,
            cloud,
            catalog,
            OpenStackImages(settings, cloud),
            ProjectNetworks(settings, cloud),
            quotas,
            "ada",
            images,
        )
    )
    assert len({f.subject for f in found}) == len(found), [f.subject for f in found]
    assert all(f.text and (f.ok is not False or f.remedy) for f in found)
    return {f.subject: f for f in found}


def answers(**more: Any) -> Change:
    return lambda cloud: cloud.answers.update({key.replace("__", " /"): value for key, value in more.items()})


def answer(key: str, value: Any) -> Change:
    return lambda cloud: cloud.answers.update({key: value})


def group(*rules: dict[str, Any]) -> Change:
    said = {"id": GROUP, "name": "nodes", "project_id": PROJECT, "security_group_rules": list(rules)}
    return answer("network /security-groups", {"security_groups": [said]})


def credential(**more: Any) -> Change:
    said = {"name": "burstd", "expires_at": None, "unrestricted": None, **more}
    return answer("identity /users/u1/application_credentials/ac1", {"application_credential": said})


def token(**more: Any) -> Change:
    return lambda cloud: cloud.token.__dict__.update(more)


def broken(error: Any) -> Change:
    return lambda cloud: setattr(cloud, "broken", error)


def has(*services: str, newest: tuple[int, int] | None = (2, 90)) -> Change:
    def change(cloud: FakeCloud) -> None:
        cloud.services = set(services)
        cloud.newest = newest

    return change


def inside(**more: Any) -> Change:
    return answer("network /networks", {"networks": [network(INSIDE, "inside", **more)]})


def subnets(*several: dict[str, Any]) -> Change:
    return answer("network /subnets", {"subnets": list(several)})


def flavors(*several: dict[str, Any]) -> Change:
    return answer("compute /flavors/detail", {"flavors": list(several)})


SIX = subnet(
    INSIDE, id="s6", cidr="fd00::/64", ip_version=6, allocation_pools=[{"start": "fd00::2", "end": "fd00::ffff"}]
)


def in_days(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).replace(tzinfo=None).isoformat()


def test_nothing_is_wrong_with_what_the_document_sets_up() -> None:
    found = findings()
    assert {subject: f for subject, f in found.items() if not f.ok} == {}
    assert found["credentials"].text == f"user burstd in project lab ({PROJECT})"
    assert found["network inside"].text.endswith("10.9.0.0/24, 252 free addresses")
    assert "router r1" in found["floating_network outside"].text
    assert found["flavors *"].text == "2 offered: cpu, gpu"
    assert found["image debian"].text.endswith("x86_64, needs 10 GiB")
    assert found["quota cores"].text == "8 of 40 cores in use, room for 4 gpu or 8 cpu"
    assert found["server group spread"].text == "anti-affinity; at most 10 machines, 2 are in it"


@pytest.mark.parametrize(
    ("change", "subject", "text", "remedy"),
    [
        (broken(AuthFailed("no cloud")), "credentials", "no cloud", "set cloud and clouds_yaml"),
        (broken(CloudUnavailable("no route")), "credentials", "no route", "reach the auth_url"),
        (token(project_id=None), "credentials", "no project", "project_name"),
        (has("identity"), "services", "no compute, network, image", "region_name and interface"),
        (has("compute", "image"), "services", "no network", "ask the cloud's operator"),
        (lambda cloud: cloud.regions.append("south"), "services", "several regions", "set region"),
    ],
)
def test_without_these_all_else_is_not_looked_at(change: Change, subject: str, text: str, remedy: str) -> None:
    found = findings(change)
    assert found[subject].ok is False
    assert text in found[subject].text
    assert remedy in found[subject].remedy
    assert list(found)[-1] == "all else"
    assert found["all else"].ok is None


@pytest.mark.parametrize(
    ("change", "settings", "subject", "ok", "text", "remedy"),
    [
        (credential(expires_at=in_days(5)), {}, "application credential", False, "expires 2", "--role member"),
        (credential(expires_at=in_days(99)), {}, "application credential", True, "expires 2", ""),
        (credential(unrestricted=True), {}, "application credential", False, "unrestricted", "without --unrestricted"),
        (answer("identity /users/u1/application_credentials/ac1", NotAllowed("no")), {}, "application credential", None,
         "cannot be told", ""),
        (token(role_names=["reader"]), {}, "role", False, "make nothing", "credential with --role member"),
        (token(role_names=["reader"], application_credential_id=None), {}, "role", False, "make", "openstack role add"),
        (token(role_names=["admin", "member"]), {}, "role", False, "whole cloud", "credential with --role member"),
        (token(role_names=["swiftuser"]), {}, "role", None, "swiftuser", "which role"),
        (has("compute", "network", "image", newest=(2, 42)), {}, "services", False, "2.42", "2.52"),
        (has("compute", "network", "image", newest=None), {}, "services", None, "does not say", "answers"),
        (has("compute", "network", "image"), {"root": {"gib": 9}}, "services", False, "block-storage", "take root out"),
        (answers(), {"image": ""}, "image", False, "neither", "set image"),
        (answers(), {"image": "newest:suse*"}, "image newest:suse*", False, "suse", "openstack image list"),
        (flavors(flavor("a", {}, disk=8)), {}, "image debian", False, "has 8 GiB", "set root"),
        (flavors(flavor("a", {}, disk=8)), {"root": {"gib": 9}}, "image debian", True, "needs 10 GiB", ""),
        (flavors(flavor("a", {}, disk=0)), {}, "image debian", False, "a has no disk", "set root"),
        (flavors(flavor("a", {}, disk=0), flavor("b", {})), {}, "image debian", True, "no machine for it by a", ""),
        (flavors(flavor("a", {"trait:HW_ARCH_AARCH64": "required"})), {}, "image debian", False, "x86_64",
         "flavors' architecture"),
        (answers(), {"networks": ["gone"]}, "networks", False, "gone", "openstack network list"),
        (inside(admin_state_up=False), {}, "network inside", False, "down", "--enable"),
        (inside(status="BUILD"), {}, "network inside", False, "BUILD", "another network"),
        (subnets(), {}, "network inside", False, "without a subnet", "openstack subnet create"),
        (subnets(subnet(INSIDE, last=9)), {}, "network inside", False, "7 free", "larger network"),
        (subnets(subnet(INSIDE, enable_dhcp=False)), {}, "network inside", None, "without DHCP", "config_drive = true"),
        (subnets(subnet(INSIDE, enable_dhcp=False)), {"config_drive": True}, "network inside", True, "free", ""),
        (subnets(subnet(INSIDE), SIX), {}, "network inside", True, "252 free", ""),
        (subnets(subnet(INSIDE, last=9), SIX), {}, "network inside", False, "7 free", "larger network"),
        (inside(port_security_enabled=False), {}, "network inside", False, "security off", "port_security = false"),
        (inside(project_id="p2"), {"port_security": False, "security_groups": []}, "network inside", None, "another",
         "take out port_security"),
        (inside(**{"router:external": True}), {}, "network inside", None, "external", "floating_network"),
        (inside(project_id="p2", shared=True), {}, "network inside", True, "253 addresses, of which", ""),
        (answer("network /networks", NotAllowed("policy")), {}, "networks", False, "policy", "role member"),
        (answers(), {"floating_network": "inside"}, "floating_network inside", False, "no external", "--external"),
        (answer("network /routers", {"routers": []}), {}, "floating_network outside", False, "from inside to outside",
         "openstack router create"),
        (answers(), {"floating_network": "gone"}, "floating_network gone", False, "gone", "--external"),
        (group(rule(6818)), {}, "port 22", False, "no rule", f"--dst-port 22 --remote-ip YOUR_NETWORK {GROUP}"),
        (group(rule(22)), {}, "port 6818", None, "no rule", "--dst-port 6818"),
        (group(rule(22, of=GROUP)), {}, "port 22", False, "machines of the groups themselves", "--dst-port 22"),
        (group(rule(22, of="heads")), {}, "port 22", None, "members of heads only", "--dst-port 22"),
        (group(rule(22, protocol="udp")), {}, "port 22", False, "no rule", "--protocol tcp"),
        (group(rule(None, protocol=None)), {}, "port 22", True, "ssh", ""),
        (group(rule(22, ethertype="IPv6")), {}, "port 22", False, "no rule", f"YOUR_NETWORK {GROUP}"),
        (group(rule(22)), {}, "port 6817", None, "out", "--egress"),
        (answers(), {"security_groups": ["gone"]}, "security groups", False, "gone", "security group list"),
        (answers(), {"security_groups": [], "port_security": False}, "security groups", True, "none", ""),
        (answers(), {"zones": ["west*"]}, "zones", False, "none of this cloud's: z1", "set zones"),
        (answer("compute /os-availability-zone", zones(z1=False)), {}, "zones", False, "z1 (not available)", "no host"),
        (answers(), {"flavors": ["x*"]}, "flavors x*", False, "but cpu, gpu", "openstack flavor list"),
        (answers(), {"prices": {"gpu": "1"}}, "prices", False, "not offered: cpu", 'prices = { "cpu" = "..." }'),
        (answers(), {"prices": {}}, "flavors *", False, "a price (cpu, gpu)", "mend prices"),
        (answers(), {"gpus": {}}, "gpus", False, "what h100 is", 'gpus = { "h100" = "TYPE" }'),
        (answers(), {"gpus": {}, "flavors": ["gpu"]}, "flavors gpu", False, "a word on a device (gpu)", "mend gpus"),
        (answers(), {"gpus": {"h100": "x", "H100": "y"}}, "gpus of no flavor", None, "H100", "compare gpus"),
        (answer("compute /flavors/detail", NotAllowed("policy")), {}, "flavors", False, "policy", "role member"),
        (answer("compute /flavors/detail", CloudUnavailable("slow")), {}, "flavors", None, "slow", "later"),
        (answer("compute /os-keypairs/a%2Fb%3F", {"keypair": {"fingerprint": "cc"}}), {"key_name": "a/b?"},
         "key pair a/b?", True, "cc", ""),
        (answers(), {"key_name": "gone"}, "key pair gone", False, "gone", "openstack keypair create"),
        (answers(), {"server_group": "gone"}, "server group gone", False, "gone", "openstack server group list"),
        (answer("compute /limits", limits(maxServerGroupMembers=2)), {}, "server group spread", None, "is full",
         "--server-group-members"),
        (answers(), {"server_group": "", "gang_policy": "affinity"}, "gang_policy affinity", True, "at most 10", ""),
        (answers(), {"server_group": "", "gang_policy": "affinity"}, "quota server-groups", True, "1 of 5", ""),
        (answer("compute /limits", limits(maxTotalCores=2)), {}, "quota cores", False, "8 of 2",
         f"openstack quota set --cores 8 {PROJECT}"),
        (answer("compute /limits", limits(totalInstancesUsed=10)), {}, "quota instances", None, "all is taken", "list"),
        (answer("compute /limits", NotAllowed("policy")), {}, "quotas", False, "policy", "role member"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_what_to_do(
    change: Change, settings: dict[str, Any], subject: str, ok: bool | None, text: str, remedy: str
) -> None:
    found = findings(change, **settings)[subject]
    assert found.ok is ok, found
    assert text in found.text
    assert remedy in found.remedy


def test_a_network_of_ipv6_alone_wants_rules_of_its_own() -> None:
    def six(cloud: FakeCloud) -> None:
        subnets(SIX)(cloud)
        group(rule(22), rule(6818, ethertype="IPv6"))(cloud)

    found = findings(six, floating_network="")
    assert (found["port 22"].ok, found["port 6818"].ok) == (False, True)
    assert f"--ethertype IPv6 {GROUP}" in found["port 22"].remedy


@pytest.mark.parametrize(("unused_s", "ok"), [(360, True), (359, None)])
def test_a_jobs_group_must_outlive_the_filling_of_volumes(unused_s: float, ok: bool | None) -> None:
    def volumes(cloud: FakeCloud) -> None:
        cloud.services.add("block-storage")
        cloud.answers["block_storage /limits"] = {"limits": {"absolute": {}}}

    more: dict[str, Any] = {"server_group": "", "gang_policy": "affinity", "root": {"gib": 10}, "unused_s": unused_s}
    assert findings(volumes, **more)["gang_policy affinity"].ok is ok


@pytest.mark.parametrize(("gpus", "ok"), [({"h100": "h100"}, False), ({}, None)])
def test_hidden_extra_specs_are_wrong_where_gpus_are_wanted(gpus: dict[str, str], ok: bool | None) -> None:
    def hide(cloud: FakeCloud) -> None:
        flavors(flavor("a"), flavor("b"))(cloud)
        answer("compute /flavors/f-a/os-extra_specs", NotAllowed("policy"))(cloud)

    found = findings(hide, gpus=gpus)
    assert found["gpus"].ok is ok
    assert "os-flavor-extra-specs:index" in found["gpus"].remedy
    assert found["flavors *"].ok is True


@pytest.mark.parametrize(("types", "ok"), [(["ssd", "hdd"], True), (["hdd"], False)])
def test_the_volume_type(types: list[str], ok: bool) -> None:
    def volumes(cloud: FakeCloud) -> None:
        cloud.services.add("block-storage")
        cloud.answers["block_storage /types"] = {"volume_types": [{"id": f"t-{one}", "name": one} for one in types]}
        cloud.answers["block_storage /limits"] = {"limits": {"absolute": {"maxTotalVolumeGigabytes": 100}}}

    found = findings(volumes, root={"gib": 5, "type": "ssd"})
    assert found["volume type ssd"].ok is ok
    assert found["quota gigabytes"].text.endswith("room for 10 machines")


def test_images_of_pools_are_looked_at_as_well() -> None:
    found = findings(images=["debian", "gone"])
    assert found["image debian"].ok is True
    assert "pools' offers" in found["image gone"].remedy
