"""Whether launching would work, looked at without making anything: rights, images, the network, types, limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import Finding
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
from providers.google.calls import GoogleCalls
from providers.google.catalog.catalog import GoogleCatalog
from providers.google.catalog.quotas import GoogleQuotas, metrics
from providers.google.images import GoogleImages
from providers.google.labels import GoogleResource, last_part
from providers.google.launch import subnetwork_path
from providers.google.settings import GoogleSettings

_DOC = "docs/providers/google.md"
_LOOK = (
    "compute.disks.list", "compute.firewalls.list", "compute.images.list", "compute.instances.get",
    "compute.instances.getSerialPortOutput", "compute.instances.list", "compute.machineTypes.list",
    "compute.projects.get", "compute.regions.get", "compute.subnetworks.get", "compute.zoneOperations.list",
)  # fmt: skip
_START = (
    "compute.disks.create", "compute.disks.setLabels", "compute.images.useReadOnly", "compute.instances.create",
    "compute.instances.setLabels", "compute.instances.setMetadata", "compute.subnetworks.use",
)  # fmt: skip
_END = ("compute.disks.delete", "compute.disks.get", "compute.instances.delete")
_ROLE = f"give burstd's service account the role of config/google/role.yaml in this project ({_DOC}, Rights)"


@dataclass(slots=True)
class CheckedProject:
    """What the checks share."""

    settings: GoogleSettings
    calls: GoogleCalls
    catalog: GoogleCatalog
    images: GoogleImages
    quotas: GoogleQuotas
    words: Sequence[str]
    """Images that pools name."""
    offers: Sequence[Offer] = field(default=())
    network: str = ""
    """Of the subnetwork, as a URL; empty: it is another project's, or was not found."""


_error_verdict = ErrorRemedies(
    not_allowed=_ROLE,
    auth_failed=f"set credentials_file, or give the head's machine a service account; enable the services ({_DOC})",
    unavailable="see whether this machine reaches googleapis.com (HTTPS_PROXY in burstd's unit), and try again",
).verdict


def _credentials(at: CheckedProject) -> Verdict:
    said = at.calls.query(
        "compute.regions.get", f"read region {at.settings.region}", project=at.settings.project,
        region=at.settings.region, fields="name,status,zones",
    )  # fmt: skip
    there = {last_part(zone) for zone in said.get("zones", ())}
    strange = [zone for zone in at.settings.zones if zone not in there]
    summary = f"project {at.settings.project}, region {said['name']} with {', '.join(sorted(there))}"
    if strange:
        return bad(f"{summary}; not {', '.join(strange)}", "take these out of zones")
    if said.get("status") == "DOWN":
        return unclear(f"{summary}: Google says DOWN", "try again later")
    return good(summary)


def _rights(at: CheckedProject) -> Iterator[Verdict]:
    """One call, for all. Rights on a host project's subnetwork, and on single images, are no matter of the project."""
    settings = at.settings
    start = [*_START, *(["compute.subnetworks.useExternalIp"] if settings.public_address else [])]
    start += ["compute.instances.setTags"] if settings.network_tags else []
    start += ["compute.instances.setServiceAccount"] if settings.service_account else []
    look = [*_LOOK, *(["compute.acceleratorTypes.list"] if any("+" in w for w in settings.machine_types) else [])]
    elsewhere = {"compute.subnetworks.use", "compute.subnetworks.useExternalIp", "compute.subnetworks.get"}
    skipped = elsewhere if "/" in settings.subnetwork else set()
    groups = (("rights to look", look), ("rights to start", start), ("rights to end", list(_END)))
    wanted = [one for _, some in groups for one in some if one not in skipped]
    said = at.calls.query(
        "cloudresourcemanager.projects.testIamPermissions", "test burstd's rights", resource=settings.project,
        body={"permissions": wanted},
    )  # fmt: skip
    have = set(said.get("permissions", ()))
    for subject, some in groups:
        lacking = [one for one in some if one in wanted and one not in have]
        number = len([one for one in some if one in wanted])
        yield bad(f"missing: {', '.join(lacking)}", _ROLE, subject) if lacking else good(f"all {number}", subject)
    if skipped:
        yield unclear(
            f"whether {settings.subnetwork} may be used shows at the first launch",
            "the host project's administrator gives roles/compute.networkUser on the subnetwork", "shared VPC",
        )  # fmt: skip


