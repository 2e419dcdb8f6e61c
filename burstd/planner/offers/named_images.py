"""The images that the settings name for a provider's machines."""

from __future__ import annotations

from collections.abc import Iterable

from burstd.domain.cloud.offer import Pool


def explicit_images(provider: str, pools: Iterable[Pool]) -> tuple[str, ...]:
    """Those in the rules of these pools for this provider, each once; rules that leave it to the provider name none."""
    return tuple(image for image in rule_images(provider, pools) if image)


def rule_images(provider: str, pools: Iterable[Pool]) -> tuple[str, ...]:
    """The same, with the empty word where a rule leaves the image to the provider."""
    return tuple(dict.fromkeys(rule.image for pool in pools for rule in pool.rules if rule.provider == provider))
