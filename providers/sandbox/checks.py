"""Whether launching would work, looked at without making anything: the server, images, what is sold, what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from burstd.domain.errors import AuthFailed, ProviderError
from burstd.domain.plugins.provider import Finding
from providers.checks import Check, Verdict, bad, first_few, good, image_key, images_in_use, run_checks, unclear
from providers.sandbox.client import CloudApi
from providers.sandbox.cloud import wire
from providers.sandbox.errors import query

_RESTART = "systemctl restart burstd-sandbox"


@dataclass
class CheckedSandbox:
    """The sandbox that is checked. ``image``: of the provider's settings; ``words``: the images that pools name."""

    api: CloudApi
    url: str
    image: str
    words: Sequence[str]
    supplies: wire.SuppliesView = field(init=False)


def _judge_server(at: CheckedSandbox) -> Verdict:
    try:
        at.supplies = query(at.api.supplies)
    except AuthFailed as error:
        return bad(
            str(error), "set token_file to a file with the sandbox's token, which burstd's user can read", fatal=True
        )
    except ProviderError as error:
        return bad(
            str(error), f"{_RESTART}, or correct url; 'journalctl -u burstd-sandbox' says what is wrong", fatal=True
        )
    return good(f"{at.url} answers")


def _judge_image(at: CheckedSandbox, word: str) -> Verdict:
    fault = at.supplies.images.get(word)
    if fault is None:
        there = (
            f"the sandbox has {first_few(list(at.supplies.images))}" if at.supplies.images else "the sandbox has none"
        )
        return bad("there is no such image", f"mend {image_key(at.image, word)}; {there}")
    if fault:
        return bad(f"it cannot be used: {fault}", f"{_RESTART}, which builds root file systems that are missing")
    return good("is there")


def _judge_offers(at: CheckedSandbox) -> Verdict:
    sold = sorted({offer.type for offer in query(at.api.offers)})
    if sold:
        return good(f"{first_few(sold)} are sold")
    return bad("nothing is sold", f"add [cloud.capacity] to the sandbox's own settings, and {_RESTART}")


def _judge_quota(at: CheckedSandbox) -> Verdict:
    quota = query(at.api.quota)
    text = f"{quota.used} of {quota.limit} instances"
    if not quota.limit:
        return bad(text, f"raise quota in [cloud] of the sandbox's own settings, and {_RESTART}")
    return good(text) if quota.used < quota.limit else unclear(f"{text}: all are taken now", "end some, or raise quota")


def _judge_addresses(at: CheckedSandbox) -> Verdict:
    if free := at.supplies.free_addresses:
        return good(f"{free} are free")
    return bad(
        "none is free", f"end instances, or widen addresses in [cloud] of the sandbox's own settings, and {_RESTART}"
    )


_CHECKS: tuple[Check[CheckedSandbox], ...] = (
    Check("server", _judge_server, required="the sandbox's server"),
    Check("image {}", _judge_image, each=lambda at: images_in_use(at.image, at.words)),
    Check("types", _judge_offers),
    Check("instances", _judge_quota),
    Check("addresses", _judge_addresses),
)


def check(at: CheckedSandbox) -> Iterator[Finding]:
    """Yields every finding."""
    return run_checks(_CHECKS, at, lambda error, _remedy: unclear(str(error), "journalctl -u burstd-sandbox"))