def _subnetwork(at: CheckedProject) -> Verdict:
    _, project, _, region, _, name = subnetwork_path(at.settings).split("/")
    said = at.calls.query(
        "compute.subnetworks.get", f"read subnetwork {name}", project=project, region=region, subnetwork=name,
        fields="name,network,ipCidrRange,state,purpose,privateIpGoogleAccess",
    )  # fmt: skip
    summary = f"{said['ipCidrRange']} in network {last_part(said['network'])}"
    if region != at.settings.region:
        return bad(f"{summary}, of region {region}", f"name a subnetwork of region {at.settings.region}")
    if project == at.settings.project:
        at.network = str(said["network"])
    if said.get("purpose", "PRIVATE") not in ("PRIVATE", "PRIVATE_RFC_1918"):
        return bad(f"{summary}, of purpose {said['purpose']}: no machine can be in it", "name another subnetwork")
    return good(summary)


def _ports(at: CheckedProject) -> Iterator[Verdict]:
    """Whether rules of the network let in what must get in. Firewall policies are not looked at."""
    if not at.network:
        return
    rules = [
        rule
        for rule in at.calls.items(
            "compute.firewalls.list", "list firewall rules", project=at.settings.project, maxResults=at.settings.page
        )
        if rule.get("network") == at.network and _applies(rule, at.settings)
    ]
    for port, what in ((22, "ssh from the head"), (6818, "slurmd from head and nodes")):
        if any(_lets_in(rule, port) for rule in rules):
            yield good(f"rules of the network let it in from somewhere ({what})", f"port {port}")
        else:
            tags = ",".join(at.settings.network_tags)
            yield unclear(
                f"no rule of the network lets it in ({what}); a firewall policy may",
                f"gcloud compute firewall-rules create NAME --network={last_part(at.network)} --allow=tcp:{port} "
                f"--source-ranges=RANGE{' --target-tags=' + tags if tags else ''}", f"port {port}",
            )  # fmt: skip


def _applies(rule: GoogleResource, settings: GoogleSettings) -> bool:
    """To our machines."""
    if rule.get("direction") != "INGRESS" or rule.get("disabled"):
        return False
    tags, accounts = set(rule.get("targetTags", ())), set(rule.get("targetServiceAccounts", ()))
    return not (tags or accounts) or bool(tags & set(settings.network_tags)) or settings.service_account in accounts


def _lets_in(rule: GoogleResource, port: int) -> bool:
    """https://cloud.google.com/firewall/docs/firewalls"""
    for one in rule.get("allowed", ()):
        if one["IPProtocol"] in ("all", "tcp", "6"):
            ranges = [tuple(map(int, said.split("-"))) for said in one.get("ports", ())]
            if not ranges or any(some[0] <= port <= some[-1] for some in ranges):
                return True
    return False


def _no_image(at: CheckedProject) -> Verdict | None:
    return None if images_in_use(at.settings.image, at.words) else NO_IMAGE


def _image(at: CheckedProject, word: str) -> Verdict:
    try:
        found = at.images.versions(word)
    except ProviderError as error:
        key = image_key(at.settings.image, word)
        return _error_verdict(error, f"mend {key}; 'gcloud compute images list' has those that there are")
    more = f" and {len(found) - 1} older" if len(found) > 1 else ""
    return good(f"{found[0]}{more}")


