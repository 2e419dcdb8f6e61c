"""Whether there is anything to be had: flavors, prices, GPUs, zones, quotas; key pair, server group, volume type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from urllib.parse import quote

from burstd.domain.cloud.offer import Offer
from providers.checks import Verdict, bad, first_few, good, judge_room, unclear
from providers.openstack.catalog.catalog import OpenStackCatalog
from providers.openstack.catalog.flavors import Flavor
from providers.openstack.checks.project import CheckedProject
from providers.openstack.launch.server_groups import ServerGroups


def judge_flavors(at: CheckedProject) -> Iterator[Verdict]:
    """Flavors, prices, devices, zones: where there is nothing to offer, each says its part of why."""
    catalog = at.catalog
    flavors = catalog.flavors()
    complete = flavors.keys() - set(catalog.unpriced()) - catalog.unmapped_devices().keys()
    offers = catalog.offers() if catalog.zones() and complete else ()
    yield _zones(at)
    yield from _flavors(at, offers)
    if unpriced := catalog.unpriced():
        yield bad(
            f"without one, and so not offered: {first_few(unpriced)}",
            f'set prices = {{ "{unpriced[0]}" = "..." }}, or "*" = "0" where the cloud costs nothing', "prices",
        )  # fmt: skip
    elif flavors:
        yield good(f"of all {len(flavors)} flavors", "prices")
    yield from _devices(at)
    found = {offer.instance_type: flavors[offer.instance_type] for offer in offers}
    at.flavors = sorted(found.values(), key=lambda flavor: (flavor.vcpus, flavor.memory_mib, flavor.name))


def _zones(at: CheckedProject) -> Verdict:
    every = at.catalog.all_zones()
    there = ", ".join(f"{name}{'' if up else ' (not available)'}" for name, up in sorted(every.items())) or "none"
    lost = [word for word in at.settings.zones if not any(fnmatchcase(name, word) for name in every)]
    if lost:
        summary = f"{', '.join(lost)} of zones is none of this cloud's: {there}"
        return bad(summary, "set zones to some of 'openstack availability zone list --compute'", "zones")
    if not at.catalog.zones():
        return bad(f"none is available: {there}", "wait, or ask the cloud's operator: no host is up", "zones")
    return good(", ".join(at.catalog.zones()), "zones")


def _flavors(at: CheckedProject, there: Sequence[Offer]) -> Iterator[Verdict]:
    """Each pattern of ``flavors``: what it stands for, and what keeps all flavors of it from being offered."""
    offered = sorted({offer.instance_type for offer in there})
    for pattern in dict.fromkeys(at.settings.flavors):
        subject = f"flavors {pattern}"
        good_names = [name for name in offered if fnmatchcase(name, pattern)]
        known = [name for name in at.catalog.flavors() if fnmatchcase(name, pattern)]
        if good_names:
            yield good(f"{len(good_names)} offered: {first_few(good_names)}", subject)
        elif known:
            yield bad(*_not_offered_reason(at.catalog, known), subject)
        else:
            yield bad(
                f"this project sees none of that name, but {first_few(at.catalog.visible_flavors()) or 'none at all'}",
                "set flavors to some of 'openstack flavor list', or ask the cloud's operator for access to one",
                subject,
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


def _devices(at: CheckedProject) -> Iterator[Verdict]:
    settings, catalog = at.settings, at.catalog
    if catalog.hides_devices():
        yield Verdict(
            False if settings.gpus else None,
            "the cloud shows this project no extra specs, so that every flavor looks as if it had no GPU",
            "ask the cloud's operator to allow os_compute_api:os-flavor-extra-specs:index to the project's members, or "
            "leave flavors with GPUs out of flavors", "gpus",
        )  # fmt: skip
        return
    unnamed = catalog.unmapped_devices()
    lacking = sorted({device for devices in unnamed.values() for device in devices})
    if lacking:
        words = ", ".join(f'"{device}" = "TYPE"' for device in lacking)
        yield bad(
            f"{first_few(sorted(unnamed))}: not offered, as gpus does not say what {first_few(lacking)} is",
            f'set gpus = {{ {words} }}, each with its type in slurm.conf, or "" for what is no GPU', "gpus",
        )  # fmt: skip
    devices = [device for flavor in catalog.flavors().values() for device in flavor.devices]
    used = {name for device in devices for name in (device.name, *device.traits)}
    if idle := sorted(settings.gpus.keys() - used):
        yield unclear(
            f"no flavor of the settings asks for {first_few(idle)}",
            "compare gpus with the properties in 'openstack flavor list --long'", "gpus of no flavor",
        )  # fmt: skip
    if settings.gpus and not lacking and not idle:
        yield good(f"every device is known: {', '.join(sorted(settings.gpus))}", "gpus")


def judge_quotas(at: CheckedProject) -> Iterator[Verdict]:
    """Each limit, and for how many of the smallest and the largest machine of those that are offered it has room."""
    root = at.settings.root.gib if at.settings.root is not None else 0
    root_gib = max([root, *(image.min_disk_gib for image in at.images.values())])
    for limit in at.quotas.read_quotas():
        # One server group serves a job, whatever its machines.
        flavors = () if limit.name == "server-groups" else at.flavors
        verdict = judge_room(
            f"{limit.used} of {limit.limit} {limit.unit} in use", limit.limit - limit.used, limit.limit,
            {flavor.name: _need(at, limit.name, flavor, root_gib) for flavor in flavors},
            f"ask the cloud's operator: openstack quota set --{limit.name} {{}} {at.id}",
            "'openstack server list' and 'openstack port list' show by what",
        )  # fmt: skip
        yield replace(verdict, subject=f"quota {limit.name}")


def _need(at: CheckedProject, name: str, flavor: Flavor, root_gib: int) -> int:
    """What one machine takes of a quota."""
    ports = len(at.settings.networks)
    needs = {"cores": flavor.vcpus, "ram": flavor.memory_mib, "ports": ports, "gigabytes": root_gib}
    return max(needs.get(name, 1), 1)


def judge_key_pair(at: CheckedProject, name: str) -> Verdict:
    """It belongs to the user, not to the project."""
    said = at.calls.query("compute", f"/os-keypairs/{quote(name, safe='')}", "read the key pair")["keypair"]
    return good(str(said["fingerprint"]))


def server_groups(at: CheckedProject) -> list[str]:
    """The subject of the question on the settings' own group, or on what a job's may be."""
    if at.settings.server_group:
        return [f"server group {at.settings.server_group}"]
    return [f"gang_policy {at.settings.gang_policy}"] if at.settings.gang_policy else []


def judge_server_group(at: CheckedProject, _: str) -> Verdict:
    """How many machines it takes."""
    limits = at.calls.query("compute", "/limits", "read the limits of compute")["limits"]["absolute"]
    most = limits.get("maxServerGroupMembers", -1)
    limit = f"at most {most} machines" if most >= 0 else "any number of machines"
    settings = at.settings
    if not settings.server_group:
        # A group is used again for half of unused_s; while volumes are filled it is empty.
        least_s = 2 * (settings.volume_timeout_s + settings.timeout_s)
        if settings.root is not None and settings.unused_s < least_s:
            summary = "a job's group may be removed while the volumes of its machines are filled"
            return unclear(summary, f"set unused_s to {least_s:.0f} at least, or volume_timeout_s lower")
        return good(f"{limit} to a job (quota server-group-members)")
    own = ServerGroups(at.cluster, settings, at.calls).configured_group()
    said = at.calls.query("compute", f"/os-server-groups/{own}", "read the server group")["server_group"]
    members = len(said["members"])
    summary = f"{', '.join(said['policies'])}; {limit}, {members} are in it"
    if 0 <= most <= members:
        remedy = "ask the cloud's operator: openstack quota set --server-group-members N PROJECT"
        return unclear(f"{summary}: it is full", remedy)
    return good(summary)


def judge_volume_type(at: CheckedProject, name: str) -> Verdict:
    """That of root volumes."""
    types = at.calls.query("block_storage", "/types", "list volume types")["volume_types"]
    if any(name in (one["id"], one["name"]) for one in types):
        return good("is there")
    there = first_few([one["name"] for one in types]) or "none"
    return bad(f"the cloud has {there}", "set root.type to one of 'openstack volume type list'")
