"""Whether launching would work, looked at without making anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import Finding
from providers.azure.calls import AzureCalls, Resource
from providers.azure.catalog.catalog import AzureCatalog
from providers.azure.catalog.quotas import AzureQuotas
from providers.azure.launch.images import AzureImages
from providers.azure.resources import MACHINES, properties_of
from providers.azure.settings import AzureSettings
from providers.checks import (
    NO_IMAGE,
    Check,
    ErrorRemedies,
    Verdict,
    bad,
    first_few,
    good,
    image_key,
    images_in_use,
    judge_room,
    run_checks,
    unclear,
)

DOC = "docs/providers/azure.md"
ROLES = "config/azure/role.json and role-subscription.json"
NEEDED = (
    "Microsoft.Compute/virtualMachines/read", "Microsoft.Compute/virtualMachines/write",
    "Microsoft.Compute/virtualMachines/delete", "Microsoft.Compute/virtualMachines/instanceView/read",
    "Microsoft.Compute/virtualMachines/retrieveBootDiagnosticsData/action",
    "Microsoft.Compute/virtualMachines/attachDetachDataDisks/action", "Microsoft.Compute/disks/read",
    "Microsoft.Compute/disks/write", "Microsoft.Compute/disks/delete", "Microsoft.Network/networkInterfaces/read",
    "Microsoft.Network/networkInterfaces/write", "Microsoft.Network/networkInterfaces/delete",
    "Microsoft.Network/networkInterfaces/join/action", "Microsoft.Network/publicIPAddresses/read",
    "Microsoft.Resources/subscriptions/resourceGroups/read",
)  # fmt: skip
"""In the resource group, whatever the settings say."""
WITH_ADDRESSES = (
    "Microsoft.Network/publicIPAddresses/write", "Microsoft.Network/publicIPAddresses/delete",
    "Microsoft.Network/publicIPAddresses/join/action",
)  # fmt: skip
_ASSIGN = "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"
_FEW = 16
"""Free addresses of a subnet below which they soon run out."""
_REMEDIES = ErrorRemedies(
    not_allowed=f"give burstd's identity the roles {ROLES} ({DOC}, Rights)",
    auth_failed=f"look at tenant, client_id and the file with the secret, which may have expired ({DOC}, Credentials)",
    unavailable="let burstd's user reach Azure on port 443 (HTTPS_PROXY in the unit where there is a proxy)",
)


@dataclass(slots=True)
class CheckedGroup:
    """One resource group. ``words`` are the images that pools name."""

    settings: AzureSettings
    calls: AzureCalls
    catalog: AzureCatalog
    known_images: AzureImages
    known_quotas: AzureQuotas
    words: Sequence[str]
    offers: list[Offer] = field(default_factory=list)


def _credentials(at: CheckedGroup) -> Verdict:
    """The first call: what is wrong with the credentials shows here."""
    said = at.calls.query(at.calls.in_group(""), "look at the resource group")
    who = f"client {at.settings.client_id}" if at.settings.client_id else "managed identity"
    return good(f"{who} sees resource group {said['name']} in {said['location']}")


def _rights(at: CheckedGroup) -> Iterator[Verdict]:
    """Of what a launch makes, and of what it uses, which may be in another resource group."""
    uses = (
        ("subnet", at.settings.subnet, "Microsoft.Network/virtualNetworks/subnets/join/action"),
        ("security group", at.settings.security_group, "Microsoft.Network/networkSecurityGroups/join/action"),
        ("machines' identity", at.settings.machine_identity, _ASSIGN),
    )
    group = [*NEEDED, *(WITH_ADDRESSES if at.settings.public_address else ())]
    places = [
        ("resource group", at.calls.in_group(""), group),
        *((name, path, [one]) for name, path, one in uses if path),
    ]
    for name, path, needed in places:
        where = f"{path}/providers/Microsoft.Authorization/permissions"
        given = list(at.calls.pages(where, f"read burstd's rights to the {name}"))
        missing = [action for action in needed if not any(_allows(one, action) for one in given)]
        if missing:
            yield bad(f"missing: {first_few(missing)}", _REMEDIES.not_allowed, f"rights to the {name}")
        else:
            yield good(f"all {len(needed)} that burstd needs", f"rights to the {name}")


def _power_states(at: CheckedGroup) -> Verdict:
    """The list is the whole subscription's; without it no machine that somebody switched off is seen."""
    every = at.calls.in_subscription(MACHINES)
    next(at.calls.page_by_page(every, "list what has become of machines", statusOnly="true"))
    return good("can be listed")


