"""Whether launching would work, looked at without making anything: credentials, images, networks, rights, limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.domain.errors import CloudUnavailable, ProviderError
from burstd.domain.plugins.provider import Finding
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import AwsCatalog
from providers.aws.catalog.quotas import AwsQuotas
from providers.aws.checks import network, rights, supply
from providers.aws.checks.account import DOC, POLICY, CheckedAccount, error_code, error_verdict
from providers.aws.launch.images import AwsImages
from providers.aws.settings import AwsSettings
from providers.checks import NO_IMAGE, Check, Verdict, bad, good, image_key, images_in_use, run_checks


def _credentials(at: CheckedAccount) -> Verdict:
    try:
        who: str = at.calls.query("sts", "get_caller_identity")["Arn"]
    except ProviderError as error:
        return bad(str(error), _credentials_remedy(error), fatal=True)
    if who.endswith(":root"):
        return bad(
            f"{who} is the account's root user, who may do everything",
            f"make a user or role for burstd with the policy {POLICY} ({DOC}, Rights)",
        )
    return good(who)


def _credentials_remedy(error: ProviderError) -> str:
    code = error_code(error)
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


def _no_image(at: CheckedAccount) -> Verdict | None:
    return None if images_in_use(at.settings.image, at.words) else NO_IMAGE


def _find_image(at: CheckedAccount, word: str) -> Verdict | None:
    try:
        at.images[word] = at.known_images.find_image(word)
    except ProviderError as error:
        return error_verdict(error, f"mend {image_key(at.settings.image, word)}")
    return None


def _architecture(at: CheckedAccount, word: str) -> Verdict:
    image, types = at.images[word], at.types
    fitting = [kind.name for kind in types if kind.architecture == image.architecture]
    summary = f"{image.id}, {image.architecture}, root volume of {image.root_gib} GiB or more"
    if types and not fitting:
        return bad(
            f"{summary}; the instance types are all {', '.join(sorted({kind.architecture for kind in types}))}",
            "name an image for that architecture, or instance_types of the image's",
        )
    some = f"; fits {len(fitting)} of {len(types)} instance types" if len(fitting) < len(types) else ""
    return good(summary + some)


def _rights(at: CheckedAccount) -> Iterator[Verdict]:
    """Tried with a launch as burstd would make it: the first image, with the cheapest type that it fits."""
    image = next(iter(at.images.values()), None)
    fitting = {kind.name for kind in at.types if image is None or kind.architecture == image.architecture}
    offer = next((o for o in at.offers if o.instance_type in fitting and o.zone in at.subnets), None)
    sample = rights.SampleLaunch(
        image=image.id if image else "",
        instance_type=offer.instance_type if offer else "",
        subnet=at.subnets[offer.zone] if offer else "",
        groups=at.settings.security_groups,
        profile=at.settings.instance_profile,
        spot=any(o.spot for o in at.offers),
        placement_groups=at.settings.placement_groups,
    )
    return rights.IamRights(at.cluster, at.calls, at.settings.tags).check_rights(sample)


_CHECKS: tuple[Check[CheckedAccount], ...] = (
    Check("credentials", _credentials, required="credentials that Amazon knows"),
    Check("image", _no_image),
    Check("image {}", _find_image, each=lambda at: images_in_use(at.settings.image, at.words)),
    Check("subnet {}", network.judge_subnet, "set subnets to some of 'aws ec2 describe-subnets'",
          lambda at: at.settings.subnets),
    Check("subnets", network.judge_vpcs),
    Check("security group {}", network.judge_security_group,
          "set security_groups to some of 'aws ec2 describe-security-groups'", lambda at: at.settings.security_groups),
    Check("ports", network.judge_ports),
    Check("offers", supply.judge_offers, "mend what it names in the provider's table"),
    Check("instance types {}", supply.judge_instance_types, "mend instance_types",
          lambda at: at.settings.instance_types),
    Check("image {}", _architecture, each=lambda at: at.images),
    Check("rights", _rights),
    Check("reservation {}", supply.judge_reservation,
          "set reservations to some of 'aws ec2 describe-capacity-reservations'", lambda at: at.settings.reservations),
    Check("quotas", supply.judge_quotas, "look at the page of Amazon EC2 in the Service Quotas console"),
    Check("queue {}", supply.judge_notices_queue, "set notices_queue to the QueueUrl of 'aws sqs list-queues'",
          lambda at: [at.settings.notices_queue.rpartition("/")[2]] if at.settings.notices_queue else []),
    Check("role of {}.amazonaws.com", supply.judge_service_role, "try again later", supply.services_with_roles),
)  # fmt: skip


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
    return run_checks(_CHECKS, CheckedAccount(settings, calls, catalog, images, quotas, cluster, words), error_verdict)
