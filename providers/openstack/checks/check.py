"""Whether launching would work, looked at without making anything: credentials, images, flavors, networks, limits."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import Finding
from providers.findings import first_few
from providers.openstack.calls import OpenStackCalls
from providers.openstack.catalog.catalog import OpenStackCatalog
from providers.openstack.catalog.flavors import Flavor
from providers.openstack.catalog.quotas import OpenStackQuotas
from providers.openstack.checks import access, network, supply
from providers.openstack.checks.findings import finding_for_error
from providers.openstack.launch.images import OpenStackImage, OpenStackImages
from providers.openstack.launch.networks import ProjectNetworks
from providers.openstack.settings import OpenStackSettings


def check(
    settings: OpenStackSettings,
    calls: OpenStackCalls,
    catalog: OpenStackCatalog,
    images: OpenStackImages,
    networks: ProjectNetworks,
    quotas: OpenStackQuotas,
    cluster: str,
    words: Sequence[str],
) -> Iterator[Finding]:
    """Yields every finding; ``words`` are the images that pools name."""
    project = yield from access.check_credentials(calls, lambda: datetime.now(UTC))
    if not project:
        yield Finding("all else", None, "not looked at: it takes a token for a project")
        return
    if not (yield from access.check_services(settings, calls)):
        yield Finding("all else", None, "not looked at: it takes these services")
        return
    named = yield from _images(settings, images, words)
    there, family = yield from network.check_networks(settings, calls, networks, project)
    yield from network.check_floating_network(settings, calls, networks, there, project)
    yield from network.check_security_groups(settings, calls, networks, project, family)
    flavors = yield from supply.check_flavors(settings, catalog)
    yield from _fits(settings, named, flavors)
    yield from supply.check_volume_type(settings, calls)
    yield from supply.check_key_pair(settings, calls)
    yield from supply.check_server_group(settings, calls, cluster)
    yield from supply.check_quotas(settings, quotas, flavors, _root_gib(settings, named), project)


def _images(
    settings: OpenStackSettings, images: OpenStackImages, words: Sequence[str]
) -> Generator[Finding, None, dict[str, OpenStackImage]]:
    found: dict[str, OpenStackImage] = {}
    named = list(dict.fromkeys(word for word in (settings.image, *words) if word))
    if not named:
        yield Finding("image", False, "neither the provider nor a pool names one", "set image in the provider's table")
    for word in named:
        key = "image of the provider's table" if word == settings.image else "image in the pools' offers"
        try:
            found[word] = images.find_image(word)
        except ProviderError as error:
            yield finding_for_error(
                f"image {word}", error, f"mend {key}; 'openstack image list' has those that there are"
            )
    return found


def _fits(
    settings: OpenStackSettings, found: Mapping[str, OpenStackImage], flavors: Sequence[Flavor]
) -> Iterator[Finding]:
    """Whether there are flavors for each image."""
    for word, image in found.items():
        known = f", {image.architecture}" if image.architecture else ""
        summary = f"{image.name}, {image.id}{known}, needs {image.min_disk_gib} GiB"
        alike = [one for one in flavors if not image.architecture or one.architecture in ("", image.architecture)]
        fitting = [one for one in alike if settings.root is not None or one.disk_gib >= image.min_disk_gib]
        diskless = [one.name for one in alike if settings.root is None and not one.disk_gib]
        subject = f"image {word}"
        if flavors and not alike:
            yield Finding(
                subject, False, f"{summary}; no flavor is for that architecture",
                "name an image for the flavors' architecture, or flavors of the image's",
            )  # fmt: skip
        elif flavors and not fitting and diskless:
            yield Finding(
                subject, False, f"{summary}; {first_few(diskless)} has no disk, so Nova wants a volume to boot from",
                "set root = { gib = ... }, or flavors with a disk",
            )  # fmt: skip
        elif flavors and not fitting:
            most = max(one.disk_gib for one in alike)
            yield Finding(
                subject, False, f"{summary}; the largest disk of a flavor has {most} GiB",
                "set root = { gib = ... } to boot from volumes, or take flavors with a larger disk, or a smaller image",
            )  # fmt: skip
        else:
            lacking = first_few([one.name for one in flavors if one not in fitting])
            yield Finding(subject, True, summary + (f"; no machine for it by {lacking}" if lacking else ""))


def _root_gib(settings: OpenStackSettings, found: Mapping[str, OpenStackImage]) -> int:
    """Of a root volume, at most."""
    least = settings.root.gib if settings.root is not None else 0
    return max([least, *(image.min_disk_gib for image in found.values())])