def _allows(permission: Resource, action: str) -> bool:
    def fits(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)

    return fits(permission.get("actions") or ()) and not fits(permission.get("notActions") or ())


def _no_image(at: CheckedGroup) -> Verdict | None:
    return None if images_in_use(at.settings.image, at.words) else NO_IMAGE


def _image(at: CheckedGroup, word: str) -> Verdict:
    try:
        newest = at.known_images.versions(word)[0]
        about = properties_of(at.known_images.describe(word))
    except ProviderError as error:
        return _REMEDIES.verdict(error, f"mend {image_key(at.settings.image, word)}")
    name = newest.rpartition("/images/")[2] or newest
    if not about:
        return unclear(f"{name}: whether there is one the first launch tells", "name a version instead of latest")
    if about.get("osState") == "Specialized":
        return bad(
            f"{name} is specialized: machines get no user data from it", "make a generalized image (az vm generalize)"
        )
    architecture = {"Arm64": "aarch64"}.get(str(about.get("architecture", "")), "x86_64")
    kinds = {one.hardware.architecture for one in at.offers}
    if kinds and architecture not in kinds:
        return bad(
            f"{name} is for {architecture}, the sizes are all {', '.join(sorted(kinds))}", "name an image for that"
        )
    features = {str(one["name"]): str(one["value"]) for one in about.get("features") or ()}
    return _unfit(at, name, str(about.get("hyperVGeneration") or ""), features) or good(f"{name}, {architecture}")


def _unfit(at: CheckedGroup, name: str, generation: str, features: Mapping[str, str]) -> Verdict | None:
    """What keeps machines of an image from booting; None: nothing."""
    secure, wanted = features.get("SecurityType", ""), at.settings.security_type
    if wanted == "TrustedLaunch" and not secure.startswith(wanted):
        return bad(f"{name} has not the feature SecurityType=TrustedLaunch", "make one with it, or no security_type")
    if secure == "TrustedLaunch" and wanted != "TrustedLaunch":
        return bad(f"{name} boots with TrustedLaunch only", 'set security_type = "TrustedLaunch"')
    sizes = [size for one in sorted({one.instance_type for one in at.offers}) if (size := at.catalog.type(one))]
    other = [size for size in sizes if generation and generation not in size.generations]
    nvme = [size for size in sizes if size.nvme_only and "NVMe" not in features.get("DiskControllerTypes", "")]
    for unfit, why in ((other, f"of generation {generation}"), (nvme, "without DiskControllerTypes=SCSI,NVMe")):
        if unfit:
            judge = bad if len(unfit) == len(sizes) else unclear
            names = first_few([size.name for size in unfit])
            return judge(f"{name} is {why}: {names} cannot boot it", "name another image for pools of those sizes")
    return None


def _subnet(at: CheckedGroup, name: str) -> Verdict:
    said = at.calls.query(at.settings.subnet, f"look at subnet {name}")
    about = properties_of(said)
    where = ", ".join(about.get("addressPrefixes") or [about.get("addressPrefix", "")])
    if not at.settings.security_group and not about.get("networkSecurityGroup"):
        return bad(
            f"{where}; neither it nor security_group filters what reaches a machine",
            "set security_group, or give the subnet a network security group",
        )
    total = sum(2 ** (32 - int(one.partition("/")[2])) - 5 for one in where.split(", ") if "." in one)
    free = total - len(about.get("ipConfigurations") or ())
    text = f"{where}, {free} free addresses"
    return good(text) if free >= _FEW else bad(text, "take a larger subnet, or remove what is not used in this one")