def _offers(at: CheckedProject) -> Iterator[Verdict]:
    at.offers = sorted(at.catalog.offers(), key=lambda offer: (offer.price, offer.id))
    if unpriced := at.catalog.unpriced():
        yield bad(
            f"without one in some market, and so not offered there: {first_few(unpriced)}",
            f'set prices = {{ "{unpriced[0]}" = "..." }} (spot_prices likewise), or take these types out', "prices",
        )  # fmt: skip
    else:
        sources = Counter(offer.price_source for offer in at.offers)
        summary = ", ".join(f"{number} from {source}" for source, number in sources.items())
        yield good(f"of {len(at.offers)} offers: {summary}", "prices")
    if at.catalog.prices.failure:
        remedy = "enable cloudbilling.googleapis.com, or set prices and price_list = false"
        yield bad(at.catalog.prices.failure, remedy, "price list")


def _machine_types(at: CheckedProject, pattern: str) -> Verdict:
    # An attached accelerator is no pattern.
    name, _, gpu = pattern.partition("+")
    found = [
        offer
        for offer in at.offers
        if fnmatchcase(offer.instance_type.partition("+")[0], name) and offer.instance_type.partition("+")[2] == gpu
    ]
    if not found:
        places = ", ".join(at.catalog.zones())
        remedy = "'gcloud compute machine-types list' and 'gcloud compute accelerator-types list' have those that are"
        return bad(f"nothing of that name is offered in {places}: it is not there, or has no price", remedy)
    names, zones = sorted({one.instance_type for one in found}), sorted({one.zone for one in found})
    return good(f"{len(names)} offered: {first_few(names)}; in {', '.join(zones)}")


def _quotas(at: CheckedProject) -> Iterator[Verdict]:
    offered = {offer.instance_type for offer in at.offers}
    kinds = [kind for kind in at.catalog.types() if kind.name in offered]
    for limit in at.quotas.read_quotas():
        needs = {kind.name: metrics(kind)[limit.name] for kind in kinds if limit.name in metrics(kind)}
        verdict = judge_room(
            f"{limit.used} of {limit.limit} {limit.unit} in use", limit.limit - limit.used, limit.limit, needs,
            f"ask for an increase of {limit.name} to {{}} or more: console, IAM & Admin, Quotas",
        )  # fmt: skip
        if verdict.ok is False and limit.name.startswith("PREEMPTIBLE_"):
            # Google counts Spot VMs as others where the project has no quota of their own, whose limit is 0 then.
            verdict = unclear(f"{verdict.text}; Spot VMs count as others do where this is 0", verdict.remedy)
        yield replace(verdict, subject=f"quota {limit.name}")


_CHECKS: tuple[Check[CheckedProject], ...] = (
    Check("credentials", _credentials, "look at project and region", required="a project that answers"),
    Check("rights", _rights, "enable cloudresourcemanager.googleapis.com, or compare the role with "
          "config/google/role.yaml"),
    Check("subnetwork", _subnetwork, "set subnetwork to one of 'gcloud compute networks subnets list'"),
    Check("firewall rules", _ports, "look at 'gcloud compute firewall-rules list'"),
    Check("image", _no_image),
    Check("image {}", _image, each=lambda at: images_in_use(at.settings.image, at.words)),
    Check("offers", _offers, "look at machine_types, zones and prices"),
    Check("machine type {}", _machine_types, each=lambda at: at.settings.machine_types),
    Check("quotas", _quotas, "look at 'gcloud compute regions describe REGION'"),
)  # fmt: skip


def check(
    settings: GoogleSettings,
    calls: GoogleCalls,
    catalog: GoogleCatalog,
    images: GoogleImages,
    quotas: GoogleQuotas,
    words: Sequence[str],
) -> Iterator[Finding]:
    """Yields every finding; ``words`` are the images that pools name."""
    return run_checks(_CHECKS, CheckedProject(settings, calls, catalog, images, quotas, words), _error_verdict)
