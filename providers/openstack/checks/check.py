"""Whether launching would work, looked at without making anything: credentials, images, flavors, networks, limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import Finding
from providers.checks import NO_IMAGE, Check, Verdict, bad, first_few, good, image_key, images_in_use, run_checks
from providers.openstack.catalog.catalog import OpenStackCatalog
from providers.openstack.catalog.quotas import OpenStackQuotas
from providers.openstack.checks import access, network, supply
from providers.openstack.checks.project import CheckedProject, error_verdict
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.launch.images import OpenStackImages
from providers.openstack.launch.networks import ProjectNetworks
from providers.openstack.settings import OpenStackSettings


def _no_image(at: CheckedProject) -> Verdict | None:
    return None if images_in_use(at.settings.image, at.words) else NO_IMAGE


def _find_image(at: CheckedProject, word: str) -> Verdict | None:
    try:
        at.images[word] = at.known_images.find_image(word)
    except ProviderError as error:
        key = image_key(at.settings.image, word)
        return error_verdict(error, f"mend {key}; 'openstack image list' has those that there are")
    return None


def _image_fits(at: CheckedProject, word: str) -> Verdict:
    """Whether there are flavors for it."""
    image, flavors, volumes = at.images[word], at.flavors, at.settings.root is not None
    known = f", {image.architecture}" if image.architecture else ""
    summary = f"{image.name}, {image.id}{known}, needs {image.min_disk_gib} GiB"
    alike = [one for one in flavors if not image.architecture or one.architecture in ("", image.architecture)]
    fitting = [one for one in alike if volumes or one.disk_gib >= image.min_disk_gib]
    diskless = [one.name for one in alike if not volumes and not one.disk_gib]
    if fitting or not flavors:
        lacking = first_few([one.name for one in flavors if one not in fitting])
        return good(summary + (f"; no machine for it by {lacking}" if lacking else ""))
    if not alike:
        return bad(
            f"{summary}; no flavor is for that architecture",
            "name an image for the flavors' architecture, or flavors of the image's",
        )
    if diskless:
        return bad(
            f"{summary}; {first_few(diskless)} has no disk, so Nova wants a volume to boot from",
            "set root = { gib = ... }, or flavors with a disk",
        )
    return bad(
        f"{summary}; the largest disk of a flavor has {max(one.disk_gib for one in alike)} GiB",
        "set root = { gib = ... } to boot from volumes, or take flavors with a larger disk, or a smaller image",
    )


_CHECKS: tuple[Check[CheckedProject], ...] = (
    Check("credentials", access.judge_credentials, required="a token for a project"),
    Check("application credential", access.judge_application_credential),
    Check("role", access.judge_role),
    Check("services", access.judge_services, "set region, or look at 'openstack catalog list'",
          required="these services"),
    Check("image", _no_image),
    Check("image {}", _find_image, each=lambda at: images_in_use(at.settings.image, at.words)),
    Check("networks", network.judge_networks, "set networks to some of 'openstack network list'"),
    Check("floating_network {}", network.judge_floating_network,
          "set floating_network to one of 'openstack network list --external'",
          lambda at: filter(None, [at.settings.floating_network])),
    Check("security groups", network.judge_security_groups,
          "set security_groups to some of 'openstack security group list'"),
    Check("flavors", supply.judge_flavors, "look at 'openstack flavor list'"),
    Check("image {}", _image_fits, each=lambda at: at.images),
    Check("volume type {}", supply.judge_volume_type, "look at 'openstack volume type list'",
          lambda at: [at.settings.root.type] if at.settings.root and at.settings.root.type else []),
    Check("key pair {}", supply.judge_key_pair,
          "as burstd's user: openstack keypair create --public-key FILE {}, or take out key_name",
          lambda at: filter(None, [at.settings.key_name])),
    Check("{}", supply.judge_server_group,
          "set server_group to one of 'openstack server group list', or take it out", supply.server_groups),
    Check("quotas", supply.judge_quotas, "look at 'openstack quota show --usage'"),
)  # fmt: skip


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
    project = CheckedProject(settings, calls, catalog, images, networks, quotas, cluster, words)
    return run_checks(_CHECKS, project, error_verdict)
