"""Whether launching would work, looked at without making anything: credentials, images, networks, rights, limits."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence

from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import CloudUnavailable, ProviderError
from burstd.domain.plugins.provider import Finding
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import AwsCatalog, Ec2InstanceType
from providers.aws.catalog.quotas import AwsQuotas
from providers.aws.checks import network, rights, supply
from providers.aws.checks.network import CheckedNetwork
from providers.aws.launch.images import AwsImage, AwsImages
from providers.aws.settings import AwsSettings

DOC = "docs/providers/aws.md"


def check(
    settings: AwsSettings,
    calls: AwsCalls,
    catalog: AwsCatalog,
    images: AwsImages,
    quotas: AwsQuotas,
    cluster: str,
    words: Sequence[str],
) -> Iterator[Finding]:
    """Yields every finding; ``words`` are the images that pools name."""
    who = yield from _credentials(calls)
    if not who:
        yield Finding("all else", None, "not looked at: it takes credentials that Amazon knows")
        return
    named = yield from _images(settings, images, words)
    vpc = yield from network.check_subnets(settings, calls)
    yield from network.check_security_groups(settings, calls, vpc)
    offers = yield from supply.check_offers(catalog)
    yield from supply.check_instance_types(settings, calls, vpc, offers)
    types = [kind for name in dict.fromkeys(o.instance_type for o in offers) if (kind := catalog.type(name))]
    yield from _architectures(named, types)
    mine = rights.IamRights(cluster, calls, settings.tags)
    yield from mine.check_rights(_sample_launch(settings, vpc, offers, types, named))
    yield from supply.check_reservations(settings, calls, vpc)
    yield from supply.check_quotas(quotas, types)
    yield from supply.check_notices_queue(settings, calls)
    yield from supply.check_service_roles(calls, spot=any(offer.spot for offer in offers))


def _sample_launch(
    settings: AwsSettings, network: CheckedNetwork, offers: Sequence[Offer], types: Sequence[Ec2InstanceType],
    named: Mapping[str, AwsImage],
) -> rights.SampleLaunch:  # fmt: skip
    """A launch as burstd would make it: the first image, with the cheapest type that it fits."""
    image = next(iter(named.values()), None)
    fitting = {kind.name for kind in types if image is None or kind.architecture == image.architecture}
    offer = next((o for o in offers if o.instance_type in fitting and o.zone in network.subnets), None)
    return rights.SampleLaunch(
        image=image.id if image else "",
        instance_type=offer.instance_type if offer else "",
        subnet=network.subnets[offer.zone] if offer else "",
        groups=settings.security_groups,
        profile=settings.instance_profile,
        spot=any(o.spot for o in offers),
        placement_groups=settings.placement_groups,
    )


def _credentials(calls: AwsCalls) -> Generator[Finding, None, str]:
    try:
        said = calls.query("sts", "get_caller_identity")
    except ProviderError as error:
        yield Finding("credentials", False, str(error), _credentials_remedy(error))
        return ""
    who: str = said["Arn"]
    if who.endswith(":root"):
        yield Finding(
            "credentials", False, f"{who} is the account's root user, who may do everything",
            f"make a user or role for burstd with the policy {rights.POLICY} ({DOC}, Rights)",
        )  # fmt: skip
    else:
        yield Finding("credentials", True, who)
    return who


def _credentials_remedy(error: ProviderError) -> str:
    code = rights.error_code(error)
    if isinstance(error, CloudUnavailable):
        return "let burstd's user reach Amazon on port 443 (HTTPS_PROXY in the unit where there is a proxy)"
    if code.startswith("Expired") or code == "RequestExpired":
        return "get new credentials, or set the head node's clock (timedatectl) where it is wrong"
    if code:
        return f"make a new access key in IAM and put it where burstd's user has the old one ({DOC}, Credentials)"
    return (
        "give the head node an instance profile, or name a file with keys as AWS_SHARED_CREDENTIALS_FILE in burstd's "
        f"unit ({DOC}, Credentials)"
    )


def _images(
    settings: AwsSettings, images: AwsImages, words: Sequence[str]
) -> Generator[Finding, None, dict[str, AwsImage]]:
    found: dict[str, AwsImage] = {}
    named = list(dict.fromkeys(word for word in (settings.image, *words) if word))
    if not named:
        yield Finding("image", False, "neither the provider nor a pool names one", "set image in the provider's table")
    for word in named:
        key = "image of the provider's table" if word == settings.image else "image in the pools' offers"
        try:
            found[word] = images.find_image(word)
        except ProviderError as error:
            yield rights.finding_for_error(f"image {word}", error, f"mend {key}")
    return found


def _architectures(found: Mapping[str, AwsImage], types: Sequence[Ec2InstanceType]) -> Iterator[Finding]:
    there = {kind.architecture for kind in types}
    for word, image in found.items():
        fitting = [kind.name for kind in types if kind.architecture == image.architecture]
        summary = f"{image.id}, {image.architecture}, root volume of {image.root_gib} GiB or more"
        if types and not fitting:
            yield Finding(
                f"image {word}", False, f"{summary}; the instance types are all {', '.join(sorted(there))}",
                "name an image for that architecture, or instance_types of the image's",
            )  # fmt: skip
        else:
            some = f"; fits {len(fitting)} of {len(types)} instance types" if len(fitting) < len(types) else ""
            yield Finding(f"image {word}", True, summary + some)
