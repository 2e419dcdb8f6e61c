"""Whether there is anything to be had: flavors, prices, GPUs, zones, quotas; key pair, server group, volume type."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import quote

from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import Finding, Quota
from providers.findings import first_few
from providers.openstack.calls import OpenStackCalls
from providers.openstack.catalog.catalog import OpenStackCatalog
from providers.openstack.catalog.flavors import Flavor
from providers.openstack.catalog.quotas import OpenStackQuotas
from providers.openstack.checks.findings import finding_for_error
from providers.openstack.launch.server_groups import ServerGroups
from providers.openstack.settings import OpenStackSettings


def check_flavors(settings: OpenStackSettings, catalog: OpenStackCatalog) -> Generator[Finding, None, Sequence[Flavor]]:
    """Flavors, prices, devices, zones. Returns the flavors that are offered, smallest first."""
    try:
        flavors, there = catalog.flavors(), _offered(catalog)
        yield from _zones(settings, catalog)
        yield from _flavors(settings, catalog, there)
        yield from _prices(catalog)
        yield from _devices(settings, catalog)
    except ProviderError as error:
        yield finding_for_error("flavors", error, "look at 'openstack flavor list'")
        return ()
    found = {offer.instance_type: flavors[offer.instance_type] for offer in there}
    return sorted(found.values(), key=lambda flavor: (flavor.vcpus, flavor.memory_mib, flavor.name))


def _offered(catalog: OpenStackCatalog) -> Sequence[Offer]:
    """None where there is nothing to offer: each of the findings then says its part of why."""
    return catalog.offers() if catalog.zones() and _complete(catalog) else ()


def _complete(catalog: OpenStackCatalog) -> bool:
    return bool(catalog.flavors().keys() - set(catalog.unpriced()) - catalog.unmapped_devices().keys())


def _zones(settings: OpenStackSettings, catalog: OpenStackCatalog) -> Iterator[Finding]:
    every = catalog.all_zones()
    there = ", ".join(f"{name}{'' if up else ' (not available)'}" for name, up in sorted(every.items())) or "none"
    lost = [word for word in settings.zones if not any(fnmatchcase(name, word) for name in every)]
    if lost:
        summary = f"{', '.join(lost)} of zones is none of this cloud's: {there}"
        yield Finding("zones", False, summary, "set zones to some of 'openstack availability zone list --compute'")
    elif not catalog.zones():
        yield Finding("zones", False, f"none is available: {there}", "wait, or ask the cloud's operator: no host is up")
    else:
        yield Finding("zones", True, ", ".join(catalog.zones()))


def _flavors(settings: OpenStackSettings, catalog: OpenStackCatalog, there: Sequence[Offer]) -> Iterator[Finding]:
    """Each pattern of ``flavors``: what it stands for, and what keeps all flavors of it from being offered."""
    offered = sorted({offer.instance_type for offer in there})
    for pattern in dict.fromkeys(settings.flavors):
        subject = f"flavors {pattern}"
        good = [name for name in offered if fnmatchcase(name, pattern)]
        known = [name for name in catalog.flavors() if fnmatchcase(name, pattern)]
        if good:
            yield Finding(subject, True, f"{len(good)} offered: {first_few(good)}")
        elif known:
            yield Finding(subject, False, *_not_offered_reason(catalog, known))
        else:
            yield Finding(
                subject,
                False,
                f"this project sees none of that name, but {first_few(catalog.visible_flavors()) or 'none at all'}",
                "set flavors to some of 'openstack flavor list', or ask the cloud's operator for access to one",
            )


def _not_offered_reason(catalog: OpenStackCatalog, known: Sequence[str]) -> tuple[str, str]:
    """Why none of these flavors is offered, and where more is said of it."""
    lacks = {
        "prices": ("a price", set(known) & set(catalog.unpriced())),
        "gpus": ("a word on a device", set(known) & catalog.unmapped_devices().keys()),
        "zones": ("a zone", set() if catalog.zones() else set(known)),
    }
    why = ", ".join(f"{word} ({first_few(sorted(names))})" for word, names in lacks.values() if names)
    keys = " and ".join(key for key, (_, names) in lacks.items() if names)
    return f"not offered, for want of {why}", f"mend {keys}: see the findings of that name"


def _prices(catalog: OpenStackCatalog) -> Iterator[Finding]:
    unpriced = catalog.unpriced()
    if unpriced:
        yield Finding(
            "prices", False, f"without one, and so not offered: {first_few(unpriced)}",
            f'set prices = {{ "{unpriced[0]}" = "..." }}, or "*" = "0" where the cloud costs nothing',
        )  # fmt: skip
    elif catalog.flavors():
        yield Finding("prices", True, f"of all {len(catalog.flavors())} flavors")


def _devices(settings: OpenStackSettings, catalog: OpenStackCatalog) -> Iterator[Finding]:
    if catalog.hides_devices():
        yield Finding(
            "gpus", False if settings.gpus else None,
            "the cloud shows this project no extra specs, so that every flavor looks as if it had no GPU",
            "ask the cloud's operator to allow os_compute_api:os-flavor-extra-specs:index to the project's members, or "
            "leave flavors with GPUs out of flavors",
        )  # fmt: skip
        return
    unnamed = catalog.unmapped_devices()
    lacking = sorted({device for devices in unnamed.values() for device in devices})
    if lacking:
        words = ", ".join(f'"{device}" = "TYPE"' for device in lacking)
        yield Finding(
            "gpus",
            False,
            f"{first_few(sorted(unnamed))}: not offered, as gpus does not say what {first_few(lacking)} is",
            f'set gpus = {{ {words} }}, each with its type in slurm.conf, or "" for what is no GPU',
        )
    devices = [device for flavor in catalog.flavors().values() for device in flavor.devices]
    used = {name for device in devices for name in (device.name, *device.traits)}
    idle = sorted(settings.gpus.keys() - used)
    if idle:
        yield Finding(
            "gpus of no flavor", None, f"no flavor of the settings asks for {first_few(idle)}",
            "compare gpus with the properties in 'openstack flavor list --long'",
        )  # fmt: skip
    if settings.gpus and not lacking and not idle:
        yield Finding("gpus", True, f"every device is known: {', '.join(sorted(settings.gpus))}")


def check_quotas(
    settings: OpenStackSettings, quotas: OpenStackQuotas, there: Sequence[Flavor], root_gib: int, project: str
) -> Iterator[Finding]:
    """Each limit, and for how many of the smallest and the largest machine of ``there`` it has room."""
    try:
        limits = quotas.read_quotas()
    except ProviderError as error:
        yield finding_for_error("quotas", error, "look at 'openstack quota show --usage'")
        return
    for limit in limits:
        needs = {flavor.name: _need(settings, limit.name, flavor, root_gib) for flavor in there}
        if limit.name == "server-groups":
            needs = {}  # One serves a job, whatever its machines.
        yield _quota(limit, needs, project)


def _need(settings: OpenStackSettings, name: str, flavor: Flavor, root_gib: int) -> int:
    """What one machine takes of a quota."""
    needs = {"cores": flavor.vcpus, "ram": flavor.memory_mib, "ports": len(settings.networks), "gigabytes": root_gib}
    return max(needs.get(name, 1), 1)


def _quota(limit: Quota, needs: Mapping[str, int], project: str) -> Finding:
    """``needs`` by flavor, smallest first."""
    subject, text = f"quota {limit.name}", f"{limit.used} of {limit.limit} {limit.unit} in use"
    if not needs:
        return Finding(subject, True, text)
    smallest, largest = min(needs, key=lambda name: needs[name]), max(needs, key=lambda name: needs[name])
    free = max(limit.limit - limit.used, 0)
    if needs[smallest] == needs[largest]:
        text += f", room for {free // needs[smallest]} machines"
    else:
        text += f", room for {free // needs[largest]} {largest} or {free // needs[smallest]} {smallest}"
    if limit.limit < needs[smallest]:
        remedy = f"ask the cloud's operator: openstack quota set --{limit.name} {needs[largest]} {project}"
        return Finding(subject, False, text, remedy)
    if free < needs[smallest]:
        return Finding(
            subject, None, f"{text}: all is taken now", "'openstack server list' and 'openstack port list' show by what"
        )
    return Finding(subject, True, text)


def check_key_pair(settings: OpenStackSettings, calls: OpenStackCalls) -> Iterator[Finding]:
    """It belongs to the user, not to the project."""
    if not settings.key_name:
        return
    subject = f"key pair {settings.key_name}"
    try:
        said = calls.query("compute", f"/os-keypairs/{quote(settings.key_name, safe='')}", "read the key pair")[
            "keypair"
        ]
    except ProviderError as error:
        yield finding_for_error(
            subject, error,
            f"as burstd's user: openstack keypair create --public-key FILE {settings.key_name}, or take out key_name",
        )  # fmt: skip
        return
    yield Finding(subject, True, str(said["fingerprint"]))


def check_server_group(settings: OpenStackSettings, calls: OpenStackCalls, cluster: str) -> Iterator[Finding]:
    """The settings' own, or what a job's may be."""
    if not settings.server_group and not settings.gang_policy:
        return
    subject = (
        f"server group {settings.server_group}" if settings.server_group else f"gang_policy {settings.gang_policy}"
    )
    try:
        most = calls.query("compute", "/limits", "read the limits of compute")["limits"]["absolute"].get(
            "maxServerGroupMembers", -1
        )
        limit = f"at most {most} machines" if most >= 0 else "any number of machines"
        if not settings.server_group:
            yield _gang_group_finding(subject, settings, limit)
            return
        own = ServerGroups(cluster, settings, calls).configured_group()
        said = calls.query("compute", f"/os-server-groups/{own}", "read the server group")["server_group"]
    except ProviderError as error:
        yield finding_for_error(
            subject, error, "set server_group to one of 'openstack server group list', or take it out"
        )
        return
    members = len(said["members"])
    summary = f"{', '.join(said['policies'])}; {limit}, {members} are in it"
    if 0 <= most <= members:
        remedy = "ask the cloud's operator: openstack quota set --server-group-members N PROJECT"
        yield Finding(subject, None, f"{summary}: it is full", remedy)
    else:
        yield Finding(subject, True, summary)


def _gang_group_finding(subject: str, settings: OpenStackSettings, limit: str) -> Finding:
    """A group is used again for half of ``unused_s``; while volumes are filled it is empty."""
    least_s = 2 * (settings.volume_timeout_s + settings.timeout_s)
    if settings.root is not None and settings.unused_s < least_s:
        summary = "a job's group may be removed while the volumes of its machines are filled"
        return Finding(subject, None, summary, f"set unused_s to {least_s:.0f} at least, or volume_timeout_s lower")
    return Finding(subject, True, f"{limit} to a job (quota server-group-members)")


def check_volume_type(settings: OpenStackSettings, calls: OpenStackCalls) -> Iterator[Finding]:
    """That of root volumes, where the settings name one."""
    if settings.root is None or not settings.root.type:
        return
    subject = f"volume type {settings.root.type}"
    try:
        types = calls.query("block_storage", "/types", "list volume types")["volume_types"]
    except ProviderError as error:
        yield finding_for_error(subject, error, "look at 'openstack volume type list'")
        return
    if any(settings.root.type in (one["id"], one["name"]) for one in types):
        yield Finding(subject, True, "is there")
    else:
        there = first_few([one["name"] for one in types]) or "none"
        yield Finding(subject, False, f"the cloud has {there}", "set root.type to one of 'openstack volume type list'")