def _security_group(at: CheckedGroup, name: str) -> Verdict:
    said = at.calls.query(at.settings.security_group, f"look at network security group {name}")
    if said["location"] != at.settings.location:
        return bad(f"is in {said['location']}", f"take one in {at.settings.location}")
    # Whoever is in the virtual network, or in one that is connected to it, is let in by rules of Azure's own.
    closed = [one["name"] for one in properties_of(said).get("securityRules") or () if _shuts(properties_of(one))]
    if closed:
        return unclear(
            f"its own rules {first_few(closed)} shut ports out",
            "let ssh from the head in before them, and slurmd's 6818",
        )
    return good(f"in {said['location']}; it lets in what comes from the virtual network and those connected to it")


def _shuts(rule: Resource) -> bool:
    return (rule.get("direction"), rule.get("access")) == ("Inbound", "Deny")


def _offers(at: CheckedGroup) -> Iterator[Verdict]:
    at.offers = sorted(at.catalog.offers(), key=lambda offer: (offer.price, offer.id))
    sources = Counter(offer.price_source for offer in at.offers)
    summary = ", ".join(f"{number} from {source}" for source, number in sources.items())
    yield good(f"{len(at.offers)}: {summary}")
    if unpriced := at.catalog.unpriced():
        yield bad(
            f"without one in some market, and so not offered there: {first_few(unpriced)}",
            f'set prices = {{ "{unpriced[0]}" = "..." }} (spot_prices likewise), or mend the price list', "prices",
        )  # fmt: skip
    if at.catalog.prices.failure:
        yield bad(
            at.catalog.prices.failure,
            "let burstd's user reach the price list on port 443, or set prices and price_list = false", "price list",
        )  # fmt: skip


def _instance_types(at: CheckedGroup, pattern: str) -> Verdict:
    offered = sorted({one.instance_type for one in at.offers if fnmatchcase(one.instance_type, pattern)})
    if offered:
        markets = ", ".join(sorted({one.market for one in at.offers if one.instance_type in offered}))
        return good(f"{len(offered)} offered: {first_few(offered)}; {markets}")
    known = [size for size in at.catalog.sizes().values() if fnmatchcase(size.name, pattern)]
    if not known:
        return bad(
            f"{at.settings.location} has none of that name", "look at 'az vm list-skus' for the names that there are"
        )
    why = sorted({size.withheld for size in known if size.withheld})
    if why:
        return bad(
            f"{first_few([size.name for size in known])}: not for this subscription ({', '.join(why)})",
            "ask Azure's support for access, or take another location or size",
        )
    return bad("sold in other zones only, or no price is known", "look at zones and at the finding on prices")


def _quotas(at: CheckedGroup) -> Iterator[Verdict]:
    for quota, needs in at.known_quotas.with_needs():
        verdict = judge_room(
            f"{quota.used} of {quota.limit} {quota.unit} in use", quota.limit - quota.used, quota.limit,
            {f"{name} ({need} each)": need for name, need in needs.items()},
            f"ask for {{}} or more in Azure's portal (Quotas, {at.settings.location}, {quota.name})",
        )  # fmt: skip
        yield replace(verdict, subject=f"quota {quota.name}")


_CHECKS: tuple[Check[CheckedGroup], ...] = (
    Check("credentials", _credentials, "set subscription and resource_group to what there is",
          required="credentials and a resource group"),
    Check("rights", _rights),
    Check("power states", _power_states),
    Check("offers", _offers, "mend what it names in the provider's table"),
    Check("instance types {}", _instance_types, "mend instance_types", lambda at: at.settings.instance_types),
    Check("image", _no_image),
    Check("image {}", _image, each=lambda at: images_in_use(at.settings.image, at.words)),
    Check("subnet {}", _subnet, "set subnet to an id of 'az network vnet subnet list'",
          lambda at: [at.settings.subnet.rpartition("/")[2]]),
    Check("security group {}", _security_group, "set security_group to an id of 'az network nsg list'",
          lambda at: [at.settings.security_group.rpartition("/")[2]] if at.settings.security_group else []),
    Check("quotas", _quotas, "look at Quotas in Azure's portal"),
)  # fmt: skip


def check(
    settings: AzureSettings,
    calls: AzureCalls,
    catalog: AzureCatalog,
    images: AzureImages,
    quotas: AzureQuotas,
    words: Sequence[str],
) -> Iterator[Finding]:
    """Yields every finding; ``words`` are the images that pools name."""
    return run_checks(_CHECKS, CheckedGroup(settings, calls, catalog, images, quotas, words), _REMEDIES.verdict)
